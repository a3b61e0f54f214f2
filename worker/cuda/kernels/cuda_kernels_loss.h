/* cuda_kernels_loss.h — softmax cross-entropy, and the gathering of batches from the dataset. */
#ifndef GRADLAG_WORKER_CUDA_KERNELS_CUDA_KERNELS_LOSS_H
#define GRADLAG_WORKER_CUDA_KERNELS_CUDA_KERNELS_LOSS_H

#include "worker/cuda/kernels/cuda_kernels_common.h"

/* Values of sample n; `total`: Σ exp(logit − most). */
CUDA_FUNCTION void cross_entropy_gradient(const struct cross_entropy_call *c, uint32_t n,
                                          float most, float total)
{
    const float *row = c->logits + (size_t)n * c->per_row;
    float *g = c->gradient + (size_t)n * c->per_row, valid = (float)*c->valid;
    float scale = 1 / (total * valid), right = c->right / valid, other = c->other / valid;
    for (uint32_t k = 0; k < c->classes; k++) {
        size_t at = (size_t)k * c->per_class;
        float v = expf(row[at] - most) * scale - (k == c->labels[n] ? right : other);
        g[at] = (c->accumulate ? g[at] : 0) + v;
    }
}

CUDA_KERNEL(cross_entropy)
{
    SHARED(double, sums, CUDA_LOSS_ROWS);
    SHARED(uint32_t, correct, CUDA_LOSS_ROWS);
    uint32_t n = BLOCK_X * CUDA_LOSS_ROWS + THREAD;
    sums[THREAD] = 0;
    correct[THREAD] = 0;
    if (n < c.batch && n < *c.valid) {
        const float *row = c.logits + (size_t)n * c.per_row;
        uint32_t best = 0;
        for (uint32_t k = 1; k < c.classes; k++)
            if (row[(size_t)k * c.per_class] > row[(size_t)best * c.per_class])
                best = k;
        float most = row[(size_t)best * c.per_class], total = 1; /* exp(0) of the largest logit */
        for (uint32_t k = 0; k < c.classes; k++)
            total += k == best ? 0 : expf(row[(size_t)k * c.per_class] - most);
        uint32_t label = c.labels[n];
        float wanted = row[(size_t)label * c.per_class];
        if (c.other != 0) {
            wanted = 0;
            for (uint32_t k = 0; k < c.classes; k++)
                wanted += row[(size_t)k * c.per_class] * (k == label ? c.right : c.other);
        }
        sums[THREAD] = (double)(logf(total) + most - wanted);
        correct[THREAD] = best == label;
        if (c.gradient != NULL)
            cross_entropy_gradient(&c, n, most, total);
    } else if (n < c.batch && c.gradient != NULL && !c.accumulate) {
        for (uint32_t k = 0; k < c.classes; k++)
            c.gradient[(size_t)n * c.per_row + (size_t)k * c.per_class] = 0;
    }
    SUM_BLOCK(sums, correct);
    if (THREAD == 0) {
        c.out[BLOCK_X].sum = sums[0];
        c.out[BLOCK_X].correct = correct[0];
    }
}

CUDA_KERNEL(loss_total)
{
    double sum = 0;
    uint32_t correct = 0;
    for (uint32_t i = 0; i < c.count; i++) {
        sum += c.parts[i].sum;
        correct += c.parts[i].correct;
    }
    c.total->sum = sum;
    c.total->correct = correct;
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
        if (n < c.samples && element < elements) {
            float v = gather_one(&c, n, element);
            tile[k * 33 + near] = v;
            if (!c.lanes)
                c.to[(size_t)n * elements + element] = v;
        }
    }
    SYNC();
    for (uint32_t k = far; k < 32 && c.lanes; k += 8) {
        uint32_t n = sample0 + near, element = element0 + k;
        if (n < c.samples && element < elements)
            c.to[(size_t)element * c.batch + n] = tile[near * 33 + k];
    }
}

#endif
