/*
 * correction_implicit_momentum.c — the optimizer's momentum becomes max(least, μ − (1 − 1/W)).
 *
 * Mitliagkas, Zhang, Hadjis, Ré, "Asynchrony begets momentum, with an application to deep learning"
 * (Allerton 2016, arXiv:1605.09774), theorem 5: with W workers whose step times are exponentially
 * distributed, the expected change of the parameters is E[x_{t+1} − x_t] =
 * (1 − 1/W) E[x_t − x_{t−1}] − (1/W) α E∇f. So asynchrony acts as a momentum of 1 − 1/W. To first
 * order the two momenta add, as the paper states. Therefore key momentum is lowered by 1 − 1/W,
 * below zero if necessary (section VI: best with many workers). With one worker nothing changes.
 *
 * Where we differ: the paper finds the best momentum for each number of workers by a grid search
 * and observes that it falls; it gives no formula. Simple addition leaves out the term − μ (1 −
 * 1/W) E[x_{t−1} − x_{t−2}] (theorem 6). The theorems require exponential step times; we subtract
 * the same amount for regular ones. The learning rate stays, although η / (1 − μ) becomes smaller;
 * an experiment must tune it. This is the fixed form, without measurement in the run. The closed
 * loop is correction_closed_loop_momentum.c.
 *
 * Checked against the paper's text.
 */
#include "ps/rules/correction/correction.h"

static double momentum(const double *parameters, unsigned workers, double set)
{
    double lowered = set - (1 - 1 / (double)workers);
    return lowered > parameters[0] ? lowered : parameters[0];
}

static const struct option parameters_of[] = {
    {.key = "correction.least",
     .type = OPTION_REAL,
     .initial = "-0.5",
     .minimum = -0.99,
     .maximum = 0,
     .help = "lower bound of the momentum; 0: never negative"},
    {0},
};

const struct correction_rule correction_implicit_momentum = {
    .about = {"implicit-momentum", "momentum lowered by 1 - 1 / workers",
              "Mitliagkas, Zhang, Hadjis, Re 2016, Asynchrony begets momentum", parameters_of},
    .momentum = momentum,
};
