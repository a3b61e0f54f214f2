/*
 * connection.h — a worker's connection with one server: a push goes, a release comes. client.h is
 * made of one, or of several, one for each server.
 *
 * On one host the payload goes through shared memory: the gradient is written into the slot that
 * the server reads, the parameters are read in the version that the server published; nothing is
 * copied. Between hosts both are private buffers, sent and filled in 1 MiB frames. Where several
 * servers' slices shall make up one vector, the caller says where (payload_place).
 */
#ifndef GRADLAG_PS_NET_CONNECTION_H
#define GRADLAG_PS_NET_CONNECTION_H

#include "ps/net/payload.h"
#include "base/options.h"

typedef struct connection connection;

struct connection_options {
    const options *settings; /* payload, timeout_s, curve; borrowed */
    const char *endpoint;
    uint64_t run_token;
    uint64_t settings_hash; /* of what decides the outcome: must be the server's */
    unsigned worker;
    unsigned processes; /* of the run, on one host */
    bool follower;      /* not server 0, which judges the silence of the others: see liveness.h */
    size_t count;       /* parameters that this server holds */
    const struct payload_place *place; /* NULL: anywhere */
};

/* What a release gives; valid until the next push. */
struct connection_release {
    uint64_t version;
    uint64_t batch;          /* number of the batch to compute */
    const float *parameters; /* count floats, constant */
    double paused_us;        /* of the wait for it: evaluation */
};

/* Says hello; the first release comes later. */
status connection_open(connection **out, const struct connection_options *o) MUST_CHECK;
/* Handles what has come; where nothing has, waits for it, but not for long. Until a release, whole,
 * or the end: with several to go on with, call it for each by turns, also for those that have
 * released: they may say that training is over. ERROR_PEER: nobody answered
 * within timeout_s; ERROR_PROTOCOL: refused (the message says why); what the server ended the run
 * with. */
status connection_advance(connection *c, bool wait) MUST_CHECK;
bool connection_is_released(const connection *c);
bool connection_has_ended(const connection *c); /* training is over: close */
/* It has, with an error that the server itself says, too. */
bool connection_was_ended(const connection *c);
/* The server had given it up as lost. */
bool connection_was_given_up(const connection *c);
/* Contract: it is released. */
struct connection_release connection_release(const connection *c);
/* `count` floats, the caller's to write from a release to the next push; once it was released. */
float *connection_gradient(connection *c);
/* Sends what was written there; fills in the version that was read. Contract: it is released. */
void connection_push(connection *c, const struct wire_push *push);
/* Leaves before training is over: tells the server why (STOPPED: it was asked to; anything else: it
 * failed). Close follows. */
void connection_leave(connection *c, status why, const char *text);
/* Says goodbye; NULL-safe. */
void connection_close(connection **c);

#endif
