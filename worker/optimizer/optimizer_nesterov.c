/* optimizer_nesterov.c — v ← μ v + g; θ ← θ − η (g + μ v), in the variables of Bengio et al. 2013:
 * the gradient is computed at θ. */
#define OPTIMIZER_STATES 1
#define OPTIMIZER_STEP                                                                             \
    v = momentum * v + g;                                                                          \
    out = in - lr * (g + momentum * v)
#include "worker/optimizer/optimizer_loop.h"

const struct optimizer_kind optimizer_nesterov = {
    .about = {"nesterov", "gradient descent with Nesterov's momentum (key momentum)",
              "Nesterov 1983; Bengio, Boulanger-Lewandowski, Pascanu 2013, eq. 7",
              optimizer_momentum_options},
    .states = OPTIMIZER_STATES,
    .has_momentum = true,
    .update = optimizer_loop,
    .form = OPTIMIZER_NESTEROV,
    .momentum_correction = true,
};
