/*
 * report.h — what a synchronous run tells while it trains: step rows, evaluations, checkpoints,
 * progress, and the training clock that stands still meanwhile.
 *
 * Every rank calls every function, at the same update: they meet inside. Rank 0 writes checkpoints,
 * records and shows progress while the others sleep. Evaluations are shared: the first so many
 * ranks as rank 0's host has processors evaluate a part of the batches each, and rank 0 adds up in
 * the order of batches, so that the result has the bits of one rank's.
 */
#ifndef GRADLAG_SYNC_REPORT_H
#define GRADLAG_SYNC_REPORT_H

#include "sync/replica.h"
#include "sync/trainer.h"

enum { REPORT_ROWS = 64 }; /* updates between two gathers of step rows */

struct report_row { /* one rank, one update */
    float loss, compute_us, exchange_us, apply_us;
    float data_us, forward_us, backward_us, hidden_us; /* see results/recorder.h */
    float staleness;
    double at_seconds; /* when it ended: filled in by report_update */
};
struct report_row report_row_of(const struct step_stats *stats, uint64_t exchange_ns,
                                uint64_t apply_ns);

struct report_state { /* where training is, after an update */
    uint64_t updates, samples;
    replica *replica;
    bool apart; /* ranks differ: the row is kept, the rest waits for the next averaging */
    /* Before a checkpoint, on every rank: brings to rank 0 what it needs beside the replica's view
     * and what the report knows, and says where it is. NULL: nothing. */
    status (*complete)(void *context, struct training_state *out);
    void *context;
};

struct report {
    const struct sync_trainer_options *o;
    communicator *c;
    struct training_length length;
    uint64_t samples; /* used, as of the last update told */
    uint64_t began_ns, paused_ns, pause_began_ns, next_progress_ns;
    double seconds_before; /* of training, in the runs that this one goes on from */
    double loss_sum, smooth_loss, smoothing, test_accuracy;
    uint64_t loss_count;
    bool checkpoints; /* key checkpoint names a file */
    uint64_t checkpoint_every, next_checkpoint;
    struct report_row rows[REPORT_ROWS], *gathered; /* gathered: [size][row_count] */
    int32_t *codes;                                 /* [size], of a shared task */
    unsigned evaluators;                            /* ranks that evaluate */
    size_t batches;                                 /* of an evaluation */
    struct evaluation_sum *sums, *all_sums;         /* [batches], [size][batches] */
    size_t classes;
    uint32_t *predicted, *all_predicted; /* [classes], [size][classes] */
    unsigned row_count;
    bool records_steps, told_of_waiting;
};

/* `begin`: where training stands already. */
status report_open(struct report *r, const struct sync_trainer_options *o,
                   const struct training_length *length,
                   const struct training_state *begin) MUST_CHECK;
void report_close(struct report *r);

/* The training clock begins, on all ranks together. */
status report_begin(struct report *r) MUST_CHECK;
double report_seconds(const struct report *r);

/* The training clock stands still in between. */
void report_pause(struct report *r);
void report_go_on(struct report *r);
/* A row of the run, by rank 0; a warning is a line of the log too. */
void report_event(struct report *r, enum severity severity, const char *code, const char *text);

/* After each update: `row` is this rank's, `loss` the mean over ranks. Evaluates and checkpoints
 * where they are due: an evaluation when the samples used cross a multiple of evaluate_every, and
 * at the end. */
status report_update(struct report *r, const struct report_state *s, const struct report_row *row,
                     double loss) MUST_CHECK;
/* Evaluates now. report_update() does so where it is due; a run that is resumed after its last
 * update has no other place for it. */
status report_evaluate(struct report *r, const struct report_state *s) MUST_CHECK;
/* Whether ranks will meet in report_update at so many samples, but for step rows. */
bool report_meets(const struct report *r, uint64_t samples);
/* At the end, stopped ones included: outstanding rows and the last checkpoint. */
status report_end(struct report *r, const struct report_state *s) MUST_CHECK;

#endif
