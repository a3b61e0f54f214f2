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
    /* engine=virtual: all ranks are in this process, the worker is the pool's own, and the
     * communicator is of communicator_open_alone. NULL: this process is one rank. */
    struct virtual_ranks *virtual;
    struct training_hooks hooks;        /* used on rank 0 */
    recorder *recorder;                 /* rank 0's, NULL elsewhere */
    const struct training_state *start; /* rank 0's, to go on from; NULL: from the beginning */
    bool first_evaluates; /* rank 0 alone has all parameters, and evaluates: a pipeline's */
};

static inline unsigned sync_trainer_ranks(const struct sync_trainer_options *o)
{
    return o->virtual != NULL ? o->virtual->count : o->communicator->size;
}

/* ERROR_USAGE: settings that exclude each other, as far as they alone tell. */
status sync_trainer_check(const options *settings) MUST_CHECK;

/* Compute, allreduce, apply, on every rank alike, until the samples are used up. ERROR_DIVERGED
 * when any rank's gradient is not finite: all ranks return it together. */
status sync_trainer_run(const struct sync_trainer_options *o,
                        struct training_outcome *out) MUST_CHECK;

#endif
