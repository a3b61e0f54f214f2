/*
 * consistency_ssp.c — stale synchronous parallel: every gradient is applied when it arrives, but a
 * worker more than s clocks ahead of the slowest one is blocked. s = consistency.slack.
 *
 * Ho et al., "More effective distributed ML via a stale synchronous parallel parameter server"
 * (NIPS 2013), section 2: the slowest and the fastest worker are at most s clocks apart; otherwise
 * the fastest waits for the slowest. A worker's clock c counts the iterations it has completed:
 *
 *   a worker may start the next iteration if c ≤ min over workers of c + s
 *
 * With s = 0 all workers complete iteration c before any worker starts c + 1. Each gradient is
 * still an update of its own, while bsp averages. The paper gives no default; 3 is ours.
 *
 * Between two pushes of a worker another worker pushes at most 2 s + 1 times: at the release the
 * other is at most s behind, and until the push at most s + 1 ahead. Hence τ ≤ (W − 1)(2 s + 1)
 * while no worker is lost.
 *
 * Where we differ: the paper's workers read a cache that may be older than the newest parameters,
 * up to the bound. Ours always read the latest version, a best-effort read in the paper's terms. A
 * worker that joins again after a loss starts at the slowest clock of the others. So it neither
 * blocks the others nor runs ahead of them.
 */
#include "ps/rules/consistency/consistency.h"

static bool may_go(const double *parameters, const struct consistency_view *view)
{
    return view->clock - view->slowest <= (uint64_t)parameters[0];
}

static const struct option parameters_of[] = {
    {.key = "consistency.slack",
     .type = OPTION_INTEGER,
     .initial = "3",
     .minimum = 0,
     .maximum = 1e6,
     .help = "gradients that a worker may be ahead of the slowest"},
    {0},
};

const struct consistency_policy consistency_ssp = {
    .about = {"ssp", "applied on arrival; a worker too far ahead of the slowest waits",
              "Ho et al. 2013, More effective distributed ML via SSP", parameters_of},
    .may_go = may_go,
};
