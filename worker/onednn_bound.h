/*
 * onednn_bound.h — how fast oneDNN's primitives alone would do a model's training step: each in the
 * layouts it likes best, one after the other, without a tape, weights to bring into those layouts,
 * or a batch to gather. What a step is measured against (`gradlag bench step`).
 */
#ifndef GRADLAG_WORKER_ONEDNN_BOUND_H
#define GRADLAG_WORKER_ONEDNN_BOUND_H

#include "worker/backend.h"

typedef struct onednn_bound onednn_bound;

/* `operations`: those of one step, in order (tape_operation). With products_only, convolutions and
 * matrix products alone; else pools and batch norms too. `o`: threads and precision; in bf16 all
 * read and write bf16, but for the weights' gradients (float32). ERROR_USAGE where the processor
 * has no bf16. */
status onednn_bound_open(onednn_bound **out, const struct op_description *operations, size_t count,
                         bool products_only, const struct backend_options *o) MUST_CHECK;
void onednn_bound_close(onednn_bound **b);
/* Runs them all once. */
status onednn_bound_run(onednn_bound *b) MUST_CHECK;

#endif
