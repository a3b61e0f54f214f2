/*
 * damping_exponential.c — s(τ) = exp(−a τ), a = damping.rate.
 *
 * No paper's rule: the exponential member of the family of polynomial and hinge. s falls by the
 * same factor for every update missed. What is left in the velocity, k updates later, of a gradient
 * that came in time is μ^k of it; a = −ln μ (0.105 for μ = 0.9) lets a late gradient in at just
 * that. As with polynomial it scales a gradient's learning rate and s(0) = 1.
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
