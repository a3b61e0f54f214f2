/*
 * optimizer_lion.c — Lion (evolved sign momentum):
 *
 *   u = sign(β₁ m + (1 − β₁) g);  m ← β₂ m + (1 − β₂) g;  θ ← θ − η (u + λ θ)
 *
 * Chen et al., "Symbolic discovery of optimization algorithms" (NeurIPS 2023, arXiv:2302.06675),
 * algorithm 2 and program 1; λ is key weight_decay, sign(0) = 0.
 *
 * Lion's update has the same size for every gradient. Damping scales its rate, as in
 * optimizer_adamw.c.
 */
#include "worker/optimizer/optimizer.h"

#define OPTIMIZER_STATES 1
#define OPTIMIZER_DECAY_APART
#define OPTIMIZER_SIGNS
#define OPTIMIZER_STEP                                                                             \
    s = k[0] * v + k[1] * g;                                                                       \
    OPTIMIZER_SIGN(s, root);                                                                       \
    v = k[2] * v + k[3] * g;                                                                       \
    out = k[4] * in - lr * root
#include "worker/optimizer/optimizer_loop.h"

static void constants(const struct optimizer_moment *now, float own[OPTIMIZER_CONSTANTS])
{
    const double b1 = now->parameters[0], b2 = now->parameters[1];
    own[0] = (float)b1;
    own[1] = (float)(1 - b1);
    own[2] = (float)b2;
    own[3] = (float)(1 - b2);
    own[4] = (float)(1 - now->lr * now->decay);
}

static const struct option parameters_of[] = {
    {"optimizer.beta1", OPTION_REAL, "0.9", 0, 0.999999, NULL, NULL,
     "weight of the mean gradient in an update"},
    {"optimizer.beta2", OPTION_REAL, "0.99", 0, 0.999999, NULL, NULL, "decay of the mean gradient"},
    {0},
};

const struct optimizer_kind optimizer_lion = {
    .about = {"lion", "the sign of a mean gradient, with decoupled weight decay",
              "Chen et al. 2023, algorithm 2", parameters_of},
    .states = OPTIMIZER_STATES,
    .decay_apart = true,
    .scale_free = true,
    .local_steps = true,
    .update = optimizer_loop,
    .constants = constants,
};
