/*
 * damping_mishchenko.c — s(τ) = W / max(W, τ).
 *
 * Mishchenko, Bach, Even, Woodworth, "Asynchronous SGD beats minibatch SGD under arbitrary delays"
 * (NeurIPS 2022, arXiv:2206.07638): the delay-adaptive step size is of the order of
 * min{1 / (L M), 1 / (L τ)} for M workers: as large as synchronous training with M workers allows,
 * and smaller in proportion to 1/τ for a gradient that missed more than M updates.
 *
 * Where we differ: the paper's step also shrinks with the noise and the length of training; here
 * the rate is a setting and the schedule's, and the rule says what its delay does to it: the ratio
 * of min{1/M, 1/τ} to 1/M. The paper has no momentum. The code of its own experiment (least
 * squares, 40 workers) multiplies its rate by this very factor.
 *
 * With alike workers τ is about W − 1 and seldom much above, so the rule hardly acts: it is made
 * for stragglers.
 */
#include "ps/damping.h"

static double scale(const double *parameters UNUSED, const struct damping_input *input,
                    bool *drop UNUSED)
{
    double workers = (double)input->workers, staleness = (double)input->staleness;
    return staleness > workers ? workers / staleness : 1;
}

const struct damping_rule damping_mishchenko = {
    .about = {"mishchenko", "workers / max(workers, staleness)",
              "Mishchenko, Bach, Even, Woodworth 2022, Asynchronous SGD beats minibatch SGD", NULL},
    .scale = scale,
};
