/*
 * aggregate.h — the aggregate: the mean of the gradients of one update, each corrected and scaled.
 *
 *   g = (Σ sᵢ · correction(gᵢ)) × 1/n       n gradients, summed in the order they were added
 *
 * sᵢ is the damping's scale, or 1 if the correction applies the scale itself.
 *
 * If all scales are equal, the scale is left to the optimizer, and without a correction the mean is
 * that of reduce_mean_ordered, bit for bit. A single uncorrected gradient is passed on without a
 * copy.
 *
 * There are two ways to use it, and an update uses one of them: aggregate_add() for held gradients,
 * or aggregate_take() for the running sum.
 */
#ifndef GRADLAG_PS_CORE_AGGREGATE_H
#define GRADLAG_PS_CORE_AGGREGATE_H

#include "ps/rules/correction/correction.h"

struct aggregate {
    struct correction correction;
    size_t count;                       /* elements of a gradient */
    unsigned capacity;                  /* the most gradients */
    unsigned n;                         /* gradients added */
    const float **gradients, **read_at; /* [capacity] borrowed vectors of `count` */
    struct correction_context *contexts;
    struct correction_call *calls;
    unsigned taken;      /* gradients in the running sum, which is in `mean` */
    double taken_scales; /* the sum of their scales */
    double mean_scale;   /* of the last aggregate: the mean of its sᵢ */
    float *mean;         /* [count]; NULL: every update has one gradient, uncorrected */
};

/* Reads key correction. `capacity`: at most one gradient per worker. `sums`: an update may have
 * more than one gradient. Errors: those of correction_open and correction_check_sums. */
status aggregate_open(struct aggregate *a, const options *o, unsigned capacity, size_t count,
                      bool sums) MUST_CHECK;
void aggregate_close(struct aggregate *a);

/* Adds s · correction(g) to the running sum now, for a worker that does not wait. The order of
 * summation is the order of arrival, and the correction's state changes now. context.lr is unknown:
 * the learning rate depends on the complete sum. */
void aggregate_take(struct aggregate *a, const float *gradient, const float *now,
                    const float *read_at, const struct correction_context *context);
/* Returns the running sum × 1/n, with scales applied, and ends the sum. Valid until the next clear
 * or take. */
const float *aggregate_taken_mean(struct aggregate *a);

void aggregate_clear(struct aggregate *a);
/* Both vectors are borrowed until the next clear. context.lr is ignored. */
void aggregate_add(struct aggregate *a, const float *gradient, const float *read_at,
                   const struct correction_context *context);
/* True if the aggregate is a single uncorrected gradient, passed on without a copy. */
bool aggregate_is_direct(const struct aggregate *a);
/* Returns the aggregate, valid until the next clear, and sets *scale to the scale that the
 * optimizer must apply. `now`: the parameters to update; `lr`: the learning rate of the update. */
const float *aggregate_gradient(struct aggregate *a, const float *now, double lr, double *scale);
/* The update was made with learning rate `lr`; commits the correction's state. If an update fails,
 * the run ends, so there is no rollback. */
void aggregate_commit(struct aggregate *a, double lr);

#endif
