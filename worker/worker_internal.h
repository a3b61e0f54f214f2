/* worker_internal.h — what worker.c and worker_evaluation.c share. */
#ifndef GRADLAG_WORKER_WORKER_INTERNAL_H
#define GRADLAG_WORKER_WORKER_INTERNAL_H

#include "worker/augment.h"
#include "worker/backend.h"
#include "worker/dataset.h"
#include "worker/model.h"
#include "worker/pace.h"
#include "worker/sampler.h"
#include "worker/worker.h"

struct worker {
    struct dataset data;
    sampler *sampler;
    pace *pace;
    backend *backend;
    struct model model;
    parameter_table *parameters;
    struct optimizer_layer *layers; /* one for each slice */
    bool has_batch_norm;
    bool joins; /* batch_norm=synchronised, and there are others */
    uint64_t seed;
    const char *initial; /* a checkpoint's path; NULL: drawn */
    uint32_t batch;
    unsigned index;
    uint32_t *indices;  /* [batch] */
    struct crop *crops; /* [batch], NULL: samples are shown as they are */
    tape *training;
    tape *evaluation;            /* made when first needed: most workers never evaluate */
    tape *calibrating;           /* of EVALUATION_BATCH samples; may be `evaluation` itself */
    uint32_t *calibration;       /* [EVALUATION_BATCH] */
    struct evaluation_sum *sums; /* [batches], of worker_evaluate */
    uint32_t *predicted;         /* [classes], of worker_evaluate */
    char description[200];
};

/* One whole step on one tape whose images and labels are filled in. *logits, unless NULL: the
 * model's answers, [batch][classes], until the tape's next step. */
status worker_step(worker *w, tape *t, const float *parameters, float *gradient, uint32_t valid,
                   struct op_loss *out, const float **logits) MUST_CHECK;

#endif
