/*
 * optimizer_rmsprop_warmup.c — training starts with RMSprop and changes gradually to momentum SGD:
 *
 *   m ← μ₂ m + (1 − μ₂) g²
 *   Δ ← μ₁ Δ − (α_SGD + α_RMSprop / (√m + ε)) g
 *   θ ← θ + η_SGD Δ
 *
 *   α_SGD = ½ exp(2 (epoch − β_center) / β_period)    epoch < β_center
 *           ½ + (epoch − β_center) / β_period         epoch < β_center + ½ β_period
 *           1                                         later
 *   α_RMSprop = (1 − α_SGD) η_RMSprop / η_SGD
 *
 * Akiba, Suzuki, Fukuda, "Extremely large minibatch SGD: training ResNet-50 on ImageNet in 15
 * minutes" (arXiv:1711.04325), section 3.1; the transition has the shape of an ELU. η_SGD is the
 * schedule's rate and μ₁ key momentum. The epoch is that of the middle of an update's samples.
 *
 * Differences:
 *   - The linear part continues value and slope of the exponential part and reaches 1 at the start
 *     of the third part. (A published form has a factor of 2 on it and therefore a jump.)
 *   - The velocity is stored as −Δ. Once α_SGD = 1, this is optimizer=momentum, bit for bit.
 *   - If η_SGD = 0, there is no RMSprop part.
 */
#include "worker/optimizer/optimizer.h"

#include <math.h>

#define OPTIMIZER_STATES 2
#define OPTIMIZER_STEP                                                                             \
    s = k[0] * s + k[1] * (g * g);                                                                 \
    OPTIMIZER_ROOT(s, root);                                                                       \
    v = momentum * v + (k[2] + k[3] / (root + k[4])) * g;                                          \
    out = in - lr * v
#include "worker/optimizer/optimizer_loop.h"

enum parameter { MU2, EPSILON, RATE, CENTER, PERIOD };

static double share_of_sgd(double epoch, double center, double period)
{
    if (epoch < center)
        return 0.5 * exp(2 * (epoch - center) / period);
    return epoch < center + 0.5 * period ? 0.5 + (epoch - center) / period : 1;
}

static void constants(const struct optimizer_moment *now, float own[OPTIMIZER_CONSTANTS])
{
    const double *p = now->parameters;
    double sgd = share_of_sgd(now->epoch, p[CENTER], p[PERIOD]);
    own[0] = (float)p[MU2];
    own[1] = (float)(1 - p[MU2]);
    own[2] = (float)sgd;
    own[3] = now->lr > 0 ? (float)((1 - sgd) * p[RATE] / now->lr) : 0;
    own[4] = (float)p[EPSILON];
}

static const struct option parameters_of[] = {
    {"optimizer.mu2", OPTION_REAL, "0.99", 0, 0.999999, NULL, NULL,
     "decay of the mean squared gradient"},
    {"optimizer.epsilon", OPTION_REAL, "1e-8", 1e-30, 1e3, NULL, NULL,
     "added to the square root of the mean squared gradient"},
    {"optimizer.rmsprop_lr", OPTION_REAL, "3e-4", 0, 1e6, NULL, NULL,
     "learning rate of the RMSprop part"},
    {"optimizer.center", OPTION_REAL, "10", 0, 1e6, NULL, NULL,
     "epochs until both parts are equal"},
    {"optimizer.period", OPTION_REAL, "5", 1e-9, 1e6, NULL, NULL,
     "length of the transition in epochs; it ends half a period after the center"},
    {0},
};

const struct optimizer_kind optimizer_rmsprop_warmup = {
    .about = {"rmsprop-warmup", "RMSprop that changes gradually to gradient descent with momentum",
              "Akiba, Suzuki, Fukuda 2017, section 3.1", parameters_of},
    .states = OPTIMIZER_STATES,
    .has_momentum = true,
    .squares_scale = true,
    .update = optimizer_loop,
    .constants = constants,
};
