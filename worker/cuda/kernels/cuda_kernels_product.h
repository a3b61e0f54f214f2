/*
 * cuda_kernels_product.h — epilogues of matrix products that cublasLt refuses to fuse. The mask has
 * cublasLt's layout, so that a product may be fused while its counterpart is not: bit column % 8 of
 * byte column / 8 of each row.
 */
#ifndef GRADLAG_WORKER_CUDA_KERNELS_CUDA_KERNELS_PRODUCT_H
#define GRADLAG_WORKER_CUDA_KERNELS_CUDA_KERNELS_PRODUCT_H

#include "worker/cuda/kernels/cuda_calls.h"

#include <string.h>

CUDA_KERNEL(product_mask_write)
{
    size_t i = (size_t)BLOCK_X * THREADS + THREAD;
    if (i < (size_t)c.rows * c.words) {
        size_t row = i / c.words;
        uint32_t column = (uint32_t)(i % c.words) * 32, bits = 0;
        for (uint32_t k = 0; k < 32 && column + k < c.columns; k++)
            bits |= (c.d[row * c.columns + column + k] > 0 ? 1u : 0u) << k;
        c.mask[i] = bits;
    }
}

CUDA_KERNEL(product_mask_apply)
{
    size_t i = (size_t)BLOCK_X * THREADS + THREAD;
    if (i < (size_t)c.rows * c.columns) {
        uint32_t column = (uint32_t)(i % c.columns);
        if ((c.mask[i / c.columns * c.words + column / 32] >> column % 32 & 1) == 0)
            c.d[i] = 0;
    }
}

CUDA_FUNCTION float product_operand(const void *a, size_t at, uint32_t bf16)
{
    float value;
    if (bf16) {
        uint32_t bits = (uint32_t)((const uint16_t *)a)[at] << 16;
        memcpy(&value, &bits, sizeof value);
    } else {
        value = ((const float *)a)[at];
    }
    return value;
}

/* A block has 32 rows, 8 threads per row. */
CUDA_KERNEL(product_sums)
{
    SHARED(float, sums, 256);
    uint32_t row = BLOCK_X * 32 + THREAD % 32;
    float sum = 0;
    for (uint32_t k = THREAD / 32; k < c.inner && row < c.rows; k += 8)
        sum += product_operand(c.a, row * c.row_step + k * c.inner_step, c.bf16);
    sums[THREAD] = sum;
    SYNC();
    if (THREAD < 32 && row < c.rows) {
        for (uint32_t k = 1; k < 8; k++)
            sum += sums[k * 32 + THREAD];
        c.out[row] = sum;
    }
}

#endif
