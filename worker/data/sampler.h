/*
 * sampler.h — the training samples of batch k of worker w: a pure function.
 *
 *   sampler=partition (default)  Worker w of W owns every W-th sample of the training split. Its
 *       shard is reshuffled on each pass (stream RANDOM_SHUFFLE, seed, worker, pass).
 *   sampler=whole       Every worker draws from the whole split, in its own order.
 *   sampler=reshuffled  All workers share one order of the whole split, with a new order on each
 *       pass. Worker w takes every W-th sample of that order, from the w-th on. Shard sizes are
 * those of a partition, but the shards change on each pass. Memory: 8 bytes per sample and worker.
 *
 * Shard sizes differ by at most one sample. Workers do not wait for larger shards: a batch
 * continues across the end of a pass, so every batch is full and the number of batches is
 * unlimited. Batch k is elements [k·B, (k+1)·B) of the concatenated permutations.
 */
#ifndef GRADLAG_WORKER_DATA_SAMPLER_H
#define GRADLAG_WORKER_DATA_SAMPLER_H

#include "base/options.h"

typedef struct sampler sampler;

/* `samples`: size of the training split. ERROR_USAGE: the worker's shard is empty. */
status sampler_open(sampler **out, const options *o, uint32_t samples, unsigned worker,
                    unsigned workers) MUST_CHECK;
void sampler_close(sampler **s);
/* Writes `batch_size` indices into the training split; allocates nothing. Batches in ascending
 * order are cheapest. */
void sampler_batch(sampler *s, uint64_t batch, uint32_t batch_size, uint32_t *indices);
/* Number of samples in this worker's shard. */
uint32_t sampler_shard_size(const sampler *s);

#endif
