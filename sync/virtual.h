/*
 * virtual.h — synchronous training in the virtual cluster: the ranks' true gradients, a barrier and
 * the model of an allreduce on a simulated clock (worker/cluster.h).
 *
 * An update takes as long as the slowest rank's step, and a ring allreduce after it. The
 * parameters are those of mode=sync with reduction=ordered, bit for bit, whatever the number of
 * threads. Gradients are summed as they come in rank order, so memory does not grow with the ranks.
 */
#ifndef GRADLAG_SYNC_VIRTUAL_H
#define GRADLAG_SYNC_VIRTUAL_H

#include "results/recorder.h"
#include "worker/cluster.h"
#include "worker/pool.h"
#include "worker/training.h"

struct sync_virtual_options {
    const options *settings;
    worker_pool *pool; /* borrowed; opened for as many workers */
    const pace *pace;  /* borrowed */
    unsigned ranks;
    struct training_hooks hooks;
    recorder *recorder; /* may be NULL */
};

/* ERROR_DIVERGED, STOPPED, or what a hook returned. `out` is filled in as far as training got. */
status sync_virtual_run(const struct sync_virtual_options *o,
                        struct training_outcome *out) MUST_CHECK;

#endif
