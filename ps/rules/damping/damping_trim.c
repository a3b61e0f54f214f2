/*
 * damping_trim.c — s = min(1, c / ‖g‖₂), c = damping.norm: gradients longer than c are clipped to
 * c.
 *
 * Pascanu, Mikolov, Bengio, "On the difficulty of training recurrent neural networks" (ICML 2013,
 * arXiv:1211.5063), algorithm 1: if ‖ĝ‖ ≥ threshold, ĝ ← threshold / ‖ĝ‖ · ĝ. Erickson, Johansson,
 * "Clipping makes distributed and federated asynchronous SGD robust to stragglers"
 * (arXiv:2606.13287), show that clipping removes the dependence of asynchronous SGD on the largest
 * delay.
 *
 * Where we differ: not at all. If an update has several gradients, each is clipped by itself,
 * before the mean. The norm is that of the gradient before any correction and without weight decay.
 * s does not depend on the staleness. The norm must be known before the update, which costs one
 * more pass over each gradient.
 */
#include "ps/rules/damping/damping.h"

#include <math.h>

static double scale(const double *parameters, const struct damping_input *input, bool *drop UNUSED)
{
    /* The core ends the run if the norm is not finite. */
    return isfinite(input->norm) && input->norm > parameters[0] ? parameters[0] / input->norm : 1;
}

static const struct option parameters_of[] = {
    {.key = "damping.norm",
     .type = OPTION_REAL,
     .initial = "1",
     .minimum = 1e-6,
     .maximum = 1e6,
     .help = "norm that longer gradients are clipped to"},
    {0},
};

const struct damping_rule damping_trim = {
    .about = {"trim", "min(1, norm / length of the gradient)",
              "Pascanu, Mikolov, Bengio 2013, algorithm 1; Erickson, Johansson 2026",
              parameters_of},
    .needs_norm = true,
    .scales_fresh = true,
    .scale = scale,
};
