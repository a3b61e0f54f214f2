/*
 * damping_cutoff.c — s(τ) = 1 if τ ≤ g, otherwise the gradient is dropped; g = damping.after.
 *
 * A dropped gradient is not applied and makes no version. Its worker continues with the latest
 * parameters, and its record has outcome dropped_stale. Its samples count as computed, not as used.
 *
 * Similar to dropping stragglers' gradients in Chen, Pan, Monga, Bengio, Jozefowicz, "Revisiting
 * distributed synchronous SGD" (arXiv:1604.00981), but by staleness instead of arrival order. Also
 * similar to the bound of stale-synchronous systems (Ho et al. 2013), which wait instead of
 * dropping.
 */
#include "ps/rules/damping/damping.h"

static double scale(const double *parameters, const struct damping_input *input, bool *drop)
{
    *drop = (double)input->staleness > parameters[0];
    return *drop ? 0 : 1;
}

static bool drops(const double *parameters UNUSED)
{
    return true;
}

static const struct option parameters_of[] = {
    {.key = "damping.after",
     .type = OPTION_INTEGER,
     .initial = "8",
     .minimum = 0,
     .maximum = 1e6,
     .help = "gradients of a larger staleness are dropped"},
    {0},
};

const struct damping_rule damping_cutoff = {
    .about = {"cutoff", "gradients beyond a staleness are dropped", NULL, parameters_of},
    .drops = drops,
    .scale = scale,
};
