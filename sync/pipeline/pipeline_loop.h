/*
 * pipeline_loop.h — one rank's training, shared by pipeline_trainer.c (with flushes) and
 * pipeline_async.c (without).
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
    uint64_t update_samples; /* one batch of each replica */
    struct training_length length;
    struct schedule schedule;
    struct sync_metrics report;
    uint64_t samples, computed; /* used by updates; computed (0 without flushes) */
    /* With flushes only: */
    bool stopped;
    double seconds; /* training time that all ranks agree on, after the last update */
    /* In the whole run: computing; computing or waiting for other stages. */
    uint64_t busy_ns, span_ns;
};

/* Without flushes: the most updates between two gathers of rows, and the most passes meanwhile. */
enum { PIPELINE_ROWS = 256, PIPELINE_PASSES_MOST = 2 * PIPELINE_ROWS + STAGE_MOST };

/* Trains without flushes; pipeline_trainer_run begins and ends the run. */
status pipeline_without_flush(struct pipeline_loop *l) MUST_CHECK;

#endif
