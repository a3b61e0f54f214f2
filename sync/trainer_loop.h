/*
 * trainer_loop.h — one synchronous rank's training, as the trainer's files see it:
 *
 *   trainer.c          compute, exchange, apply, until the samples are used up
 *   trainer_late.c     key double_buffering: the same, one update late
 *   trainer_apart.c    key local_steps: steps by oneself, then the mean of the parameters
 *   trainer_verdict.c  what ranks come to together: that one failed, that an update is left out,
 *                      that they are still alike
 *   trainer_resume.c   from a checkpoint on, and what goes into one
 *   trainer_ends.c     how a run begins, and what is left of it
 *
 * Elsewhere: ranks that share an update out (replica_shared.c), scaling, warm-up and growing
 * batches (worker/schedule.h), evaluations, rows and checkpoints (report.h).
 */
#ifndef GRADLAG_SYNC_TRAINER_LOOP_H
#define GRADLAG_SYNC_TRAINER_LOOP_H

#include "sync/joint.h"
#include "sync/kept.h"
#include "sync/report.h"
#include "worker/schedule.h"

/* What travels behind the gradient, so that it costs no message of its own: means over ranks. */
enum note { NOTE_LOSS, NOTE_FAILED, NOTE_STOP };

/* This rank's gradient of a batch, or its mean over some, until it is used. */
struct made {
    unsigned batches; /* 0: there is none */
    bool exchanged;   /* the replica's gradient and the notes are means already */
    status own;       /* how it went here */
    uint64_t version; /* it was computed at */
    float notes[COMMUNICATOR_NOTES];
    struct step_stats stats;
};

struct trainer_loop {
    const struct sync_trainer_options *o;
    communicator *c;
    uint64_t update_samples; /* in all ranks' batches together */
    struct training_length length;
    struct schedule schedule;
    struct joint joint;
    replica *replica; /* parameters, gradient, optimizer: in the host's memory or on the GPU */
    struct apart apart;
    uint64_t updates, samples;
    uint64_t batches; /* of each rank, computed */
    /* Of them, those of steps whose gradient or loss was not finite: no update (on_nonfinite). */
    uint64_t skipped;
    uint64_t skipped_last; /* updates in a row */
    struct staleness_sum staleness;
    double sent_before; /* bytes, in the runs that this one goes on from */
    bool may_skip, stopped;
    uint64_t verify_every, verified; /* updates; as of the last time */
    struct made waiting;             /* late: computed, and used when the next one is */
    struct kept kept;
    struct report report;
};

/* ---- trainer.c ---- */
/* This rank's mean gradient over its next batches; times are sums, the loss is a mean. */
status trainer_gradient(struct trainer_loop *l, unsigned batches,
                        struct step_stats *stats) MUST_CHECK;
/* The gradient of the next update, ready for the exchange, at which errors are told. */
status trainer_compute(struct trainer_loop *l, struct made *m) MUST_CHECK;
/* θ ← update(θ, the replica's gradient). Where that is not finite: *finite is false, θ as it was.
 */
status trainer_update(struct trainer_loop *l, unsigned batches, bool *finite) MUST_CHECK;
/* Exchange, apply, tell. `spent_ns`: on the exchange already, between operators. */
status trainer_use(struct trainer_loop *l, struct made *m, uint64_t spent_ns) MUST_CHECK;

/* ---- steps of other kinds ---- */
status trainer_late_step(struct trainer_loop *l) MUST_CHECK;
status trainer_apart_steps(struct trainer_loop *l, unsigned steps) MUST_CHECK;

/* ---- trainer_verdict.c ---- */
/* What this rank has to say of its gradient. */
void trainer_note(const struct trainer_loop *l, struct made *m);
/* Of the means: an error where a rank failed, and whether to stop. */
status trainer_judge(struct trainer_loop *l, const struct made *m) MUST_CHECK;
/* No update is made of these batches, or ERROR_DIVERGED: `what` is not finite. */
status trainer_skip(struct trainer_loop *l, unsigned batches, const char *what) MUST_CHECK;
/* After an update, whose row is this rank's and whose loss is the mean: reports, verify_every. */
status trainer_tell(struct trainer_loop *l, const struct report_row *row, double loss) MUST_CHECK;
struct report_state trainer_state(struct trainer_loop *l);

/* ---- trainer_resume.c ---- */
/* `losses`: of the gradient that waits. */
status trainer_resume(struct trainer_loop *l, const struct training_state *begin,
                      const float losses[2]) MUST_CHECK;
/* report_state.complete; `context` is the loop. */
status trainer_complete(void *context, struct training_state *out) MUST_CHECK;

/* ---- trainer_ends.c ---- */
/* Close also after an error. */
status trainer_open(struct trainer_loop *l, const struct sync_trainer_options *o) MUST_CHECK;
void trainer_close(struct trainer_loop *l);
/* Whether there are samples that no gradient was computed of. */
bool trainer_wants_more(const struct trainer_loop *l);
/* Batches of each rank that are left, at most `wanted`. */
unsigned trainer_batches_left(const struct trainer_loop *l, unsigned wanted);
double trainer_sent_bytes(const struct trainer_loop *l);
/* Of the gradient of an update. */
void trainer_count_staleness(struct trainer_loop *l, uint64_t staleness);
void trainer_outcome(const struct trainer_loop *l, struct training_outcome *out);
/* After a failure: what is still to be had. */
void trainer_failed(struct trainer_loop *l, struct training_outcome *out);

#endif
