/*
 * augment.h — augmentation of training samples: key `augment`.
 *
 *   none      no augmentation
 *   standard  a shift by −4 … 4 pixels in each direction, and a mirrored image with
 *             probability 1/2 (He et al. 2016, section 4.2: a crop of the image padded by 4)
 *
 * Pixels that enter at an edge are 0 after normalisation, which is the mean. Samples are augmented
 * when a gradient is computed. An evaluation uses no augmentation, and neither does the estimation
 * of batch norm's statistics.
 */
#ifndef GRADLAG_WORKER_DATA_AUGMENT_H
#define GRADLAG_WORKER_DATA_AUGMENT_H

#include "worker/data/dataset.h"

#define AUGMENT_NAMES "none|standard"
enum { AUGMENT_SHIFT = 4 }; /* pixels */

/* False: key `augment` is `none`. */
bool augment_wanted(const options *o);
/* Draws the crops of one batch. The crop of sample n is a pure function of (seed, worker, batch,
 * n). */
void augment_draw(uint64_t seed, unsigned worker, uint64_t batch, uint32_t n, struct crop *out);

#endif
