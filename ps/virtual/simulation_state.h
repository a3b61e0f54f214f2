/*
 * simulation_state.h — what the simulation's files share. No other file includes it.
 *
 *   simulation.c          events in, actions out; gradients
 *   simulation_servers.c  the servers: their slices, and vectors put together from all slices
 */
#ifndef GRADLAG_PS_VIRTUAL_SIMULATION_STATE_H
#define GRADLAG_PS_VIRTUAL_SIMULATION_STATE_H

#include "base/shared_memory.h"
#include "ps/local_steps.h"
#include "ps/server/probe.h"
#include "ps/virtual/simulation.h"
#include "ps/server/run_metrics.h"

/* A worker at one server. */
struct place {
    bool ready; /* released; its push has not arrived */
    bool lost;
    unsigned slot;
    uint64_t version, samples; /* of the release */
    uint64_t sequence;         /* of the next push to it */
};

struct simulation_member {
    bool computing; /* released by all servers; its push has not arrived at all of them */
    bool computed;  /* the gradient has been computed */
    uint64_t sequence, batch;
    float *gradient; /* NULL: no buffer */
    struct local_steps local;
    struct place *places;
    struct gradient_job job;
};

/* One server: its core, and the slots of its slice. */
struct host {
    server_core *core;
    size_t begin, count;
    float **slots;
    struct shared_memory area; /* of the slots */
};

struct simulation {
    struct simulation_options o;
    size_t count;
    struct host *hosts;
    unsigned servers, slot_count;
    float *whole; /* [count]: all slices; several servers only */
    struct simulation_member *members;
    struct place *places;
    float **spare; /* [spare_count]: unused gradient buffers */
    unsigned spare_count, buffers, ahead;
    double now;
    double sent_bytes; /* of pushes and parameters on the simulated network, so far */
    uint64_t opened_ns, next_progress_ns, checkpoint_samples, next_checkpoint;
    bool checkpoints;
    struct local_steps_plan plan;
    struct probe probe;
    struct ps_metrics tally;
};

status servers_open(simulation *s, uint64_t epoch_samples) MUST_CHECK;
void servers_close(simulation *s);
/* The core of server 0, which evaluates and ends training. */
server_core *servers_first(const simulation *s);
/* The latest parameters of every server, as one vector; valid until the next event. */
const float *servers_latest(simulation *s);
/* *out ← the optimizers' states, each vector put together from all slices; owned by the caller. */
status servers_states(simulation *s, float **out, size_t *count) MUST_CHECK;
/* Returns ERROR_DIVERGED with the message of diverged_describe() about a record of that server. */
status servers_diverged(const simulation *s, unsigned server,
                        const struct push_record *culprit) MUST_CHECK;

#endif
