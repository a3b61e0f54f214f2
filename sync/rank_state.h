/*
 * rank_state.h — state that each rank has for itself. A checkpoint needs it beside rank 0's view,
 * so that a resumed run ends in the bits of an unbroken one.
 *
 *   compression                  the rank's residual, and with compression=dgc its velocity
 *   local_steps, momentum kept   the rank's optimizer state
 *   delay                        four numbers of each gradient that waits, see struct waiting_note
 *                                (that gradient is the same on all ranks: replica_view)
 *
 * Collective: every rank calls these functions, at the same update. Rank 0 has memory for all
 * ranks' state.
 */
#ifndef GRADLAG_SYNC_RANK_STATE_H
#define GRADLAG_SYNC_RANK_STATE_H

#include "sync/replica.h"
#include "worker/training.h"

/* A gradient that waits for its update. */
struct waiting_note {
    float own_loss, loss; /* the rank's, and the mean over ranks */
    float batches;        /* of each rank, in this gradient */
    float age;            /* updates since it was computed */
};

struct rank_state {
    const communicator *c;
    size_t each; /* floats of each rank, the same number on all; 0: none */
    float *own;  /* [each]: the replica's, then `delay` struct waiting_note */
    float *all;  /* [size][each], on rank 0; else NULL */
};

/* Close it also after an error. `keeps`: the run writes checkpoints or, on rank 0, reads one.
 * ERROR_USAGE if `keeps`: the state of one rank does not fit into one MPI message. */
status rank_state_open(struct rank_state *k, const replica *r, bool keeps) MUST_CHECK;
void rank_state_close(struct rank_state *k);
/* Sends each rank's state to rank 0. `waiting`: [delay]. On rank 0
 * out->ranks ← k->all (borrowed) and out->rank_count ← k->each. */
status rank_state_gather(struct rank_state *k, replica *r, const struct waiting_note *waiting,
                         struct training_state *out) MUST_CHECK;
/* Sends each rank its state from rank 0's all[size][each] (NULL on other ranks). */
status rank_state_scatter(struct rank_state *k, replica *r, const float *all,
                          struct waiting_note *waiting) MUST_CHECK;

#endif
