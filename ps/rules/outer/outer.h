/*
 * outer.h — workers that take several steps of their own between two pushes: what they send, and
 * what the server makes of it.
 *
 * With outer=none a worker pushes the gradient of one batch, and keys optimizer, lr, momentum,
 * weight_decay and schedule describe the server's update. With any other rule they describe the
 * worker's own steps, outer.steps of them between two pushes (local_steps.h). What it pushes is a
 * difference d of parameters, in units of the parameters, and the rule's own keys say what becomes
 * of it:
 *   - sgd               θ ← θ − ε d
 *   - nesterov          m ← β m + d;  θ ← θ − ε (d + β m)
 *   - delayed-nesterov  θ ← θ − ε d / N at each update, and the momentum's part at every N-th
 *   - easgd             θ ← θ + α (x − θ), x the worker's own parameters, which it goes on with
 *   - fedasync          θ ← θ + α s (x − θ), x = θ_read − d, s the damping's scale
 *
 * Consistency and damping see a difference as they see a gradient: staleness, norm and gap are of
 * the difference, damping scales it, several may be one update. A correction is made of gradients
 * and refused.
 */
#ifndef GRADLAG_PS_RULES_OUTER_OUTER_H
#define GRADLAG_PS_RULES_OUTER_OUTER_H

#include "ps/rules/correction/correction.h"
#include "worker/optimizer/optimizer.h"

enum { OUTER_PARAMETERS = 4 };

struct outer;
struct outer_rule {
    struct about about; /* its options are numbers; the first is outer.steps */
    /* Fills in `out` from the values of its options, in their order, but for rule and steps; all
     * other fields are 0. NULL: workers take no local steps (outer=none). */
    void (*read)(const double *parameters, unsigned workers, struct outer *out);
    /* Workers keep parameters of their own, and one exchange moves both sides at once: no other
     * rule may scale, hold or drop a difference. */
    bool elastic;
    /* Turns a difference into one to descend by. NULL: it is one already. */
    const struct correction_rule *as_step;
};
extern const struct registry outer_registry;
/* d ← d + (now − read_at) = now − x: for rules that weigh the worker's parameters x against those
 * of now. */
extern const struct correction_rule outer_from_now;

struct outer {
    const struct outer_rule *rule; /* NULL: outer=none; steps is 1 and all else 0 */
    unsigned steps;                /* local steps between two pushes */
    double rate, momentum;         /* of the server */
    unsigned momentum_every; /* updates from one of the momentum to the next; 0: no momentum */
    double proximal;         /* ρ: local steps descend f(x) + ρ/2 ‖x − θ_read‖² */
};
/* Reads key outer and its dotted keys. ERROR_USAGE: a setting that the rule does not go with (names
 * it). */
status outer_open(struct outer *out, const options *o, unsigned workers) MUST_CHECK;
/* As optimizer_open(), for the server's update. */
status outer_optimizer(optimizer **out, const struct outer *outer, size_t count) MUST_CHECK;

#endif
