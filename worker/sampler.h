/*
 * sampler.h — which training samples make up batch k of worker w: a pure function.
 *
 * sampler=partition (default): worker w owns one contiguous-stride shard of the training split,
 * reshuffled on each pass (stream RANDOM_SHUFFLE, seed, worker, pass). sampler=whole: every worker
 * draws from the whole split, each in its own order. sampler=reshuffled: all workers share one
 * order of the whole split, another on each pass, and worker w of W takes every W-th of it from the
 * w-th on: shares are as in a partition, but new on each pass (4 bytes per sample and worker,
 * twice).
 *
 * Shares differ by at most one sample, and nobody waits for the larger ones: batches run on over
 * the end of a pass, so that every batch is full and all have as many as they need. Batch k is
 * elements [k·B, (k+1)·B) of the concatenated permutations.
 */
#ifndef GRADLAG_WORKER_SAMPLER_H
#define GRADLAG_WORKER_SAMPLER_H

#include "worker/options.h"

typedef struct sampler sampler;

/* `samples`: size of the training split. ERROR_USAGE where a worker's shard would be empty. */
status sampler_open(sampler **out, const options *o, uint32_t samples, unsigned worker,
                    unsigned workers) MUST_CHECK;
void sampler_close(sampler **s);
/* Writes `batch_size` indices into the training split; allocates nothing. Cheapest in order. */
void sampler_batch(sampler *s, uint64_t batch, uint32_t batch_size, uint32_t *indices);
/* Size of this worker's shard. */
uint32_t sampler_shard_size(const sampler *s);

#endif
