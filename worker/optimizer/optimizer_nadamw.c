/*
 * optimizer_nadamw.c — Adam with Nesterov's momentum and decoupled weight decay:
 *
 *   m ← β₁ m + (1 − β₁) g;  v ← β₂ v + (1 − β₂) g²
 *   θ ← θ − η ( ((1 − μₜ) / (1 − Πₜ) g + μₜ₊₁ / (1 − Πₜ₊₁) m) / (√v̂ + ε) + λ θ )
 *   μₜ = β₁ (1 − ½ · 0.96^(t ψ)),  Πₜ = μ₁ μ₂ … μₜ,  v̂ = v / (1 − β₂ᵗ)
 *
 * t counts updates from 1, λ is key weight_decay, ψ is optimizer.momentum_decay.
 *
 * Dozat 2016, "Incorporating Nesterov momentum into Adam" (ICLR workshop), with the schedule of μ
 * and the defaults of PyTorch's NAdam; the decay is that of optimizer_adamw.c.
 *
 * With β₁ = 0.99, the default, this is the method of Ajanthan et al. 2025, "Nesterov method for
 * asynchronous pipeline parallel optimization" (arXiv:2505.01099), as their program runs it
 * (AsyncPP, optim/nadamw.py): 1 − μₜ is the discount on the late gradient, and the parameters are
 * the look-ahead point.
 */
#include "worker/optimizer/optimizer.h"

#include <math.h>

/* out: numerator and denominator are multiplied by √(1 − β₂ᵗ). */
#define OPTIMIZER_STATES 2
#define OPTIMIZER_DECAY_APART
#define OPTIMIZER_STEP                                                                             \
    v = k[0] * v + k[1] * g;                                                                       \
    s = k[2] * s + k[3] * (g * g);                                                                 \
    OPTIMIZER_ROOT(s, root);                                                                       \
    out = k[4] * in - (k[5] * g + k[6] * v) / (root + k[7])
#include "worker/optimizer/optimizer_loop.h"

/* μ of update t. */
static double momentum_of(const double *parameters, double t)
{
    return parameters[0] * (1 - 0.5 * pow(0.96, t * parameters[3]));
}

/* Πₜ. The loop has about 100 factors with the default ψ, and at most some thousands: it ends when
 * the product is negligible beside 1, or when μ is β₁ to rounding. */
static double product_of(const double *parameters, double t)
{
    double product = 1, i = 1;
    for (; i <= t && product > 1e-20 && i * parameters[3] < 1100; i++) /* 0.96^1100 = 3e-20 */
        product *= momentum_of(parameters, i);
    return i <= t ? product * pow(parameters[0], t + 1 - i) : product;
}

static void constants(const struct optimizer_moment *now, float own[OPTIMIZER_CONSTANTS])
{
    const double *p = now->parameters, t = (double)now->number;
    const double root = sqrt(1 - pow(p[1], t));
    const double this = momentum_of(p, t), next = momentum_of(p, t + 1);
    const double product = product_of(p, t);
    own[0] = (float)p[0];
    own[1] = (float)(1 - p[0]);
    own[2] = (float)p[1];
    own[3] = (float)(1 - p[1]);
    own[4] = (float)(1 - now->lr * now->decay);
    own[5] = (float)(now->lr * root * (1 - this) / (1 - product));
    own[6] = (float)(now->lr * root * next / (1 - product * next));
    own[7] = (float)(p[2] * root);
}

static const struct option parameters_of[] = {
    {"optimizer.beta1", OPTION_REAL, "0.99", 0, 0.9999, NULL, NULL, "decay of the mean gradient"},
    {"optimizer.beta2", OPTION_REAL, "0.999", 0, 0.9999999, NULL, NULL,
     "decay of the mean squared gradient"},
    {"optimizer.epsilon", OPTION_REAL, "1e-8", 1e-30, 1e3, NULL, NULL,
     "added to the square root of the mean squared gradient"},
    {"optimizer.momentum_decay", OPTION_REAL, "0.004", 0, 1e3, NULL, NULL,
     "how fast the momentum rises from half of beta1 to beta1"},
    {0},
};

const struct optimizer_kind optimizer_nadamw = {
    .about = {"nadamw", "Adam with Nesterov's momentum and decoupled weight decay",
              "Dozat 2016; Ajanthan et al. 2025 (arXiv:2505.01099)", parameters_of},
    .states = OPTIMIZER_STATES,
    .decay_apart = true,
    .scale_free = true,
    .update = optimizer_loop,
    .constants = constants,
};
