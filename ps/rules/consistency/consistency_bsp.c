/*
 * consistency_bsp.c — bulk synchronous parallel: an update is the mean of one gradient of every
 * worker, summed in worker order. All workers wait for it. Staleness is always 0.
 *
 * Valiant, "A bridging model for parallel computation" (CACM 1990). With W workers the result
 * equals synchronous training with an ordered reduction, bit for bit. Therefore the first update
 * also waits for workers that have not joined yet. A lost worker is not waited for until it joins
 * again.
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
    .about = {"bsp", "the mean of one gradient of every worker; all workers wait",
              "Valiant 1990, A bridging model for parallel computation", NULL},
    .holds = true,
    .never_stale = true,
    .even = true,
    .per_update = per_update,
    .apply_now = apply_now,
};
