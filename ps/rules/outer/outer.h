/*
 * outer.h — workers that take several local steps between two pushes: what they push, and what the
 * server does with it.
 *
 * With outer=none a worker pushes the gradient of one batch, and the keys optimizer, lr, momentum,
 * weight_decay and schedule describe the server's update. With any other rule they describe the
 * local steps of the worker, outer.steps of them between two pushes (ps/local_steps.h). The worker
 * then pushes a difference d of parameters, in units of the parameters. The rule's own keys
 * describe the server's update:
 *   - sgd               θ ← θ − ε d
 *   - nesterov          m ← β m + d;  θ ← θ − ε (d + β m)
 *   - delayed-nesterov  θ ← θ − ε d / N at each update; momentum at every N-th update
 *   - easgd             θ ← θ + α (x − θ), where x are the worker's parameters, which it keeps
 *   - fedasync          θ ← θ + α s (x − θ), x = θ_read − d, s the damping's scale
 *   - adam              Adam with d as its gradient
 *   - heloco            as nesterov; turns tensors of d that disagree towards the momentum
 *
 * Consistency and damping treat a difference as they treat a gradient. Staleness, norm and gap are
 * those of the difference, damping scales it, and an update may have several. Corrections are
 * refused: they are defined for gradients.
 */
#ifndef GRADLAG_PS_RULES_OUTER_OUTER_H
#define GRADLAG_PS_RULES_OUTER_OUTER_H

#include "ps/rules/correction/correction.h"
#include "worker/optimizer/optimizer.h"

enum { OUTER_PARAMETERS = 9 };

struct outer;
struct outer_rule {
    struct about about; /* its options are numbers; the first is outer.steps */
    /* Sets the fields of `out` except rule and steps, from the option values in their order. All
     * fields are 0 before. NULL: workers take no local steps (outer=none). */
    void (*read)(const double *parameters, unsigned workers, struct outer *out);
    /* Workers keep their own parameters, and one exchange moves worker and server. So no other rule
     * may scale, hold or drop a difference. */
    bool elastic;
    bool by_tensor; /* the update of an element depends on its whole tensor (ps/core/slices.h) */
    /* Turns a difference into a descent direction. NULL: it is one already. */
    const struct correction_rule *as_step;
};
extern const struct registry outer_registry;
/* d ← d + (now − read_at) = now − x, for rules that combine the worker's parameters x with the
 * current parameters. */
extern const struct correction_rule outer_from_now;

struct outer {
    const struct outer_rule *rule;       /* NULL: outer=none; then steps is 1 and the rest 0 */
    unsigned steps;                      /* local steps between two pushes */
    double rate;                         /* of the server's update */
    const struct optimizer_kind *update; /* the server's update; NULL: θ ← θ − rate · difference */
    double parameters[OPTIMIZER_PARAMETERS]; /* of `update` */
    double proximal; /* ρ: local steps minimise f(x) + ρ/2 ‖x − θ_read‖² */
};
/* Reads key outer and its dotted keys. ERROR_USAGE: unknown rule, or a setting that the rule
 * excludes; the message names it. */
status outer_open(struct outer *out, const options *o, unsigned workers) MUST_CHECK;
/* Opens the optimizer of the server's update; errors as optimizer_open(). */
status outer_optimizer(optimizer **out, const struct outer *outer, size_t count) MUST_CHECK;

#endif
