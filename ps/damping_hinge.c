/*
 * damping_hinge.c — s(τ) = 1 if τ ≤ b, else 1 / (a (τ − b) + 1); a = damping.slope, b =
 * damping.after.
 *
 * Xie, Koyejo, Gupta, "Asynchronous federated optimization" (OPT 2020, arXiv:1903.03934),
 * section 5.2: hinge s_{a,b}(t − τ) = 1 if t − τ ≤ b, 1 / (a (t − τ − b) + 1) otherwise; the
 * paper's experiments take a = 10 and b = 4, which are the defaults here.
 *
 * Where we differ: it weighs models there and gradients here, and the paper's t − τ begins at 1
 * where our τ begins at 0: see damping_polynomial.c.
 *
 * Held against the authors' own code (async_fl, train_cifar10_mxnet_fedasync_…), which has this
 * function, of a delay that begins at 0 as ours does. Of the paper's text a summary was at hand,
 * and the same function from three who read section 5.2: notes on the whole paper and two programs
 * that repeat its experiments, with a = 10 and b = 4, as notes on a comparison by others (ESync)
 * have, too. Two name b = 2 beside it, one of them for the paper's language model.
 */
#include "ps/damping.h"

static double scale(const double *parameters, const struct damping_input *input, bool *drop UNUSED)
{
    double slope = parameters[0], late = (double)input->staleness - parameters[1];
    return late <= 0 ? 1 : 1 / (slope * late + 1);
}

static const struct option parameters_of[] = {
    {.key = "damping.slope",
     .type = OPTION_REAL,
     .initial = "10",
     .minimum = 0,
     .maximum = 1e6,
     .help = "a in 1 / (a (staleness - b) + 1)"},
    {.key = "damping.after",
     .type = OPTION_REAL,
     .initial = "4",
     .minimum = 0,
     .maximum = 1e6,
     .help = "b: in full up to this staleness"},
    {0},
};

const struct damping_rule damping_hinge = {
    .about = {"hinge", "1 up to a staleness, then 1 / (slope x excess + 1)",
              "Xie, Koyejo, Gupta 2019, Asynchronous federated optimization", parameters_of},
    .scale = scale,
};
