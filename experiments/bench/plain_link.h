/*
 * plain_link.h — the baseline of `gradlag bench push-pull`: a vector as one ZeroMQ message between
 * sockets with default options. Training does not use it.
 *
 * A REQ socket calls a REP socket; each answers before the other sends again. The sender allocates
 * each message and copies into it; the receiver allocates it again; both return the memory to the
 * kernel. Any program does so unless it tells glibc to keep large blocks. This program does
 * (memory_keep_large_blocks()), and opening a link reverts that setting for the whole process.
 *
 * A link belongs to one thread.
 */
#ifndef GRADLAG_EXPERIMENTS_BENCH_PLAIN_LINK_H
#define GRADLAG_EXPERIMENTS_BENCH_PLAIN_LINK_H

#include "base/status.h"

typedef struct plain_link plain_link;

/* The end that answers. ERROR_OTHER: it cannot listen on `endpoint`. */
status plain_link_bind(plain_link **out, const char *endpoint) MUST_CHECK;
/* The end that calls; its message waits until the other end listens. */
status plain_link_connect(plain_link **out, const char *endpoint) MUST_CHECK;
/* Waits at most two seconds until the last message has left. NULL-safe. */
void plain_link_close(plain_link **l);
/* The bound endpoint with the port that the system chose; owned by the link. */
const char *plain_link_endpoint(const plain_link *l);

/* One message; bytes may be NULL if size is 0. ERROR_OTHER: the last message has no answer yet, or
 * out of memory. */
status plain_link_send(plain_link *l, const void *bytes, size_t size) MUST_CHECK;
/* Waits for a message; *bytes is valid until the next call. ERROR_PEER: none within timeout_ms. */
status plain_link_receive(plain_link *l, unsigned timeout_ms, const void **bytes,
                          size_t *size) MUST_CHECK;

#endif
