/* cuda_kernels_test.h — kernels for tests of a GPU. */
#ifndef GRADLAG_WORKER_CUDA_KERNELS_CUDA_KERNELS_TEST_H
#define GRADLAG_WORKER_CUDA_KERNELS_CUDA_KERNELS_TEST_H

#include "worker/cuda/kernels/cuda_calls.h"

/* Each thread of a grid writes its position: x, y, z, thread. */
CUDA_KERNEL(test_where)
{
    size_t block = ((size_t)BLOCK_Z * BLOCKS_Y + BLOCK_Y) * BLOCKS_X + BLOCK_X;
    uint32_t *at = c.out + (block * THREADS + THREAD) * 4;
    at[0] = BLOCK_X;
    at[1] = BLOCK_Y;
    at[2] = BLOCK_Z;
    at[3] = THREAD;
}

/* One sum per block of at most 1024 threads, a power of two. */
CUDA_KERNEL(test_tree_sum)
{
    SHARED(float, part, 1024);
    size_t i = (size_t)BLOCK_X * THREADS + THREAD;
    part[THREAD] = i < c.count ? c.x[i] : 0;
    for (uint32_t half = THREADS / 2; half > 0; half /= 2) {
        SYNC();
        if (THREAD < half)
            part[THREAD] += part[THREAD + half];
    }
    if (THREAD == 0)
        c.sums[BLOCK_X] = part[0];
}

#endif
