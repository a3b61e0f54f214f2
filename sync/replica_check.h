/*
 * replica_check.h — the invariant of synchronous mode: after every update all ranks have the same
 * parameters, bit for bit. Ranks start with rank 0's parameters and compare digests regularly.
 *
 * Collective: every rank calls these functions, at the same update.
 */
#ifndef GRADLAG_SYNC_REPLICA_CHECK_H
#define GRADLAG_SYNC_REPLICA_CHECK_H

#include "sync/rank_state.h"
#include "worker/training.h"

/* Copies rank 0's parameters and optimizer state to all ranks. `start`: on rank 0, the checkpoint
 * to resume; NULL: training begins at update 0, or this is another rank. From a checkpoint, all
 * ranks get its parameters and optimizer state, and each rank gets its own state. *at ← the
 * position of training, the same on all ranks, without vectors. waiting[0..at->waiting) ← the notes
 * of the gradients that wait (rank_state.h). ERROR_USAGE: the checkpoint lacks state that this run
 * needs. ERROR_DATA: its counts of waiting gradients or kept updates are impossible. */
status replica_check_begin(communicator *c, replica *r, struct rank_state *kept,
                           const struct training_state *start, struct training_state *at,
                           struct waiting_note *waiting) MUST_CHECK;

/* digest ← SHA-256 of this rank's parameters, as hexadecimal text. ERROR_OTHER, on all ranks: a
 * rank has other parameters than rank 0; the message names it, its host and the number of updates.
 */
status replica_check_compare(communicator *c, replica *r, uint64_t updates,
                             char digest[65]) MUST_CHECK;
/* digest ← SHA-256 of this rank's parameters, without a comparison. Not collective. */
status replica_check_digest(replica *r, char digest[65]) MUST_CHECK;

#endif
