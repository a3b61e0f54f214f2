/*
 * plain_link.h — a vector as one message of ZeroMQ whose sockets keep their default options: what a
 * program gets that does nothing about it. What a channel is measured against (`gradlag bench
 * push-pull`), and of no other use.
 *
 * A REQ calls a REP, and each answers before the other sends again. Every message is memory of its
 * own: the sender allocates it and copies into it, the receiver allocates it anew, and both give it
 * back to the kernel. So it is in any program that has not told glibc to keep large blocks, as this
 * one has (memory_keep_large_blocks); opening a link takes that back, in the whole process.
 *
 * A link belongs to one thread.
 */
#ifndef GRADLAG_PS_PLAIN_LINK_H
#define GRADLAG_PS_PLAIN_LINK_H

#include "worker/base.h"

typedef struct plain_link plain_link;

/* The end that answers. ERROR_OTHER where it cannot listen there. */
status plain_link_bind(plain_link **out, const char *endpoint) MUST_CHECK;
/* The end that calls; its message waits until somebody listens. */
status plain_link_connect(plain_link **out, const char *endpoint) MUST_CHECK;
/* What is sent last leaves for at most two seconds. */
void plain_link_close(plain_link **l);
/* As bound, with the port that the system chose. */
const char *plain_link_endpoint(const plain_link *l);

/* One message; bytes may be NULL if size is 0. ERROR_OTHER: out of turn, or memory is out. */
status plain_link_send(plain_link *l, const void *bytes, size_t size) MUST_CHECK;
/* Waits for one; *bytes are valid until the next call. ERROR_PEER: none came within timeout_ms. */
status plain_link_receive(plain_link *l, unsigned timeout_ms, const void **bytes,
                          size_t *size) MUST_CHECK;

#endif
