/*
 * damping_inverse.c — s(τ) = 1 / max(1, τ).
 *
 * Zhang, Gupta, Lian, Liu, "Staleness-aware async-SGD for distributed deep learning" (IJCAI 2016,
 * arXiv:1511.05950): the learning rate of a gradient of staleness τ is α₀ / τ when τ > 0, and α₀
 * when τ = 0.
 *
 * Where we differ: nowhere for consistency=asp, where each gradient is an update of its own. The
 * paper also collects several gradients into one update (n-softsync); we then divide each of them
 * by its own τ, as its equation does, and take their mean.
 *
 * Held against the paper's text: τ counts as ours does, the timestamp of the parameters that are
 * updated less that of those the gradient is of (section 2.1), and the rate is set gradient by
 * gradient (section 2.4). Its equations, which that copy lacked, are as a reader restates them.
 */
#include "ps/rules/damping/damping.h"

static double scale(const double *parameters UNUSED, const struct damping_input *input,
                    bool *drop UNUSED)
{
    return input->staleness > 1 ? 1 / (double)input->staleness : 1;
}

const struct damping_rule damping_inverse = {
    .about = {"inverse", "1 / max(1, staleness)",
              "Zhang, Gupta, Lian, Liu 2016, Staleness-aware async-SGD", NULL},
    .scale = scale,
};
