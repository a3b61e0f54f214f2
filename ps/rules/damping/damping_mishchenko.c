/*
 * damping_mishchenko.c — s(τ) = W / max(W, τ + 1).
 *
 * Mishchenko, Bach, Even, Woodworth, "Asynchronous SGD beats minibatch SGD under arbitrary delays"
 * (NeurIPS 2022, arXiv:2206.07638), theorem 3.1, the delay-adaptive step size for M workers:
 *
 *   γ_k = min{1 / (4 L τ(k)), 1 / (4 L M), B / (σ √K)}
 *
 * as large as synchronous training with M workers allows, and smaller in proportion to 1/τ(k) for a
 * gradient that missed more updates. Its τ(k) counts from the update after which the gradient was
 * begun to the one that it is in (section 1.5: x_k = x_{k−1} − γ_k g(x_{k−τ(k)})), that one
 * included: it is our τ + 1, at least 1, and M where all workers take turns.
 *
 * Where we differ: the paper's step also shrinks with the noise and the length of training; here
 * the rate is a setting and the schedule's, and the rule says what its delay does to it: the ratio
 * of min{1/M, 1/τ(k)} to 1/M. Where the loss is not convex the theorem (3.3) has 1 / (2 L M) in the
 * second place, so that the step would shrink from τ(k) = M/2 on; the constants are those of its
 * bounds, and the convex form is what the code of its own experiment has (least squares, 40
 * workers: lr · M / max(M, delay), the delay from one arrival of a worker to its next, which is
 * τ(k); a worker there reads what was before its own update). The paper has no momentum.
 *
 * With alike workers τ is about W − 1 and seldom much above, so the rule hardly acts: it is made
 * for stragglers.
 *
 * Held against the paper's text and second sources.
 */
#include "ps/rules/damping/damping.h"

static double scale(const double *parameters UNUSED, const struct damping_input *input,
                    bool *drop UNUSED)
{
    double workers = (double)input->workers, delay = (double)input->staleness + 1;
    return delay > workers ? workers / delay : 1;
}

const struct damping_rule damping_mishchenko = {
    .about = {"mishchenko", "workers / max(workers, staleness + 1)",
              "Mishchenko, Bach, Even, Woodworth 2022, Asynchronous SGD beats minibatch SGD", NULL},
    .scale = scale,
};
