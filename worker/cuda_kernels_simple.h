/* cuda_kernels_simple.h — elementwise kernels. */
#ifndef GRADLAG_WORKER_CUDA_KERNELS_SIMPLE_H
#define GRADLAG_WORKER_CUDA_KERNELS_SIMPLE_H

#include "worker/cuda_calls.h"

CUDA_KERNEL(add_into)
{
    size_t i = (size_t)BLOCK_X * THREADS + THREAD;
    if (i < c.count) {
        c.to[i] += c.from[i];
    }
}

#endif
