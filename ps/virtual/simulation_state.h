/*
 * simulation_state.h — what the files of the simulation share; nobody else includes it.
 *
 *   simulation.c          events in, actions out; gradients
 *   simulation_servers.c  the servers: their slices, and what is made of all of them
 */
#ifndef GRADLAG_PS_VIRTUAL_SIMULATION_STATE_H
#define GRADLAG_PS_VIRTUAL_SIMULATION_STATE_H

#include "ps/local_steps.h"
#include "ps/server/probe.h"
#include "ps/virtual/simulation.h"
#include "ps/server/run_metrics.h"

/* A worker at one server. */
struct place {
    bool ready; /* released, its push has not come */
    bool lost;
    unsigned slot;
    uint64_t version, sequence; /* sequence: of the next push there */
};

struct simulation_member {
    bool computing; /* released by all servers, its push has not come to all */
    bool computed;  /* the gradient is there */
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
    float *area; /* of the slots: address space, resident where written */
    size_t area_bytes;
};

struct simulation {
    struct simulation_options o;
    size_t count;
    struct host *hosts;
    unsigned servers, slot_count;
    float *whole; /* several servers: their slices together */
    struct simulation_member *members;
    struct place *places;
    float **spare; /* gradient buffers that nobody uses */
    unsigned spare_count, buffers, ahead;
    double now;
    uint64_t opened_ns, next_progress_ns, checkpoint_samples, next_checkpoint;
    bool checkpoints;
    struct local_steps_plan plan;
    struct probe probe;
    struct ps_metrics tally;
    status result; /* of what an action did */
};

status servers_open(simulation *s, uint64_t epoch_samples) MUST_CHECK;
void servers_close(simulation *s);
/* The one that evaluates, and ends training. */
server_core *servers_first(const simulation *s);
/* The latest parameters of every server, as one vector; valid until the next event. */
const float *servers_latest(simulation *s);
/* The optimizers' states, each of its vectors whole. *out is owned by the caller. */
status servers_states(simulation *s, float **out, size_t *count) MUST_CHECK;
/* ERROR_DIVERGED, by this record of that server. */
status servers_diverged(const simulation *s, unsigned server,
                        const struct push_record *culprit) MUST_CHECK;

#endif
