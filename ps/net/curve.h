/*
 * curve.h — which peers may connect to the parameter server. ZeroMQ authenticates a peer during the
 * handshake, before it takes any message of it. With keys from a folder the mechanism is CURVE
 * (ZeroMQ RFC 26), which also encrypts. Without keys (on this host only) it is PLAIN (RFC 24) with
 * the run's token as the password. A ZAP handler (RFC 27) decides whether a key or token is right.
 *
 * The folder has two files, each readable by its owner alone. A line is `name = 40 characters`
 * (Z85, RFC 32) or a comment, which begins with #:
 *
 *   server.key   public, secret, and one line `worker` with the public key of each allowed worker
 *   worker.key   public, secret, and `server`, the server's public key
 *
 * A worker's host needs worker.key alone. Workers may share one file, or have one each.
 */
#ifndef GRADLAG_PS_NET_CURVE_H
#define GRADLAG_PS_NET_CURVE_H

#include "base/text.h"

enum { CURVE_TEXT_BYTES = 41, CURVE_KEY_BYTES = 32 };
typedef char curve_key[CURVE_TEXT_BYTES];

struct curve_keys {
    curve_key public, secret;
    curve_key server;   /* worker only */
    curve_key *workers; /* server only: [worker_count], the allowed public keys */
    size_t worker_count;
};

/* The environment variable with a worker's keys, as the lines of worker.key. A process that has the
 * variable reads no worker.key. */
#define CURVE_WORKER_VARIABLE "GRADLAG_WORKER_KEY"

/* Generates keys and writes both files into `folder`, which is created if it does not exist.
 * ERROR_USAGE: one of the files exists already. After an error no new file is left. */
status curve_make(const char *folder) MUST_CHECK;
/* *out ← the server's or a worker's keys; NULL if `folder` is "". ERROR_USAGE: the file is missing,
 * malformed ("file:line: …"), or readable by others. */
status curve_open(struct curve_keys **out, const char *folder, bool server) MUST_CHECK;
/* Adds "GRADLAG_WORKER_KEY=" and the lines of folder/worker.key, for a worker without that file.
 * The text is a secret. ERROR_USAGE as above. */
status curve_worker_variable(const char *folder, struct text *out) MUST_CHECK;
/* Overwrites the secret and frees. NULL-safe. */
void curve_close(struct curve_keys **keys);

/* Sets a socket's keys, before it binds (`server`) or connects. */
void curve_apply(const struct curve_keys *keys, void *socket, bool server);
/* Sets the run's token on a socket without keys, before it binds (`server`) or connects. */
void curve_apply_token(uint64_t run_token, void *socket, bool server);

/* A thread that answers ZeroMQ's requests to authenticate a peer: by the listed keys, or by the
 * token if `keys` is NULL. Open it before the server's socket binds. It ends when the ZeroMQ
 * context is terminated; close it after that. */
typedef struct zap_handler zap_handler;
status zap_handler_open(zap_handler **out, void *context, const struct curve_keys *keys,
                        uint64_t run_token) MUST_CHECK;
void zap_handler_close(zap_handler **h);

#endif
