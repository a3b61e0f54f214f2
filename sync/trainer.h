/*
 * trainer.h — the loop of one synchronous rank. Read it beside ps/trainer.c.
 */
#ifndef GRADLAG_SYNC_TRAINER_H
#define GRADLAG_SYNC_TRAINER_H

#include "results/store/recorder.h"
#include "sync/communicator/communicator.h"
#include "sync/replica_virtual.h"
#include "worker/training.h"

struct sync_trainer_options {
    const options *settings;
    worker *worker; /* borrowed; index = rank, count = size */
    communicator *communicator;
    /* engine=virtual: all ranks are in this process, the worker belongs to the pool, and the
     * communicator was opened by communicator_open_alone. NULL: this process is one rank. */
    struct virtual_ranks *virtual;
    struct training_hooks hooks;        /* rank 0 uses all; every rank reads `stop` */
    recorder *recorder;                 /* on rank 0; NULL elsewhere */
    const struct training_state *start; /* on rank 0: the checkpoint to resume; else NULL */
    bool rank0_evaluates; /* a pipeline: only rank 0 has all parameters, so it evaluates alone */
};

static inline unsigned sync_trainer_ranks(const struct sync_trainer_options *o)
{
    return o->virtual != NULL ? o->virtual->count : o->communicator->size;
}

/* ERROR_USAGE: settings that exclude each other. Checks that need the model or the communicator
 * come later. */
status sync_trainer_check(const options *settings) MUST_CHECK;

/* Trains on every rank until all samples are used: compute, allreduce, apply.
 *   - ERROR_DIVERGED, on all ranks: a gradient or loss is not finite; with on_nonfinite=skip, in
 *     more than ten updates in a row.
 *   - STOPPED, on all ranks: `stop` of a rank is set.
 *   - ERROR_USAGE: settings exclude each other.
 *   - ERROR_OTHER: ranks have different parameters.
 *   - ERROR_PEER: another rank did not arrive, or failed while this one waited for it within a step
 *     (SyncBatchNorm, an exchange on GPUs).
 *   - Else the error of the first rank whose part failed, on all ranks.
 */
status sync_trainer_run(const struct sync_trainer_options *o,
                        struct training_outcome *out) MUST_CHECK;

#endif
