/*
 * client.h — the worker's side of the parameter server: push a gradient and get the next parameters
 * in one round trip.
 *
 * With one server `gradient` and `parameters` are the connection's memory (ps/net/connection.h); on
 * one host this is shared memory.
 *
 * With several servers (key servers) each server holds one slice. The client maps the slices side
 * by side, so that the caller sees one vector. This needs no copy if slices are whole pages
 * (ps/core/slices.h) and all servers keep the version in the same slot, as with read=snapshot.
 * Otherwise the client copies the slices. It sends all slices before it waits, and returns when
 * every server has released the worker.
 *
 * One thread at a time may use a client.
 */
#ifndef GRADLAG_PS_CLIENT_H
#define GRADLAG_PS_CLIENT_H

#include "base/options.h"
#include "ps/push_codes.h"

#include <signal.h>

typedef struct ps_client ps_client;

/* Why the server ended the connection. The server reports the same error itself. */
enum ps_dismissal {
    PS_NOT_DISMISSED,
    PS_RUN_ENDED, /* the run ended with an error */
    PS_EVICTED,   /* the run may continue without this worker (on_lost=continue) */
};

struct ps_client_options {
    const options *settings; /* payload, timeout_s, curve, workers, servers, read; borrowed */
    const char *endpoint;    /* with several servers: one endpoint per server, comma-separated */
    uint64_t run_token;
    uint64_t settings_hash; /* of the settings that decide the result; must equal the server's */
    unsigned worker;
    size_t count;                      /* parameters */
    struct optimizer_layers layers;    /* worker_layers; for several servers (ps/core/slices.h) */
    const volatile sig_atomic_t *stop; /* non-zero: the next wait returns STOPPED; NULL: never */
    enum ps_dismissal *dismissal;      /* set if ps_client_open() fails; may be NULL */
};

/* The caller may use the two vectors until its next push. The client owns them. */
struct ps_release {
    bool finished;    /* training is complete: there are no parameters; close the client */
    uint64_t version; /* with several servers and read=torn: the version of server 0 */
    uint64_t samples; /* that training has used up to this version */
    uint64_t batch;   /* number of the batch to compute: 0, 1, 2, …; with an outer rule the number
                         of the round of batches (local_steps.h). A worker that replaces a lost one
                         continues at the lost worker's batch */
    const float *parameters; /* [count]; constant until the next push */
    float *gradient;         /* [count]; the caller writes it */
    double waited_us;        /* from push (or hello) to this release, without pauses of training */
};

struct ps_push {
    const struct push_codes *codes; /* of `gradient`; unchanged until the next push. NULL: none */
    double loss, compute_us;
    double data_us, forward_us, backward_us; /* parts of compute_us */
    uint32_t samples;
};

/* Sends hello and waits for the first release. ERROR_PEER: a server did not answer within
 * timeout_s, evicted the worker, or training is over. ERROR_PROTOCOL: a server refused the worker
 * (the message has the server's reason) or sent a malformed message. ERROR_USAGE: the endpoint is
 * invalid. STOPPED: *stop is set. Any other error: the server ended the run with it. */
status ps_client_open(ps_client **out, const struct ps_client_options *o,
                      struct ps_release *first) MUST_CHECK;
/* Sends `gradient` and waits for the next release. Errors as above. */
status ps_client_push_pull(ps_client *c, const struct ps_push *push,
                           struct ps_release *next) MUST_CHECK;
/* The reason that any server gave; PS_RUN_ENDED takes precedence. `c` may be NULL. */
enum ps_dismissal ps_client_dismissal(const ps_client *c);
/* Leaves before training is complete and sends the reason to every server. `why` is STOPPED after a
 * request to stop, otherwise the error's status. Call close afterwards. `c` may be NULL. */
void ps_client_leave(ps_client *c, status why, const char *text);
/* Says goodbye and frees the client. `c` and *c may be NULL. */
void ps_client_close(ps_client **c);

#endif
