/*
 * damping_logarithmic.c — s(τ) = 1 / (1 + a ln(1 + τ)), a = damping.strength.
 *
 * The example of docs/adding-a-rule.md. Source: none. It falls more slowly than any polynomial.
 */
#include "ps/rules/damping/damping.h"

#include <math.h>

static double scale(const double *parameters, const struct damping_input *input, bool *drop UNUSED)
{
    return 1 / (1 + parameters[0] * log1p((double)input->staleness));
}

static const struct option parameters_of[] = {
    {.key = "damping.strength",
     .type = OPTION_REAL,
     .initial = "1",
     .minimum = 0,
     .maximum = 1000,
     .help = "a in 1 / (1 + a ln(1 + staleness))"},
    {0},
};

const struct damping_rule damping_logarithmic = {
    .about = {"logarithmic", "1 / (1 + strength x ln(1 + staleness))", NULL, parameters_of},
    .scale = scale,
};
