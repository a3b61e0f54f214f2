/* cuda_kernels_pool.h — pools in LANES: neighbouring threads compute neighbouring samples. */
#ifndef GRADLAG_WORKER_CUDA_KERNELS_CUDA_KERNELS_POOL_H
#define GRADLAG_WORKER_CUDA_KERNELS_CUDA_KERNELS_POOL_H

#include "worker/cuda/kernels/cuda_kernels_common.h"

CUDA_KERNEL(max_pool)
{
    uint32_t i = BLOCK_Y * THREADS + THREAD, channel = BLOCK_X / c.s.out_height;
    if (i >= c.s.out_width * c.s.batch)
        return;
    uint32_t y = BLOCK_X % c.s.out_height * c.s.stride, x = i / c.s.batch * c.s.stride;
    const float *row = c.x + ((size_t)channel * c.s.height + y) * c.s.width * c.s.batch +
                       (size_t)x * c.s.batch + i % c.s.batch;
    float most = row[0];
    uint32_t which = 0;
    for (uint32_t ky = 0; ky < c.s.kernel_height; ky++) {
        for (uint32_t kx = 0; kx < c.s.kernel_width; kx++) {
            float v = row[(size_t)(ky * c.s.width + kx) * c.s.batch];
            if (v > most) {
                most = v;
                which = ky * c.s.kernel_width + kx;
            }
        }
    }
    size_t at = (size_t)BLOCK_X * c.s.out_width * c.s.batch + i;
    c.y[at] = activate_fused(most, c.activation);
    if (c.which != NULL)
        c.which[at] = (uint16_t)which;
}

CUDA_KERNEL(average_pool)
{
    uint32_t i = BLOCK_Y * THREADS + THREAD, channel = BLOCK_X / c.s.out_height;
    if (i >= c.s.out_width * c.s.batch)
        return;
    uint32_t y = BLOCK_X % c.s.out_height * c.s.stride, x = i / c.s.batch * c.s.stride;
    const float *row = c.x + ((size_t)channel * c.s.height + y) * c.s.width * c.s.batch +
                       (size_t)x * c.s.batch + i % c.s.batch;
    float sum = 0;
    for (uint32_t ky = 0; ky < c.s.kernel_height; ky++)
        for (uint32_t kx = 0; kx < c.s.kernel_width; kx++)
            sum += row[(size_t)(ky * c.s.width + kx) * c.s.batch];
    float mean = sum / (float)(c.s.kernel_height * c.s.kernel_width);
    c.y[(size_t)BLOCK_X * c.s.out_width * c.s.batch + i] = activate_fused(mean, c.activation);
}

/* The first window that contains place `at`, and the last one + 1. */
CUDA_FUNCTION uint32_t first_window(uint32_t at, uint32_t kernel, uint32_t stride)
{
    return at < kernel ? 0 : (at - kernel) / stride + 1;
}

CUDA_FUNCTION uint32_t end_window(uint32_t at, uint32_t stride, uint32_t windows)
{
    uint32_t end = at / stride + 1;
    return end < windows ? end : windows;
}

CUDA_KERNEL(pool_backward)
{
    uint32_t i = BLOCK_Y * THREADS + THREAD, channel = BLOCK_X / c.s.height;
    if (i >= c.s.width * c.s.batch)
        return;
    uint32_t y = BLOCK_X % c.s.height, x = i / c.s.batch, lane = i % c.s.batch;
    uint32_t y_end = end_window(y, c.s.stride, c.s.out_height);
    uint32_t x_end = end_window(x, c.s.stride, c.s.out_width);
    float sum = 0;
    for (uint32_t oy = first_window(y, c.s.kernel_height, c.s.stride); oy < y_end; oy++) {
        for (uint32_t ox = first_window(x, c.s.kernel_width, c.s.stride); ox < x_end; ox++) {
            size_t at =
                (((size_t)channel * c.s.out_height + oy) * c.s.out_width + ox) * c.s.batch + lane;
            uint32_t here = (y - oy * c.s.stride) * c.s.kernel_width + (x - ox * c.s.stride);
            if (c.which == NULL || c.which[at] == here) {
                sum += c.activation == CUDA_ACTIVATION_NONE
                           ? c.g[at]
                           : c.g[at] * slope_at(c.y[at], c.activation);
            }
        }
    }
    if (c.which == NULL)
        sum /= (float)(c.s.kernel_height * c.s.kernel_width);
    size_t at = (size_t)BLOCK_X * c.s.width * c.s.batch + i;
    if (c.gate != NULL && !(c.gate[at] > 0))
        sum = 0;
    c.to[at] = (c.accumulate ? c.to[at] : 0) + sum;
}

#endif
