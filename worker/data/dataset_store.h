/*
 * dataset_store.h — storage of a dataset: a cache file, mapped read-only and shared by all
 * processes of a host, or private memory if no cache file can be used.
 *
 * The file is $XDG_CACHE_HOME/gradlag/NAME-HASH.dataset (or ~/.cache/gradlag/…). HASH is the hash
 * of `identity`. The file has one page of header (magic, version, identity, shape, checksum), then
 * images and labels of the three splits in their memory layout. It is written to a temporary name
 * and renamed. Each open checks it; an invalid file is built again. It can be deleted at any time.
 * If several processes start together, one builds the file and the others wait for it.
 */
#ifndef GRADLAG_WORKER_DATA_DATASET_STORE_H
#define GRADLAG_WORKER_DATA_DATASET_STORE_H

#include "worker/data/dataset.h"

#include <time.h>

/* Builds the data: writes count[s] images and labels, or length[s] bytes of text, of every split s.
 */
typedef status (*dataset_fill)(void *context, const struct dataset *shape,
                               uint8_t *const images[SPLIT_COUNT],
                               uint32_t *const labels[SPLIT_COUNT]);

/* Adds a source file to an identity: its absolute path, size and modification time. */
struct text;
void dataset_store_name_file(struct text *identity, const char *path, uint64_t bytes,
                             struct timespec modified);
/* Sets images, labels and owner of `d`, whose shape is filled in. `identity` is a text that differs
 * whenever the content differs. A cache file that cannot be read or written is not an error.
 * Errors: those of `fill`, and ERROR_OTHER if memory is exhausted. */
status dataset_store_load(struct dataset *d, const char *name, const char *identity,
                          dataset_fill fill, void *context) MUST_CHECK;

/* Fills in shape and counts of a generated dataset from keys dataset.classes, .channels, .size and
 * .samples. Scale and shift are the same for every channel. */
void dataset_describe_made_up(const options *o, float scale, float shift, struct dataset *out);
/* Fills in the shape of a text for windows of `context` tokens. Contract: d->length is set. */
void dataset_describe_text(struct dataset *d, uint32_t context, uint32_t vocabulary);
/* Draws the labels of a generated split: balanced classes in random order. The order is random
 * because a shard is every W-th sample: with classes in turn a shard would miss some classes. Not
 * for splits that are read from files. */
void dataset_draw_labels(const struct dataset *d, enum dataset_split split, uint64_t seed,
                         uint32_t *labels);

#endif
