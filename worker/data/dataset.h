/*
 * dataset.h — samples in memory, in three splits, and the registry of datasets. The validation
 * split is never trained on; only tuning reads it.
 *
 * Labelled images: a sample is an image of C×H×W bytes with one label. The splits are arrays of
 * samples. The model reads scale[c] × byte + shift[c], computed when a batch is gathered. Bytes
 * need a quarter of float32's memory, cache file and copies to a GPU. Labels are class numbers. In
 * a regression dataset they encode numbers by a scale and a shift, like pixels.
 *
 * Text (`tokens`): a sample is a window of `height` consecutive bytes of a split, its tokens, and
 * each token's label is the next byte. A split is one array of `length` bytes without labels. The
 * index of a training sample is the byte at which its window starts, so windows overlap.
 * Evaluations read `count` windows without overlap: window k starts at byte k × height. An epoch is
 * `count` windows, too.
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
    uint32_t channels, height, width; /* text: 1, tokens of a window, 1 */
    uint32_t classes;                 /* 1 if labels are numbers; text: tokens are < classes */
    uint32_t targets;                 /* labels of one sample: 1; text: height */
    bool tokens;                      /* text */
    bool numeric; /* regression: the target is target_scale × label + target_shift */
    float target_scale, target_shift;
    double entropy_rate; /* least expected loss, nats per label, of a generated text; 0: unknown */
    uint32_t count[SPLIT_COUNT];  /* samples */
    uint32_t length[SPLIT_COUNT]; /* text: bytes; else 0 */
    float scale[DATASET_CHANNELS], shift[DATASET_CHANNELS];
    /* [count][channels][height][width]; text: [length]; NULL: shape only */
    const uint8_t *images[SPLIT_COUNT];
    const uint32_t *labels[SPLIT_COUNT]; /* [count], each < classes unless numeric; text: NULL */
    void *owner;         /* memory or mapping that contains images and labels; NULL: borrowed */
    size_t mapped_bytes; /* size of the mapping; 0: owner is private memory */
};

/* For errors about the number or the size of images. */
#define DATASET_IS_FIXED                                                                           \
    "the dataset has fixed numbers and sizes of images, so other images need model=external"

/* One dataset kind: an entry of dataset_registry. */
struct dataset_kind {
    struct about about;
    /* Fills in the shape (channels … shift) without building the data or reading their bytes. */
    status (*describe)(const options *o, struct dataset *out);
    /* Sets images, labels and owner of a dataset that `describe` filled in. ERROR_DATA names the
     * file, the defect and the source of a good copy. */
    status (*load)(const options *o, struct dataset *d);
    const char *remedy; /* where to get the files, for error messages; NULL: the kind reads no files
                           and no dataset.path */
    bool shared;        /* `load` is dataset_shared_load: several processes build it together */
    bool tokens;        /* its samples are windows of text */
    bool numeric;       /* its labels are numbers, and its pixels have no positions */
};
extern const struct registry dataset_registry;

/* Loads the dataset that key `dataset` names; with_data false: shape only. Reads dataset.path and
 * the keys of that kind. Samples do not depend on key `seed`. */
status dataset_open(struct dataset *out, const options *o, bool with_data) MUST_CHECK;
void dataset_close(struct dataset *d);
/* *out ← the same samples, which `owner` closes later. */
void dataset_borrow(struct dataset *out, const struct dataset *owner);
/* True if key `dataset` names a dataset that several processes build together. */
bool dataset_is_shared(const options *o);

/* The folder of installed datasets: GRADLAG_DATASETS, else /usr/share/datasets. Each dataset has a
 * subfolder with its name. It is searched if dataset.path is not set. */
const char *dataset_installed(void);
/* ERROR_DATA: dataset.path is not set, and the dataset is not installed. */
status dataset_check_installed(const options *o) MUST_CHECK;

/* Elements of one sample: channels × height × width. */
size_t dataset_image_size(const struct dataset *d);
/* Bytes of images[split]. */
size_t dataset_split_bytes(const struct dataset *d, enum dataset_split split);
/* The indices of training samples are 0 … this − 1. */
uint32_t dataset_training_indices(const struct dataset *d);
/* Builds the batch of samples indices[0..n) of a split (indices NULL: the n samples from `first`):
 * normalised, shown as crops[n] (NULL: unchanged; text: NULL), into
 * images[n][channels][height][width] and labels[n][targets] (NULL: no labels). Allocates nothing.
 */
void dataset_gather(const struct dataset *d, enum dataset_split split, const uint32_t *indices,
                    uint32_t first, uint32_t n, const struct crop *crops, float *images,
                    uint32_t *labels);
/* The labels of that batch alone. */
void dataset_labels(const struct dataset *d, enum dataset_split split, const uint32_t *indices,
                    uint32_t first, uint32_t n, uint32_t *labels);
/* Where sample indices[i] begins (indices NULL: sample first + i): its number, or its byte in a
 * text. Contract: the sample exists. */
uint32_t dataset_place(const struct dataset *d, enum dataset_split split, const uint32_t *indices,
                       uint32_t first, uint32_t i);

#endif
