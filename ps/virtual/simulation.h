/*
 * simulation.h — server_core with true gradients in one process: what the virtual cluster and
 * replay share. Both decide when a worker's gradient arrives; this computes it, hands it to the
 * core and carries out what the core answers.
 *
 * With several servers (key servers) each has a core of its own for its slice of the parameters,
 * and a gradient arrives at each by itself. A worker computes once all have released it, on what
 * each released it with. Server 0 says when training is evaluated and when it is over; evaluations
 * and checkpoints see what is the latest at each server then.
 *
 * A worker's gradient is determined when it is released: its slot holds the parameters until its
 * push, its batch is the number of gradients it has handed in. So it may be computed at any time in
 * between, by any thread of the pool, and simulation_prepare() has it computed ahead.
 *
 * Memory: version slots are address space until they are written. The core writes into the lowest
 * free one, so what is resident is one vector for each version that is in use, whatever the number
 * of workers that read it, and two more. Gradients have a buffer from when they are computed until
 * their worker is released again: those held by the core and, at most, 2 × threads + 1 others. With
 * several servers a buffer holds the parameters, too: they are copied together there. With
 * an outer rule it holds the scratch of local steps, up to three vectors, and elastic workers keep
 * one or two each (local_steps.h).
 *
 * One thread calls all of these.
 */
#ifndef GRADLAG_PS_VIRTUAL_SIMULATION_H
#define GRADLAG_PS_VIRTUAL_SIMULATION_H

#include "ps/core/server_core.h"
#include "results/store/recorder.h"
#include "worker/gradient_pool.h"
#include "worker/training.h"

typedef struct simulation simulation;

struct simulation_options {
    const options *settings;
    gradient_pool *pool; /* borrowed; opened for as many workers */
    unsigned workers;
    struct training_length length;
    struct training_hooks hooks;
    recorder *recorder;                 /* may be NULL */
    bool evaluates;                     /* false: evaluations are passed over */
    const struct training_state *start; /* to go on from (see resume.h); NULL: anew */

    void *context; /* of the two below, called from within the events */
    /* A server released worker `w`; `everywhere`: the last one that had to, and `w` may compute. */
    void (*released)(void *context, unsigned server, unsigned w, bool everywhere);
    /* A push's record is about to be written: the caller fills in its queue_us and apply_us. */
    void (*record)(void *context, struct push_record *row);
};

status simulation_open(simulation **out, const struct simulation_options *o) MUST_CHECK;
void simulation_close(simulation **s);

/* What a gradient's record says of its worker's time. */
struct simulation_times {
    double pull_us, compute_us, queue_us, at_seconds;
    double data_us, forward_us, backward_us; /* of compute_us; may be NOT_MEASURED */
};

/* Events at one server. ERROR_DIVERGED, STOPPED, or what an evaluation or a gradient failed with.
 * `now`: training time in seconds. */
status simulation_hello(simulation *s, unsigned server, unsigned w, double now) MUST_CHECK;
status simulation_lost(simulation *s, unsigned server, unsigned w, double now) MUST_CHECK;
/* The run ends here, for a reason the core does not know. */
status simulation_end(simulation *s, unsigned server) MUST_CHECK;
/* Computes the worker's gradient, unless that was done before, and hands this server's part of it
 * in. simulation_may_push() must hold. */
status simulation_push(simulation *s, unsigned server, unsigned w,
                       const struct simulation_times *times) MUST_CHECK;

/* Has the gradient of a released worker computed by another thread, if one is free to; false where
 * that many are already. In order of need. */
bool simulation_prepare(simulation *s, unsigned w);
unsigned simulation_threads(const simulation *s);

unsigned simulation_servers(const simulation *s);
/* Released by all servers, and its gradient is not at this one yet. */
bool simulation_may_push(const simulation *s, unsigned server, unsigned w);
/* Whether its gradient `sequence` of this life was computed, or can be now: all have released it.
 */
bool simulation_can_compute(const simulation *s, unsigned w, uint64_t sequence);
/* Number of the batch that a worker computes (or will next). Where workers take steps of their own
 * (local_steps.h): number of that round of simulation_steps() batches. */
uint64_t simulation_batch(const simulation *s, unsigned w);
unsigned simulation_steps(const simulation *s);
/* Pushes handed in to that server so far. */
uint64_t simulation_arrivals(const simulation *s, unsigned server);
bool simulation_ended(const simulation *s);
/* Of server 0. */
uint64_t simulation_version(const simulation *s);
/* Of one server's slice. */
size_t simulation_parameter_bytes(const simulation *s, unsigned server);
/* Gradient buffers made so far. */
unsigned simulation_buffers(const simulation *s);

/* The last evaluation, where the core asked for none because its gradients ran out; a checkpoint,
 * if one is wanted; what came of it all. */
status simulation_evaluate_now(simulation *s, double now) MUST_CHECK;
status simulation_checkpoint(simulation *s, bool goes_on) MUST_CHECK;
void simulation_outcome(simulation *s, double seconds, struct training_outcome *out);

#endif
