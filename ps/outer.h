/*
 * outer.h — workers that take several steps of their own between two pushes: what they send, and
 * what the server makes of it.
 *
 * With outer=none a worker pushes the gradient of one batch, and keys optimizer, lr, momentum,
 * weight_decay and schedule describe the server's update. With any other rule they describe the
 * worker's own steps, outer.steps of them between two pushes (local.h). What it pushes is a
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
#ifndef GRADLAG_PS_OUTER_H
#define GRADLAG_PS_OUTER_H

#include "ps/correction.h"
#include "worker/optimizer.h"

struct outer_rule {
    /* Its options in this order: outer.steps, the rate, outer.momentum, outer.every; of a rule
     * that is `proximal`: outer.steps, the rate, outer.rho. */
    struct about about;
    /* Workers keep parameters of their own, and the exchange is one of both sides at once: no rule
     * may scale, hold or drop what one side already counts on. */
    bool elastic;
    /* Local steps descend f(x) + ρ/2 ‖x − θ_read‖². */
    bool proximal;
    /* How a difference becomes one to descend by, where it is not so already; may be NULL. */
    const struct correction_rule *as_step;
};
extern const struct registry outer_registry;
/* d ← d + (now − read_at) = now − x: for rules that weigh the worker's parameters x against those
 * of now. */
extern const struct correction_rule outer_from_now;

struct outer {
    const struct outer_rule *rule; /* NULL: outer=none, and the rest is not set, but steps = 1 */
    unsigned steps;
    double rate, momentum, proximal; /* proximal: ρ; 0 unless the rule has it */
    unsigned every;                  /* updates; at least 1 */
};
/* Reads key outer, if it is declared, and its dotted keys. ERROR_USAGE: a setting that it does not
 * go with (names it). */
status outer_open(struct outer *out, const options *o, unsigned workers) MUST_CHECK;
/* As optimizer_open, for the rule. */
status outer_optimizer(optimizer **out, const struct outer *outer, size_t count) MUST_CHECK;

#endif
