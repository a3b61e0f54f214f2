/*
 * optimizer_delayed_nesterov.c — Nesterov momentum at every N-th update, plain gradient descent at
 * the others. With g = scale · gradient / N and initially v = 0:
 *
 *   v ← μ v + g at the first of N updates, v ← v + g at the others;
 *   θ ← θ − η (g + μ v) at the last of N updates, θ ← θ − η g at the others
 *
 * v therefore holds the momentum plus the sum of N gradients. A rejected update does not count. The
 * paper is named in ps/rules/outer/outer_delayed_nesterov.c.
 */
#define OPTIMIZER_STATES 1
#define OPTIMIZER_STEP                                                                             \
    g = k[0] * g;                                                                                  \
    v = k[1] * v + g;                                                                              \
    out = in - lr * (g + k[2] * v)
#include "worker/optimizer/optimizer_loop.h"

/* Parameters: μ and N. */
static void constants(const struct optimizer_moment *now, float own[OPTIMIZER_CONSTANTS])
{
    const double momentum = now->parameters[0];
    const uint64_t every = (uint64_t)now->parameters[1];
    own[0] = (float)(1 / now->parameters[1]);
    own[1] = (now->number - 1) % every == 0 ? (float)momentum : 1;
    own[2] = now->number % every == 0 ? (float)momentum : 0;
}

const struct optimizer_kind optimizer_delayed_nesterov = {
    .about = {"delayed-nesterov", "Nesterov momentum at every N-th update",
              "Liu et al. 2024, Asynchronous local-SGD", NULL},
    .states = OPTIMIZER_STATES,
    .update = optimizer_loop,
    .constants = constants,
};
