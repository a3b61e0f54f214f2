/* cuda_kernels_norm.h — batch norm in LANES, where the elements of a channel are one row. */
#ifndef GRADLAG_WORKER_CUDA_KERNELS_CUDA_KERNELS_NORM_H
#define GRADLAG_WORKER_CUDA_KERNELS_CUDA_KERNELS_NORM_H

#include "worker/cuda/kernels/cuda_kernels_common.h"

#define NORM_EPSILON 1e-5f /* BATCH_NORM_EPSILON of backend.h */

/* The range of the channel that the block computes. */
#define NORM_RANGE()                                                                               \
    const size_t row = (size_t)BLOCK_Y * c.length;                                                 \
    const uint32_t at_once = CUDA_AT_ONCE(c.length), step = THREADS * at_once;                     \
    const uint32_t begin = BLOCK_X * c.chunk + THREAD * at_once;                                   \
    const uint32_t last = (BLOCK_X + 1) * c.chunk, end = last < c.length ? last : c.length

/* Sums of the channel, in the same order in every thread of every block. */
#define NORM_TOTALS(one, other)                                                                    \
    SHARED(double, firsts, CUDA_NORM_THREADS);                                                     \
    SHARED(double, seconds, CUDA_NORM_THREADS);                                                    \
    firsts[THREAD] = seconds[THREAD] = 0;                                                          \
    if (THREAD < c.parts_count) {                                                                  \
        firsts[THREAD] = c.parts[BLOCK_Y * c.parts_count + THREAD].first;                          \
        seconds[THREAD] = c.parts[BLOCK_Y * c.parts_count + THREAD].second;                        \
    }                                                                                              \
    SUM_BLOCK(firsts, seconds);                                                                    \
    const double one = firsts[0], other = seconds[0]

CUDA_KERNEL(norm_sums)
{
    SHARED(double, firsts, CUDA_NORM_THREADS);
    SHARED(double, seconds, CUDA_NORM_THREADS);
    NORM_RANGE();
    const float *x = c.x + row;
    float origin = x[0], sum = 0, square = 0;
    for (uint32_t i = begin; i < end; i += step) {
        cuda_four v = some_at(x + i, at_once);
        v.x -= origin;
        v.y -= origin;
        v.z -= origin;
        v.w -= origin;
        sum += sum_of_some(v, at_once);
        v.x *= v.x;
        v.y *= v.y;
        v.z *= v.z;
        v.w *= v.w;
        square += sum_of_some(v, at_once);
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
    NORM_RANGE();
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
    for (uint32_t i = begin; i < end; i += step) {
        cuda_four v = some_at(x + i, at_once), other = four_of(0);
        if (c.other != NULL)
            other = some_at(c.other + row + i, at_once);
        v.x = (v.x - mean) * scale + shift + other.x;
        v.y = (v.y - mean) * scale + shift + other.y;
        v.z = (v.z - mean) * scale + shift + other.z;
        v.w = (v.w - mean) * scale + shift + other.w;
        some_to(c.y + row + i, activate_some(v, c.activation), at_once);
    }
}

CUDA_KERNEL(norm_backward_sums)
{
    SHARED(double, firsts, CUDA_NORM_THREADS);
    SHARED(double, seconds, CUDA_NORM_THREADS);
    NORM_RANGE();
    float mean = c.mean[BLOCK_Y], inverse = 1 / sqrtf(c.variance[BLOCK_Y] + NORM_EPSILON);
    float sum = 0, product = 0;
    for (uint32_t i = begin; i < end; i += step) {
        cuda_four g = some_at(c.g + row + i, at_once), x = some_at(c.x + row + i, at_once);
        if (c.y != NULL) {
            const cuda_four y = some_at(c.y + row + i, at_once);
            g.x = y.x > 0 ? g.x : 0;
            g.y = y.y > 0 ? g.y : 0;
            g.z = y.z > 0 ? g.z : 0;
            g.w = y.w > 0 ? g.w : 0;
            some_to(c.g + row + i, g, at_once);
        }
        sum += sum_of_some(g, at_once);
        x.x = g.x * ((x.x - mean) * inverse);
        x.y = g.y * ((x.y - mean) * inverse);
        x.z = g.z * ((x.z - mean) * inverse);
        x.w = g.w * ((x.w - mean) * inverse);
        product += sum_of_some(x, at_once);
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
    NORM_RANGE();
    NORM_TOTALS(sum, product);
    float mean = c.mean[BLOCK_Y], inverse = 1 / sqrtf(c.variance[BLOCK_Y] + NORM_EPSILON);
    if (BLOCK_X == 0 && THREAD == 0) {
        float *scale = c.scale_gradient + BLOCK_Y, *shift = c.shift_gradient + BLOCK_Y;
        *scale = (c.accumulate_scale ? *scale : 0) + (float)product;
        *shift = (c.accumulate_shift ? *shift : 0) + (float)sum;
    }
    float mean_g = (float)(sum / c.length), mean_product = (float)(product / c.length);
    float scale = c.scale[BLOCK_Y] * inverse;
    for (uint32_t i = begin; i < end; i += step) {
        const cuda_four g = some_at(c.g + row + i, at_once);
        if (c.to != NULL) {
            cuda_four v = some_at(c.x + row + i, at_once);
            v.x = scale * (g.x - mean_g - (v.x - mean) * inverse * mean_product);
            v.y = scale * (g.y - mean_g - (v.y - mean) * inverse * mean_product);
            v.z = scale * (g.z - mean_g - (v.z - mean) * inverse * mean_product);
            v.w = scale * (g.w - mean_g - (v.w - mean) * inverse * mean_product);
            gated_to(c.to + row + i, NULL, v, at_once, c.accumulate);
        }
        if (c.other != NULL)
            gated_to(c.other + row + i, NULL, g, at_once, c.accumulate_other);
    }
}

#endif
