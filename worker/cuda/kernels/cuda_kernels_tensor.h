/*
 * cuda_kernels_tensor.h — products of two tiles in shared memory on the tensor cores:
 * mma.m16n8k8, operands tf32, sums fp32. A value of bf16 is also a value of tf32 and the product of
 * two such values is exact, so the same instruction serves both precisions. The operands must be
 * rounded already. GPUs before compute capability 8.0, and the host, compute the same sums with
 * fused or separate multiplications and additions.
 *
 * A warp computes 16 columns × 8 rows per fragment: the columns are the m of the instruction,
 * the rows its n, the taps its k. In the weight gradient the roles differ: the sums run over the
 * columns, and the fragments have 16 taps. Source of the positions: PTX ISA, "Matrix Fragments for
 * mma.m16n8k8".
 */
#ifndef GRADLAG_WORKER_CUDA_KERNELS_CUDA_KERNELS_TENSOR_H
#define GRADLAG_WORKER_CUDA_KERNELS_CUDA_KERNELS_TENSOR_H

#include "worker/cuda/kernels/cuda_kernels_common.h"

enum { TENSOR_TAPS = 8, TENSOR_COLUMNS = 16, TENSOR_ROWS = 8 };

/* Column and row, in its fragment, of element `e` (0 to 3) of this thread. */
CUDA_FUNCTION uint32_t tensor_column(uint32_t e)
{
    return THREAD % 32 / 4 + e / 2 * 8;
}

CUDA_FUNCTION uint32_t tensor_row(uint32_t e)
{
    return THREAD % 4 * 2 + e % 2;
}

/* A factor in shared memory, from the fragment's first element on: the distances of its taps and
 * of its columns or rows. */
struct tensor_factor {
    const float *at;
    uint32_t tap, next;
};

/* sum += x · w over 8 taps; `next` of x is to the next column, of w to the next row. All threads of
 * the warp must call it. */
CUDA_FUNCTION void tensor_multiply(float sum[4], struct tensor_factor x, struct tensor_factor w)
{
#if defined __CUDA_ARCH__ && __CUDA_ARCH__ >= 800
    const uint32_t group = THREAD % 32 / 4, tap = THREAD % 4;
    const float *a = x.at + tap * x.tap + group * x.next, *b = w.at + tap * w.tap + group * w.next;
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
        : "r"(__float_as_uint(a[0])), "r"(__float_as_uint(a[8 * x.next])),
          "r"(__float_as_uint(a[4 * x.tap])), "r"(__float_as_uint(a[4 * x.tap + 8 * x.next])),
          "r"(__float_as_uint(b[0])), "r"(__float_as_uint(b[4 * w.tap])));
#else
    CUDA_UNROLL
    for (uint32_t e = 0; e < 4; e++) {
        CUDA_UNROLL
        for (uint32_t k = 0; k < TENSOR_TAPS; k++)
            sum[e] += x.at[k * x.tap + tensor_column(e) * x.next] *
                      w.at[k * w.tap + tensor_row(e) * w.next];
    }
#endif
}

#endif
