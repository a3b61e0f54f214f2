/*
 * connection.h — a worker's connection with one server: it sends pushes and receives releases.
 * ps/client.h uses one connection, or one for each of several servers.
 *
 * On one host the payload goes through shared memory. The worker writes its gradient into the slot
 * that the server reads, and reads the parameters in the slot that the server published; nothing is
 * copied. Between hosts both are private buffers, sent and filled in frames of 1 MiB. If the slices
 * of several servers form one vector, the caller says where in memory (payload_place).
 *
 * One thread uses a connection.
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
    uint64_t settings_hash; /* of the keys that decide the outcome; must equal the server's */
    unsigned worker;
    unsigned processes; /* of the run, on one host */
    bool follower;      /* the server is not server 0. The worker tolerates a longer silence of it,
                           because server 0 also judges it (liveness.h) */
    size_t count;       /* parameters that this server holds */
    const struct payload_place *place; /* NULL: anywhere */
};

/* The parameters of a release; valid until the next push. */
struct connection_release {
    uint64_t version, samples; /* samples: used by training up to this version */
    uint64_t batch;            /* number of the batch to compute */
    const float *parameters;   /* [count], constant */
    double paused_us; /* the part of the wait in which the training clock stood still (evaluation,
                         probe, checkpoint) */
};

/* Sends a hello. The first release comes later, from connection_advance(). */
status connection_open(connection **out, const struct connection_options *o) MUST_CHECK;
/* Handles the messages that have arrived, until the connection is released or has ended. If none
 * has arrived and `wait` is true, waits a part of a second. Call it in a loop. With several servers
 * call it for each connection in turn. Include released connections: their servers may report the
 * end of training. ERROR_PEER: the server did not answer within timeout_s, evicted this worker, or
 * training is over. ERROR_PROTOCOL: the server refused this worker or sent a malformed message. Any
 * other error: the server ended the run with it. */
status connection_advance(connection *c, bool wait) MUST_CHECK;
bool connection_is_released(const connection *c);
/* Training is over; call connection_close() next. */
bool connection_has_ended(const connection *c);
/* The server ended the run with an error, which it reports itself, too. NULL: false. */
bool connection_ended_with_error(const connection *c);
/* The server had evicted this worker. NULL: false. */
bool connection_was_evicted(const connection *c);
/* Contract: the connection is released. */
struct connection_release connection_release(const connection *c);
/* [count]; the caller may write it from a release to the next push. */
float *connection_gradient(connection *c);
/* The code of a gradient (key compression); borrowed until the next push or the close. */
struct connection_code {
    const void *bytes; /* NULL: the gradient has no code */
    size_t size;
};
/* Sends the gradient in connection_gradient(), and fills in the version that it was computed at. In
 * frames it sends the code instead of the floats, if there is one.
 * Contract: the connection is released. */
void connection_push(connection *c, const struct wire_push *push, struct connection_code code);
/* Leaves before training is over and sends the server the reason. STOPPED: this worker was asked to
 * stop; any other code: it failed. Call connection_close() next. */
void connection_leave(connection *c, status why, const char *text);
/* Sends a goodbye if none was sent, and frees *c. NULL-safe. */
void connection_close(connection **c);

#endif
