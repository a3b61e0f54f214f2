/*
 * client.h — a worker's side of the parameter server: push a gradient and get the next parameters
 * in one round trip.
 *
 * `gradient` and `parameters` are the connection's own (connection.h): shared memory on one host.
 * Several servers (key servers) each hold a slice, and these lie side by side in the worker's
 * memory: nothing is copied where slices are whole pages (slices.h) and, for the parameters, all
 * servers have the version in the same slot, as with read=snapshot they do. Where they do not, or
 * models are small, slices are copied. All slices leave before an answer is waited for, and the
 * worker goes on once every server has released it. The caller sees no difference.
 */
#ifndef GRADLAG_PS_CLIENT_H
#define GRADLAG_PS_CLIENT_H

#include "base/options.h"

#include <signal.h>

typedef struct ps_client ps_client;

struct ps_client_options {
    const options *settings; /* payload, timeout_s, curve, workers, servers, read; borrowed */
    const char *endpoint;    /* of several servers: each one's, separated by commas */
    uint64_t run_token;
    uint64_t settings_hash; /* of what decides the outcome: must be the server's */
    unsigned worker;
    size_t count;
    const volatile sig_atomic_t *stop; /* non-zero: STOPPED from the next wait on; NULL: never */
};

/* What the caller may read and write until the next push. Owned by the client. */
struct ps_release {
    bool finished;    /* training is over: no parameters, close */
    uint64_t version; /* of several servers with read=torn: server 0's */
    uint64_t batch; /* number of the batch (with an outer rule: the round of them, local_steps.h) to
                       compute: 0, 1, 2, …; a worker that takes a lost one's place goes on where
                       that one was */
    const float *parameters; /* count floats, constant until the next push */
    float *gradient;         /* count floats, the caller's to write */
    double waited_us;        /* from the push (or hello) to this release, evaluation excluded */
};

struct ps_push {
    double loss, compute_us;
    double data_us, forward_us, backward_us; /* of compute_us */
    uint32_t samples;
};

/* Says hello and waits for the first release. ERROR_PEER: nobody answered within timeout_s;
 * ERROR_PROTOCOL: refused (the message says why). */
status ps_client_open(ps_client **out, const struct ps_client_options *o,
                      struct ps_release *first) MUST_CHECK;
/* Sends what was written to `gradient` and waits for the next release. */
status ps_client_push_pull(ps_client *c, const struct ps_push *push,
                           struct ps_release *next) MUST_CHECK;
/* Why a worker cannot go on, where its server says so itself, too. */
enum ps_dismissal {
    PS_NOT_DISMISSED,
    PS_RUN_ENDED, /* with an error */
    PS_GIVEN_UP,  /* as lost: the run may go on without it (on_lost=continue) */
};
/* By whichever server; NULL-safe. */
enum ps_dismissal ps_client_dismissal(const ps_client *c);
/* Leaves before training is over: tells the server why (STOPPED: it was asked to; anything else: it
 * failed). Close follows. */
void ps_client_leave(ps_client *c, status why, const char *text);
/* Says goodbye; NULL-safe. */
void ps_client_close(ps_client **c);

#endif
