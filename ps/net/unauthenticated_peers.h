/*
 * unauthenticated_peers.h — limits what a TCP connection may send before its first message with the
 * run's token. ZeroMQ keeps the parts of an unfinished message without a limit, and no option sets
 * one. Under CURVE any peer with a worker's key passes the handshake. So the server closes a
 * connection that sends more than UNAUTHENTICATED_BYTES before its first message with the token.
 *
 * Linux counts the bytes of each connection (TCP_INFO). ZeroMQ's socket monitor reports which
 * connections exist. The thread that owns the socket calls all functions.
 */
#ifndef GRADLAG_PS_NET_UNAUTHENTICATED_PEERS_H
#define GRADLAG_PS_NET_UNAUTHENTICATED_PEERS_H

#include "base/status.h"

/* Twice the longest message: after a broken connection, a worker's first message on the new
 * connection may be a part of a gradient. */
enum { UNAUTHENTICATED_BYTES = 2 << 20 };

typedef struct unauthenticated_peers unauthenticated_peers;

/* Watches the connections that `socket` accepts from now on. Call it before the socket binds. */
status unauthenticated_peers_open(unauthenticated_peers **out, void *context,
                                  void *socket) MUST_CHECK;
/* The connection with this file descriptor has shown the token: removes its limit. */
void unauthenticated_peers_admit(unauthenticated_peers *p, int fd);
/* Closes connections that have sent too much. Call it when no message is left unread. It checks at
 * most ten times a second. */
void unauthenticated_peers_check(unauthenticated_peers *p);
/* Call it before `socket` closes; NULL-safe. */
void unauthenticated_peers_close(unauthenticated_peers **p, void *socket);

#endif
