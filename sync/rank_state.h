/*
 * rank_state.h — what a checkpoint needs beside rank 0's view: what each rank has of its own, so
 * that a run that goes on ends in the bits of an unbroken one.
 *
 *   compression                  the rank's residual
 *   local_steps, momentum kept   the rank's optimizer state
 *   double_buffering             the losses that travelled with the gradient that waits: the rank's
 *                                own and the mean (that gradient is the same on all ranks:
 *                                replica_view)
 *
 * Collective: every rank calls these, at the same update. Rank 0 has room for all of it.
 */
#ifndef GRADLAG_SYNC_RANK_STATE_H
#define GRADLAG_SYNC_RANK_STATE_H

#include "sync/replica.h"
#include "worker/training.h"

struct rank_state {
    const communicator *c;
    size_t each; /* floats of one rank, as many on all; 0: no rank has any */
    float *own;  /* [each]: the replica's, then two losses where it is late */
    float *all;  /* [size][each], on rank 0 */
};

/* Zero-initialise; close also after an error. `here`: on rank 0, it will gather or scatter. */
status rank_state_open(struct rank_state *k, const replica *r, bool here) MUST_CHECK;
void rank_state_close(struct rank_state *k);
/* What travels: each rank's part to rank 0, once. `losses`: own and mean, where the replica is
 * late. On rank 0 out->ranks ← k->all, out->rank_count ← k->each. */
status rank_state_gather(struct rank_state *k, replica *r, const float losses[2],
                         struct training_state *out) MUST_CHECK;
/* The same back, from rank 0's all[size][each]; NULL on the others. */
status rank_state_scatter(struct rank_state *k, replica *r, const float *all,
                          float losses[2]) MUST_CHECK;

#endif
