/*
 * server.h — the parameter server as a process: ZeroMQ sockets, shared memory and a clock around
 * server_core.
 *
 * Runs until training is over, a peer is lost for good, or it is told to stop. Owns nothing but
 * what it opens itself. PS mode never calls MPI_Init.
 *
 * Of several servers (key servers) each holds a slice of the parameters and talks to all workers.
 * Server 0 leads: workers come and go, training is evaluated, ends and is written down where it
 * says so. With read=snapshot it also orders pushes, once every server has them whole. The others
 * follow: they send it the rows of their slices, and the slices where it asks for them.
 */
#ifndef GRADLAG_PS_SERVER_H
#define GRADLAG_PS_SERVER_H

#include "results/recorder.h"
#include "worker/training.h"

struct ps_server_options {
    const options *settings; /* endpoint, payload, timeout_s, on_lost, consistency, damping, … */
    unsigned workers;
    unsigned server;                    /* its number, of those that key servers counts */
    const char *leader;                 /* a follower's: where server 0 listens */
    size_t count;                       /* parameters, of all servers together */
    struct optimizer_layers layers;     /* worker_layers */
    const float *initial;               /* version 0, or that of `start`, whole */
    const struct training_state *start; /* to go on from (see resume.h); NULL: anew */
    uint64_t epoch_samples;
    struct training_length length;
    uint64_t run_token;     /* peers must show it */
    uint64_t settings_hash; /* of what decides the outcome; a worker's is equal, or 0: not known */
    const char *endpoint;   /* ZeroMQ: "ipc://…", "tcp://127.0.0.1:*" */
    /* Called once with the endpoint actually bound (a wildcard port resolved). */
    void (*bound)(void *context, const char *endpoint);
    struct training_hooks hooks; /* a follower's: `stop` alone is used */
    recorder *recorder;          /* may be NULL (benchmarks); a follower's is not used */
};

/* ERROR_USAGE, ERROR_DATA (see server_core_open), ERROR_PEER (who is missing, since when),
 * ERROR_DIVERGED, ERROR_PROTOCOL, ERROR_RESULTS, STOPPED. `out` is filled in as far as training
 * got, also with an error; a follower's figures are of its slice. */
status ps_server_run(const struct ps_server_options *o, struct training_outcome *out) MUST_CHECK;

#endif
