/*
 * server.h — the parameter server as a process: ZeroMQ sockets, shared memory and a clock around
 * server_core.
 *
 * Runs until training is complete, a peer is lost for good, or a signal asks it to stop. It owns
 * only what it opens itself. PS mode never calls MPI_Init.
 *
 * With several servers (key servers) each holds a slice of the parameters and talks to all workers.
 * Server 0 leads: it decides which workers take part, when training is evaluated and when it ends,
 * and it writes all rows. With read=snapshot it also orders the pushes that every server has
 * completely. The other servers follow: they send server 0 the rows of their slices, and the slices
 * on request.
 */
#ifndef GRADLAG_PS_SERVER_SERVER_H
#define GRADLAG_PS_SERVER_SERVER_H

#include "results/store/recorder.h"
#include "worker/training.h"

struct ps_server_options {
    const options *settings; /* endpoint, payload, timeout_s, on_lost, consistency, damping, … */
    unsigned workers;        /* training begins with these; the W of the rules */
    unsigned workers_max;    /* workers with numbers from `workers` on may join later
                                (late_workers.h); 0: as `workers` */
    unsigned server;         /* number of this server: 0 … servers − 1 */
    const char *leader;      /* for a follower: the endpoint of server 0 */
    size_t count;            /* parameters, of all servers together */
    struct optimizer_layers layers;     /* worker_layers; borrowed until the end */
    const float *initial;               /* all parameters of version 0, or of `start` */
    const struct training_state *start; /* the checkpoint to resume (resume.h); NULL: none */
    uint64_t epoch_samples;
    struct training_length length;
    bool evaluates_on_cores; /* of this process, not on a device or in another program */
    uint64_t run_token;      /* every peer must show this token */
    uint64_t settings_hash; /* of the keys that decide the outcome; a worker shows the same, or 0 */
    const char *endpoint;   /* ZeroMQ: "ipc://…", "tcp://127.0.0.1:*" */
    /* Called once with the endpoint actually bound (a wildcard port resolved). */
    void (*bound)(void *context, const char *endpoint);
    struct training_hooks hooks; /* a follower uses `stop` alone */
    recorder *recorder;          /* may be NULL (benchmarks); a follower does not use it */
};

/* ERROR_USAGE, ERROR_DATA (see server_core_open), ERROR_PEER (names the missing peer),
 * ERROR_DIVERGED, ERROR_PROTOCOL, ERROR_RESULTS, STOPPED. `out` is filled in also after an
 * error, as far as training got; a follower's figures are of its slice. */
status ps_server_run(const struct ps_server_options *o, struct training_outcome *out) MUST_CHECK;

#endif
