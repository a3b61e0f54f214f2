/*
 * optimizer_adamw.c — Adam with decoupled weight decay:
 *
 *   m ← β₁ m + (1 − β₁) g;  v ← β₂ v + (1 − β₂) g²
 *   θ ← θ − η (m̂ / (√v̂ + ε) + λ θ),   m̂ = m / (1 − β₁ᵗ),  v̂ = v / (1 − β₂ᵗ)
 *
 * Loshchilov, Hutter, "Decoupled weight decay regularization" (ICLR 2019, arXiv:1711.05101),
 * algorithm 2; t counts updates from 1, λ is key weight_decay.
 *
 * Difference: the paper multiplies λ by the schedule's multiplier only. This file multiplies λ by
 * the whole rate η = lr × schedule, as PyTorch does, so weight_decay = the paper's λ / α.
 *
 * m̂/√v̂ cancels a factor that all gradients share. So in asynchronous mode damping scales the rate
 * of an update, not its gradient. In an update of several gradients with scales sᵢ, the rate has
 * the mean of sᵢ and the gradient is Σ sᵢ gᵢ / Σ sᵢ.
 */
#include "worker/optimizer/optimizer.h"

#include <math.h>

#define OPTIMIZER_STATES 2
#define OPTIMIZER_DECAY_APART
#define OPTIMIZER_STEP                                                                             \
    v = k[0] * v + k[1] * g;                                                                       \
    s = k[2] * s + k[3] * (g * g);                                                                 \
    OPTIMIZER_ROOT(s, root);                                                                       \
    out = k[4] * in - k[5] * (v / (k[6] * root + k[7]))
#include "worker/optimizer/optimizer_loop.h"

static void constants(const struct optimizer_moment *now, float own[OPTIMIZER_CONSTANTS])
{
    const double b1 = now->parameters[0], b2 = now->parameters[1];
    own[0] = (float)b1;
    own[1] = (float)(1 - b1);
    own[2] = (float)b2;
    own[3] = (float)(1 - b2);
    own[4] = (float)(1 - now->lr * now->decay);
    own[5] = (float)(now->lr / (1 - pow(b1, (double)now->number)));
    own[6] = (float)(1 / sqrt(1 - pow(b2, (double)now->number)));
    own[7] = (float)now->parameters[2];
}

static const struct option parameters_of[] = {
    {"optimizer.beta1", OPTION_REAL, "0.9", 0, 0.999999, NULL, NULL, "decay of the mean gradient"},
    {"optimizer.beta2", OPTION_REAL, "0.999", 0, 0.9999999, NULL, NULL,
     "decay of the mean squared gradient"},
    {"optimizer.epsilon", OPTION_REAL, "1e-8", 1e-30, 1e3, NULL, NULL,
     "added to the square root of the mean squared gradient"},
    {0},
};

const struct optimizer_kind optimizer_adamw = {
    .about = {"adamw", "Adam with decoupled weight decay", "Loshchilov, Hutter 2019, algorithm 2",
              parameters_of},
    .states = OPTIMIZER_STATES,
    .decay_apart = true,
    .scale_free = true,
    .local_steps = true,
    .update = optimizer_loop,
    .constants = constants,
};

/* Not scale_free: damping scales a difference before it enters both moments
 * (ps/rules/outer/outer_adam.c). */
const struct optimizer_kind optimizer_outer_adam = {
    .about = {"outer-adam", "Adam on the differences of local steps", "Kingma, Ba 2015", NULL},
    .states = OPTIMIZER_STATES,
    .decay_apart = true,
    .update = optimizer_loop,
    .constants = constants,
};
