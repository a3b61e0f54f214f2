/*
 * delay_correction.h — key delay_correction: error feedback for delayed gradients.
 *
 *   θ ← θ − u_t − (u_t − u_{t−d})
 *
 * u_t is the whole update that the optimizer makes from the delayed gradient: rate, bias correction
 * and decoupled weight decay are in it. Without a delay, u_t would have been applied d updates
 * earlier, in place of u_{t−d}. The difference of the two is the error of update t − d. Update t
 * corrects it, once. The first d updates have no correction. So Σ of the applied updates is Σ u_t
 * plus the last d of them minus the first d. The optimizer's own state is not corrected.
 *
 * Source for d = 1: Zmushko, Petrov, Abdullaev, Khrushchev, Horváth 2026, "One-Step Gradient Delay
 * is Not a Barrier for Large-Scale Asynchronous Pipeline Parallel LLM Pretraining"
 * (arXiv:2606.30634). The text of the paper was not available. The equation is that of a second
 * implementation, which states that it follows the paper's algorithms 1 and 2 (RamTorch,
 * ramtorch/delayed_optim.py, with its factor on the correction at 1). d > 1 is an extension of this
 * program, not of the paper.
 *
 * Memory: d vectors. u_t is the difference of two parameter vectors in float32, so that Σ u_t is
 * what was applied.
 */
#ifndef GRADLAG_SYNC_DELAY_CORRECTION_H
#define GRADLAG_SYNC_DELAY_CORRECTION_H

#include "base/options.h"
#include "sync/vector_queue.h"

struct delay_correction {
    struct vector_queue updates; /* u_{t−1} … u_{t−d}, uncorrected; capacity 0: no correction */
};

/* Reads keys delay_correction and delay. */
status delay_correction_open(struct delay_correction *c, const options *o, size_t count) MUST_CHECK;
void delay_correction_close(struct delay_correction *c);
/* Call it after an update of the optimizer. `next`: the parameters after the update, to which it
 * adds the correction. `before`: the parameters before it, in another buffer. */
void delay_correction_apply(struct delay_correction *c, const float *before, float *next);

#endif
