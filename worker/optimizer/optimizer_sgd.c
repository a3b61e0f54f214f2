/* optimizer_sgd.c — θ ← θ − η g. */
#define OPTIMIZER_STATES 0
#define OPTIMIZER_STEP   out = in - lr * g
#include "worker/optimizer/optimizer_loop.h"

const struct optimizer_kind optimizer_sgd = {
    .about = {"sgd", "plain stochastic gradient descent", "Robbins, Monro 1951", NULL},
    .states = OPTIMIZER_STATES,
    .update = optimizer_loop,
    .form = OPTIMIZER_SGD,
};
