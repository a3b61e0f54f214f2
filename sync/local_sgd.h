/*
 * local_sgd.h — local SGD: ranks take H steps by themselves, then average their parameters.
 *
 *   each rank: θ_r ← update(θ_r, own gradient), H times;   then θ_r ← mean over ranks of θ
 *
 * Stich 2019, "Local SGD converges fast and communicates little"; with post_local (Lin, Stich,
 * Patel, Jaggi 2020, "Don't use large mini-batches, use local SGD") training begins with plain
 * steps (H = 1) and goes apart after the schedule's first fall, or after an epoch.
 *
 * The optimizer's state stays with each rank (local_momentum=keep, as Lin et al. do), is averaged
 * like the parameters (average), or begins at 0 after each averaging (reset).
 *
 * What is the same: H = 1 is plain synchronous training, the very same program, which averages
 * gradients (averaging parameters after each step is the same in exact arithmetic, and rounds
 * otherwise). One rank has nobody to average with: every H gives the bits of H = 1, but for reset.
 *
 * Samples and updates are counted as in plain training: one update is one step of all ranks.
 * Evaluations and checkpoints that come due between two averagings are made at the next one.
 */
#ifndef GRADLAG_SYNC_LOCAL_SGD_H
#define GRADLAG_SYNC_LOCAL_SGD_H

#include "base/options.h"
#include "worker/optimizer/schedule.h"

enum local_sgd_momentum { LOCAL_SGD_KEEP, LOCAL_SGD_AVERAGE, LOCAL_SGD_RESET };

struct local_sgd {
    unsigned steps; /* H */
    enum local_sgd_momentum momentum;
    bool after_fall; /* of the schedule, for the first time */
    uint64_t from;   /* samples */
};

/* Reads local_steps, local_momentum, post_local, post_local_epoch (without them H = 1). */
void local_sgd_open(struct local_sgd *a, const options *o, uint64_t epoch_samples);
/* Key local_steps; 1 where it is not declared. */
unsigned local_sgd_steps_of(const options *o);
/* Steps until the next averaging for whoever has used so many samples; 1: a plain step. */
unsigned local_sgd_steps(const struct local_sgd *a, const struct schedule *s, uint64_t samples);
/* Batches of each rank that are left of so many samples, at most `wanted`; at least 1. */
unsigned local_sgd_batches_left(uint64_t samples, uint64_t update_samples, unsigned wanted);
/* Whether more than one gradient comes between two exchanges (also decay=batch): then gradients
 * and updates are in the host's memory, and nothing is exchanged early. */
bool local_sgd_or_growing(const options *o);
/* Whether each rank's optimizer state stays its own at an averaging. */
bool local_sgd_keeps_state(const options *o);

#endif
