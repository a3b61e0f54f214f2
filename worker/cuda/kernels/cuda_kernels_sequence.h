/*
 * cuda_kernels_sequence.h — embeddings and layer norm on rows of features, one row for each
 * position. Where a block computes several rows, the 32 threads of a warp share one.
 */
#ifndef GRADLAG_WORKER_CUDA_KERNELS_CUDA_KERNELS_SEQUENCE_H
#define GRADLAG_WORKER_CUDA_KERNELS_CUDA_KERNELS_SEQUENCE_H

#include "worker/cuda/kernels/cuda_kernels_common.h"

#define LAYER_EPSILON 1e-5f /* LAYER_NORM_EPSILON of backend.h */

/* ---- embeddings ---------------------------------------------------------------------------------
 */

/* The row of the table; a number that is no token, NaN too, gives `vocabulary`. */
CUDA_FUNCTION uint32_t embedding_row(float token, uint32_t vocabulary)
{
    return token >= 0 && token < (float)vocabulary ? (uint32_t)token : vocabulary;
}

CUDA_KERNEL(embedding_forward)
{
    const uint32_t i = BLOCK_X * THREADS + THREAD;
    if (i < c.count) {
        const uint32_t row = embedding_row(c.tokens[i / c.width], c.vocabulary);
        c.y[i] = row < c.vocabulary ? c.table[(size_t)row * c.width + i % c.width] : NAN;
    }
}

/* Each thread looks at consecutive tokens. Threads of lower number have earlier tokens, so the
 * places of a row are in order. */
CUDA_KERNEL(embedding_order)
{
    SHARED(uint32_t, equal, CUDA_ORDER_THREADS);
    SHARED(uint32_t, lower, CUDA_ORDER_THREADS);
    const uint32_t share = (c.count + THREADS - 1) / THREADS, row = BLOCK_X;
    const uint32_t begin = THREAD * share < c.count ? THREAD * share : c.count;
    const uint32_t end = begin + share < c.count ? begin + share : c.count;
    uint32_t before = 0, here = 0, all = 0;
    for (uint32_t i = begin; i < end; i++) {
        const uint32_t token = embedding_row(c.tokens[i], c.vocabulary);
        before += token < row;
        here += token == row;
    }
    equal[THREAD] = here;
    lower[THREAD] = before;
    SYNC();
    uint32_t at = 0;
    for (uint32_t k = 0; k < THREADS; k++) {
        at += lower[k] + (k < THREAD ? equal[k] : 0);
        all += lower[k] + equal[k];
    }
    if (THREAD == 0)
        c.first[row] = at;
    if (THREAD == 0 && row + 1 == c.vocabulary)
        c.first[c.vocabulary] = all;
    for (uint32_t i = begin; i < end; i++)
        if (embedding_row(c.tokens[i], c.vocabulary) == row)
            c.order[at++] = i;
}

CUDA_KERNEL(embedding_gradient)
{
    SHARED(float, sums, 256);
    const uint32_t column = BLOCK_Y * 32 + THREAD % 32, end = c.first[BLOCK_X + 1];
    float sum = 0;
    for (uint32_t k = c.first[BLOCK_X] + THREAD / 32; k < end && column < c.width; k += 8)
        sum += c.g[(size_t)c.order[k] * c.width + column];
    sums[THREAD] = sum;
    SYNC();
    if (THREAD < 32 && column < c.width) {
        float *to = c.table + (size_t)BLOCK_X * c.width + column;
        for (uint32_t k = 1; k < 8; k++)
            sum += sums[k * 32 + THREAD];
        *to = (c.accumulate ? *to : 0) + sum;
    }
}

CUDA_KERNEL(add_to_each)
{
    const uint32_t i = BLOCK_X * THREADS + THREAD;
    if (i < c.count)
        c.y[i] = c.x[i] + c.table[i % c.period];
}

/* ---- layer norm ---------------------------------------------------------------------------------
 */

#define LAYER_ROW                                                                                  \
    const uint32_t row = BLOCK_X * CUDA_ROWS_AT_ONCE + THREAD / 32, lane = THREAD % 32;            \
    const bool there = row < c.rows;                                                               \
    const size_t at = (size_t)(there ? row : 0) * c.features

CUDA_KERNEL(layer_norm_forward)
{
    SHARED(float, sums, 256);
    LAYER_ROW;
    float sum = 0, square = 0;
    for (uint32_t k = lane; k < c.features; k += 32)
        sum += c.x[at + k];
    SUM_LANES(sums, sum);
    const float mean = sum / (float)c.features;
    for (uint32_t k = lane; k < c.features; k += 32) {
        const float v = c.x[at + k] - mean;
        square += v * v;
    }
    SUM_LANES(sums, square);
    const float inverse = 1 / sqrtf(square / (float)c.features + LAYER_EPSILON);
    if (!there)
        return;
    for (uint32_t k = lane; k < c.features; k += 32) {
        const float v = (c.x[at + k] - mean) * inverse * c.scale[k];
        c.y[at + k] = c.shift != NULL ? v + c.shift[k] : v;
    }
    if (lane == 0) {
        c.mean[row] = mean;
        c.inverse[row] = inverse;
    }
}

CUDA_KERNEL(layer_norm_backward)
{
    SHARED(float, sums, 256);
    LAYER_ROW;
    const float mean = c.mean[there ? row : 0], inverse = c.inverse[there ? row : 0];
    float sum = 0, product = 0;
    for (uint32_t k = lane; k < c.features; k += 32) {
        const float h = c.g[at + k] * c.scale[k];
        sum += h;
        product += h * (c.x[at + k] - mean) * inverse;
    }
    SUM_LANES(sums, sum);
    SUM_LANES(sums, product);
    const float level = sum / (float)c.features, along = product / (float)c.features;
    if (!there)
        return;
    for (uint32_t k = lane; k < c.features; k += 32) {
        const float normal = (c.x[at + k] - mean) * inverse;
        const float v = (c.g[at + k] * c.scale[k] - level - normal * along) * inverse;
        c.to[at + k] = (c.accumulate ? c.to[at + k] : 0) + v;
    }
}

CUDA_KERNEL(layer_norm_sums)
{
    SHARED(float, products, 256);
    SHARED(float, sums, 256);
    const uint32_t column = BLOCK_X * 32 + THREAD % 32, begin = BLOCK_Y * c.chunk;
    const uint32_t end = begin + c.chunk < c.rows ? begin + c.chunk : c.rows;
    float product = 0, sum = 0;
    for (uint32_t row = begin + THREAD / 32; row < end && column < c.features; row += 8) {
        const size_t at = (size_t)row * c.features + column;
        sum += c.g[at];
        product += c.g[at] * (c.x[at] - c.mean[row]) * c.inverse[row];
    }
    products[THREAD] = product;
    sums[THREAD] = sum;
    SYNC();
    if (THREAD < 32 && column < c.features) {
        for (uint32_t k = 1; k < 8; k++) {
            product += products[k * 32 + THREAD];
            sum += sums[k * 32 + THREAD];
        }
        c.products[(size_t)BLOCK_Y * c.features + column] = product;
        c.sums[(size_t)BLOCK_Y * c.features + column] = sum;
    }
}

#endif
