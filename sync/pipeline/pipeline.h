/*
 * pipeline.h — mode=pipeline: a model cut into K stages, one rank each, that work on several
 * micro-batches at once. D such pipelines are replicas, as in mode=sync.
 *
 * Rank r is stage r mod K of replica r div K. An entry of pipeline_registry defines the order in
 * which a stage computes forwards and backwards, and whether the pipeline runs empty (flushes)
 * before every update:
 *
 *   gpipe     all forwards, then all backwards (Huang et al. 2019)
 *   1f1b      a backward as soon as one is possible: as gpipe, but at most K − k micro-batches are
 *             in flight at stage k instead of M (PipeDream-flush: Narayanan et al. 2021)
 *   pipedream no flush: every mini-batch is an update, and its backward uses the weights of its
 *             forward (weight stashing); stage k is K − 1 − k updates late (Narayanan et al. 2019)
 *
 * Backwards are in the order of the micro-batches, so gpipe and 1f1b give the same bits.
 */
#ifndef GRADLAG_SYNC_PIPELINE_PIPELINE_H
#define GRADLAG_SYNC_PIPELINE_PIPELINE_H

#include "sync/trainer.h"

struct pipeline_action {
    bool backward;
    uint64_t unit; /* number of the micro-batch in its update; without flushes, of the mini-batch in
                      the run */
};

struct pipeline_kind {
    struct about about;
    bool flushes;
    /* The n-th of the 2 × units actions of stage `stage` of `stages`. */
    struct pipeline_action (*action)(unsigned stage, unsigned stages, uint64_t units, uint64_t n);
    /* The largest number of units whose forward this stage has begun and whose backward is not
     * complete. */
    uint64_t (*in_flight)(unsigned stage, unsigned stages, uint64_t units);
};
extern const struct registry pipeline_registry;

/* *stages ← key stages, or the number of workers if that is 0; *micro_batches ← of one update.
 * ERROR_USAGE: workers or batch cannot be divided this way, or there are too many stages. */
status pipeline_shape(const options *o, unsigned *stages, uint32_t *micro_batches) MUST_CHECK;
/* (K − 1) / (M + K − 1): the share of time that a stage idles if all stages take the same time. */
double pipeline_bubble(unsigned stages, uint64_t micro_batches);

/* Trains; called on every rank. o->worker may be opened with no_gradients; on rank 0 it evaluates.
 * Reads keys pipeline, stages, micro_batches, stage_cuts and recompute and those of mode=sync. The
 * sum over replicas is in rank order. ERROR_DIVERGED: on all ranks; with flushes at the same
 * update.
 */
status pipeline_trainer_run(const struct sync_trainer_options *o,
                            struct training_outcome *out) MUST_CHECK;

#endif
