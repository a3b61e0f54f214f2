/*
 * newcomers.h — connections to a server that have not shown the run's token. ZeroMQ keeps the parts
 * of an unfinished message without a limit, and no option sets one. Under CURVE any peer with a
 * worker's key gets past the handshake. So a connection over tcp that sends more than
 * NEWCOMER_BYTES before its first message with the token is closed.
 *
 * Linux counts the bytes of each connection (TCP_INFO); ZeroMQ's monitor tells which there are.
 */
#ifndef GRADLAG_PS_NEWCOMERS_H
#define GRADLAG_PS_NEWCOMERS_H

#include "worker/base.h"

/* A worker's first message on a connection may be a part of a gradient, if an earlier connection
 * broke: twice the longest message. */
enum { NEWCOMER_BYTES = 2 << 20 };

typedef struct newcomers newcomers;

/* Watches the connections that `socket` accepts from now on; before it binds. */
status newcomers_open(newcomers **out, void *context, void *socket) MUST_CHECK;
/* The connection with this file descriptor has shown the token. */
void newcomers_admit(newcomers *n, int fd);
/* Closes connections that have sent too much. Call it whenever all messages that have come are
 * read: it looks at most ten times a second. */
void newcomers_look(newcomers *n);
/* Before `socket` closes; NULL-safe. */
void newcomers_close(newcomers **n, void *socket);

#endif
