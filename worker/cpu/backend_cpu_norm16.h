/*
 * backend_cpu_norm16.h — the passes of batch norm (backend_cpu_norm16.c) over a block of 16
 * channels of one image. Values and their gradients are float32 or bf16, arithmetic is float32,
 * sums are double.
 */
#ifndef GRADLAG_WORKER_CPU_BACKEND_CPU_NORM16_H
#define GRADLAG_WORKER_CPU_BACKEND_CPU_NORM16_H

#include "worker/cpu/backend_cpu.h"
#include "base/vector_line.h"

/* Positions of one block; two neighbours are `place` elements apart. */
struct norm16_places {
    size_t count, place;
    enum vector_type type;
};

/* Arguments of the forward pass for one block. */
struct norm16_forward {
    const float *scale, *shift;
    bool relu;
};

/* Arguments of the backward passes for one block. If a ReLU follows directly, its derivative is
 * computed again from x, because this is cheaper than reading or writing another array. */
struct norm16_backward {
    const float *mean, *scale, *shift, *slope, *constant;
    float low; /* the gradient counts where scale·x + shift > low */
};

/* Each function processes one image's block of 16 channels. */
struct norm16_passes {
    void (*moments)(const void *restrict, const struct norm16_places *restrict,
                    const float *restrict, double *restrict, double *restrict);
    void (*normalise)(const void *restrict, const void *restrict,
                      const struct norm16_places *restrict, const struct norm16_forward *restrict,
                      void *restrict);
    void (*gradient_moments)(void *restrict, const void *restrict, const void *restrict,
                             const struct norm16_places *restrict,
                             const struct norm16_backward *restrict, double *restrict,
                             double *restrict);
    void (*spread)(const void *restrict, const void *restrict, const struct norm16_places *restrict,
                   const struct norm16_backward *restrict, bool, void *restrict);
};

/* The passes for values of this type. VECTOR_BF16_NATIVE requires a processor with bf16
 * instructions. */
const struct norm16_passes *norm16_passes_of(enum vector_type type);

#endif
