/*
 * dataset_store.h — where a dataset's bytes live: a cache file mapped read-only and shared by all
 * processes of a host, or private memory where that cannot be had.
 *
 * The file is $XDG_CACHE_HOME/gradlag/NAME-HASH.dataset (or ~/.cache/gradlag/…), HASH being that of
 * `identity`: one page of header (magic, version, identity, shape, checksum), then images and
 * labels of the three splits as they lie in memory. It is written to a temporary name and renamed,
 * checked whenever it is opened, and made again when anything about it is wrong. Deleting it is
 * always safe. Of several processes that start together one makes it; the others wait for it.
 */
#ifndef GRADLAG_WORKER_DATASET_STORE_H
#define GRADLAG_WORKER_DATASET_STORE_H

#include "worker/dataset.h"

/* Makes the data: writes count[s] images and labels of every split s. */
typedef status (*dataset_fill)(void *context, const struct dataset *shape,
                               uint8_t *const images[SPLIT_COUNT],
                               uint32_t *const labels[SPLIT_COUNT]);

/* Sets images, labels and owner of `d`, whose shape is filled in. `identity`: a text that differs
 * wherever the content would, or NULL: never cached. A cache that cannot be read or written is not
 * an error; errors are those of `fill`, and ERROR_OTHER for want of memory. */
status dataset_store_load(struct dataset *d, const char *name, const char *identity,
                          dataset_fill fill, void *context) MUST_CHECK;

/* Shape and counts of a made-up dataset, from its keys dataset.classes, .channels, .size and
 * .samples; every channel's bytes are scaled alike. */
void dataset_describe_made_up(const options *o, float scale, float shift, struct dataset *out);
/* Labels of a made-up split: classes as even as can be, in random order (a shard is every W-th
 * sample, so labels in turn would give a worker only some of the classes). Not for splits read from
 * files. */
void dataset_draw_labels(const struct dataset *d, enum dataset_split split, uint64_t seed,
                         uint32_t *labels);

#endif
