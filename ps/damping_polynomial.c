/*
 * damping_polynomial.c — s(τ) = (1 + τ)^−a, a = damping.power.
 *
 * Xie, Koyejo, Gupta, "Asynchronous federated optimization" (OPT 2020, arXiv:1903.03934),
 * section 5.2: polynomial s_a(t − τ) = (t − τ + 1)^−a; the paper's experiments take a = 0.5.
 *
 * Where we differ: in the paper (FedAsync) a worker sends a model x_new after several local steps,
 * and the server mixes it in, x ← (1 − α s) x + α s x_new; s weighs a model. Here a worker sends
 * one gradient and s scales that gradient's learning rate; x never moves towards a stale model. The
 * paper's t counts the update being made, so that its freshest model has t − τ = 1; our τ counts
 * the updates missed, so that a fresh gradient has τ = 0 and s = 1. So does the delay in the
 * authors' own code (async_fl, train_cifar10_mxnet_fedasync_…), which has this function. Of the
 * paper's text a summary was at hand, and what three who read it wrote down (see damping_hinge.c):
 * the same function, x_t = (1 − α s) x_{t−1} + α s x_new, and τ the t that the worker was sent.
 */
#include "ps/damping.h"

#include <math.h>

static double scale(const double *parameters, const struct damping_input *input, bool *drop UNUSED)
{
    return pow(1 + (double)input->staleness, -parameters[0]);
}

static const struct option parameters_of[] = {
    {.key = "damping.power",
     .type = OPTION_REAL,
     .initial = "0.5",
     .minimum = 0,
     .maximum = 16,
     .help = "a in (1 + staleness)^-a"},
    {0},
};

const struct damping_rule damping_polynomial = {
    .about = {"polynomial", "(1 + staleness)^-power",
              "Xie, Koyejo, Gupta 2019, Asynchronous federated optimization", parameters_of},
    .scale = scale,
};
