/*
 * dataset.h — labelled images in memory, in three splits, and the registry of datasets.
 *
 * Pixels are kept as bytes, N×C×H×W row-major, with a scale and a shift per channel: the number a
 * model sees is scale[c] × byte + shift[c], computed as a batch is gathered. Bytes cost a quarter
 * of float32 in memory, cache files and copies to a GPU. Labels are class numbers, or, in a dataset
 * for regression, stand for numbers that are scaled and shifted like pixels. The validation
 * split is never trained on; tuning looks at it alone.
 *
 * A dataset that is slow to make is kept decoded in a cache file, mapped read-only, so that all the
 * processes of one host share its pages (worker/dataset_store.h).
 */
#ifndef GRADLAG_WORKER_DATASET_H
#define GRADLAG_WORKER_DATASET_H

#include "worker/registry.h"

enum dataset_split { SPLIT_TRAIN, SPLIT_VALIDATION, SPLIT_TEST, SPLIT_COUNT };
enum { DATASET_CHANNELS = 4 }; /* at most */

/* How one sample is shown: moved by (dx, dy) pixels, zeros (after scale and shift) coming in at the
 * edge, then mirrored left to right. */
struct crop {
    int8_t dx, dy;
    uint8_t flip; /* 0 or 1 */
    uint8_t unused;
};

struct dataset {
    uint32_t channels, height, width;
    uint32_t classes; /* 1 where labels are numbers */
    bool numeric;     /* a label means target_scale × label + target_shift, and is no class */
    float target_scale, target_shift;
    uint32_t count[SPLIT_COUNT];
    float scale[DATASET_CHANNELS], shift[DATASET_CHANNELS];
    const uint8_t *images[SPLIT_COUNT];  /* [count][channels][height][width], NULL: shape only */
    const uint32_t *labels[SPLIT_COUNT]; /* [count], each < classes, unless numeric */
    void *owner;                         /* the memory or mapping that all of them point into */
    size_t mapped_bytes;                 /* of a mapping; 0: owner is private memory */
};

/* One dataset kind: an entry of dataset_registry. */
struct dataset_kind {
    struct about about;
    /* The shape alone (channels … shift), without reading or making the data. */
    status (*describe)(const options *o, struct dataset *out);
    /* Given what `describe` filled in, sets images, labels and owner. ERROR_DATA: which file, what
     * is wrong with it, where to get a good one. */
    status (*load)(const options *o, struct dataset *d);
    bool reads_files; /* at dataset.path */
};
extern const struct registry dataset_registry;

/* Loads the dataset named by key `dataset`. With_data false: shape only. Reads dataset.path and the
 * keys of the chosen kind; samples are never a function of key `seed`. */
status dataset_open(struct dataset *out, const options *o, bool with_data) MUST_CHECK;
void dataset_close(struct dataset *d);

/* The folder that datasets were installed into, each in one of its name: GRADLAG_DATASETS, else
 * /usr/share/datasets. Where a dataset is looked for that dataset.path does not place. */
const char *dataset_installed(void);

/* Elements of one image: channels × height × width. */
size_t dataset_image_size(const struct dataset *d);
/* The batch made of samples indices[0..n) of a split (NULL: the n samples from `first`),
 * normalised, each shown as crops[n] says (NULL: as it is), into
 * images[n][channels][height][width] and labels[n] (NULL: not wanted). Allocates nothing. */
void dataset_gather(const struct dataset *d, enum dataset_split split, const uint32_t *indices,
                    uint32_t first, uint32_t n, const struct crop *crops, float *images,
                    uint32_t *labels);

#endif
