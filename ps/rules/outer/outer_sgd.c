/*
 * outer_sgd.c — θ ← θ − ε d, d = θ_read − x after H local steps from θ_read; ε = outer.lr,
 * H = outer.steps.
 *
 * With ε = 1 this is DOWNPOUR with a communication period of H: Dean, Corrado, Monga et al., "Large
 * scale distributed deep networks" (NIPS 2012), section 4.1, as Zhang, Choromanska, LeCun 2015
 * (arXiv:1412.6651, supplement, Asynchronous DOWNPOUR) write it: the worker adds up −η g over τ
 * steps, the master adds the sum to its parameters, the worker takes these. It is also the plain
 * form of Liu, Chhaparia, Douillard et al., "Asynchronous local-SGD training for language modeling"
 * (arXiv:2401.09135): each pseudo-gradient d is applied as soon as it comes.
 *
 * Where we differ: any local optimizer (key optimizer); its velocity starts at 0 at every pull, so
 * that d stays a pure function of what was pulled and of the batches. Liu et al. weight d by
 * nothing, as here; damping=… may.
 *
 * With one worker, H = 1, ε = 1 and optimizer=sgd this is outer=none, bit for bit.
 *
 * Held against the texts: Liu et al.; Zhang et al., algorithm 3, where a period's last step is in
 * the sum as here, and their own DOWNPOUR (mpiT, optim-downpour.lua); Dean et al., who leave open
 * what a replica does between two pushes, and take n_push = n_fetch = 1 in their experiments.
 */
#include "ps/rules/outer/outer.h"
#include "ps/rules/outer/outer_options.h"

static const struct option parameters_of[] = {OUTER_STEPS, OUTER_RATE("1"), {0}};

static void read(const double *parameters, unsigned workers UNUSED, struct outer *out)
{
    out->rate = parameters[1];
}

const struct outer_rule outer_sgd = {
    .about = {"sgd", "local steps, their sum applied as it comes",
              "Dean et al. 2012, section 4.1 (DOWNPOUR); Liu et al. 2024, asynchronous local SGD",
              parameters_of},
    .read = read,
};
