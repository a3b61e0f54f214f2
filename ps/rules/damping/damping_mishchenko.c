/*
 * damping_mishchenko.c — s(τ) = W / max(W, τ + 1).
 *
 * Mishchenko, Bach, Even, Woodworth, "Asynchronous SGD beats minibatch SGD under arbitrary delays"
 * (NeurIPS 2022, arXiv:2206.07638), theorem 3.1, the delay-adaptive step size for M workers:
 *
 *   γ_k = min{1 / (4 L τ(k)), 1 / (4 L M), B / (σ √K)}
 *
 * It is as large as synchronous training with M workers allows, and falls as 1/τ(k) for a gradient
 * that missed more updates. In section 1.5 x_k = x_{k−1} − γ_k g(x_{k−τ(k)}), so τ(k) also counts
 * the update that uses the gradient. It equals our τ + 1. It is at least 1, and M if all workers
 * take turns.
 *
 * Where we differ: the paper's step also shrinks with the noise and the length of training. Here
 * the learning rate is a setting with a schedule, and the rule is only the effect of the delay: the
 * ratio of min{1/M, 1/τ(k)} to 1/M. For a loss that is not convex, theorem 3.3 has 1 / (2 L M) in
 * the second place, so the step would shrink from τ(k) = M/2 on. Its constants come from the bounds
 * of the proof. The code of the paper's experiment has the convex form, too (least squares, 40
 * workers: lr · M / max(M, delay)). In that code the delay counts the updates from one arrival of a
 * worker to its next, which is τ(k). A worker reads the parameters before its own update. The paper
 * has no momentum.
 *
 * With equal workers τ is about W − 1 and rarely much larger, so the rule hardly acts. It is meant
 * for stragglers.
 *
 * Checked against the paper's text and second sources.
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
