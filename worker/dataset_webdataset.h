/*
 * dataset_webdataset.h — shards in the manner of WebDataset (Aizman et al. 2019): tar archives that
 * hold a sample as neighbouring members KEY.jpg and KEY.cls, the class number in decimal. Other
 * members are passed over. Samples are numbered in the order of the shards and of their members.
 */
#ifndef GRADLAG_WORKER_DATASET_WEBDATASET_H
#define GRADLAG_WORKER_DATASET_WEBDATASET_H

#include "worker/dataset.h"

/* Where the samples of one file set go: the first `first` to images[0] and labels[0], the rest to
 * images[1] and labels[1]. */
struct sample_target {
    uint32_t count, first; /* exactly `count` samples belong there */
    uint8_t *images[2];    /* [first or count − first][channels][height][width] */
    uint32_t *labels[2];
};

/* The slots of sample n < count; image_size in bytes. */
uint8_t *sample_target_image(const struct sample_target *t, uint32_t n, size_t image_size);
uint32_t *sample_target_label(const struct sample_target *t, uint32_t n);

struct webdataset_part {
    const char *name;         /* "training", for messages */
    const char *const *paths; /* [path_count], in the order of their samples */
    size_t path_count;
    struct sample_target target;
};

/* Reads and decodes all parts: shards side by side, then images side by side, on at most `threads`
 * threads, with a line of progress where stderr is a terminal. `shape`: 3 channels. ERROR_DATA
 * names the shard and the member. */
status webdataset_load(const struct webdataset_part *parts, size_t part_count,
                       const struct dataset *shape, unsigned threads) MUST_CHECK;

#endif
