/*
 * compression_exchange.h — the mean of compressed gradients over all ranks.
 *
 * Codes (worker/compression/compression.h) travel by MPI collectives. One thread.
 */
#ifndef GRADLAG_SYNC_COMPRESSION_COMPRESSION_EXCHANGE_H
#define GRADLAG_SYNC_COMPRESSION_COMPRESSION_EXCHANGE_H

#include "sync/communicator/communicator.h"
#include "worker/compression/compression.h"

/* ERROR_USAGE: key communicator names a kind that does not send codes. */
status compression_check(const options *o) MUST_CHECK;
/* *out ← the kind that key `compression` chooses; NULL for none, or with one rank. ERROR_USAGE:
 * this communicator does not send codes. */
status compression_chosen(const struct compression_kind **out, const options *o,
                          const communicator *c) MUST_CHECK;
/* Allocates memory for the exchange. Call it on all ranks. */
status compression_join(compression *z, communicator *c) MUST_CHECK;
/* Frees that memory. Call it before compression_close. `z` NULL, or not joined: no effect. */
void compression_leave(compression *z);
/* gradient[0..count) ← the mean over ranks of the decoded gradients, in rank order: the same bits
 * on every rank and for any `reduction`. notes[0..COMMUNICATOR_NOTES) ← their mean, uncompressed.
 * If no update takes the gradient of a rank (optimizer_takes()), or a note is not finite,
 * gradient[0] becomes NaN on all ranks and residuals stay unchanged. Collective. Allocates
 * nothing. */
status compression_mean(compression *z, communicator *c, float *gradient, float *notes) MUST_CHECK;

#endif
