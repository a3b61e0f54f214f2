/*
 * sampler.h — the training samples of batch k of worker w: a pure function.
 *
 *   - sampler=partition (default): worker w of W owns every W-th sample of the training split. Its
 *     shard is reshuffled on each pass (stream RANDOM_SHUFFLE, seed, worker, pass).
 *   - sampler=whole: every worker draws from the whole split, in its own order.
 *   - sampler=reshuffled: all workers share one order of the whole split, with a new order on each
 *     pass. Worker w takes every W-th sample of that order, from the w-th on. Shard sizes are those
 *     of a partition, but the shards change on each pass. Memory: 8 bytes per sample and worker.
 *
 * A worker beyond the first W (w ≥ W, key workers.max) has no part of a partition. It draws from
 * the whole split in its own order, as with sampler=whole. sampler=reshuffled does not allow such a
 * worker.
 *
 * Shard sizes differ by at most one sample, and the last worker's is the smallest. Workers do not
 * wait for larger shards: a batch continues across the end of a pass, so every batch is full and
 * the number of batches is unlimited. Batch k is elements [k·B, (k+1)·B) of the concatenated
 * permutations.
 *
 * Text: batch k draws the starts of its windows independently and uniformly, with repetition, from
 * the stream (RANDOM_WINDOWS, seed, worker, k). With sampler=whole it draws from all starts. With
 * sampler=partition it draws from the blocks of `height` consecutive starts whose number is w
 * modulo W. A window that starts in a block ends in the next one. sampler=reshuffled is refused.
 */
#ifndef GRADLAG_WORKER_DATA_SAMPLER_H
#define GRADLAG_WORKER_DATA_SAMPLER_H

#include "worker/data/dataset.h"

typedef struct sampler sampler;

/* ERROR_USAGE: this sampler does not fit a text (`tokens`). */
status sampler_check(const options *o, bool tokens) MUST_CHECK;
/* `worker` may be ≥ `workers` unless sampler=reshuffled. Reads the shape of `d` alone. ERROR_USAGE:
 * the worker's shard is empty, or sampler_check fails. */
status sampler_open(sampler **out, const options *o, const struct dataset *d, unsigned worker,
                    unsigned workers) MUST_CHECK;
void sampler_close(sampler **s);
/* Writes `batch_size` indices of training samples; allocates nothing. Batches in ascending order
 * are cheapest. */
void sampler_batch(sampler *s, uint64_t batch, uint32_t batch_size, uint32_t *indices);

#endif
