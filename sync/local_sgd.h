/*
 * local_sgd.h — local SGD: each rank makes H updates alone, then all ranks average their
 * parameters.
 *
 *   each rank: θ_r ← update(θ_r, own gradient), H times;   then θ_r ← mean over ranks of θ
 *
 * Stich 2019, "Local SGD converges fast and communicates little". With post_local (Lin, Stich,
 * Patel, Jaggi 2020, "Don't use large mini-batches, use local SGD") training begins with plain
 * steps (H = 1); H steps begin after the schedule's first fall, or after an epoch.
 *
 * The optimizer's state stays on each rank (local_momentum=keep, as in Lin et al.) or is averaged
 * like the parameters (average). With reset the optimizer starts anew after each averaging: its
 * state and its number of updates are 0.
 *
 * H = 1 is plain synchronous training by the same code, which averages gradients. Averaging
 * parameters after each step is equal in exact arithmetic, but rounds differently. With one rank
 * every H gives the bits of H = 1, except with reset.
 *
 * Samples and updates are counted as in plain training: one update is one step of all ranks.
 * Evaluations and checkpoints that are due between two averagings happen at the next averaging.
 */
#ifndef GRADLAG_SYNC_LOCAL_SGD_H
#define GRADLAG_SYNC_LOCAL_SGD_H

#include "base/options.h"
#include "worker/optimizer/schedule.h"

enum local_sgd_momentum { LOCAL_SGD_KEEP, LOCAL_SGD_AVERAGE, LOCAL_SGD_RESET };

struct local_sgd {
    unsigned steps; /* H */
    enum local_sgd_momentum momentum;
    bool after_fall; /* H steps begin after the schedule's first fall */
    uint64_t from;   /* H steps begin after this many samples */
};

/* Reads local_steps, local_momentum, post_local, post_local_epoch (without them H = 1). */
void local_sgd_open(struct local_sgd *a, const options *o, uint64_t epoch_samples);
/* Key local_steps. */
unsigned local_sgd_steps_of(const options *o);
/* Steps until the next averaging, after `samples` samples; 1: a plain step. */
unsigned local_sgd_steps(const struct local_sgd *a, const struct schedule *s, uint64_t samples);
/* Batches of each rank in the remaining `samples` samples, rounded up, at most `wanted`. */
unsigned local_sgd_batches_left(uint64_t samples, uint64_t update_samples, unsigned wanted);
/* Whether several gradients are computed between two exchanges (local_steps or decay=batch). Then
 * gradients and updates are in host memory and overlap is off. */
bool local_sgd_or_growing(const options *o);
/* Whether each rank keeps its own optimizer state (local_momentum=keep). */
bool local_sgd_keeps_state(const options *o);
/* Whether an averaging restarts the optimizer (local_momentum=reset). */
bool local_sgd_resets_state(const options *o);

#endif
