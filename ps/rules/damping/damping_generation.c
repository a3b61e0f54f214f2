/*
 * damping_generation.c — s(τ) = 1 if τ ≤ g, else w; w = damping.weight, g = damping.after.
 *
 * No paper: the rule of thumb, told in talks on production systems, to count gradients of an older
 * generation at a fixed fraction. Defaults: one eighth after eight updates.
 *
 * The constant g knows nothing of the number of workers. The mean staleness of W equal workers is
 * W − 1, so with W ≤ g + 1 the rule hardly acts, and with W well above it scales nearly everything:
 * the outcome is not monotone in W.
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
     .help = "weight of an older generation"},
    {.key = "damping.after",
     .type = OPTION_INTEGER,
     .initial = "8",
     .minimum = 0,
     .maximum = 1e6,
     .help = "in full up to this staleness"},
    {0},
};

const struct damping_rule damping_generation = {
    .about = {"generation", "a fixed weight beyond a staleness", NULL, parameters_of},
    .scale = scale,
};
