/*
 * joint.h — several workers' batches of one size that batch norm takes for one: for its mean and
 * variance, and for the gradient through them.
 *
 * Whoever knows the other workers fills this in (worker_join); a backend calls it in the middle of
 * an operation, forward and backward, in the same order on every worker.
 */
#ifndef GRADLAG_WORKER_JOINT_H
#define GRADLAG_WORKER_JOINT_H

#include "worker/base.h"

struct joint_batch {
    void *context;
    unsigned shares; /* workers */
    /* sums[0..count) ← their sums over all workers, the same bits for each. Waits for all. */
    status (*add_up)(void *context, double *sums, size_t count);
};

#endif
