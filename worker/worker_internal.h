/* worker_internal.h — shared by worker.c and worker_evaluation.c. */
#ifndef GRADLAG_WORKER_WORKER_INTERNAL_H
#define GRADLAG_WORKER_WORKER_INTERNAL_H

#include "worker/data/augment.h"
#include "worker/backend.h"
#include "worker/data/dataset.h"
#include "worker/model/model.h"
#include "worker/external/external.h"
#include "worker/pace/pace.h"
#include "worker/data/sampler.h"
#include "worker/worker.h"

struct worker {
    struct dataset data;
    sampler *sampler;
    pace *pace;
    external *external; /* NULL: the members from `backend` to `calibration` compute */
    backend *backend;
    struct model model;
    parameter_table *parameters;
    struct optimizer_layer *layers; /* one for each slice */
    bool has_batch_norm;
    bool joins; /* batch_norm=synchronised with at least two workers */
    uint64_t seed;
    const char *initial; /* path of a checkpoint; NULL: random initial parameters */
    uint32_t batch;
    unsigned index;
    uint32_t *indices;  /* [batch] */
    struct crop *crops; /* [batch]; NULL: no augmentation */
    tape *training;
    tape *evaluation;            /* opened when first needed: most workers never evaluate */
    tape *calibrating;           /* evaluation_batch() samples; may equal `evaluation` */
    uint32_t *calibration;       /* [evaluation_batch()] */
    struct evaluation_sum *sums; /* [batches], for worker_evaluate */
    uint32_t *predicted;         /* [classes], for worker_evaluate */
    char description[200];
};

/* One complete step on a tape whose images and labels are filled in. If `logits` is not NULL,
 * *logits is set to the model's output, [batch][targets][classes], valid until the tape's next
 * step. */
status worker_step(worker *w, tape *t, const float *parameters, float *gradient, uint32_t valid,
                   struct op_loss *out, const float **logits) MUST_CHECK;

#endif
