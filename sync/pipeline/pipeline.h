/*
 * pipeline.h — mode=pipeline: a model cut into K stages, each on a rank of its own, that work on
 * several micro-batches at once; D such pipelines side by side are replicas as in mode=sync.
 *
 * Rank r is stage r mod K of replica r div K. An entry of pipeline_registry says in which order a
 * stage does forwards and backwards, and whether the pipeline runs empty (flushes) before every
 * update:
 *
 *   gpipe     all forwards, then all backwards (Huang et al. 2019)
 *   1f1b      a backward as soon as one is possible: as gpipe with K − k micro-batches in flight at
 *             stage k in place of M (PipeDream-flush: Narayanan et al. 2021)
 *   pipedream no flush: every mini-batch is an update at once, its backward at the weights of its
 *             forward (weight stashing); stage k is K − 1 − k updates late (Narayanan et al. 2019)
 *
 * Backwards come in order of the micro-batches, so that gpipe and 1f1b add alike: the same bits.
 */
#ifndef GRADLAG_SYNC_PIPELINE_PIPELINE_H
#define GRADLAG_SYNC_PIPELINE_PIPELINE_H

#include "sync/trainer.h"

struct pipeline_action {
    bool backward;
    uint64_t unit; /* micro-batch of the update; without flushes the mini-batch of the run */
};

struct pipeline_kind {
    struct about about;
    bool flushes;
    /* What stage `stage` of `stages` does as its n-th of 2 × units actions. */
    struct pipeline_action (*action)(unsigned stage, unsigned stages, uint64_t units, uint64_t n);
    /* The most units between forward and backward there. */
    uint64_t (*in_flight)(unsigned stage, unsigned stages, uint64_t units);
};
extern const struct registry pipeline_registry;

/* How many stages there are: key stages, or as many as workers; and micro-batches of an update.
 * ERROR_USAGE where workers or batch cannot be divided so. */
status pipeline_shape(const options *o, unsigned *stages, uint32_t *micro_batches) MUST_CHECK;
/* (K − 1) / (M + K − 1): the share of its time that a stage idles when all take the same time. */
double pipeline_bubble(unsigned stages, uint64_t micro_batches);

/* On every rank. o->worker needs no gradients; on rank 0 it evaluates. Reads keys pipeline, stages,
 * micro_batches, stage_cuts and recompute beside those of mode=sync; the sum over replicas is in
 * rank order. ERROR_DIVERGED as in mode=sync: all ranks together, at the same update. */
status pipeline_trainer_run(const struct sync_trainer_options *o,
                            struct training_outcome *out) MUST_CHECK;

#endif
