/* cuda_stand_in_internal.h — what the files of the stand-in share: queues, memory, kernels. */
#ifndef GRADLAG_TESTS_WORKER_CUDA_CUDA_STAND_IN_INTERNAL_H
#define GRADLAG_TESTS_WORKER_CUDA_CUDA_STAND_IN_INTERNAL_H

#include "tests/worker/cuda/cuda_stand_in.h"
#include "worker/cuda/cuda_real.h"

#include <cuda_runtime_api.h>

/* The permanent fault; cudaSuccess: none. */
extern cudaError_t stand_in_fault;
extern _Thread_local unsigned stand_in_device; /* set by cudaSetDevice */

/* The lock; recursive. */
void stand_in_lock(void);
void stand_in_unlock(const int *unused);
#define LOCK()                                                                                     \
    __attribute__((cleanup(stand_in_unlock))) const int locked_ = (stand_in_lock(), 0);            \
    (void)locked_

/* At the begin of each call: the permanent fault, or the error in a copy of the process (fork())
 * that made the first call. */
cudaError_t stand_in_enter(void);
#define ENTER()                                                                                    \
    LOCK();                                                                                        \
    do {                                                                                           \
        const cudaError_t entered_ = stand_in_enter();                                             \
        if (entered_ != cudaSuccess)                                                               \
            return entered_;                                                                       \
    } while (0)

enum stand_in_rule {
#define RULE(name, text) STAND_IN_##name,
#include "tests/worker/cuda/stand_in_rules.def"
#undef RULE
    STAND_IN_RULES
};

/* Prints the broken rule and the call, and aborts. */
_Noreturn void stand_in_refuse(enum stand_in_rule rule, const char *call);
/* Prints a message and aborts. */
__attribute__((format(printf, 1, 2))) _Noreturn void stand_in_abort(const char *format, ...);
#define HOLD_TO(rule, holds)                                                                       \
    do {                                                                                           \
        if (!(holds))                                                                              \
            stand_in_refuse(STAND_IN_##rule, __func__);                                            \
    } while (0)

/* Zeroed memory; release it with free(). */
void *stand_in_new(size_t bytes);

/* ---- cuda_stand_in_streams.c ------------------------------------------------------------------
 */

/* Queues run(data), or captures it. Takes ownership of `data`. */
cudaError_t stand_in_queue(cudaStream_t s, void (*run)(void *data), void *data);
bool stand_in_capturing(cudaStream_t s);
bool stand_in_any_capture(void);
bool stand_in_idle(unsigned device);
unsigned stand_in_device_of(cudaStream_t s);
void stand_in_finish(cudaStream_t s); /* runs all work queued on the stream */
void stand_in_finish_all(void);
void stand_in_streams_reset(void);
size_t stand_in_streams_left(void);

/* ---- cuda_stand_in_memory.c -------------------------------------------------------------------
 */

/* Aborts if a fence around device memory was overwritten. `after`: the work that ran last. */
void stand_in_check_fences(const char *after);

/* Aborts unless at[0..bytes) is memory of that device. */
void stand_in_on_device(const void *at, size_t bytes, unsigned device);
void stand_in_memory_reset(void);
size_t stand_in_memory_left(void);

/* ---- cuda_stand_in_block.c --------------------------------------------------------------------
 */

enum { STAND_IN_ARGUMENT_BYTES = 1024 }; /* enough for the arguments of any kernel */
size_t stand_in_argument_bytes(unsigned kernel);
/* Runs all blocks of a grid, one after another. */
void stand_in_run_grid(unsigned kernel, const struct cuda_grid *g, const void *arguments);

/* ---- cuda_stand_in_kernels.c ------------------------------------------------------------------
 */

void stand_in_kernels_reset(void);

/* ---- cublas_stand_in.c, a separate library ---------------------------------------------------
 */

extern size_t stand_in_descriptions; /* descriptions that cublasLt created and has not destroyed */

#endif
