/*
 * correction_closed_loop_momentum.c — key momentum is the target of the total momentum. A feedback
 * loop adjusts the optimizer's momentum until the measured total equals the target:
 *
 *   μ ← μ + γ (μ* − μ̂_T)  after each update, within [least, 0.999]
 *
 * μ* = key momentum, and the start of μ; γ = correction.gain; μ̂_T is measured in the run
 * (ps/core/total_momentum.h).
 *
 * Mitliagkas, Zhang, Hadjis, Ré, "Asynchrony begets momentum" (Allerton 2016, arXiv:1605.09774):
 * asynchrony adds momentum. Zhang, Mitliagkas, "YellowFin and the art of momentum tuning"
 * (arXiv:1706.03471), closed-loop YellowFin: measure the total momentum and correct it by negative
 * feedback with γ = 0.01, the default here. The momentum may become negative.
 *
 * Where we differ: YellowFin tunes μ* and the learning rate during training; here they are
 * settings. μ starts at μ*; the authors' first algorithm starts at 0 and has γ = 1
 * (ps/core/total_momentum.h). Only the range of μ bounds the feedback. γ = 0.01 is quoted from
 * memory. `momentum` and `total_momentum` of each update are in its record.
 *
 * The noise of mini-batches hides much of the momentum that asynchrony adds. Example: 16 virtual
 * workers (mlp, Fashion-MNIST, batch 32, lr 0.03, μ* = 0.3). The mean total stays at 0.30 with a μ
 * of 0.27 for exponential step times and 0.20 for regular ones, far from 0.3 − 15/16. With μ* = 0.9
 * such a run still diverges.
 */
#include "ps/rules/correction/correction.h"

#include <math.h>

static double momentum(const double *parameters UNUSED, unsigned workers UNUSED, double set)
{
    return set;
}

static double adjust(const double *parameters, double set, double last, double measured)
{
    double next = last + parameters[0] * (set - measured);
    return fmax(parameters[1], fmin(0.999, next));
}

static const struct option parameters_of[] = {
    {.key = "correction.gain",
     .type = OPTION_REAL,
     .initial = "0.01",
     .minimum = 0,
     .maximum = 1,
     .help = "gain of the feedback: share of the error corrected per update"},
    {.key = "correction.least",
     .type = OPTION_REAL,
     .initial = "-0.5",
     .minimum = -0.99,
     .maximum = 0,
     .help = "lower bound of the momentum; 0: never negative"},
    {0},
};

const struct correction_rule correction_closed_loop_momentum = {
    .about = {"closed-loop-momentum",
              "momentum adjusted until the measured total equals key momentum",
              "Zhang, Mitliagkas 2017, YellowFin, closed-loop", parameters_of},
    .single_gradient = true,
    .momentum = momentum,
    .adjust = adjust,
};
