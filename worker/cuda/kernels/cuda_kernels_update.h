/* cuda_kernels_update.h — the update of parameters that stay on the device. Each element goes
 * through the operations of worker/optimizer/optimizer_loop.h, each rounded once: CUDA_TIMES
 * prevents nvcc from fusing a product with a sum. */
#ifndef GRADLAG_WORKER_CUDA_KERNELS_CUDA_KERNELS_UPDATE_H
#define GRADLAG_WORKER_CUDA_KERNELS_CUDA_KERNELS_UPDATE_H

#include "worker/cuda/kernels/cuda_kernels_common.h"
#include "worker/optimizer/optimizer.h"

#include <float.h>

#ifdef __CUDACC__
#define CUDA_TIMES(a, b) __fmul_rn((a), (b))
#else
#define CUDA_TIMES(a, b) ((a) * (b))
#endif

/* Σ over the CUDA_SQUARES_THREADS threads of the block; thread 0 gets the result. All threads must
 * call it. */
CUDA_FUNCTION double sum_of_block(double *sums, double own)
{
    sums[THREAD] = own;
    SYNC();
    for (uint32_t half = CUDA_SQUARES_THREADS / 2; half > 0; half /= 2) {
        if (THREAD < half)
            sums[THREAD] += sums[THREAD + half];
        SYNC();
    }
    return sums[0];
}

/* The square of a float does not overflow in double, so the sum is finite if and only if every
 * element is. */
CUDA_KERNEL(squares)
{
    SHARED(double, sums, CUDA_SQUARES_THREADS);
    size_t first = (size_t)BLOCK_X * CUDA_SQUARES_CHUNK;
    double own = 0;
    for (uint32_t k = THREAD * 4; k < CUDA_SQUARES_CHUNK && first + k < c.count; k += THREADS * 4) {
        cuda_four v = four_of(0);
        if (first + k + 4 <= c.count) {
            v = four_at(c.x + first + k);
        } else {
            v.x = c.x[first + k];
            v.y = first + k + 1 < c.count ? c.x[first + k + 1] : 0;
            v.z = first + k + 2 < c.count ? c.x[first + k + 2] : 0;
        }
        own += (double)v.x * (double)v.x + (double)v.y * (double)v.y;
        own += (double)v.z * (double)v.z + (double)v.w * (double)v.w;
    }
    double sum = sum_of_block(sums, own);
    if (THREAD == 0)
        c.parts[BLOCK_X] = sum;
}

/* As worker_gradient computes it. */
CUDA_FUNCTION float mean_loss(const struct cuda_loss *loss, const struct cuda_step *step)
{
    return loss != NULL ? (float)(loss->sum / step->targets) : 0;
}

CUDA_KERNEL(step_notes)
{
    c.notes[THREAD] = THREAD == 0 ? mean_loss(c.loss, c.step) : c.step->notes[THREAD];
}

/* optimizer_takes() */
CUDA_FUNCTION bool is_taken(double squares, double scale)
{
    return squares <= DBL_MAX && fabs(scale) * sqrt(squares) <= sqrt((double)FLT_MAX);
}

CUDA_KERNEL(step_verdict)
{
    SHARED(double, sums, CUDA_SQUARES_THREADS);
    double own = 0;
    for (uint32_t k = THREAD; k < c.count; k += THREADS)
        own += c.parts[k];
    double sum = sum_of_block(sums, own);
    if (THREAD > 0)
        return;
    struct device_result *r = c.result;
    for (uint32_t i = 0; i < DEVICE_NOTES; i++)
        r->notes[i] = c.notes != NULL ? c.notes[i] : c.step->notes[i];
    if (c.notes == NULL)
        r->notes[0] = mean_loss(c.loss, c.step);
    r->loss = c.loss != NULL ? c.loss->sum : 0;
    r->correct = c.loss != NULL ? c.loss->correct : 0;
    r->squares = sum;
    r->updated = (c.step->first || r->updated) && fabs((double)r->notes[0]) <= (double)FLT_MAX &&
                 is_taken(sum, c.step->damping);
}

CUDA_FUNCTION void update_one(const struct cuda_step *step, uint32_t form, float gradient,
                              float *parameter, float *state)
{
    float in = *parameter;
    float g = CUDA_TIMES(step->scale, gradient) + CUDA_TIMES(step->weight_decay, in);
    float direction = g;
    if (form != OPTIMIZER_SGD) {
        float v = CUDA_TIMES(step->momentum, *state) + g;
        *state = fabsf(v) < FLT_MIN ? 0 : v; /* flush_subnormal */
        direction = form == OPTIMIZER_NESTEROV ? g + CUDA_TIMES(step->momentum, v) : v;
    }
    *parameter = in - CUDA_TIMES(step->lr, direction);
}

/* Four elements per thread. */
CUDA_KERNEL(update)
{
    size_t i = ((size_t)BLOCK_X * THREADS + THREAD) * 4;
    if (!c.result->updated)
        return;
    const struct cuda_step step = *c.step;
    if (i + 4 <= c.count) {
        cuda_four p = four_at(c.parameters + i), g = four_at(c.gradient + i), v = four_of(0);
        if (c.form != OPTIMIZER_SGD)
            v = four_at(c.state + i);
        update_one(&step, c.form, g.x, &p.x, &v.x);
        update_one(&step, c.form, g.y, &p.y, &v.y);
        update_one(&step, c.form, g.z, &p.z, &v.z);
        update_one(&step, c.form, g.w, &p.w, &v.w);
        four_to(c.parameters + i, p);
        if (c.form != OPTIMIZER_SGD)
            four_to(c.state + i, v);
        return;
    }
    for (; i < c.count; i++) {
        float none = 0;
        update_one(&step, c.form, c.gradient[i], c.parameters + i,
                   c.form != OPTIMIZER_SGD ? c.state + i : &none);
    }
}

#endif
