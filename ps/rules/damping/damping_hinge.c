/*
 * damping_hinge.c — s(τ) = 1 if τ ≤ b, otherwise 1 / (a (τ − b) + 1); a = damping.slope, b =
 * damping.after.
 *
 * The function of Xie, Koyejo, Gupta, "Asynchronous federated optimization" (FedAsync, OPT 2020,
 * arXiv:1903.03934), section 5.2, with its a = 10 and b = 4. The rule by itself is not FedAsync:
 * see damping_polynomial.c.
 *
 * Sources: the authors' code, notes on the whole paper, and two programs that repeat its
 * experiments. Two sources have b = 2, one of them for the paper's language model.
 */
#include "ps/rules/damping/damping.h"

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
     .help = "b: scale 1 up to this staleness"},
    {0},
};

const struct damping_rule damping_hinge = {
    .about = {"hinge", "1 up to a staleness, then 1 / (slope x excess + 1)",
              "function of Xie, Koyejo, Gupta 2019, section 5.2; their FedAsync is outer=fedasync",
              parameters_of},
    .scale = scale,
};
