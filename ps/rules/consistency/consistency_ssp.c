/*
 * consistency_ssp.c — stale synchronous parallel: every gradient is applied when it comes, but a
 * worker more than s clocks ahead of the slowest one waits; s = consistency.slack.
 *
 * Ho et al., "More effective distributed ML via a stale synchronous parallel parameter server"
 * (NIPS 2013), section 2: the slowest and the fastest worker are at most s clocks apart, else the
 * fastest waits for the slowest to catch up. A worker's clock c counts the iterations it has ended:
 *
 *   it may begin the next one if c ≤ min over workers of c + s
 *
 * So s = 0 has everybody end iteration c before anybody begins c + 1 (but each gradient is an
 * update of its own, where bsp averages). The paper gives no default; 3 is ours.
 *
 * Between two clocks of a worker another one pushes at most 2 s + 1 times: when it is released the
 * other is at most s behind, and until its push at most s + 1 ahead. Hence τ ≤ (W − 1)(2 s + 1)
 * while nobody is lost.
 *
 * Where we differ: the paper's workers read a cache that may be older than the newest parameters,
 * up to the bound; ours always read the latest version, which the paper calls a best-effort read. A
 * worker that comes back after a loss starts at the slowest clock of the others: neither does
 * everybody wait for it, nor may it run ahead.
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
     .help = "how many gradients a worker may be ahead of the slowest"},
    {0},
};

const struct consistency_policy consistency_ssp = {
    .about = {"ssp", "applied at once; a worker too far ahead of the slowest waits",
              "Ho et al. 2013, More effective distributed ML via SSP", parameters_of},
    .may_go = may_go,
};
