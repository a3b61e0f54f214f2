/*
 * tally.h — what a run tells while it trains: rows for the recorder, and the figures that progress
 * shows.
 */
#ifndef GRADLAG_PS_TALLY_H
#define GRADLAG_PS_TALLY_H

#include "results/recorder.h"
#include "worker/training.h"

struct tally {
    recorder *recorder; /* borrowed; NULL: nothing is written */
    bool record_pushes; /* key record */
    bool skips;         /* on_nonfinite=skip */
    double loss_sum, smooth_loss, test_accuracy;
    uint64_t loss_count;
    struct staleness_sum staleness;
};
void tally_open(struct tally *t, const options *settings, recorder *recorder);
void tally_push(struct tally *t, const struct push_record *row);
/* `where`: training, as far as it is; took_seconds: the evaluation, or NOT_MEASURED. */
void tally_evaluation(struct tally *t, const struct training_state *where, double took_seconds,
                      const struct evaluation *e);
/* Over all applied gradients so far; 0 before the first. */
double tally_mean_staleness(const struct tally *t);

#endif
