/*
 * simulation.h — the server core with true gradients in one process; the virtual cluster and replay
 * share it. The caller decides when a worker's gradient arrives. The simulation computes the
 * gradient, passes it to the core and carries out the core's actions.
 *
 * With several servers (key servers) each has its own core for its slice of the parameters, and a
 * gradient arrives at each separately. A worker computes after all servers have released it, at the
 * parameters of these releases. Server 0 decides when training is evaluated and when it is over.
 * Evaluations and checkpoints use the latest parameters of each server.
 *
 * A release determines the worker's next gradient: its slot holds the parameters until the worker's
 * push, and its batch is the number of gradients that the worker has pushed. So any thread of the
 * pool may compute it at any time until the push; simulation_prepare() starts that early.
 *
 * Memory: version slots are address space until they are written. The core writes into the lowest
 * free slot, so the resident memory is one vector for each version in use, whatever the number of
 * workers that read it, and two more. A gradient has a buffer from its computation until its worker
 * is released again. So there are buffers for the gradients that the core holds, and for at most
 * 2 × threads + 1 others. With several servers a buffer also holds a copy of all slices. With an
 * outer rule it also holds the scratch memory of local steps, up to five vectors; elastic workers
 * keep one or two vectors each (local_steps.h). With compression each worker keeps a residual and a
 * code (push_codes.h).
 *
 * One thread calls all functions.
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
    gradient_pool *pool;  /* borrowed; opened for as many workers */
    unsigned workers;     /* key workers */
    unsigned workers_max; /* worker numbers are 0 … workers_max − 1; 0: as `workers` */
    struct training_length length;
    struct training_hooks hooks;
    recorder *recorder;                 /* may be NULL */
    bool evaluates;                     /* false: evaluations are skipped */
    const struct training_state *start; /* checkpoint to resume (see resume.h); NULL: none */

    /* Callbacks; the event functions below call them. */
    void *context;
    /* A server released worker `w`. `everywhere`: all servers have; `w` may compute. */
    void (*released)(void *context, unsigned server, unsigned w, bool everywhere);
    /* Before a push's record is written: fills in queue_us and apply_us. */
    void (*record)(void *context, struct push_record *row);
};

status simulation_open(simulation **out, const struct simulation_options *o) MUST_CHECK;
void simulation_close(simulation **s);

/* The times in a gradient's record. */
struct simulation_times {
    double pull_us, compute_us, queue_us, at_seconds;
    double data_us, forward_us, backward_us; /* parts of compute_us; may be NOT_MEASURED */
};

/* Events at one server. `now`: training time in seconds. ERROR_DIVERGED, or the error of an
 * evaluation or a gradient. */
status simulation_hello(simulation *s, unsigned server, unsigned w, double now) MUST_CHECK;
status simulation_lost(simulation *s, unsigned server, unsigned w, double now) MUST_CHECK;
/* Ends the run at this server for a reason outside the core. */
status simulation_end(simulation *s, unsigned server) MUST_CHECK;
/* Computes the worker's gradient, unless it is computed already, and passes this server's part to
 * the core. Contract: simulation_may_push(). */
status simulation_push(simulation *s, unsigned server, unsigned w,
                       const struct simulation_times *times) MUST_CHECK;
/* Shows the progress, writes a periodic checkpoint if one is due, and obeys a request to stop. Call
 * it when all servers have had the same events, because a checkpoint holds one version. With
 * read=torn the servers never have the same events: call it after any event. STOPPED, or the error
 * of the checkpoint hook. */
status simulation_after_event(simulation *s) MUST_CHECK;

/* Lets another thread compute the gradient of worker `w`, if `w` is released. False: no more
 * gradients may be computed ahead. Call it for the workers in the order of their next pushes. */
bool simulation_prepare(simulation *s, unsigned w);
unsigned simulation_threads(const simulation *s);

unsigned simulation_servers(const simulation *s);
/* All servers have released the worker, and its gradient has not arrived at this server. */
bool simulation_may_push(const simulation *s, unsigned server, unsigned w);
/* Whether gradient `sequence` of the worker since it joined was computed, or can be computed now
 * because all servers have released the worker. */
bool simulation_can_compute(const simulation *s, unsigned w, uint64_t sequence);
/* Number of the batch that a worker computes, or computes next. With local steps (local_steps.h):
 * number of the round of simulation_steps() batches. */
uint64_t simulation_batch(const simulation *s, unsigned w);
unsigned simulation_steps(const simulation *s);
/* Number of pushes that have arrived at that server. */
uint64_t simulation_arrivals(const simulation *s, unsigned server);
bool simulation_ended(const simulation *s);
/* The version at server 0. */
uint64_t simulation_version(const simulation *s);
/* Bytes of a pull from one server: of its slice, as codes or as floats. */
size_t simulation_pull_bytes(const simulation *s, unsigned server);
/* Bytes of the worker's push to one server: of its code, or of its floats. Contract: all servers
 * have released it. */
size_t simulation_push_bytes(const simulation *s, unsigned server, unsigned w);
/* Number of gradient buffers allocated so far. */
unsigned simulation_buffers(const simulation *s);

/* Evaluates although the core did not ask for it, because the recorded gradients ended. */
status simulation_evaluate_now(simulation *s, double now) MUST_CHECK;
/* Writes a checkpoint if the settings request checkpoints. `goes_on`: training continues. */
status simulation_checkpoint(simulation *s, bool goes_on) MUST_CHECK;
/* Ends the run at all servers and fills in its outcome. `seconds`: training time. */
void simulation_outcome(simulation *s, double seconds, struct training_outcome *out);

#endif
