/*
 * dataset_shared.h — generated data that the processes of one run build together.
 *
 * The starter of a run makes an empty file in memory and names it in the variable
 * DATASET_SHARED_FILE. Each process maps the file and builds blocks of samples that no other
 * process has begun. A block that another process has begun but not finished is built again: both
 * write the same bytes. So no process waits for another one, and a killed process leaves no gap.
 * Without such a file, or if it holds another dataset, the data are in private memory.
 */
#ifndef GRADLAG_WORKER_DATA_DATASET_SHARED_H
#define GRADLAG_WORKER_DATA_DATASET_SHARED_H

#include "worker/data/dataset.h"

#define DATASET_SHARED_FILE "GRADLAG_SHARED_DATASET"

/* Each image is a pure function of split, n and label. So images may be built in any order, and by
 * several processes at once. */
struct dataset_images {
    /* Called once, before the first image; not called if all images are there. */
    status (*prepare)(void *context, const struct dataset *shape);
    void (*draw)(void *context, const struct dataset *shape, enum dataset_split split, uint32_t n,
                 uint32_t label, uint8_t *image);
    void *context;
};

/* Sets images, labels (dataset_draw_labels with `seed`) and owner of `d`, whose shape is filled in.
 * `identity` is a text that differs whenever the content differs. Errors: those of `prepare`, and
 * ERROR_OTHER if memory is exhausted. */
status dataset_shared_load(struct dataset *d, const char *identity, uint64_t seed,
                           const struct dataset_images *images) MUST_CHECK;

#endif
