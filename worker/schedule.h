/*
 * schedule.h — the learning rate as a function of training samples used, alike in both modes.
 *
 *   rate(s) = lr × warmup(s) × shape(s) × growth(s)
 *
 *   - scaling k: lr_scaling=none 1 | linear W | sqrt √W   (Goyal et al. 2017 §2.1; Krizhevsky 2014)
 *   - warmup over the first warmup_epochs, then k: warmup=ramp from 0 to k, p k; gradual from 1 to
 *     k, 1 + p (k − 1) (Goyal et al. §2.2); constant 1 (the same, "constant warmup"). p: the part
 * of the warm-up that is over
 *   - shape: an entry of schedule_registry, 1 at first
 *   - growth: decay=rate 1; decay=batch what follows
 *
 * decay=batch (Smith, Kindermans, Ying, Le 2018, "Don't decay the learning rate, increase the batch
 * size"): where the shape falls to 1/n an update takes n batches of every rank instead, n rounded
 * and at most batch_growth_max, and the rate is multiplied by n: rate over samples in an update is
 * what it would have been. Beyond the largest n the rate falls, as in the paper (§5.3).
 */
#ifndef GRADLAG_WORKER_SCHEDULE_H
#define GRADLAG_WORKER_SCHEDULE_H

#include "worker/registry.h"

enum { SCHEDULE_PARAMETERS = 16 };

/* One shape: an entry of schedule_registry. */
struct schedule_kind {
    struct about about;
    /* progress in [0, 1] → factor */
    double (*shape)(const double *parameters, double progress);
    /* Fills the parameters from its dotted keys; NULL: it has none. */
    status (*read)(const options *o, double parameters[SCHEDULE_PARAMETERS]);
};
extern const struct registry schedule_registry;

enum warmup { WARMUP_RAMP, WARMUP_GRADUAL, WARMUP_CONSTANT };

struct schedule {
    const struct schedule_kind *kind;
    double parameters[SCHEDULE_PARAMETERS];
    double rate, scaling;
    enum warmup warmup;
    double total_samples, warmup_samples, epoch_samples; /* as real numbers */
    unsigned largest_growth;                             /* 1: decay=rate */
};

/* Reads lr, lr_scaling, warmup, warmup_epochs, decay, batch_growth_max (where they are declared),
 * schedule and its dotted keys. */
status schedule_open(struct schedule *out, const options *o, unsigned workers,
                     uint64_t total_samples, uint64_t epoch_samples) MUST_CHECK;
/* The rate of the update that uses samples (before, after], read at their middle: never 0 by the
 * ramp or a decay alone while the update begins before the end. */
double schedule_rate(const struct schedule *s, uint64_t before, uint64_t after);
/* The middle of these samples in epochs. */
double schedule_epoch(const struct schedule *s, uint64_t before, uint64_t after);
/* How many batches of each rank are in the update that begins after `before` samples; 1 unless
 * decay=batch. Their rate is schedule_rate, also if the end of training leaves fewer. */
unsigned schedule_growth(const struct schedule *s, uint64_t before);
/* Whether the shape is lower after `samples` than it was at first. */
bool schedule_has_fallen(const struct schedule *s, uint64_t samples);

#endif
