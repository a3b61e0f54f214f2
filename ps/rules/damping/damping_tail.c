/*
 * damping_tail.c — s(τ) = P(T ≥ τ)^a, T drawn from the staleness of all gradients so far, this one
 * included; a = damping.power.
 *
 * No paper's rule. Its kin is TAIL-τ of Bäckström, Papatriantafilou, Tsigas, "ASAP.SGD:
 * instance-based adaptiveness to staleness in asynchronous SGD" (ICML 2022), which too takes its
 * measure from the distribution observed in the run, so that no constant needs to know the number
 * of workers. That one also raises the rate of the freshest gradients above 1; this one never does.
 *
 * s(0) = 1 as every T ≥ 0, and s > 0 as this gradient is one of those counted. With any
 * distribution of many values the mean scale is about ½ for a = 1: half the rate of `none`.
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
    .about = {"tail", "share of gradients so far that were as old or older, to a power", NULL,
              parameters_of},
    .needs_history = true,
    .scale = scale,
};
