/*
 * external.h — a model, its loss and its data, computed by a program of the user (model=external).
 *
 * The program computes the gradient of a batch as a pure function of the parameters, the worker and
 * the batch's samples. gradlag does everything else: which samples make a batch, parameters,
 * optimizer, staleness, recording. docs/external-models.md is the protocol.
 *
 * The program maps the areas of shared_memory.h in which the caller's parameters and gradients lie,
 * and uses them in place. A vector that lies elsewhere is copied to or from shared memory that the
 * `external` owns. A step allocates only its messages. One thread at a time uses an `external`.
 *
 * Errors: ERROR_DATA: the program reports an error, or its answer does not fit. ERROR_PEER: the
 * program ended, or did not answer in time. Messages hold the last lines of its output.
 */
#ifndef GRADLAG_WORKER_EXTERNAL_EXTERNAL_H
#define GRADLAG_WORKER_EXTERNAL_EXTERNAL_H

#include "base/options.h"
#include "worker/backend.h"
#include "worker/data/dataset.h"
#include "worker/model/parameters.h"

#include <signal.h>

typedef struct external external;

/* Starts the program that key model.command names and asks it for its parameters and data. Adds the
 * slices to `table`; sets counts, classes and numeric of `data`, which has no images. `workers`:
 * number of workers of the run. `stop`: as in struct worker_options. */
status external_open(external **out, const options *settings, unsigned workers,
                     const volatile sig_atomic_t *stop, parameter_table *table,
                     struct dataset *data) MUST_CHECK;
void external_close(external **e); /* NULL-safe */

/* The program's description of itself ("resnet_torch.py, torch 2.5.1"); lives as long as `e`. */
const char *external_description(const external *e);
/* The JSON object `program` of the answer to `open` (SHA-256 of the program, versions of its
 * packages), keys sorted; NULL: the answer has none. Lives as long as `e`. */
const char *external_program(const external *e);

/* The parameters of version 0: a pure function of the program, its options and key seed. */
status external_initial(external *e, float *out) MUST_CHECK;
/* The gradient of the mean loss over samples[0..n) of the training split, for worker `index`.
 * *own_ns ← the computing time that the program reports; 0: it reports none. */
status external_gradient(external *e, const float *parameters, unsigned index, uint64_t batch,
                         const uint32_t *samples, uint32_t n, float *gradient, struct op_loss *out,
                         uint64_t *own_ns) MUST_CHECK;

/* Announces evaluations at these parameters. The program then re-estimates its running statistics.
 */
status external_prepare_evaluation(external *e, const float *parameters) MUST_CHECK;
/* Evaluates samples [first, first + n) of a split. Adds to predicted[k] the number of samples
 * predicted as class k; NULL: predictions are not counted. */
status external_evaluate(external *e, enum dataset_split split, uint32_t first, uint32_t n,
                         struct op_loss *out, uint32_t *predicted) MUST_CHECK;

#endif
