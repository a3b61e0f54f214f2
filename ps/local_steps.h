/*
 * local_steps.h — what a worker computes between two pushes: several local steps with an outer rule
 * (ps/rules/outer/outer.h), otherwise one gradient.
 *
 * Let H = outer.steps. Push number k of a worker uses batches k·H … k·H + H − 1. k counts over all
 * incarnations of the worker. There are two kinds of local steps:
 *   - from the parameters read: x = θ_read, then H steps of key optimizer with a state that starts
 *     at 0. The push is Σ η u, the sum of the steps, and not θ_read − x, which float32 would round.
 *     So one local step equals one update of the server. With outer.rho each gradient is that of
 *     f(x) + ρ/2 ‖x − θ_read‖². The push is a pure function of (model, dataset, seed, worker, k,
 *     θ_read, S).
 *   - elastic: the worker keeps x and v from push to push (outer_easgd.c). The push is a pure
 *     function of x, v and the above.
 *
 * Step j uses schedule_rate at sample S + j·W·batch, where S is the number of samples that training
 * had used up to θ_read. This assumes that the other W − 1 workers advance at the same speed. The
 * rate depends on what was read and not on when, so replay and simulation take the same steps.
 *
 * With key compression a push is the decoded code of the above (ps/push_codes.h), and also a
 * function of the worker's residual. With key pull_precision θ_read is rounded first
 * (worker/compression/pull_code.h).
 *
 * Memory, in vectors of the parameters' size: `local_steps_scratch` during the steps. An elastic
 * worker keeps one vector, or two with optimizer=nesterov.
 */
#ifndef GRADLAG_PS_LOCAL_STEPS_H
#define GRADLAG_PS_LOCAL_STEPS_H

#include "worker/compression/pull_code.h"
#include "ps/push_codes.h"
#include "ps/rules/outer/outer.h"
#include "worker/optimizer/schedule.h"
#include "worker/worker.h"

/* The same for all workers of a run. */
struct local_steps_plan {
    struct outer outer;
    struct pull_code pull; /* of θ_read */
    unsigned workers;
    size_t count; /* parameters */
    const struct optimizer_kind *kind;
    bool momentum_ahead; /* elastic with Nesterov momentum */
    struct optimizer_rule rule;
    double parameters[OPTIMIZER_PARAMETERS]; /* of `kind` */
    struct schedule schedule;
    uint64_t batch; /* samples of one batch */
};
/* Reads outer, its dotted keys, pull_precision, optimizer, momentum, weight_decay, batch,
 * consistency, and the keys that schedule_open reads. Errors: those of outer_open. */
status local_steps_plan_open(struct local_steps_plan *out, const options *o, unsigned workers,
                             size_t count, uint64_t total_samples,
                             uint64_t epoch_samples) MUST_CHECK;
/* True if there is an outer rule; false if a push is one gradient. */
bool local_steps_enabled(const struct local_steps_plan *p);
/* Floats that local_steps_run needs as scratch. */
size_t local_steps_scratch(const struct local_steps_plan *p);

/* The state of one worker. */
struct local_steps {
    const struct local_steps_plan *plan; /* borrowed */
    float *parameters, *velocity; /* [count] x and v of an elastic worker; NULL: not needed */
    bool started;                 /* an elastic worker has initialized them */
    struct push_codes codes;      /* what compresses its pushes */
};
status local_steps_open(struct local_steps *l, const struct local_steps_plan *plan) MUST_CHECK;
void local_steps_close(struct local_steps *l);
/* Opens the codes of key compression for the worker's pushes. compression=none, or not called:
 * pushes are not compressed. Errors: those of push_codes_open. */
status local_steps_compress(struct local_steps *l, const options *o,
                            const struct optimizer_layers *layers,
                            uint64_t epoch_samples) MUST_CHECK;
/* Whether a push of this worker differs from one gradient at the parameters that it read: with an
 * outer rule, compression or pull_precision. */
bool local_steps_needed(const struct local_steps *l);
/* ERROR_USAGE: compression or pull_precision, and an elastic outer rule. */
status local_steps_check(const options *o) MUST_CHECK;
/* Discards x, v and the residual, because a new incarnation of the worker starts. */
void local_steps_reset(struct local_steps *l);

/* The gradient of a batch, with the contract of worker_gradient (worker/worker.h). */
typedef status local_gradient(void *context, const float *parameters, uint64_t batch,
                              float *gradient, struct step_stats *stats);

struct local_steps_push {
    const float *parameters; /* [count] θ_read, not rounded; constant during the call */
    uint64_t samples;        /* that training had used up to θ_read */
    uint64_t number;         /* k */
    float *difference;       /* [count] output: what the worker pushes */
    float *scratch;          /* local_steps_scratch floats; 64-byte alignment is faster */
    struct step_stats stats; /* output: sums over the steps; the loss is their mean */
    bool coded;              /* output: `difference` is the decoded value of l->codes */
};
/* Computes one push. If a step diverges, the difference or the loss is not finite. Errors: those of
 * `gradient`. */
status local_steps_run(struct local_steps *l, local_gradient *gradient, void *context,
                       struct local_steps_push *push) MUST_CHECK;

#endif
