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

enum { EVALUATORS_MOST = 8 }; /* each has the activations of a batch */

/* What one thread evaluates with. Evaluator 0 uses the worker's backend, the others have their own:
 * one thread at a time may use a backend. */
struct evaluator {
    backend *backend;
    tape *evaluation;    /* opened when first needed: most workers never evaluate */
    tape *calibrating;   /* evaluation_batch() samples; may equal `evaluation` */
    uint32_t *batch;     /* [evaluation_batch()], of calibration */
    uint32_t *predicted; /* [classes] */
};

struct worker {
    const options *settings; /* borrowed */
    struct dataset data;
    sampler *sampler;   /* NULL: no gradients */
    pace *pace;         /* NULL: no gradients */
    external *external; /* NULL: the members from `backend` to `evaluators` compute */
    backend *backend;
    struct model model;
    parameter_table *parameters;
    struct optimizer_layer *layers; /* one for each slice */
    bool has_data;                  /* not opened with parameters_only */
    bool has_batch_norm;
    bool joins; /* batch_norm=synchronised with at least two workers */
    uint64_t seed;
    const char *initial; /* path of a checkpoint; NULL: random initial parameters */
    uint32_t batch;
    unsigned index;
    const volatile sig_atomic_t *stop; /* borrowed; may be NULL */
    uint32_t *indices;                 /* [batch] */
    struct crop *crops;                /* [batch]; NULL: no augmentation */
    tape *training;
    struct evaluator evaluators[EVALUATORS_MOST];
    unsigned evaluation_threads; /* of worker_evaluate */
    struct evaluation_sum *sums; /* [batches], for worker_evaluate */
    double *calibration;         /* [calibration batches][calibration_sums]: tape_copy_sums */
    size_t calibration_sums;
    char description[200];
};

/* One complete step on a tape whose images and labels are filled in. If `logits` is not NULL,
 * *logits is set to the model's output, [batch][targets][classes], valid until the tape's next
 * step. */
status worker_step(worker *w, tape *t, const float *parameters, float *gradient, uint32_t valid,
                   struct op_loss *out, const float **logits) MUST_CHECK;

/* worker_evaluation.c */
void evaluators_close(worker *w);

#endif
