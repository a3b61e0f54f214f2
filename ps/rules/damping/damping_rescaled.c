/*
 * damping_rescaled.c — s = T_i / T: the mean compute time of this worker over the mean of all
 * workers' means.
 *
 * Mahran, Maranjyan, Richtárik, "Rescaled asynchronous SGD: optimal distributed optimization under
 * data and system heterogeneity" (arXiv:2605.13434): step sizes proportional to each worker's
 * compute time. Every worker then contributes the same aggregate rate over a cycle; otherwise the
 * data of fast workers have more weight.
 *
 * Where we differ: the paper's times are known and fixed. Ours are running means of measured times
 * over all gradients of each worker so far, the current one included. T is the mean over workers
 * that have sent a gradient. The mean of s over all workers' cycles is then 1, and with equal
 * workers the rule has no effect.
 *
 * consistency=bsp refuses it: all workers already have the same weight there, and s would favour
 * slow workers. If an update has several gradients, all of them are observed before the first is
 * scaled, so their order has no effect.
 *
 * s does not depend on the staleness and may exceed 1. The times are those in the record, rounded
 * to µs.
 */
#include "ps/rules/damping/damping.h"

static double scale(const double *parameters UNUSED, const struct damping_input *input,
                    bool *drop UNUSED)
{
    const struct damping_history *h = input->history;
    double sum = 0, own = 0;
    unsigned seen = 0;
    for (unsigned w = 0; h != NULL && w < h->workers; w++) {
        if (h->computed[w] > 0) {
            double mean = (double)h->compute_us[w] / (double)h->computed[w];
            own = w == input->worker ? mean : own;
            sum += mean;
            seen++;
        }
    }
    return sum > 0 ? own * seen / sum : 1;
}

const struct damping_rule damping_rescaled = {
    .about = {"rescaled", "mean compute time of the worker / mean over all workers",
              "Mahran, Maranjyan, Richtarik 2026, Rescaled asynchronous SGD", NULL},
    .needs_history = true,
    .scales_fresh = true,
    .equalizes_workers = true,
    .scale = scale,
};
