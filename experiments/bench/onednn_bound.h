/*
 * onednn_bound.h — an upper bound on a training step's speed: the step's oneDNN primitives alone,
 * each in its preferred layouts, one after the other. No tape, no reordering of weights, no
 * gathering of a batch. The reference of `gradlag bench step` and `gradlag check`.
 */
#ifndef GRADLAG_EXPERIMENTS_BENCH_ONEDNN_BOUND_H
#define GRADLAG_EXPERIMENTS_BENCH_ONEDNN_BOUND_H

#include "worker/backend.h"

typedef struct onednn_bound onednn_bound;

/* `operations`: those of one step, in order (tape_operation). products_only: only convolutions and
 * matrix products; else pools and batch norms too. `o`: threads and precision. In bf16 all
 * primitives read and write bf16, except weight gradients (float32). ERROR_USAGE: the processor has
 * no bf16. */
status onednn_bound_open(onednn_bound **out, const struct op_description *operations, size_t count,
                         bool products_only, const struct backend_options *o) MUST_CHECK;
void onednn_bound_close(onednn_bound **b);
/* Executes all primitives once. */
status onednn_bound_run(onednn_bound *b) MUST_CHECK;

#endif
