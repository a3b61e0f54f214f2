/* cuda_kernels_pool.h — pools in LANES: a thread computes four neighbouring samples if the batch
 * allows it, and neighbouring threads neighbouring samples. */
#ifndef GRADLAG_WORKER_CUDA_KERNELS_CUDA_KERNELS_POOL_H
#define GRADLAG_WORKER_CUDA_KERNELS_CUDA_KERNELS_POOL_H

#include "worker/cuda/kernels/cuda_kernels_common.h"

/* Position of the first element of the window of output `i` of the block's row. */
CUDA_FUNCTION size_t window_of(const struct pool_shape *s, uint32_t i)
{
    const uint32_t channel = BLOCK_X / s->out_height, y = BLOCK_X % s->out_height * s->stride;
    const uint32_t x = i / s->batch * s->stride;
    return (((size_t)channel * s->height + y) * s->width + x) * s->batch + i % s->batch;
}

CUDA_FUNCTION void keep_larger(float *most, uint16_t *which, float v, uint32_t place)
{
    if (v > *most) {
        *most = v;
        *which = (uint16_t)place;
    }
}

CUDA_KERNEL(max_pool)
{
    const uint32_t at_once = CUDA_AT_ONCE(c.s.batch), i = (BLOCK_Y * THREADS + THREAD) * at_once;
    if (i >= c.s.out_width * c.s.batch)
        return;
    const float *row = c.x + window_of(&c.s, i);
    cuda_four most = some_at(row, at_once);
    cuda_four16 which = {0, 0, 0, 0};
    for (uint32_t ky = 0; ky < c.s.kernel_height; ky++) {
        for (uint32_t kx = 0; kx < c.s.kernel_width; kx++) {
            const cuda_four v = some_at(row + (size_t)(ky * c.s.width + kx) * c.s.batch, at_once);
            const uint32_t place = ky * c.s.kernel_width + kx;
            keep_larger(&most.x, &which.x, v.x, place);
            keep_larger(&most.y, &which.y, v.y, place);
            keep_larger(&most.z, &which.z, v.z, place);
            keep_larger(&most.w, &which.w, v.w, place);
        }
    }
    size_t at = (size_t)BLOCK_X * c.s.out_width * c.s.batch + i;
    some_to(c.y + at, activate_some(most, c.activation), at_once);
    if (c.which != NULL && at_once == 4)
        *(cuda_four16 *)(c.which + at) = which;
    else if (c.which != NULL)
        c.which[at] = which.x;
}

CUDA_KERNEL(average_pool)
{
    const uint32_t at_once = CUDA_AT_ONCE(c.s.batch), i = (BLOCK_Y * THREADS + THREAD) * at_once;
    if (i >= c.s.out_width * c.s.batch)
        return;
    const float *row = c.x + window_of(&c.s, i);
    cuda_four sum = four_of(0);
    for (uint32_t ky = 0; ky < c.s.kernel_height; ky++) {
        for (uint32_t kx = 0; kx < c.s.kernel_width; kx++) {
            const cuda_four v = some_at(row + (size_t)(ky * c.s.width + kx) * c.s.batch, at_once);
            sum.x += v.x;
            sum.y += v.y;
            sum.z += v.z;
            sum.w += v.w;
        }
    }
    const float window = (float)(c.s.kernel_height * c.s.kernel_width);
    sum.x /= window;
    sum.y /= window;
    sum.z /= window;
    sum.w /= window;
    some_to(c.y + (size_t)BLOCK_X * c.s.out_width * c.s.batch + i, activate_some(sum, c.activation),
            at_once);
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

/* Adds the gradients of the outputs at `at` to *sum, the gradient of the input at place `here` of
 * their window. In a max pool an output counts only if its maximum is at `here`. */
CUDA_FUNCTION void add_window(const struct pool_backward_call *c, size_t at, uint32_t here,
                              uint32_t at_once, cuda_four *sum)
{
    cuda_four g = some_at(c->g + at, at_once);
    if (c->which != NULL) {
        cuda_four16 which;
        which.x = c->which[at];
        if (at_once == 4)
            which = *(const cuda_four16 *)(c->which + at);
        g.x = which.x == here ? g.x : 0;
        if (at_once == 4) {
            g.y = which.y == here ? g.y : 0;
            g.z = which.z == here ? g.z : 0;
            g.w = which.w == here ? g.w : 0;
        }
    }
    if (c->activation != CUDA_ACTIVATION_NONE) {
        const cuda_four y = some_at(c->y + at, at_once);
        g.x *= slope_at(y.x, c->activation);
        g.y *= slope_at(y.y, c->activation);
        g.z *= slope_at(y.z, c->activation);
        g.w *= slope_at(y.w, c->activation);
    }
    sum->x += g.x;
    sum->y += g.y;
    sum->z += g.z;
    sum->w += g.w;
}

CUDA_KERNEL(pool_backward)
{
    const uint32_t at_once = CUDA_AT_ONCE(c.s.batch), i = (BLOCK_Y * THREADS + THREAD) * at_once;
    if (i >= c.s.width * c.s.batch)
        return;
    const uint32_t channel = BLOCK_X / c.s.height, y = BLOCK_X % c.s.height;
    const uint32_t x = i / c.s.batch, lane = i % c.s.batch;
    const uint32_t y_end = end_window(y, c.s.stride, c.s.out_height);
    const uint32_t x_end = end_window(x, c.s.stride, c.s.out_width);
    cuda_four sum = four_of(0);
    for (uint32_t oy = first_window(y, c.s.kernel_height, c.s.stride); oy < y_end; oy++) {
        for (uint32_t ox = first_window(x, c.s.kernel_width, c.s.stride); ox < x_end; ox++) {
            const size_t row = (size_t)channel * c.s.out_height + oy;
            add_window(&c, (row * c.s.out_width + ox) * c.s.batch + lane,
                       (y - oy * c.s.stride) * c.s.kernel_width + (x - ox * c.s.stride), at_once,
                       &sum);
        }
    }
    if (c.which == NULL) {
        const float window = (float)(c.s.kernel_height * c.s.kernel_width);
        sum.x /= window;
        sum.y /= window;
        sum.z /= window;
        sum.w /= window;
    }
    const size_t at = (size_t)BLOCK_X * c.s.width * c.s.batch + i;
    gated_to(c.to + at, c.gate != NULL ? c.gate + at : NULL, sum, at_once, c.accumulate);
}

#endif
