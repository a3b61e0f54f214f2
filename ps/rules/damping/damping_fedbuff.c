/*
 * damping_fedbuff.c — s(τ) = 1 / √(1 + τ).
 *
 * Nguyen, Malik, Zhan, Yousefpour, Rabbat, Malek, Huba, "Federated learning with buffered
 * asynchronous aggregation" (AISTATS 2022, arXiv:2106.06639), the staleness scaling of its
 * experiments: each client's update is divided by √(1 + τ). It has no parameters there and equals
 * polynomial with a = ½. It exists so that the paper's method can be named, together with
 * consistency=buffered.
 *
 * Where we differ: in the paper a client's update is the result of several local steps, here it is
 * one gradient. As in the paper, the sum over a buffer is divided by the number of gradients and
 * not by the sum of their scales.
 *
 * Sources: notes on the camera-ready paper; flgo's FedBuff; a reproduction of the paper's tables
 * (angelafoua/fedbuff) and Flame, both with division by the number of updates; FedScale, with
 * division by the sum of the scales. The authors' simulator (FLSim, async_staleness_weights.py) has
 * 1 / (1 + τ)^a, divided by the same function of a configured mean staleness. a = ½ in its tests,
 * and by default it sums without dividing. NVIDIA FLARE and a strategy for Flower use 1 / (1 + √τ)
 * over the number of updates, which is not the authors' function.
 */
#include "ps/rules/damping/damping.h"

#include <math.h>

static double scale(const double *parameters UNUSED, const struct damping_input *input,
                    bool *drop UNUSED)
{
    return 1 / sqrt(1 + (double)input->staleness);
}

const struct damping_rule damping_fedbuff = {
    .about = {"fedbuff", "1 / sqrt(1 + staleness)",
              "Nguyen et al. 2022, Federated learning with buffered asynchronous aggregation",
              NULL},
    .scale = scale,
};
