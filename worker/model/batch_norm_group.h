/*
 * batch_norm_group.h — a group of workers for SyncBatchNorm: batch norm treats their batches, all
 * of one size, as one batch, for mean and variance and for the gradient through them.
 *
 * The trainer fills in the struct (worker_join). A backend calls add_up within an operation,
 * forward and backward, in the same order on every worker.
 */
#ifndef GRADLAG_WORKER_MODEL_BATCH_NORM_GROUP_H
#define GRADLAG_WORKER_MODEL_BATCH_NORM_GROUP_H

#include "base/status.h"

struct batch_norm_group {
    void *context;
    unsigned shares; /* number of workers */
    /* sums[0..count) ← their sums over all workers, with the same bits on each. Blocks until all
     * workers have called it. */
    status (*add_up)(void *context, double *sums, size_t count);
};

#endif
