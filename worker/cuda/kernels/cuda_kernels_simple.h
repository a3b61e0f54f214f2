/* cuda_kernels_simple.h — elementwise kernels, sums over one axis, changes of layout. */
#ifndef GRADLAG_WORKER_CUDA_KERNELS_CUDA_KERNELS_SIMPLE_H
#define GRADLAG_WORKER_CUDA_KERNELS_CUDA_KERNELS_SIMPLE_H

#include "worker/cuda/kernels/cuda_kernels_common.h"

CUDA_KERNEL(pass_on)
{
    size_t i = (size_t)BLOCK_X * THREADS + THREAD;
    if (i < c.count)
        c.to[i] = (c.accumulate ? c.to[i] : 0) + c.from[i];
}

CUDA_KERNEL(round)
{
    size_t i = (size_t)BLOCK_X * THREADS + THREAD;
    if (i < c.count)
        c.to[i] = bf16_of(c.from[i]);
}

CUDA_KERNEL(activation_forward)
{
    size_t i = ((size_t)BLOCK_X * THREADS + THREAD) * 4;
    if (i + 4 <= c.count) {
        cuda_four v = four_at(c.x + i);
        v.x = activate_one(v.x, c.activation);
        v.y = activate_one(v.y, c.activation);
        v.z = activate_one(v.z, c.activation);
        v.w = activate_one(v.w, c.activation);
        four_to(c.y + i, v);
    } else {
        for (; i < c.count; i++)
            c.y[i] = activate_one(c.x[i], c.activation);
    }
}

CUDA_FUNCTION float activation_gradient(const struct activation_backward_call *c, float g, float at)
{
    return c->activation == CUDA_ACTIVATION_GELU ? g * gelu_slope_at(at)
                                                 : g * slope_at(at, c->activation);
}

CUDA_KERNEL(activation_backward)
{
    size_t i = ((size_t)BLOCK_X * THREADS + THREAD) * 4;
    const float *at = c.activation == CUDA_ACTIVATION_GELU ? c.x : c.y;
    if (i + 4 <= c.count) {
        cuda_four g = four_at(c.g + i), v = four_at(at + i);
        g.x = activation_gradient(&c, g.x, v.x);
        g.y = activation_gradient(&c, g.y, v.y);
        g.z = activation_gradient(&c, g.z, v.z);
        g.w = activation_gradient(&c, g.w, v.w);
        if (c.accumulate) {
            cuda_four before = four_at(c.to + i);
            g.x += before.x;
            g.y += before.y;
            g.z += before.z;
            g.w += before.w;
        }
        four_to(c.to + i, g);
    } else {
        for (; i < c.count; i++) {
            float before = c.accumulate ? c.to[i] : 0;
            c.to[i] = before + activation_gradient(&c, c.g[i], at[i]);
        }
    }
}

CUDA_KERNEL(add_two)
{
    size_t i = ((size_t)BLOCK_X * THREADS + THREAD) * 4;
    if (i + 4 <= c.count) {
        cuda_four p = four_at(c.p + i), q = four_at(c.q + i);
        p.x = activate_fused(p.x + q.x, c.activation);
        p.y = activate_fused(p.y + q.y, c.activation);
        p.z = activate_fused(p.z + q.z, c.activation);
        p.w = activate_fused(p.w + q.w, c.activation);
        four_to(c.y + i, p);
    } else {
        for (; i < c.count; i++)
            c.y[i] = activate_fused(c.p[i] + c.q[i], c.activation);
    }
}

CUDA_KERNEL(bias_activate)
{
    const uint32_t at_once = CUDA_AT_ONCE(c.inner), i = (BLOCK_X * THREADS + THREAD) * at_once;
    if (i < c.count) {
        const float bias = c.bias != NULL ? c.bias[i / c.inner % c.channels] : 0;
        cuda_four v = some_at(c.y + i, at_once);
        v.x += bias;
        v.y += bias;
        v.z += bias;
        v.w += bias;
        some_to(c.y + i, activate_some(v, c.activation), at_once);
    }
}

CUDA_KERNEL(column_sums)
{
    SHARED(float, sums, 256);
    uint32_t column = BLOCK_X * 32 + THREAD % 32;
    float sum = 0;
    for (uint32_t row = THREAD / 32; row < c.rows && column < c.columns; row += 8)
        sum += c.g[(size_t)row * c.columns + column];
    sums[THREAD] = sum;
    SYNC();
    if (THREAD < 32 && column < c.columns) {
        for (uint32_t k = 1; k < 8; k++)
            sum += sums[k * 32 + THREAD];
        c.out[column] = (c.accumulate ? c.out[column] : 0) + sum;
    }
}

CUDA_KERNEL(row_sums)
{
    SHARED(float, sums, CUDA_BLOCK_THREADS);
    SHARED(float, unused, CUDA_BLOCK_THREADS);
    const uint32_t at_once = CUDA_AT_ONCE(c.columns);
    const float *row = c.g + (size_t)BLOCK_X * c.columns;
    float sum = 0;
    for (uint32_t i = THREAD * at_once; i < c.columns; i += THREADS * at_once)
        sum += sum_of_some(some_at(row + i, at_once), at_once);
    sums[THREAD] = sum;
    unused[THREAD] = 0;
    SUM_BLOCK(sums, unused);
    if (THREAD == 0)
        c.out[BLOCK_X] = (c.accumulate ? c.out[BLOCK_X] : 0) + sums[0];
}

CUDA_KERNEL(transpose)
{
    SHARED(float, tile, 32 * 33);
    uint32_t x = THREAD % 32, y = THREAD / 32, down = (c.rows + 31) / 32;
    uint32_t row0 = BLOCK_X % down * 32, column0 = BLOCK_X / down * 32;
    for (uint32_t k = y; k < 32; k += 8)
        if (row0 + k < c.rows && column0 + x < c.columns)
            tile[k * 33 + x] = c.from[(size_t)(row0 + k) * c.columns + column0 + x];
    SYNC();
    for (uint32_t k = y; k < 32; k += 8) {
        if (column0 + k < c.columns && row0 + x < c.rows) {
            float *to = c.to + (size_t)(column0 + k) * c.rows + row0 + x;
            *to = (c.accumulate ? *to : 0) + tile[x * 33 + k];
        }
    }
}

#endif
