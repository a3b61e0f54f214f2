/*
 * correction_closed_loop_momentum.c — the momentum that is set is what the parameters shall have in
 * all; the optimizer's is moved until they have it:
 *
 *   μ ← μ + γ (μ* − μ̂_T)  after each update, within [least, 0.999]
 *
 * μ* = key momentum, where μ begins, too; γ = correction.gain; μ̂_T is measured in the run
 * (total_momentum.h).
 *
 * Mitliagkas, Zhang, Hadjis, Ré, "Asynchrony begets momentum" (Allerton 2016, arXiv:1605.09774):
 * that asynchrony adds momentum. Zhang, Mitliagkas, "YellowFin and the art of momentum tuning"
 * (arXiv:1706.03471), closed-loop YellowFin: to measure it and to close the loop by negative
 * feedback, with γ = 0.01, the default here, and with momentum below zero where that is what it
 * takes.
 *
 * Where we differ: there μ* (and the rate) are tuned by YellowFin as training goes on; here they
 * are settings, and μ begins at μ*, where its authors' first algorithm begins at 0. What is fed
 * back is bounded by the range of μ alone. `momentum` and `total_momentum` of each update are in
 * its record. That algorithm has the loop with γ = 1 (total_momentum.h); γ = 0.01 is from memory.
 *
 * The noise of mini-batches hides much of what asynchrony adds: with 16 virtual workers (mlp,
 * Fashion-MNIST, batch 32, lr 0.03, μ* = 0.3) the mean total is kept at 0.30, by a μ of 0.27 where
 * step times are exponential and of 0.20 where they are regular, far from 0.3 − 15/16. With μ* =
 * 0.9 such a run diverges all the same.
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
     .help = "share of what is missing that an update gives"},
    {.key = "correction.least",
     .type = OPTION_REAL,
     .initial = "-0.5",
     .minimum = -0.99,
     .maximum = 0,
     .help = "least momentum; 0: it never becomes negative"},
    {0},
};

const struct correction_rule correction_closed_loop_momentum = {
    .about = {"closed-loop-momentum",
              "momentum moved until the total measured is that which is set",
              "Zhang, Mitliagkas 2017, YellowFin, closed-loop", parameters_of},
    .alone = true,
    .momentum = momentum,
    .adjust = adjust,
};
