/*
 * curve.h — who may talk to the parameter server, and that nobody else listens: CURVE (ZMTP's
 * security mechanism, ZeroMQ RFC 26) with keys from a folder, and the handler that lets in nobody
 * whose key is not listed (ZAP, RFC 27).
 *
 * The folder has two files, each readable by its owner alone; lines of `name = 40 characters`
 * (Z85, RFC 32), and of comments, which begin with #:
 *
 *   server.key   public, secret, and one line `worker` for every worker's public key that may come
 *   worker.key   public, secret, and `server`, the server's public key
 *
 * A worker's host needs worker.key alone. Workers may share one, or have one each.
 */
#ifndef GRADLAG_PS_CURVE_H
#define GRADLAG_PS_CURVE_H

#include "worker/base.h"

enum { CURVE_TEXT_BYTES = 41, CURVE_KEY_BYTES = 32 };
typedef char curve_key[CURVE_TEXT_BYTES];

struct curve_keys {
    curve_key public, secret;
    curve_key server;   /* a worker's */
    curve_key *workers; /* a server's: who may come */
    size_t worker_count;
};

/* Draws keys and writes both files into `folder`, which is made where it is not there. ERROR_USAGE
 * where one of them is there already. */
status curve_make(const char *folder) MUST_CHECK;
/* *out ← the server's keys or a worker's; NULL where folder is "". ERROR_USAGE "file:line: …";
 * also where others may read the file. */
status curve_open(struct curve_keys **out, const char *folder, bool server) MUST_CHECK;
void curve_close(struct curve_keys **keys); /* NULL-safe; the secret is overwritten */

/* Sets a socket's keys, before it binds (`server`) or connects. */
void curve_apply(const struct curve_keys *keys, void *socket, bool server);

/* Answers ZeroMQ whenever a peer shows a key, in a thread of its own. Open before the server's
 * socket binds. It ends when the context does: terminate that, then close. */
typedef struct curve_guard curve_guard;
status curve_guard_open(curve_guard **out, void *context, const struct curve_keys *keys) MUST_CHECK;
void curve_guard_close(curve_guard **g);

#endif
