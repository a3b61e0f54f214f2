/*
 * backend_cpu_norm16.h — the passes of batch norm (backend_cpu_norm16.c) over a block of 16
 * channels of one image. Values and their gradients are float32 or bf16, arithmetic is float32,
 * sums are double.
 */
#ifndef GRADLAG_WORKER_BACKEND_CPU_NORM16_H
#define GRADLAG_WORKER_BACKEND_CPU_NORM16_H

#include "worker/backend_cpu.h"
#include "worker/vector_line.h"

/* Places of one block: values that a pass reads or writes, each `place` elements from the last. */
struct norm16_places {
    size_t count, place;
    enum vector_type type;
    bool streamed;
};

/* What the pass forwards knows of one block. */
struct norm16_forward {
    const float *scale, *shift;
    bool relu;
};

/* What the passes backwards know of one block. Where a ReLU follows directly, whether it let a
 * value through is worked out again from x: that is cheaper than to read or write another array. */
struct norm16_backward {
    const float *mean, *scale, *shift, *slope, *constant;
    float low; /* the gradient counts where scale·x + shift is above this */
};

/* One image's block of 16 channels at a time. */
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

/* For values of that type; for VECTOR_BF16_NATIVE the processor must have instructions for it. */
const struct norm16_passes *norm16_passes_of(enum vector_type type);

#endif
