/*
 * damping_tail.c — s(τ) = P(T ≥ τ)^a, where T is drawn from the staleness of all gradients so far,
 * the current one included; a = damping.power.
 *
 * Source: none. It is related to TAIL-τ of Bäckström, Papatriantafilou, Tsigas, "ASAP.SGD:
 * instance-based adaptiveness to staleness in asynchronous SGD" (ICML 2022). Both use the
 * distribution observed in the run, so that no constant depends on the number of workers. TAIL-τ
 * also raises the rate of the freshest gradients above 1; this rule does not.
 *
 * s(0) = 1 because every T ≥ 0, and s > 0 because the current gradient is counted. If the
 * distribution has many values, the mean scale is about ½ for a = 1: half the rate of `none`.
 * Staleness from DAMPING_AGES − 1 on counts as one value.
 */
#include "ps/rules/damping/damping.h"

#include <math.h>

static double scale(const double *parameters, const struct damping_input *input, bool *drop UNUSED)
{
    const struct damping_history *h = input->history;
    if (h == NULL || h->count == 0)
        return 1;
    uint64_t younger = 0;
    for (uint64_t age = 0; age < input->staleness && age < DAMPING_AGES - 1; age++)
        younger += h->ages[age];
    return pow((double)(h->count - younger) / (double)h->count, parameters[0]);
}

static const struct option parameters_of[] = {
    {.key = "damping.power",
     .type = OPTION_REAL,
     .initial = "1",
     .minimum = 0,
     .maximum = 16,
     .help = "a in P(T >= staleness)^a"},
    {0},
};

const struct damping_rule damping_tail = {
    .about = {"tail", "share of gradients so far with the same or larger staleness, to a power",
              NULL, parameters_of},
    .needs_history = true,
    .scale = scale,
};
