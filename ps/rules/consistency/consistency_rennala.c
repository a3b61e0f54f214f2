/*
 * consistency_rennala.c — an update is the mean of S gradients computed at the latest version.
 * Older gradients are dropped. No worker waits. S = consistency.size.
 *
 * Tyurin, Richtárik, "Optimal time complexities of parallel stochastic optimization methods under a
 * fixed computation model" (NeurIPS 2023, arXiv:2305.12387), the method Rennala SGD. The server
 * collects S stochastic gradients at x^k, from any workers. It ignores gradients computed at an
 * earlier point; their workers continue at x^k:
 *
 *   x^{k+1} = x^k − γ (1 / S) Σ g      over S gradients at x^k
 *
 * The paper's S = max(⌈σ²/ε⌉, 1) depends on the noise of the problem; the default of 8 is ours. A
 * fast worker may contribute several gradients to one sum, each of another batch.
 *
 * Sources: the abstract of the paper; a later paper of its authors that restates the method beside
 * Malenia SGD (all workers start at x^k, the next result of any worker is added); code of the group
 * (ringmaster-lmo, RennalaSGD), where an update stops unfinished computations.
 */
#include "ps/rules/consistency/consistency.h"

static unsigned per_update(const double *parameters, unsigned workers UNUSED)
{
    return (unsigned)parameters[0];
}

static enum consistency_decision arrive(const double *parameters UNUSED,
                                        const struct consistency_view *view)
{
    return view->staleness > 0 ? CONSISTENCY_DROP : CONSISTENCY_TAKE;
}

static bool apply_now(const double *parameters, const struct consistency_view *view)
{
    return view->taken >= (unsigned)parameters[0];
}

static const struct option parameters_of[] = {
    {.key = "consistency.size",
     .type = OPTION_INTEGER,
     .initial = "8",
     .minimum = 1,
     .maximum = 65536,
     .help = "gradients in an update"},
    {0},
};

const struct consistency_policy consistency_rennala = {
    .about = {"rennala", "the mean of S gradients that are not stale; others are dropped",
              "Tyurin, Richtarik 2023, Optimal time complexities of parallel SGD", parameters_of},
    .takes = true,
    .never_stale = true,
    .drops = true,
    .per_update = per_update,
    .arrive = arrive,
    .apply_now = apply_now,
};
