/*
 * run_metrics.h — what a synchronous run records while it trains: step rows, evaluations,
 * checkpoints and progress; and the training clock, which is paused meanwhile. With engine=virtual
 * that clock is the virtual one (replica_virtual.h).
 *
 * Collective: every rank calls every function, at the same update. Rank 0 writes checkpoints,
 * records and shows progress; the others sleep until it is done. Ranks share an evaluation. The
 * first ranks, as many as rank 0's host has processors, each evaluate some batches. Rank 0 adds the
 * sums in the order of the batches. So the result has the bits of an evaluation by one rank.
 */
#ifndef GRADLAG_SYNC_RUN_METRICS_H
#define GRADLAG_SYNC_RUN_METRICS_H

#include "sync/replica.h"
#include "sync/trainer.h"

/* The most updates between two gathers of step rows. With one process rows are recorded at every
 * update. */
enum { SYNC_METRICS_ROWS = 64 };

/* One rank's row. sync_metrics_update sets update_version, worker and at_seconds. */
struct step_record sync_metrics_row_of(const struct step_stats *stats, uint64_t exchange_ns,
                                       uint64_t apply_ns);

struct sync_metrics_state { /* position of training, after an update */
    uint64_t updates, samples;
    double seconds; /* training time that all ranks agree on */
    replica *replica;
    bool between_averagings; /* ranks differ: only the row is kept; the rest happens at the next
                                averaging */
    /* Called before a checkpoint, on every rank: gathers to rank 0 the state that is neither in the
     * replica's view nor in struct sync_metrics, and sets its fields of *out. NULL: none. */
    status (*complete)(void *context, struct training_state *out);
    void *context;
};

struct sync_metrics {
    const struct sync_trainer_options *o;
    communicator *c;
    struct training_length length;
    uint64_t samples;   /* used, as of the last call of sync_metrics_update */
    uint64_t evaluated; /* updates at the last evaluation, plus 1; 0: none */
    bool begun;         /* sync_metrics_begin was called */
    uint64_t began_ns, paused_ns, pause_began_ns; /* on the training clock */
    uint64_t opened_ns, next_progress_ns;         /* on the host's clock */
    double seconds_before; /* of training, in the runs that this one resumes */
    double loss_sum, smooth_loss, smoothing, test_accuracy;
    uint64_t loss_count, steps_since_average;
    bool checkpoints; /* key checkpoint names a file */
    uint64_t checkpoint_every, next_checkpoint;
    unsigned here;                          /* ranks in this process */
    unsigned rows_most;                     /* capacity of `rows`, in updates */
    struct step_record *rows, *gathered;    /* [row_count][here], [size][row_count][here] */
    int32_t *codes;                         /* [size], status of each rank's part of the work */
    unsigned evaluators;                    /* ranks that evaluate */
    size_t batches;                         /* of an evaluation */
    struct evaluation_sum *sums, *all_sums; /* [batches], [size][batches] */
    size_t classes;
    uint32_t *predicted, *all_predicted; /* [classes], [size][classes] */
    unsigned row_count;                  /* updates */
    double gathered_s; /* training time of the last gather of rows, the same on all ranks */
    bool records_steps, wait_was_logged;
    bool overran; /* the last update was made after the end (key seconds), and counts */
};

/* `begin`: the position of training. */
status sync_metrics_open(struct sync_metrics *r, const struct sync_trainer_options *o,
                         const struct training_length *length,
                         const struct training_state *begin) MUST_CHECK;
void sync_metrics_close(struct sync_metrics *r);

/* Starts the training clock, on all ranks together. */
status sync_metrics_begin(struct sync_metrics *r) MUST_CHECK;
double sync_metrics_seconds(const struct sync_metrics *r);
/* Training time of the last state: at most key seconds, unless an update that ended later counts
 * (local steps, an update on a GPU). */
double sync_metrics_state_seconds(const struct sync_metrics *r);

/* Pauses and resumes the training clock. */
void sync_metrics_pause(struct sync_metrics *r);
void sync_metrics_resume(struct sync_metrics *r);
/* Rank 0 records a row of `event`; a warning is also logged. */
void sync_metrics_event(struct sync_metrics *r, enum severity severity, const char *code,
                        const char *text);

/* `own`: the status of this rank's part of some work, `what`. If any rank failed, all ranks return
 * the code and message of the first of them. */
status sync_metrics_agree(struct sync_metrics *r, status own, const char *what) MUST_CHECK;

/* Call it on all ranks at the same update, before they end with an error: records the rest of the
 * rows. Keeps the error message. sync_metrics_agree calls it itself. */
void sync_metrics_leave(struct sync_metrics *r);

/* Call it after each update. `row` is this rank's (not used if the replica makes the rows of
 * several ranks). `loss` is the mean over ranks and over the steps since the last averaging.
 * Evaluates and writes a checkpoint if one is due: an evaluation when the samples used cross a
 * multiple of evaluate_every, and at the end. */
status sync_metrics_update(struct sync_metrics *r, const struct sync_metrics_state *s,
                           const struct step_record *row, double loss) MUST_CHECK;
/* Evaluates now: for a run that is resumed after its last update. Else sync_metrics_update
 * evaluates.
 */
status sync_metrics_evaluate(struct sync_metrics *r, const struct sync_metrics_state *s) MUST_CHECK;
/* Whether sync_metrics_update will evaluate or write a checkpoint after `samples` samples. */
bool sync_metrics_has_barrier(const struct sync_metrics *r, uint64_t samples);
/* Call it at the end of training, also if it was stopped: records the rest of the rows and writes
 * the last checkpoint. */
status sync_metrics_end(struct sync_metrics *r, const struct sync_metrics_state *s) MUST_CHECK;

#endif
