/*
 * run_metrics.h — what a synchronous run tells while it trains: step rows, evaluations,
 * checkpoints, progress, and the training clock that stands still meanwhile. With engine=virtual
 * that clock is the virtual one (replica_virtual.h).
 *
 * Every rank calls every function, at the same update: they meet inside. Rank 0 writes checkpoints,
 * records and shows progress while the others sleep. Evaluations are shared: the first so many
 * ranks as rank 0's host has processors evaluate a part of the batches each, and rank 0 adds up in
 * the order of batches, so that the result has the bits of one rank's.
 */
#ifndef GRADLAG_SYNC_RUN_METRICS_H
#define GRADLAG_SYNC_RUN_METRICS_H

#include "sync/replica.h"
#include "sync/trainer.h"

/* Updates between two gathers of step rows; one process records them at every update. */
enum { SYNC_METRICS_ROWS = 64 };

/* One rank's row; sync_metrics_update fills in update_version, worker and at_seconds. */
struct step_record sync_metrics_row_of(const struct step_stats *stats, uint64_t exchange_ns,
                                       uint64_t apply_ns);

struct sync_metrics_state { /* where training is, after an update */
    uint64_t updates, samples;
    replica *replica;
    bool between_averagings; /* ranks differ: the row is kept, the rest waits for the next averaging
                              */
    /* Before a checkpoint, on every rank: brings to rank 0 what it needs beside the replica's view
     * and what the report knows, and says where it is. NULL: nothing. */
    status (*complete)(void *context, struct training_state *out);
    void *context;
};

struct sync_metrics {
    const struct sync_trainer_options *o;
    communicator *c;
    struct training_length length;
    uint64_t samples;                             /* used, as of the last update told */
    bool begun;                                   /* sync_metrics_begin was called */
    uint64_t began_ns, paused_ns, pause_began_ns; /* on the training clock */
    uint64_t opened_ns, next_progress_ns;         /* on the host's clock */
    double seconds_before; /* of training, in the runs that this one goes on from */
    double loss_sum, smooth_loss, smoothing, test_accuracy;
    uint64_t loss_count, steps_since_average; /* steps_since_average: since the last averaging */
    bool checkpoints;                         /* key checkpoint names a file */
    uint64_t checkpoint_every, next_checkpoint;
    unsigned here;                          /* ranks of this process */
    unsigned rows_most;                     /* updates that `rows` has room for */
    struct step_record *rows, *gathered;    /* [row_count][here], [size][row_count][here] */
    int32_t *codes;                         /* [size], of a shared task */
    unsigned evaluators;                    /* ranks that evaluate */
    size_t batches;                         /* of an evaluation */
    struct evaluation_sum *sums, *all_sums; /* [batches], [size][batches] */
    size_t classes;
    uint32_t *predicted, *all_predicted; /* [classes], [size][classes] */
    unsigned row_count;                  /* updates */
    bool records_steps, wait_was_logged;
};

/* `begin`: where training stands already. */
status sync_metrics_open(struct sync_metrics *r, const struct sync_trainer_options *o,
                         const struct training_length *length,
                         const struct training_state *begin) MUST_CHECK;
void sync_metrics_close(struct sync_metrics *r);

/* The training clock begins, on all ranks together. */
status sync_metrics_begin(struct sync_metrics *r) MUST_CHECK;
double sync_metrics_seconds(const struct sync_metrics *r);

/* The training clock stands still in between. */
void sync_metrics_pause(struct sync_metrics *r);
void sync_metrics_resume(struct sync_metrics *r);
/* A row of the run, by rank 0; a warning is a line of the log too. */
void sync_metrics_event(struct sync_metrics *r, enum severity severity, const char *code,
                        const char *text);

/* After each update: `row` is this rank's (unused if the replica knows the rows of several ranks),
 * `loss` the mean over ranks, and over the steps since the last averaging. Evaluates and
 * checkpoints where they are due: an evaluation when the samples used cross a multiple of
 * evaluate_every, and at the end. */
status sync_metrics_update(struct sync_metrics *r, const struct sync_metrics_state *s,
                           const struct step_record *row, double loss) MUST_CHECK;
/* Evaluates now. sync_metrics_update() does so where it is due; a run that is resumed after its
 * last update has no other place for it. */
status sync_metrics_evaluate(struct sync_metrics *r, const struct sync_metrics_state *s) MUST_CHECK;
/* Whether ranks will meet in sync_metrics_update at so many samples, but for step rows. */
bool sync_metrics_has_barrier(const struct sync_metrics *r, uint64_t samples);
/* At the end, stopped ones included: outstanding rows and the last checkpoint. */
status sync_metrics_end(struct sync_metrics *r, const struct sync_metrics_state *s) MUST_CHECK;

#endif
