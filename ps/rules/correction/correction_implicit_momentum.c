/*
 * correction_implicit_momentum.c — the optimizer's momentum becomes max(least, μ − (1 − 1/W)).
 *
 * Mitliagkas, Zhang, Hadjis, Ré, "Asynchrony begets momentum, with an application to deep learning"
 * (Allerton 2016, arXiv:1605.09774), theorem 5: with W workers whose step times are exponentially
 * distributed, the expected change of the parameters follows E[x_{t+1} − x_t] =
 * (1 − 1/W) E[x_t − x_{t−1}] − (1/W) α E∇f: asynchrony acts as a momentum of 1 − 1/W. To a first
 * order the two momenta add up, as the paper says there. So the momentum that is set is lowered by
 * as much, below zero if need be (section VI: best where there are many). With one worker nothing
 * changes.
 *
 * Where we differ: the paper finds the best momentum for each number of workers by a grid and sees
 * it fall; it gives no formula. That both simply add leaves out a term, − μ (1 − 1/W) E[x_{t−1} −
 * x_{t−2}] (theorem 6). The theorems need exponential step times; at regular ones the same amount
 * is taken off. The rate stays as it is, though with less momentum η / (1 − μ) is smaller: so it is
 * for the experiment to tune it. The fixed form; nothing is measured in the run. The closed loop:
 * correction_closed_loop_momentum.c.
 *
 * Held against the paper's text.
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
     .help = "least momentum; 0: it never becomes negative"},
    {0},
};

const struct correction_rule correction_implicit_momentum = {
    .about = {"implicit-momentum", "momentum lowered by 1 - 1 / workers",
              "Mitliagkas, Zhang, Hadjis, Re 2016, Asynchrony begets momentum", parameters_of},
    .momentum = momentum,
};
