/* cuda_against_cpu.h — comparison of the CUDA backend with the CPU's, for models and operations. */
#ifndef GRADLAG_TESTS_WORKER_CUDA_CUDA_AGAINST_CPU_H
#define GRADLAG_TESTS_WORKER_CUDA_CUDA_AGAINST_CPU_H

#include "tests/worker/cuda/cuda_rig.h"
#include "tests/worker/gradients.h"
#include "tests/worker/op_graphs.h"
#include "worker/cuda/backend_cuda.h"

enum { CUDA_TEST_CLASSES = 10 };

/* One thread, fp32, any device. */
extern const struct backend_options cuda_fp32;
/* cuda_fp32 with another precision. */
struct backend_options cuda_in_precision(enum precision p);

/* The model of this graph, with CUDA_TEST_CLASSES classes; fills in *kind. */
struct model cuda_of_graph(struct model_kind *kind, forward_function *forward);
/* Opens a fixture on `device`, with seed 3. */
void cuda_open_on(struct fixture *f, const char *device, const struct backend_options *o,
                  const struct model *m, struct shape images, uint32_t batch);
struct cuda_command_statistics cuda_statistics_of(const struct fixture *f);

/* Asserts that loss and gradient in fp32 are the CPU's, within `bound` relative to them. Three
 * steps: the first runs directly, the second is captured, the third replayed. */
void cuda_equals_cpu(const char *name, const struct model *m, struct shape images, uint32_t batch,
                     double bound);
/* Asserts that loss and gradient in this precision are those of the CPU in fp32 within `bound`, and
 * not closer than this precision can be. test_bf16.c derives the bounds, for initial weights,
 * similar images and one label. */
void cuda_is_near_cpu(const char *name, const struct model *m, struct shape images, uint32_t batch,
                      enum precision precision, double bound);

#endif
