/*
 * damping_fedbuff.c — s(τ) = 1 / √(1 + τ).
 *
 * Nguyen, Malik, Zhan, Yousefpour, Rabbat, Malek, Huba, "Federated learning with buffered
 * asynchronous aggregation" (AISTATS 2022, arXiv:2106.06639), the staleness scaling of its
 * experiments: each client's update is divided by √(1 + τ). It has no parameters there, and is
 * polynomial ½ by another name; it is here so that the paper's whole method can be asked for by its
 * name, together with consistency=buffered.
 *
 * Where we differ: there a client's update is the change of a model over several local steps, here
 * it is one gradient. The sum over a buffer is divided by the number of gradients, as there, not by
 * the sum of their scales.
 *
 * Held against second sources: notes on the camera-ready paper; flgo's FedBuff; a reproduction of
 * the paper's tables (angelafoua/fedbuff) and Flame, both over the number of updates; and FedScale,
 * over the sum of the scales. The authors' simulator (FLSim, async_staleness_weights.py) has
 * 1 / (1 + τ)^a over the same of a mean staleness that is set, a = ½ in its tests, and by default
 * adds up without dividing. NVIDIA FLARE and a strategy for Flower have 1 / (1 + √τ), which is not
 * the authors', over the number of updates.
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
