/* optimizer_momentum.c — v ← μ v + g; θ ← θ − η v. The rate is outside the velocity, so a change of
 * the rate acts at once on the whole velocity. */
#define OPTIMIZER_STATES 1
#define OPTIMIZER_STEP                                                                             \
    v = momentum * v + g;                                                                          \
    out = in - lr * v
#include "worker/optimizer/optimizer_loop.h"

const struct optimizer_kind optimizer_momentum = {
    .about = {"momentum", "gradient descent with classical momentum (key momentum)",
              "Polyak 1964; Sutskever et al. 2013, section 2", optimizer_momentum_options},
    .states = OPTIMIZER_STATES,
    .has_momentum = true,
    .update = optimizer_loop,
    .form = OPTIMIZER_MOMENTUM,
    .momentum_correction = true,
};
