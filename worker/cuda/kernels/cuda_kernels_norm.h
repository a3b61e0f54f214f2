/* cuda_kernels_norm.h — batch norm in LANES, where the elements of a channel are one row. */
#ifndef GRADLAG_WORKER_CUDA_KERNELS_CUDA_KERNELS_NORM_H
#define GRADLAG_WORKER_CUDA_KERNELS_CUDA_KERNELS_NORM_H

#include "worker/cuda/kernels/cuda_kernels_common.h"

#define NORM_EPSILON 1e-5f /* BATCH_NORM_EPSILON of backend.h */

/* The range of the channel that the block computes. */
#define NORM_RANGE(chunk)                                                                          \
    const size_t row = (size_t)BLOCK_Y * c.length;                                                 \
    const uint32_t begin = BLOCK_X * (chunk);                                                      \
    const uint32_t end = begin + (chunk) < c.length ? begin + (chunk) : c.length

/* Sums of the channel, in the same order in every thread of every block. */
#define NORM_TOTALS(one, other)                                                                    \
    SHARED(double, firsts, CUDA_NORM_CHUNKS);                                                      \
    SHARED(double, seconds, CUDA_NORM_CHUNKS);                                                     \
    if (THREAD < c.parts_count) {                                                                  \
        firsts[THREAD] = c.parts[BLOCK_Y * c.parts_count + THREAD].first;                          \
        seconds[THREAD] = c.parts[BLOCK_Y * c.parts_count + THREAD].second;                        \
    }                                                                                              \
    SYNC();                                                                                        \
    double one = 0, other = 0;                                                                     \
    for (uint32_t k = 0; k < c.parts_count; k++) {                                                 \
        one += firsts[k];                                                                          \
        other += seconds[k];                                                                       \
    }

CUDA_KERNEL(norm_sums)
{
    SHARED(double, firsts, CUDA_NORM_THREADS);
    SHARED(double, seconds, CUDA_NORM_THREADS);
    NORM_RANGE(c.chunk);
    const float *x = c.x + row;
    float origin = x[0], sum = 0, square = 0;
    for (uint32_t i = begin + THREAD; i < end; i += THREADS) {
        float v = x[i] - origin;
        sum += v;
        square += v * v;
    }
    firsts[THREAD] = sum;
    seconds[THREAD] = square;
    SUM_BLOCK(firsts, seconds);
    if (THREAD == 0) {
        struct cuda_sums *to = c.parts + BLOCK_Y * BLOCKS_X + BLOCK_X;
        to->first = firsts[0];
        to->second = seconds[0];
    }
}

CUDA_KERNEL(norm_forward)
{
    NORM_RANGE((c.length + BLOCKS_X - 1) / BLOCKS_X);
    NORM_TOTALS(first, second);
    const float *x = c.x + row;
    float mean, variance;
    if (c.given) {
        mean = c.mean[BLOCK_Y];
        variance = c.variance[BLOCK_Y];
    } else {
        double apart = first / c.length, square = second / c.length - apart * apart;
        mean = (float)((double)x[0] + apart);
        variance = square > 0 ? (float)square : 0;
        if (BLOCK_X == 0 && THREAD == 0) {
            c.mean[BLOCK_Y] = mean;
            c.variance[BLOCK_Y] = variance;
        }
    }
    float scale = c.scale[BLOCK_Y] / sqrtf(variance + NORM_EPSILON), shift = c.shift[BLOCK_Y];
    for (uint32_t i = begin + THREAD; i < end; i += THREADS) {
        float v = (x[i] - mean) * scale + shift;
        if (c.other != NULL)
            v += c.other[row + i];
        c.y[row + i] = activate_fused(v, c.activation);
    }
}

CUDA_KERNEL(norm_backward_sums)
{
    SHARED(double, firsts, CUDA_NORM_THREADS);
    SHARED(double, seconds, CUDA_NORM_THREADS);
    NORM_RANGE(c.chunk);
    float mean = c.mean[BLOCK_Y], inverse = 1 / sqrtf(c.variance[BLOCK_Y] + NORM_EPSILON);
    float sum = 0, product = 0;
    for (uint32_t i = begin + THREAD; i < end; i += THREADS) {
        float g = c.g[row + i];
        if (c.y != NULL) {
            g = c.y[row + i] > 0 ? g : 0;
            c.g[row + i] = g;
        }
        sum += g;
        product += g * ((c.x[row + i] - mean) * inverse);
    }
    firsts[THREAD] = sum;
    seconds[THREAD] = product;
    SUM_BLOCK(firsts, seconds);
    if (THREAD == 0) {
        struct cuda_sums *to = c.parts + BLOCK_Y * BLOCKS_X + BLOCK_X;
        to->first = firsts[0];
        to->second = seconds[0];
    }
}

CUDA_KERNEL(norm_backward)
{
    NORM_RANGE((c.length + BLOCKS_X - 1) / BLOCKS_X);
    NORM_TOTALS(sum, product);
    float mean = c.mean[BLOCK_Y], inverse = 1 / sqrtf(c.variance[BLOCK_Y] + NORM_EPSILON);
    if (BLOCK_X == 0 && THREAD == 0) {
        float *scale = c.scale_gradient + BLOCK_Y, *shift = c.shift_gradient + BLOCK_Y;
        *scale = (c.accumulate_scale ? *scale : 0) + (float)product;
        *shift = (c.accumulate_shift ? *shift : 0) + (float)sum;
    }
    float mean_g = (float)(sum / c.length), mean_product = (float)(product / c.length);
    float scale = c.scale[BLOCK_Y] * inverse;
    for (uint32_t i = begin + THREAD; i < end; i += THREADS) {
        float g = c.g[row + i];
        if (c.to != NULL) {
            float v = (c.x[row + i] - mean) * inverse;
            v = scale * (g - mean_g - v * mean_product);
            c.to[row + i] = (c.accumulate ? c.to[row + i] : 0) + v;
        }
        if (c.other != NULL)
            c.other[row + i] = (c.accumulate_other ? c.other[row + i] : 0) + g;
    }
}

#endif
