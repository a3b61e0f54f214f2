/*
 * augment.h — how training samples are shown: key `augment`.
 *
 *   none      as they are
 *   standard  moved by −4 … 4 pixels each way, which is a random crop of the image padded by 4, and
 *             mirrored half of the time (He et al. 2016, section 4.2)
 *
 * What comes in at an edge is 0 after normalisation, the mean. Samples are augmented when a
 * gradient is computed, and never in an evaluation (nor where that re-estimates the statistics of
 * batch norm).
 */
#ifndef GRADLAG_WORKER_AUGMENT_H
#define GRADLAG_WORKER_AUGMENT_H

#include "worker/dataset.h"

#define AUGMENT_NAMES "none|standard"
enum { AUGMENT_SHIFT = 4 }; /* pixels */

/* False: key `augment` is not declared, or none. */
bool augment_wanted(const options *o);
/* The crops of one batch: sample n's is a pure function of (seed, worker, batch, n). */
void augment_draw(uint64_t seed, unsigned worker, uint64_t batch, uint32_t n, struct crop *out);

#endif
