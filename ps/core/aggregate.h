/*
 * aggregate.h — one gradient out of those that go into one update: their mean, each corrected and
 * scaled.
 *
 *   g = (Σ sᵢ · correction(gᵢ)) × 1/n       summed in the order they were added: worker order
 *
 * with n gradients, where the correction does not apply s itself (then s = 1 here).
 *
 * When all scales are alike, s is left to the optimizer and the mean is reduce_mean_ordered's, bit
 * for bit; a single uncorrected gradient is passed on as it is.
 */
#ifndef GRADLAG_PS_CORE_AGGREGATE_H
#define GRADLAG_PS_CORE_AGGREGATE_H

#include "ps/rules/correction/correction.h"

struct aggregate {
    struct correction correction;
    size_t count;      /* elements */
    unsigned capacity; /* gradients at most */
    unsigned n;        /* gradients now */
    const float **gradients, **read_at;
    struct correction_context *contexts;
    struct correction_call *calls;
    unsigned taken; /* gradients in the running sum, which lies in `mean` */
    float *mean;    /* NULL where a gradient always goes in alone and uncorrected */
};

/* Reads key correction. `capacity`: one per worker at most. `sums`: more than one gradient may go
 * into an update. */
status aggregate_open(struct aggregate *a, const options *o, unsigned capacity, size_t count,
                      bool sums) MUST_CHECK;
void aggregate_close(struct aggregate *a);

/* The running sum of gradients whose workers do not wait: s · correction(g) is added at once, so
 * the order of summation is that of arrival, and the correction's states move on at once. Its
 * context has no lr: that is not known before the sum is whole. Not together with
 * aggregate_add(). */
void aggregate_take(struct aggregate *a, const float *gradient, const float *now,
                    const float *read_at, const struct correction_context *context);
/* The sum × 1/n, scales included; valid until the next clear or take. Ends the sum. */
const float *aggregate_taken_mean(struct aggregate *a);

void aggregate_clear(struct aggregate *a);
/* `context`: lr need not be known yet. */
void aggregate_add(struct aggregate *a, const float *gradient, const float *read_at,
                   const struct correction_context *context);
/* Whether the gradient is a single one passed on as it is. */
bool aggregate_is_direct(const struct aggregate *a);
/* The gradient, valid until the next clear, and the scale left to the optimizer. `now`: the
 * parameters it will change, with learning rate `lr`. */
const float *aggregate_gradient(struct aggregate *a, const float *now, double lr, double *scale);
/* It has changed the parameters, at this learning rate: the correction's states move on. Else there
 * is no next update. */
void aggregate_commit(struct aggregate *a, double lr);

#endif
