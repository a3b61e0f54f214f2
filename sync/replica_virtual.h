/*
 * replica_virtual.h — engine=virtual: one replica that stands for all ranks, in one process, with a
 * virtual clock.
 *
 * The gradients are those that the ranks would compute, by a pool of threads. Their mean is taken
 * in rank order: the parameters are those of mode=sync with reduction=ordered, bit for bit,
 * whatever the number of threads. Gradients are summed as they arrive in rank order, so memory does
 * not grow with the ranks, except with local_steps, where each rank has parameters, gradient and
 * optimizer state of its own.
 *
 * Time is that of a barrier and an allreduce (worker/pace/cluster.h): an exchange ends when the
 * slowest rank has computed and the allreduce is over. Evaluations and checkpoints take no time.
 *
 * One thread.
 */
#ifndef GRADLAG_SYNC_REPLICA_VIRTUAL_H
#define GRADLAG_SYNC_REPLICA_VIRTUAL_H

#include "sync/replica.h"
#include "worker/gradient_pool.h"
#include "worker/pace/cluster.h"

struct virtual_ranks {
    unsigned count;
    gradient_pool *pool; /* borrowed; opened for as many workers */
    struct cluster cluster;
    uint64_t now_ns; /* the virtual clock, from 0 */
};

/* As replica_open. `ranks` is borrowed until replica_close, and its clock advances with every
 * exchange. `c` is of communicator_open_alone. */
status replica_open_virtual(replica **out, struct virtual_ranks *ranks, const options *o, worker *w,
                            communicator *c) MUST_CHECK;

#endif
