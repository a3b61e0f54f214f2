/*
 * damping_generation.c — s(τ) = 1 if τ ≤ g, otherwise w; w = damping.weight, g = damping.after.
 *
 * Source: none. It is the rule of thumb from talks on production systems that gradients of an older
 * generation count at a fixed fraction. Defaults: one eighth after eight updates.
 *
 * g does not depend on the number of workers. The mean staleness of W equal workers is W − 1. With
 * W ≤ g + 1 the rule hardly acts; with W well above g it scales nearly every gradient. So the
 * result is not monotone in W.
 */
#include "ps/rules/damping/damping.h"

static double scale(const double *parameters, const struct damping_input *input, bool *drop UNUSED)
{
    return (double)input->staleness > parameters[1] ? parameters[0] : 1;
}

static const struct option parameters_of[] = {
    {.key = "damping.weight",
     .type = OPTION_REAL,
     .initial = "0.125",
     .minimum = 0,
     .maximum = 1,
     .help = "scale beyond damping.after"},
    {.key = "damping.after",
     .type = OPTION_INTEGER,
     .initial = "8",
     .minimum = 0,
     .maximum = 1e6,
     .help = "scale 1 up to this staleness"},
    {0},
};

const struct damping_rule damping_generation = {
    .about = {"generation", "a fixed scale beyond a staleness", NULL, parameters_of},
    .scale = scale,
};
