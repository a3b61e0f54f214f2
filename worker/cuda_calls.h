/*
 * cuda_calls.h — the arguments of every kernel: struct NAME_call for kernel NAME of
 * cuda_kernels.def. All pointers are device memory.
 */
#ifndef GRADLAG_WORKER_CUDA_CALLS_H
#define GRADLAG_WORKER_CUDA_CALLS_H

#include "worker/cuda_device.h"

/* to[i] += from[i] */
struct add_into_call {
    float *to;
    const float *from;
    size_t count;
};

#endif
