/*
 * unauthenticated_peers.h — connections to a server that have not shown the run's token. ZeroMQ
 * keeps the parts of an unfinished message without a limit, and no option sets one. Under CURVE any
 * peer with a worker's key gets past the handshake. So a connection over tcp that sends more than
 * UNAUTHENTICATED_BYTES before its first message with the token is closed.
 *
 * Linux counts the bytes of each connection (TCP_INFO); ZeroMQ's monitor tells which there are.
 */
#ifndef GRADLAG_PS_NET_UNAUTHENTICATED_PEERS_H
#define GRADLAG_PS_NET_UNAUTHENTICATED_PEERS_H

#include "base/status.h"

/* A worker's first message on a connection may be a part of a gradient, if an earlier connection
 * broke: twice the longest message. */
enum { UNAUTHENTICATED_BYTES = 2 << 20 };

typedef struct newcomers unauthenticated_peers;

/* Watches the connections that `socket` accepts from now on; before it binds. */
status unauthenticated_peers_open(unauthenticated_peers **out, void *context,
                                  void *socket) MUST_CHECK;
/* The connection with this file descriptor has shown the token. */
void unauthenticated_peers_admit(unauthenticated_peers *n, int fd);
/* Closes connections that have sent too much. Call it whenever all messages that have come are
 * read: it looks at most ten times a second. */
void unauthenticated_peers_look(unauthenticated_peers *n);
/* Before `socket` closes; NULL-safe. */
void unauthenticated_peers_close(unauthenticated_peers **n, void *socket);

#endif
