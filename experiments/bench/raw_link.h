/*
 * raw_link.h — a TCP connection on loopback without ZeroMQ, the peer of the one-way case of
 * `gradlag bench push-pull`. Training does not use it.
 *
 * write() takes bytes from the sender's vector, read() puts them into the receiver's: no message,
 * no further copy. Each call has a limit of time.
 */
#ifndef GRADLAG_EXPERIMENTS_BENCH_RAW_LINK_H
#define GRADLAG_EXPERIMENTS_BENCH_RAW_LINK_H

#include "base/status.h"

/* A socket, or −1. */
struct raw_link {
    int fd;
    unsigned timeout_s; /* of one wait */
};

/* Listens on a free port of 127.0.0.1, and stores it. */
status raw_link_listen(struct raw_link *l, unsigned timeout_s, unsigned *port) MUST_CHECK;
/* Waits for a connection, which replaces the listening socket. ERROR_PEER: no connection in time.
 */
status raw_link_accept(struct raw_link *l) MUST_CHECK;
status raw_link_connect(struct raw_link *l, unsigned timeout_s, unsigned port) MUST_CHECK;
/* ERROR_PEER: the other end has closed, or took nothing in time. */
status raw_link_send(struct raw_link *l, const void *bytes, size_t size) MUST_CHECK;
/* Receives `size` bytes. *ended: the other end has closed before the first one. ERROR_PEER: it
 * closed later, or no byte arrived in time. */
status raw_link_receive(struct raw_link *l, void *bytes, size_t size, bool *ended) MUST_CHECK;
/* Safe for a link that is not open. */
void raw_link_close(struct raw_link *l);

#endif
