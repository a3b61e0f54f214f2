/*
 * consistency_bsp.c — bulk synchronous parallel: an update is the mean of one gradient of every
 * worker, summed in worker order, and everybody waits for it. Staleness is always 0.
 *
 * Valiant, "A bridging model for parallel computation" (CACM 1990). With W workers it computes what
 * synchronous training with an ordered reduction computes, bit for bit. To that end the first
 * update waits for workers that are yet to say hello, not only for those already here; a lost one
 * is no longer waited for until it comes back.
 */
#include "ps/rules/consistency/consistency.h"

static bool apply_now(const double *parameters UNUSED, const struct consistency_view *view)
{
    return view->held >= view->expected;
}

static unsigned per_update(const double *parameters UNUSED, unsigned workers)
{
    return workers;
}

const struct consistency_policy consistency_bsp = {
    .about = {"bsp", "the mean of one gradient of every worker; everybody waits",
              "Valiant 1990, A bridging model for parallel computation", NULL},
    .holds = true,
    .never_stale = true,
    .even = true,
    .per_update = per_update,
    .apply_now = apply_now,
};
