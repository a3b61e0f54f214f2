/*
 * consistency_groups.c — compute groups: synchronous within a group, asynchronous between groups.
 * An update is the mean of one gradient of every worker of a group, summed in worker order.
 * G = consistency.groups; worker w is in group ⌊w G / W⌋, so group sizes differ by at most one.
 *
 * Hadjis, Zhang, Mitliagkas, Iter, Ré, "Omnivore: an optimizer for multi-device deep learning on
 * CPUs and GPUs" (2016, arXiv:1606.04487), compute groups. And Kurth et al., "Deep learning at
 * 15PF" (SC 2017, arXiv:1708.05256): synchronous groups of nodes, asynchronous between groups:
 *
 *   θ ← θ − γ (1 / n) Σ g      over the n workers of one group, which all computed at one version
 *
 * G = 1 equals bsp and G = W equals asp, bit for bit. G > W acts as G = W. The default of 2 is
 * ours. An update waits for every worker of its group that is not lost.
 *
 * The momentum that asynchrony adds is that of G workers (Mitliagkas et al. 2016), so
 * correction=implicit-momentum lowers the momentum by 1 − 1/G.
 *
 * Where we differ: the workers of a group have batches of their own, so G changes the batch of an
 * update. In Omnivore a group divides one batch of fixed size among its machines. Set `batch` to
 * compare at a fixed batch.
 *
 * Of both papers only the abstracts were available.
 */
#include "ps/rules/consistency/consistency.h"

static unsigned groups(const double *parameters, unsigned workers)
{
    unsigned wanted = (unsigned)parameters[0];
    return wanted < workers ? wanted : workers;
}

static unsigned per_update(const double *parameters, unsigned workers)
{
    unsigned count = groups(parameters, workers);
    return (workers + count - 1) / count;
}

static bool apply_now(const double *parameters UNUSED, const struct consistency_view *view)
{
    return view->held >= view->expected;
}

static const struct option parameters_of[] = {
    {.key = "consistency.groups",
     .type = OPTION_INTEGER,
     .initial = "2",
     .minimum = 1,
     .maximum = 16384,
     .help = "number of groups of workers"},
    {0},
};

const struct consistency_policy consistency_groups = {
    .about = {"groups", "synchronous within a group of workers, asynchronous between groups",
              "Hadjis et al. 2016, Omnivore (compute groups)", parameters_of},
    .holds = true,
    .groups = groups,
    .per_update = per_update,
    .apply_now = apply_now,
};
