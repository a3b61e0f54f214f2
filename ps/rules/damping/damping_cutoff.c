/*
 * damping_cutoff.c — s(τ) = 1 if τ ≤ g, else the gradient is dropped; g = damping.after.
 *
 * A dropped gradient is not applied and takes no version; its worker goes on with the latest
 * parameters, and its record says dropped_stale. Its samples count as computed, not as used.
 *
 * Like the drop of stragglers' gradients in Chen, Pan, Monga, Bengio, Jozefowicz, "Revisiting
 * distributed synchronous SGD" (arXiv:1604.00981), with age in place of arrival order; and like the
 * bound of stale-synchronous systems (Ho et al. 2013), which wait where this rule drops.
 */
#include "ps/rules/damping/damping.h"

static double scale(const double *parameters, const struct damping_input *input, bool *drop)
{
    *drop = (double)input->staleness > parameters[0];
    return *drop ? 0 : 1;
}

static const struct option parameters_of[] = {
    {.key = "damping.after",
     .type = OPTION_INTEGER,
     .initial = "8",
     .minimum = 0,
     .maximum = 1e6,
     .help = "dropped beyond this staleness"},
    {0},
};

const struct damping_rule damping_cutoff = {
    .about = {"cutoff", "dropped beyond a staleness", NULL, parameters_of},
    .scale = scale,
};
