/*
 * damping_polynomial.c — s(τ) = (1 + τ)^−a, a = damping.power.
 *
 * The function of Xie, Koyejo, Gupta, "Asynchronous federated optimization" (FedAsync, OPT 2020,
 * arXiv:1903.03934), section 5.2, where a = 0.5. The rule by itself is not FedAsync: there s
 * weights a model, here it scales the learning rate of one gradient. outer=fedasync with this
 * damping is FedAsync.
 *
 * τ counts the missed updates, so a fresh gradient has s = 1. The authors' code (async_fl) counts
 * in the same way; in the paper's text t counts the update being made.
 *
 * Sources: the authors' code, notes on the whole paper, and two programs that repeat its
 * experiments.
 */
#include "ps/rules/damping/damping.h"

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
              "function of Xie, Koyejo, Gupta 2019, section 5.2; their FedAsync is outer=fedasync",
              parameters_of},
    .scale = scale,
};
