/*
 * curve.h — which peers may connect to the parameter server. ZeroMQ authenticates a peer during the
 * handshake, before it takes any message of it. With keys from a folder the mechanism is CURVE
 * (ZeroMQ RFC 26), which also encrypts. Without keys (on this host) it is PLAIN (RFC 24): the
 * password is the run's token. A handler (ZAP, RFC 27) decides which key or token is right.
 *
 * The folder has two files, each readable by its owner alone; lines of `name = 40 characters`
 * (Z85, RFC 32), and of comments, which begin with #:
 *
 *   server.key   public, secret, and one line `worker` for every worker's public key that may come
 *   worker.key   public, secret, and `server`, the server's public key
 *
 * A worker's host needs worker.key alone. Workers may share one, or have one each.
 */
#ifndef GRADLAG_PS_NET_CURVE_H
#define GRADLAG_PS_NET_CURVE_H

#include "base/status.h"

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
/* The same for a socket without keys: the run's token. */
void curve_apply_token(uint64_t run_token, void *socket, bool server);

/* Answers ZeroMQ whenever a peer shows a key, or the token where `keys` is NULL, in a thread of its
 * own. Open before the server's socket binds. It ends when the context does: terminate that, then
 * close. */
typedef struct handshake_guard handshake_guard;
status handshake_guard_open(handshake_guard **out, void *context, const struct curve_keys *keys,
                            uint64_t run_token) MUST_CHECK;
void handshake_guard_close(handshake_guard **g);

#endif
