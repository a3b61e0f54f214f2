/*
 * cuda_kernel.h — the macros that kernels use. nvcc compiles the kernels for the GPU. For the
 * tests, the C compiler of the host compiles the same source with other definitions of the macros
 * (tests/worker/cuda/cuda_stand_in_block.c).
 *
 * A kernel takes one argument struct by value, `struct NAME_call`, and has a line in
 * cuda_kernels.def. Its body uses the common subset of C17 and CUDA C++ and these macros:
 *
 *   CUDA_KERNEL(relu_forward)                     // argument struct relu_forward_call, named `c`
 *   {
 *       size_t i = (size_t)BLOCK_X * THREADS + THREAD;
 *       if (i < c.count)
 *           c.y[i] = c.x[i] <= 0 ? 0 : c.x[i];
 *   }
 *
 *   BLOCK_X BLOCK_Y BLOCK_Z, BLOCKS_X …   number of this block; number of blocks
 *   THREAD, THREADS                       number of this thread in its (flat) block; threads
 *   SHARED(float, tile, 1024);            memory of one block, not initialised
 *   SYNC();                               a barrier that every thread of the block must reach
 *   CUDA_FUNCTION                         before a function that kernels call
 *   CUDA_UNROLL                           before a loop to unroll on the GPU
 *
 * No atomics, and no warp intrinsics except in cuda_kernels_tensor.h: results must not depend on
 * the order of threads, and on the host threads run one after another between barriers. Kernels
 * that call SYNC are listed with KERNEL_SYNC, the others with KERNEL, which the host runs as plain
 * loops. nvcc may fuse multiply and add
 * (-fmad=true), so results on GPU and host differ by rounding.
 */
#ifndef GRADLAG_WORKER_CUDA_KERNELS_CUDA_KERNEL_H
#define GRADLAG_WORKER_CUDA_KERNELS_CUDA_KERNEL_H

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct cuda_grid {
    uint32_t x, y, z; /* blocks; y and z at most CUDA_GRID_YZ */
    uint32_t threads; /* per block, at most CUDA_BLOCK_THREADS */
};

enum { CUDA_BLOCK_THREADS = 1024, CUDA_GRID_YZ = 65535 }; /* limits of every GPU */

/* Elements that a thread takes at once from rows of `length` elements: 4 if all rows are aligned.
 */
#define CUDA_AT_ONCE(length) ((length) % 4 == 0 ? 4u : 1u)

/* Blocks for one thread per element. */
static inline struct cuda_grid cuda_grid_over(size_t elements, uint32_t threads)
{
    struct cuda_grid g = {(uint32_t)((elements + threads - 1) / threads), 1, 1, threads};
    if (g.x == 0)
        g.x = 1;
    return g;
}

enum cuda_kernel {
#define KERNEL(name)      CUDA_##name,
#define KERNEL_SYNC(name) CUDA_##name,
#include "worker/cuda/kernels/cuda_kernels.def"
#undef KERNEL
#undef KERNEL_SYNC
    CUDA_KERNELS
};

#ifdef __CUDACC__

#define CUDA_KERNEL(name)         static __global__ void kernel_##name(const struct name##_call c)
#define CUDA_FUNCTION             static __device__ __forceinline__
#define CUDA_UNROLL               _Pragma("unroll")
#define BLOCK_X                   blockIdx.x
#define BLOCK_Y                   blockIdx.y
#define BLOCK_Z                   blockIdx.z
#define BLOCKS_X                  gridDim.x
#define BLOCKS_Y                  gridDim.y
#define BLOCKS_Z                  gridDim.z
#define THREAD                    threadIdx.x
#define THREADS                   blockDim.x
#define SHARED(type, name, count) __shared__ type name[count]
#define SYNC()                    __syncthreads()

#endif

#endif
