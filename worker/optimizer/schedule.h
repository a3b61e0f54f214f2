/*
 * schedule.h — the learning rate as a function of the training samples used, the same in both
 * modes.
 *
 *   rate(s) = lr × warmup(s) × shape(s) × growth(s)
 *
 *   - scaling k: lr_scaling=none 1 | linear W | sqrt √W (Goyal et al. 2017 §2.1; Krizhevsky 2014)
 *   - warmup: k after the first warmup_epochs, or warmup_updates; before that, see below
 *   - shape: an entry of schedule_registry, initially 1
 *   - growth: 1 with decay=rate; with decay=batch as follows
 *
 * Before the end of the warm-up, with p its elapsed part: warmup=ramp p k (from 0 to k); gradual
 * 1 + p (k − 1) (from 1 to k; Goyal et al. §2.2); constant 1 (§2.2, "constant warmup").
 *
 * With key seconds the shape is a function of the training time (schedule_at), and so is the
 * warm-up with warmup_seconds.
 *
 * decay=batch (Smith, Kindermans, Ying, Le 2018, "Don't decay the learning rate, increase the batch
 * size"): where the shape falls to 1/n, an update takes n batches of every rank and the rate is
 * multiplied by n. n is rounded and at most batch_growth_max. The rate divided by the samples of an
 * update is the same as without growth. Beyond the largest n the rate falls, as in the paper
 * (§5.3). The last update of a run may have fewer than n batches; its rate is that of n.
 */
#ifndef GRADLAG_WORKER_OPTIMIZER_SCHEDULE_H
#define GRADLAG_WORKER_OPTIMIZER_SCHEDULE_H

#include "base/registry.h"

enum { SCHEDULE_PARAMETERS = 16 };

/* One shape: an entry of schedule_registry. */
struct schedule_kind {
    struct about about;
    /* The factor on the rate at `progress`, from 0 (the begin of training) to 1 (its end). */
    double (*shape)(const double *parameters, double progress);
    /* Reads the kind's dotted keys into the parameters; NULL: the kind has no keys. */
    status (*read)(const options *o, double parameters[SCHEDULE_PARAMETERS]);
};
extern const struct registry schedule_registry;

enum warmup { WARMUP_RAMP, WARMUP_GRADUAL, WARMUP_CONSTANT };

struct schedule {
    const struct schedule_kind *kind;
    double parameters[SCHEDULE_PARAMETERS];
    double rate, scaling;
    enum warmup warmup;
    double total_samples, warmup_samples, epoch_samples; /* real numbers, to avoid overflow */
    double total_seconds, warmup_seconds;                /* 0: the length is in samples */
    double seconds;                                      /* of training so far: schedule_at */
    unsigned largest_growth;                             /* 1: decay=rate */
};

/* Reads lr, lr_scaling, schedule and its dotted keys, warmup, warmup_epochs, warmup_updates,
 * warmup_seconds, updates, seconds, decay and batch_growth_max. ERROR_USAGE: warmup_updates without
 * updates, or warmup_seconds without seconds. */
status schedule_open(struct schedule *out, const options *o, unsigned workers,
                     uint64_t total_samples, uint64_t epoch_samples) MUST_CHECK;
/* The key that sets the warm-up, if training is not longer than the warm-up; otherwise NULL. */
const char *schedule_unended_warmup(const options *o, uint64_t total_samples,
                                    uint64_t epoch_samples);
/* Sets the training time for the functions below; used only with key seconds. */
static inline void schedule_at(struct schedule *s, double seconds)
{
    s->seconds = seconds;
}
/* The rate of the update that uses samples (before, after], evaluated at their middle. Without key
 * seconds, a ramp never gives rate 0. A decay to 0 gives rate 0 only if half or more of the update
 * lies beyond the end. */
double schedule_rate(const struct schedule *s, uint64_t before, uint64_t after);
/* The middle of these samples, in epochs. */
double schedule_epoch(const struct schedule *s, uint64_t before, uint64_t after);
/* Batches of each rank in the update that begins after `before` samples; 1 unless decay=batch.
 * schedule_rate is the rate of this update, even if the end of training leaves fewer batches. */
unsigned schedule_growth(const struct schedule *s, uint64_t before);
/* True: the shape is lower after `samples` than at the start. */
bool schedule_has_fallen(const struct schedule *s, uint64_t samples);

#endif
