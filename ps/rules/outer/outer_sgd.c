/*
 * outer_sgd.c — θ ← θ − ε d, d = θ_read − x after H local steps from θ_read; ε = outer.lr,
 * H = outer.steps.
 *
 * With ε = 1 this is DOWNPOUR with a communication period of H: Dean, Corrado, Monga et al., "Large
 * scale distributed deep networks" (NIPS 2012), section 4.1, in the form of Zhang, Choromanska,
 * LeCun 2015 (arXiv:1412.6651, supplement, Asynchronous DOWNPOUR). There the worker sums −η g over
 * τ steps, the master adds the sum to its parameters, and the worker takes these. It is also the
 * plain form of Liu, Chhaparia, Douillard et al., "Asynchronous local-SGD training for language
 * modeling" (arXiv:2401.09135): each pseudo-gradient d is applied on arrival.
 *
 * Where we differ: any local optimizer (key optimizer) may be used. Its state starts at 0 at
 * every pull, so that d is a pure function of the parameters read and the batches. Liu et al. do
 * not weight d; here damping may.
 *
 * With one worker, H = 1, ε = 1 and optimizer=sgd this equals outer=none, bit for bit.
 *
 * Checked against the texts: Liu et al.; Zhang et al., algorithm 3, where the last step of a period
 * is in the sum as here, and their DOWNPOUR (mpiT, optim-downpour.lua); Dean et al., who do not
 * define what a replica does between two pushes, and use n_push = n_fetch = 1 in their experiments.
 */
#include "ps/rules/outer/outer.h"
#include "ps/rules/outer/outer_options.h"

static const struct option parameters_of[] = {OUTER_STEPS, OUTER_RATE("1"), {0}};

static void read(const double *parameters, unsigned workers UNUSED, struct outer *out)
{
    out->rate = parameters[1];
}

const struct outer_rule outer_sgd = {
    .about = {"sgd", "local steps, their sum applied on arrival",
              "Dean et al. 2012, section 4.1 (DOWNPOUR); Liu et al. 2024, asynchronous local SGD",
              parameters_of},
    .read = read,
};
