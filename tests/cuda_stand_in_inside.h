/* cuda_stand_in_inside.h — the parts of the stand-in for CUDA's runtime: queues, memory, kernels.
 */
#ifndef GRADLAG_TESTS_CUDA_STAND_IN_INSIDE_H
#define GRADLAG_TESTS_CUDA_STAND_IN_INSIDE_H

#include "tests/cuda_stand_in.h"

#include <cuda_runtime_api.h>

/* The fault that stays; cudaSuccess: none. */
extern cudaError_t stand_in_fault;
extern unsigned stand_in_device; /* of cudaSetDevice */

#define ENTER()                                                                                    \
    do {                                                                                           \
        if (stand_in_fault != cudaSuccess) {                                                       \
            return stand_in_fault;                                                                 \
        }                                                                                          \
    } while (0)

/* Says which rule is broken, and by what, and aborts. */
_Noreturn void stand_in_refuse(enum stand_in_rule rule, const char *call);
#define HOLD_TO(rule, holds)                                                                       \
    do {                                                                                           \
        if (!(holds)) {                                                                            \
            stand_in_refuse(STAND_IN_##rule, __func__);                                            \
        }                                                                                          \
    } while (0)

/* Zeroed; freed by free. */
void *stand_in_new(size_t bytes);

/* ---- cuda_stand_in_streams.c ------------------------------------------------------------------
 */

/* Queues run(data), or captures it. `data` is freed with it. */
cudaError_t stand_in_queue(cudaStream_t s, void (*run)(void *data), void *data);
bool stand_in_capturing(cudaStream_t s);
bool stand_in_any_capture(void);
bool stand_in_idle(unsigned device);
unsigned stand_in_device_of(cudaStream_t s);
void stand_in_finish(cudaStream_t s); /* all that was queued there */
void stand_in_finish_all(void);
void stand_in_streams_reset(void);
size_t stand_in_streams_left(void);

/* ---- cuda_stand_in_memory.c -------------------------------------------------------------------
 */

/* at[0..bytes) must be memory of that device. */
void stand_in_on_device(const void *at, size_t bytes, unsigned device);
void stand_in_memory_reset(void);
size_t stand_in_memory_left(void);

/* ---- cuda_stand_in_kernels.c ------------------------------------------------------------------
 */

extern char stand_in_functions[]; /* kernel k: &stand_in_functions[k] */
struct stand_in_launch {
    unsigned kernel, x, y, z, threads, device;
    _Alignas(16) char arguments[1024];
};
size_t stand_in_argument_bytes(unsigned kernel);
void stand_in_launch_run(void *launch);
void stand_in_kernels_reset(void);

/* ---- cublas_stand_in.c, a library of its own ---------------------------------------------------
 */

extern size_t stand_in_descriptions; /* that cublasLt made and has not destroyed */

#endif
