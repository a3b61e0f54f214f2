/*
 * dataset.h — labelled images in memory, in three splits, and the registry of datasets.
 *
 * Pixels are stored as bytes, N×C×H×W row-major, with a scale and a shift per channel. The model
 * reads scale[c] × byte + shift[c], computed when a batch is gathered. Bytes need a quarter of
 * float32's memory, cache file and copies to a GPU. Labels are class numbers. In a regression
 * dataset they encode numbers by a scale and a shift, like pixels. The validation split is never
 * trained on; only tuning reads it.
 *
 * A dataset that is slow to build is decoded once into a cache file. The file is mapped read-only,
 * so that all processes of a host share its pages (worker/data/dataset_store.h).
 */
#ifndef GRADLAG_WORKER_DATA_DATASET_H
#define GRADLAG_WORKER_DATA_DATASET_H

#include "base/registry.h"

enum dataset_split { SPLIT_TRAIN, SPLIT_VALIDATION, SPLIT_TEST, SPLIT_COUNT };
enum { DATASET_CHANNELS = 4 }; /* the largest number of channels */

/* How one sample is shown: shifted by (dx, dy) pixels, with zeros (after scale and shift) at the
 * edge, then mirrored left to right. */
struct crop {
    int8_t dx, dy;
    uint8_t flip; /* 0 or 1 */
    uint8_t unused;
};

struct dataset {
    uint32_t channels, height, width;
    uint32_t classes; /* 1 if labels are numbers */
    bool numeric;     /* regression: the target is target_scale × label + target_shift */
    float target_scale, target_shift;
    uint32_t count[SPLIT_COUNT];
    float scale[DATASET_CHANNELS], shift[DATASET_CHANNELS];
    const uint8_t *images[SPLIT_COUNT];  /* [count][channels][height][width]; NULL: shape only */
    const uint32_t *labels[SPLIT_COUNT]; /* [count]; each < classes, unless numeric */
    void *owner;                         /* memory or mapping that contains images and labels */
    size_t mapped_bytes;                 /* size of the mapping; 0: owner is private memory */
};

/* One dataset kind: an entry of dataset_registry. */
struct dataset_kind {
    struct about about;
    /* Fills in the shape (channels … shift) without reading or building the data. */
    status (*describe)(const options *o, struct dataset *out);
    /* Sets images, labels and owner of a dataset that `describe` filled in. ERROR_DATA names the
     * file, the defect and the source of a good copy. */
    status (*load)(const options *o, struct dataset *d);
    bool reads_files; /* reads key dataset.path */
};
extern const struct registry dataset_registry;

/* Loads the dataset that key `dataset` names; with_data false: shape only. Reads dataset.path and
 * the keys of that kind. Samples do not depend on key `seed`. */
status dataset_open(struct dataset *out, const options *o, bool with_data) MUST_CHECK;
void dataset_close(struct dataset *d);

/* The folder of installed datasets: GRADLAG_DATASETS, else /usr/share/datasets. Each dataset has a
 * subfolder with its name. It is searched if dataset.path is not set. */
const char *dataset_installed(void);

/* Elements of one image: channels × height × width. */
size_t dataset_image_size(const struct dataset *d);
/* Builds the batch of samples indices[0..n) of a split (indices NULL: the n samples from `first`):
 * normalised, shown as crops[n] (NULL: unchanged), into images[n][channels][height][width] and
 * labels[n] (NULL: no labels). Allocates nothing. */
void dataset_gather(const struct dataset *d, enum dataset_split split, const uint32_t *indices,
                    uint32_t first, uint32_t n, const struct crop *crops, float *images,
                    uint32_t *labels);

#endif
