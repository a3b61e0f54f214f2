/* cuda_kernels_loss.h — softmax cross-entropy, and the gathering of batches from the dataset. */
#ifndef GRADLAG_WORKER_CUDA_KERNELS_CUDA_KERNELS_LOSS_H
#define GRADLAG_WORKER_CUDA_KERNELS_CUDA_KERNELS_LOSS_H

#include "worker/cuda/kernels/cuda_kernels_common.h"

/* Number of rows that the loss includes. */
CUDA_FUNCTION uint32_t cross_entropy_valid(const struct cross_entropy_call *c)
{
    return *c->valid * c->targets;
}

/* Writes or adds the gradient of row n for the classes first, first + step, …; `total`: Σ exp(logit
 * − most). */
CUDA_FUNCTION void cross_entropy_gradient(const struct cross_entropy_call *c, uint32_t n,
                                          float most, float total, uint32_t first, uint32_t step)
{
    const float *row = c->logits + (size_t)n * c->per_row;
    const float valid = (float)cross_entropy_valid(c);
    float *g = c->gradient + (size_t)n * c->per_row;
    float scale = 1 / (total * valid), right = c->right / valid, other = c->other / valid;
    for (uint32_t k = first; k < c->classes; k += step) {
        size_t at = (size_t)k * c->per_class;
        float v = expf(row[at] - most) * scale - (k == c->labels[n] ? right : other);
        g[at] = (c->accumulate ? g[at] : 0) + v;
    }
}

/* The gradient of a row that the loss excludes: 0. */
CUDA_FUNCTION void cross_entropy_no_gradient(const struct cross_entropy_call *c, uint32_t n,
                                             uint32_t first, uint32_t step)
{
    for (uint32_t k = first; k < c->classes && !c->accumulate; k += step)
        c->gradient[(size_t)n * c->per_row + (size_t)k * c->per_class] = 0;
}

/* Σ target · logit over the classes first, first + step, … */
CUDA_FUNCTION float cross_entropy_wanted(const struct cross_entropy_call *c, const float *row,
                                         uint32_t label, uint32_t first, uint32_t step)
{
    float wanted = 0;
    if (c->other == 0)
        return label % step == first ? row[(size_t)label * c->per_class] : 0;
    for (uint32_t k = first; k < c->classes; k += step)
        wanted += row[(size_t)k * c->per_class] * (k == label ? c->right : c->other);
    return wanted;
}

CUDA_KERNEL(cross_entropy)
{
    SHARED(double, sums, CUDA_LOSS_ROWS);
    SHARED(uint32_t, correct, CUDA_LOSS_ROWS);
    uint32_t n = BLOCK_X * CUDA_LOSS_ROWS + THREAD;
    sums[THREAD] = 0;
    correct[THREAD] = 0;
    if (n < c.rows && n < cross_entropy_valid(&c)) {
        const float *row = c.logits + (size_t)n * c.per_row;
        uint32_t best = 0;
        float most = row[0], total = 1; /* exp(0) of the largest logit */
        for (uint32_t k = 1; k < c.classes; k++) {
            const float v = row[(size_t)k * c.per_class];
            if (v > most) {
                most = v;
                best = k;
            }
        }
        for (uint32_t k = 0; k < c.classes; k++)
            total += k == best ? 0 : expf(row[(size_t)k * c.per_class] - most);
        float wanted = cross_entropy_wanted(&c, row, c.labels[n], 0, 1);
        sums[THREAD] = (double)(logf(total) + most - wanted);
        correct[THREAD] = best == c.labels[n];
        if (c.gradient != NULL)
            cross_entropy_gradient(&c, n, most, total, 0, 1);
    } else if (n < c.rows && c.gradient != NULL) {
        cross_entropy_no_gradient(&c, n, 0, 1);
    }
    SUM_BLOCK(sums, correct);
    if (THREAD == 0) {
        c.out[BLOCK_X].sum = sums[0];
        c.out[BLOCK_X].correct = correct[0];
    }
}

/* The largest logit of the 32 threads of a row and its class, the first of equal ones. */
CUDA_FUNCTION void cross_entropy_best(float *high, uint32_t *best)
{
    SYNC();
    for (uint32_t half = 16; half > 0; half /= 2) {
        const uint32_t other = THREAD + half;
        if (THREAD % 32 < half && (high[other] > high[THREAD] ||
                                   (high[other] == high[THREAD] && best[other] < best[THREAD]))) {
            high[THREAD] = high[other];
            best[THREAD] = best[other];
        }
        SYNC();
    }
}

CUDA_KERNEL(cross_entropy_wide)
{
    SHARED(float, part, 256);
    SHARED(float, high, 256);
    SHARED(uint32_t, best, 256);
    const uint32_t slot = THREAD / 32, lane = THREAD % 32;
    const uint32_t n = BLOCK_X * CUDA_ROWS_AT_ONCE + slot;
    const bool counts = n < c.rows && n < cross_entropy_valid(&c);
    const float *row = c.logits + (size_t)(counts ? n : 0) * c.per_row;
    const uint32_t label = c.labels[counts ? n : 0];
    best[THREAD] = lane;
    high[THREAD] = lane < c.classes ? row[lane] : -INFINITY;
    for (uint32_t k = lane + 32; k < c.classes; k += 32) {
        if (row[k] > high[THREAD]) {
            high[THREAD] = row[k];
            best[THREAD] = k;
        }
    }
    cross_entropy_best(high, best);
    const float most = high[slot * 32];
    float total = 0, wanted = cross_entropy_wanted(&c, row, label, lane, 32);
    for (uint32_t k = lane; k < c.classes; k += 32)
        total += expf(row[k] - most);
    SUM_LANES(part, total);
    SUM_LANES(part, wanted);
    if (c.gradient != NULL && counts)
        cross_entropy_gradient(&c, n, most, total, lane, 32);
    else if (c.gradient != NULL && n < c.rows)
        cross_entropy_no_gradient(&c, n, lane, 32);
    if (lane == 0) {
        part[slot] = counts ? logf(total) + most - wanted : 0;
        best[slot * 32] = counts && best[slot * 32] == label;
    }
    SYNC();
    if (THREAD == 0) {
        struct cuda_loss sum = {0, 0, 0};
        for (uint32_t k = 0; k < CUDA_ROWS_AT_ONCE; k++) {
            sum.sum += (double)part[k];
            sum.correct += best[k * 32];
        }
        c.out[BLOCK_X] = sum;
    }
}

CUDA_KERNEL(loss_total)
{
    SHARED(double, sums, 256);
    SHARED(uint32_t, correct, 256);
    sums[THREAD] = 0;
    correct[THREAD] = 0;
    for (uint32_t i = THREAD; i < c.count; i += THREADS) {
        sums[THREAD] += c.parts[i].sum;
        correct[THREAD] += c.parts[i].correct;
    }
    SUM_BLOCK(sums, correct);
    if (THREAD == 0) {
        c.total->sum = sums[0];
        c.total->correct = correct[0];
    }
}

/* One element of one sample, after its crop. */
CUDA_FUNCTION float gather_one(const struct gather_call *c, uint32_t n, uint32_t element)
{
    uint32_t plane = c->height * c->width, channel = element / plane, place = element % plane;
    const uint8_t *image = c->images + (size_t)c->indices[n] * c->stride;
    int32_t y = (int32_t)(place / c->width), x = (int32_t)(place % c->width);
    if (c->crops != NULL) {
        struct crop crop = c->crops[n];
        x = crop.flip ? (int32_t)c->width - 1 - x : x;
        y -= crop.dy;
        x -= crop.dx;
        if (y < 0 || x < 0 || y >= (int32_t)c->height || x >= (int32_t)c->width)
            return 0;
    }
    return c->values[channel * 256 + image[channel * plane + (uint32_t)y * c->width + (uint32_t)x]];
}

CUDA_KERNEL(gather)
{
    SHARED(float, tile, 32 * 33);
    uint32_t near = THREAD % 32, far = THREAD / 32;
    uint32_t elements = c.channels * c.height * c.width;
    uint32_t element0 = BLOCK_X * 32, sample0 = BLOCK_Y * 32;
    for (uint32_t k = far; k < 32; k += 8) {
        uint32_t n = sample0 + k, element = element0 + near;
        if (n < c.batch && element < elements) {
            float v = gather_one(&c, n, element);
            tile[k * 33 + near] = v;
            if (!c.lanes)
                c.to[(size_t)n * elements + element] = v;
        }
    }
    SYNC();
    for (uint32_t k = far; k < 32 && c.lanes; k += 8) {
        uint32_t n = sample0 + near, element = element0 + k;
        if (n < c.batch && element < elements)
            c.to[(size_t)element * c.batch + n] = tile[near * 33 + k];
    }
}

#endif
