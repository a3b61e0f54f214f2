/*
 * local_steps.h — the steps that a worker takes by itself between two pushes, where there is an
 * outer rule (outer.h); else one gradient.
 *
 * Push number k of a worker (0, 1, … over all its incarnations) is made of batches k·H … k·H + H −
 * 1, H = outer.steps. Two kinds:
 *   - from what it was given: x = θ_read, then H steps of key optimizer whose velocity starts at 0.
 *     What is pushed is Σ η u, the sum of the steps, not θ_read − x as float32 would round it: so
 *     one step is what the server's own update would have been. With outer.rho each gradient is
 *     that of f(x) + ρ/2 ‖x − θ_read‖². A pure function of (model, dataset,
 *     seed, worker, k, θ_read, version).
 *   - elastic: x, and v, stay with the worker from push to push; see outer_easgd.c. A pure function
 *     of these and the above.
 *
 * The rate of step j from version n is schedule_rate at sample S + j·W·batch, where S = n ·
 * (samples in an update): as if the W workers had gone on alike meanwhile. It depends on what was
 * read, not on when, so a replay and a simulation take the same steps.
 *
 * Memory, in vectors of the parameters' size: `local_steps_scratch` of them beside the pushed one
 * while steps are under way; elastic: one that stays with the worker, or two with
 * optimizer=nesterov.
 */
#ifndef GRADLAG_PS_LOCAL_STEPS_H
#define GRADLAG_PS_LOCAL_STEPS_H

#include "ps/rules/outer/outer.h"
#include "worker/optimizer/schedule.h"
#include "worker/worker.h"

/* Alike for all workers of a run. */
struct local_steps_plan {
    struct outer outer;
    unsigned workers;
    size_t count;
    const struct optimizer_kind *kind;
    bool momentum_ahead; /* elastic: by Nesterov's momentum */
    struct optimizer_rule rule;
    struct schedule schedule;
    uint64_t batch, update; /* samples of a batch, and in an update */
};
/* Reads outer, its dotted keys, optimizer, momentum, weight_decay, batch, consistency and what
 * schedule_open reads. */
status local_steps_plan_open(struct local_steps_plan *out, const options *o, unsigned workers,
                             size_t count, uint64_t total_samples,
                             uint64_t epoch_samples) MUST_CHECK;
/* Whether a push is more than one gradient as it is. */
bool local_steps_plan_steps(const struct local_steps_plan *p);
/* Floats that local_steps_run wants as scratch. */
size_t local_steps_scratch(const struct local_steps_plan *p);

/* One worker's own. */
struct local_steps {
    const struct local_steps_plan *plan; /* borrowed */
    float *own, *velocity;               /* NULL: what nobody keeps */
    bool begun;
};
status local_steps_open(struct local_steps *l, const struct local_steps_plan *plan) MUST_CHECK;
void local_steps_close(struct local_steps *l);
/* The worker is a new one: what it had is forgotten. */
void local_steps_begin(struct local_steps *l);

/* The gradient of a batch: worker_gradient, or as worker.h promises of it. */
typedef status local_gradient(void *context, const float *parameters, uint64_t batch,
                              float *gradient, struct step_stats *stats);

struct local_steps_push {
    const float *parameters; /* that were read, constant meanwhile; of version: */
    uint64_t version, number;
    float *difference; /* what is pushed: filled in */
    float *scratch;    /* local_steps_scratch floats; 64-byte alignment is wanted, not required */
    struct step_stats stats; /* filled in: sums over the steps; loss: their mean */
};
/* A step that goes astray makes a difference, or a loss, that is not finite. */
status local_steps_run(struct local_steps *l, local_gradient *gradient, void *context,
                       struct local_steps_push *push) MUST_CHECK;

#endif
