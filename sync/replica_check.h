/*
 * replica_check.h — the invariant of the synchronous mode: after every update all ranks have the
 * same parameters, bit for bit. They begin with rank 0's, and from time to time compare digests.
 *
 * Collective: every rank calls these, at the same update.
 */
#ifndef GRADLAG_SYNC_REPLICA_CHECK_H
#define GRADLAG_SYNC_REPLICA_CHECK_H

#include "sync/rank_state.h"
#include "worker/training.h"

/* All ranks ← rank 0's parameters and optimizer state, which stay as they are or are those of
 * `start` (rank 0's to give; NULL: training begins at the beginning), and each rank ← what it had
 * of its own there; `losses` as in rank_state.h. *at: where training stands, without
 * vectors but for the gradient that waits, which is the replica's. What travels: parameters and,
 * with a start, state and a gradient that waits, once, and each rank's own. ERROR_USAGE: the start
 * lacks what goes on. */
status replica_check_begin(communicator *c, replica *r, struct rank_state *kept,
                           const struct training_state *start, struct training_state *at,
                           float losses[2]) MUST_CHECK;

/* digest ← that of this rank's parameters, as hexadecimal text. ERROR_OTHER, on all ranks, where
 * one has other parameters than rank 0: it is named, with its host and the number of updates. */
status replica_check_compare(communicator *c, replica *r, uint64_t updates,
                             char digest[65]) MUST_CHECK;
status replica_check_digest(replica *r, char digest[65]) MUST_CHECK;

#endif
