/*
 * run_metrics.h — rows for the recorder, and the figures of the progress display.
 */
#ifndef GRADLAG_PS_SERVER_RUN_METRICS_H
#define GRADLAG_PS_SERVER_RUN_METRICS_H

#include "results/store/recorder.h"
#include "worker/training.h"

struct ps_metrics {
    recorder *recorder; /* borrowed; NULL: nothing is written */
    bool record_pushes; /* key record */
    bool skips;         /* on_nonfinite=skip */
    double loss_sum, smooth_loss, test_accuracy;
    uint64_t loss_count;
    struct staleness_sum staleness;
};
void ps_metrics_open(struct ps_metrics *t, const options *settings, recorder *recorder);
void ps_metrics_push(struct ps_metrics *t, const struct push_record *row);
/* An evaluation begins: moves the losses since the last one to `where`. */
void ps_metrics_begin_evaluation(struct ps_metrics *t, struct training_state *where);
/* The evaluation ends without a result: moves the losses back. */
void ps_metrics_drop_evaluation(struct ps_metrics *t, const struct training_state *where);
/* where: the state of training when the evaluation began; took_seconds: its duration, or
 * NOT_MEASURED. */
void ps_metrics_evaluation(struct ps_metrics *t, const struct training_state *where,
                           double took_seconds, const struct evaluation *e);
/* Over all applied gradients so far; 0 before the first. */
double ps_metrics_mean_staleness(const struct ps_metrics *t);

#endif
