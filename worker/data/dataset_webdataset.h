/*
 * dataset_webdataset.h — shards in the WebDataset format (Aizman et al. 2019): tar archives that
 * hold each sample as two adjacent members, KEY.jpg and KEY.cls (the class number in decimal).
 * Other members are skipped. Samples are numbered in the order of shards and members.
 */
#ifndef GRADLAG_WORKER_DATA_DATASET_WEBDATASET_H
#define GRADLAG_WORKER_DATA_DATASET_WEBDATASET_H

#include "worker/data/dataset.h"

/* Destination of the samples of one file set: the first `first` samples go to images[0] and
 * labels[0], the rest to images[1] and labels[1]. */
struct sample_target {
    uint32_t count, first; /* exact number of samples */
    uint8_t *images[2];    /* [first or count − first][channels][height][width] */
    uint32_t *labels[2];
};

/* Destination of sample n < count; image_size in bytes. */
uint8_t *sample_target_image(const struct sample_target *t, uint32_t n, size_t image_size);
uint32_t *sample_target_label(const struct sample_target *t, uint32_t n);

struct webdataset_part {
    const char *name;         /* "training"; for messages */
    const char *const *paths; /* [path_count], in sample order */
    size_t path_count;
    struct sample_target target;
};

/* Reads and decodes all parts: first all shards in parallel, then all images in parallel, with at
 * most `threads` threads. It prints a progress line if stderr is a terminal. `shape` has 3
 * channels. ERROR_DATA names the shard and the member. */
status webdataset_load(const struct webdataset_part *parts, size_t part_count,
                       const struct dataset *shape, unsigned threads) MUST_CHECK;

#endif
