/*
 * damping_rescaled.c — s = T_i / T: the mean compute time of this worker over the mean of all
 * workers' means.
 *
 * Mahran, Maranjyan, Richtárik, "Rescaled asynchronous SGD: optimal distributed optimization under
 * data and system heterogeneity" (arXiv:2605.13434): step sizes in proportion to each worker's
 * computation time, so that every worker contributes the same aggregate rate over a cycle; else
 * fast workers' data count more than slow ones'.
 *
 * Where we differ: the paper's times are known and fixed; ours are running means of what was
 * measured, over all gradients of each worker so far, this one included, and T is the mean over
 * the workers that have sent any. The mean of s over all workers' cycles is 1 then, and with alike
 * workers the rule does nothing.
 *
 * With consistency=bsp it is refused: there every worker's gradients count alike already, and s
 * would make the slow ones' count more. Where several gradients go into one update all of them are
 * looked at before the first is scaled, so that the order of workers has no say.
 *
 * s does not depend on the staleness and may exceed 1. The times are those in the record, rounded
 * to whole microseconds.
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
    .ageless = true,
    .balances = true,
    .scale = scale,
};
