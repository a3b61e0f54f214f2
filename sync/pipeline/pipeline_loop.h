/*
 * pipeline_loop.h — one rank's training, as pipeline_trainer.c (with flushes) and pipeline_async.c
 * (without) see it.
 */
#ifndef GRADLAG_SYNC_PIPELINE_PIPELINE_LOOP_H
#define GRADLAG_SYNC_PIPELINE_PIPELINE_LOOP_H

#include "sync/pipeline/pipeline_stage.h"
#include "sync/run_metrics.h"
#include "worker/optimizer/schedule.h"

struct pipeline_loop {
    const struct sync_trainer_options *o;
    communicator *c;
    struct pipeline_stage p;
    uint64_t update_samples; /* in all replicas' batches together */
    struct training_length length;
    struct schedule schedule;
    struct sync_metrics report;
    uint64_t samples;
    bool stopped; /* with flushes; else the samples tell */
    /* Of the whole run: computing, and computing or waiting for other stages. */
    uint64_t busy_ns, span_ns;
};

/* Updates of a pipeline without flushes between two gathers of rows, and passes meanwhile. */
enum { PIPELINE_ROWS = 256, PIPELINE_PASSES_MOST = 2 * PIPELINE_ROWS + STAGE_MOST };

/* The whole run, but its end, where no update waits for the pipeline to run empty. */
status pipeline_without_flush(struct pipeline_loop *l) MUST_CHECK;

#endif
