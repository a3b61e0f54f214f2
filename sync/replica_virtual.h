/*
 * replica_virtual.h — engine=virtual: one replica that stands for all ranks, in one process, with a
 * virtual clock.
 *
 * A thread pool computes the gradients that the ranks would compute. Their mean is taken in rank
 * order: the parameters are those of mode=sync with reduction=ordered, bit for bit, for any number
 * of threads. Gradients are summed as they arrive in rank order, so memory does not grow with the
 * number of ranks. With local_steps each rank has its own parameters, gradient and optimizer state.
 *
 * Time is that of a barrier and an allreduce (worker/pace/cluster.h): an exchange ends when the
 * slowest rank has computed and the allreduce is complete. With a delay the ranks compute their
 * next gradient meanwhile. Evaluations and checkpoints take no time.
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
    gradient_pool *pool; /* borrowed; opened for `count` workers */
    struct cluster cluster;
    uint64_t now_ns; /* the virtual clock, starts at 0 */
};

/* Like replica_open. `ranks` is borrowed until replica_close; every exchange advances its clock.
 * `c` was opened by communicator_open_alone. */
status replica_open_virtual(replica **out, struct virtual_ranks *ranks, const options *o, worker *w,
                            communicator *c) MUST_CHECK;

#endif
