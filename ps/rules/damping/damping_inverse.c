/*
 * damping_inverse.c — s(τ) = 1 / max(1, τ).
 *
 * Zhang, Gupta, Lian, Liu, "Staleness-aware async-SGD for distributed deep learning" (IJCAI 2016,
 * arXiv:1511.05950): a gradient of staleness τ has the learning rate α₀ / τ if τ > 0, and α₀ if
 * τ = 0.
 *
 * Where we differ: not at all with consistency=asp, where each gradient is one update. The paper
 * also collects several gradients into one update (n-softsync). We divide each of them by its own
 * τ, as its equation does, and take their mean.
 *
 * Checked against the paper's text: its τ equals ours, the timestamp of the updated parameters
 * minus that of the gradient's parameters (section 2.1), and each gradient has its own rate
 * (section 2.4). That copy lacks the equations, which are quoted from a reader.
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
