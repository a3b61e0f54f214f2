/*
 * delay_rate.h — key delay_annealing: a lower learning rate at the start of a run with a delay.
 *
 *   η_k ← η_k / d^p,   p = 1 − min(k / K, 1),   k = 1, 2, … the number of the update
 *
 * d is key delay and K is key delay_annealing, in updates. η_k is the rate of the schedule. The
 * factor rises from about 1/d to 1 at update K.
 *
 * Source: Yang, Zhang, Li, Ré, Aberger, De Sa 2021, "PipeMare: Asynchronous Pipeline Parallel DNN
 * Training" (MLSys, arXiv:1910.05124), learning rate rescheduling; with weight stashing it is
 * called PipeDream-LR. The text of the paper was not available. The equation is that of the
 * programs of Ajanthan et al. 2025 (arXiv:2505.01099; AsyncPP, adjust_learning_rate) and Jung et
 * al. 2026 (arXiv:2602.03515), which have it for comparison. There each stage has its own d.
 */
#ifndef GRADLAG_SYNC_DELAY_RATE_H
#define GRADLAG_SYNC_DELAY_RATE_H

#include "base/options.h"

#include <math.h>

struct delay_rate {
    double delay, updates; /* d; K, where 0 means no factor */
};

static inline struct delay_rate delay_rate_of(const options *o)
{
    return (struct delay_rate){options_real(o, "delay"), options_real(o, "delay_annealing")};
}

/* The factor on the rate of update number `number`: 1, 2, … */
static inline double delay_rate_factor(const struct delay_rate *d, uint64_t number)
{
    if ((double)number >= d->updates)
        return 1;
    return pow(d->delay, (double)number / d->updates - 1);
}

#endif
