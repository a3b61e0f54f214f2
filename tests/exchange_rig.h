/*
 * exchange_rig.h — vectors that are exchanged while they are made, and what must hold of it, for
 * test_exchange.c and test_carrier.c. Collective functions: all ranks call them alike.
 */
#ifndef GRADLAG_TESTS_EXCHANGE_RIG_H
#define GRADLAG_TESTS_EXCHANGE_RIG_H

#include "sync/communicator.h"

enum { EXCHANGE_LARGEST = 300007, EXCHANGE_BUCKET = 64 * 1024 / 4 };

extern const char *const exchange_rig_reductions[2]; /* fast, ordered */

/* For vectors of up to EXCHANGE_LARGEST floats, in parts of EXCHANGE_BUCKET. */
status exchange_rig_open(communicator **c, const char *kind, const char *reduction) MUST_CHECK;
/* `check` of every kind that exchanges in the host's memory, with both reductions. */
status exchange_rig_every_kind(status (*check)(communicator *c)) MUST_CHECK;
/* A vector that is made from its end on, in pieces of any size, at each rank's own pace. */
status exchange_rig_in_pieces(communicator *c, float *data, size_t count, uint64_t round,
                              uint64_t *hidden_ns) MUST_CHECK;
/* It has the bits it has at once, where parts do not change the order of the sum; always: near it,
 * and the same on every rank. */
status exchange_rig_check(communicator *c, size_t count, uint64_t round) MUST_CHECK;
/* Every rank's number becomes the mean over the ranks. */
status exchange_rig_mean(communicator *c, double *number) MUST_CHECK;
/* Parts come back by themselves, and what is computed after that hides nothing: ranks that compute
 * for long enough, on a busy machine for seconds, hide less than half of it. */
status exchange_rig_check_moved(communicator *c) MUST_CHECK;
/* Rank 1 computes for longer than the others wait, which is for a second. */
status exchange_rig_late(const char *kind, const char *reduction, bool spare) MUST_CHECK;

#endif
