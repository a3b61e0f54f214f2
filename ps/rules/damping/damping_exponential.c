/*
 * damping_exponential.c — s(τ) = exp(−a τ), a = damping.rate.
 *
 * Source: none; it is the exponential counterpart of polynomial and hinge. s falls by the same
 * factor for every missed update. After k updates a share μ^k of a fresh gradient is left in the
 * velocity. With a = −ln μ (0.105 for μ = 0.9) a stale gradient enters with the same share. As with
 * polynomial, s scales the learning rate of one gradient and s(0) = 1.
 */
#include "ps/rules/damping/damping.h"

#include <math.h>

static double scale(const double *parameters, const struct damping_input *input, bool *drop UNUSED)
{
    return exp(-parameters[0] * (double)input->staleness);
}

static const struct option parameters_of[] = {
    {.key = "damping.rate",
     .type = OPTION_REAL,
     .initial = "0.1",
     .minimum = 0,
     .maximum = 16,
     .help = "a in exp(-a staleness)"},
    {0},
};

const struct damping_rule damping_exponential = {
    .about = {"exponential", "exp(-rate x staleness)", NULL, parameters_of},
    .scale = scale,
};
