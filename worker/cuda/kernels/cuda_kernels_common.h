/* cuda_kernels_common.h — functions that kernels of several files call. */
#ifndef GRADLAG_WORKER_CUDA_KERNELS_CUDA_KERNELS_COMMON_H
#define GRADLAG_WORKER_CUDA_KERNELS_CUDA_KERNELS_COMMON_H

#include "worker/cuda/kernels/cuda_calls.h"

#include <math.h>

/* Four floats, or numbers of 16 bits, that are read and written together; aligned to their size. */
#ifdef __CUDACC__
typedef float4 cuda_four;
typedef ushort4 cuda_four16;
#else
typedef struct {
    float x, y, z, w;
} __attribute__((aligned(16), may_alias)) cuda_four;
typedef struct {
    uint16_t x, y, z, w;
} __attribute__((aligned(8), may_alias)) cuda_four16;
#endif

CUDA_FUNCTION cuda_four four_at(const float *at)
{
    return *(const cuda_four *)at;
}

CUDA_FUNCTION void four_to(float *at, cuda_four v)
{
    *(cuda_four *)at = v;
}

CUDA_FUNCTION cuda_four four_of(float v)
{
    cuda_four f;
    f.x = f.y = f.z = f.w = v;
    return f;
}

/* Loads and stores of CUDA_AT_ONCE elements. A load of one fills all of .x to .w; a store of one
 * writes .x. */
CUDA_FUNCTION cuda_four some_at(const float *at, uint32_t at_once)
{
    return at_once == 4 ? four_at(at) : four_of(*at);
}

CUDA_FUNCTION void some_to(float *at, cuda_four v, uint32_t at_once)
{
    if (at_once == 4)
        four_to(at, v);
    else
        *at = v.x;
}

CUDA_FUNCTION float sum_of_some(cuda_four v, uint32_t at_once)
{
    return at_once == 4 ? (v.x + v.y) + (v.z + v.w) : v.x;
}

/* to[0 … at_once − 1] (+)= v, and 0 instead of v where `gate` is not positive; NULL: no gate. */
CUDA_FUNCTION void gated_to(float *to, const float *gate, cuda_four v, uint32_t at_once,
                            bool accumulate)
{
    if (gate != NULL) {
        const cuda_four at = some_at(gate, at_once);
        v.x = at.x > 0 ? v.x : 0;
        v.y = at.y > 0 ? v.y : 0;
        v.z = at.z > 0 ? v.z : 0;
        v.w = at.w > 0 ? v.w : 0;
    }
    if (accumulate) {
        const cuda_four before = some_at(to, at_once);
        v.x += before.x;
        v.y += before.y;
        v.z += before.z;
        v.w += before.w;
    }
    some_to(to, v, at_once);
}

/* Activations that are fused into other operations. GELU never is, and its code would slow these
 * kernels. */
CUDA_FUNCTION float activate_fused(float x, uint32_t activation)
{
    if (activation == CUDA_ACTIVATION_RELU)
        return x <= 0 ? 0 : x; /* NaN stays NaN */
    return activation == CUDA_ACTIVATION_TANH ? tanhf(x) : x;
}

CUDA_FUNCTION float activate_one(float x, uint32_t activation)
{
    if (activation == CUDA_ACTIVATION_GELU)
        return 0.5f * x * (1 + erff(x * 0.70710678f));
    return activate_fused(x, activation);
}

CUDA_FUNCTION cuda_four activate_some(cuda_four v, uint32_t activation)
{
    v.x = activate_fused(v.x, activation);
    v.y = activate_fused(v.y, activation);
    v.z = activate_fused(v.z, activation);
    v.w = activate_fused(v.w, activation);
    return v;
}

/* a'(x) of ReLU and tanh, computed from y = a(x); 1 for no activation. */
CUDA_FUNCTION float slope_at(float y, uint32_t activation)
{
    if (activation == CUDA_ACTIVATION_RELU)
        return y > 0 ? 1.0f : 0.0f;
    return activation == CUDA_ACTIVATION_TANH ? 1 - y * y : 1.0f;
}

CUDA_FUNCTION float gelu_slope_at(float x)
{
    return 0.5f * (1 + erff(x * 0.70710678f)) + x * 0.39894228f * expf(-0.5f * x * x);
}

/* Rounds to nearest even, as processors do. NaN stays NaN. */
CUDA_FUNCTION uint16_t bf16_of(float v)
{
    union {
        float f;
        uint32_t u;
    } bits;
    bits.f = v;
    if (v != v)
        return (uint16_t)(bits.u >> 16 | 0x40);
    return (uint16_t)((bits.u + 0x7fff + (bits.u >> 16 & 1)) >> 16);
}

/* Rounds likewise, as a float whose mantissa loses `dropped` bits: 16 give bf16, 13 tf32, 0 no
 * change. */
CUDA_FUNCTION float rounded(float v, uint32_t dropped)
{
    union {
        float f;
        uint32_t u;
    } bits;
    bits.f = v;
    if (dropped != 0 &&
        (bits.u & 0x7f800000) != 0x7f800000) { /* infinities and NaN are unchanged */
        bits.u += (1u << (dropped - 1)) - 1 + (bits.u >> dropped & 1);
        bits.u &= ~0u << dropped;
    }
    return bits.f;
}

CUDA_FUNCTION cuda_four rounded_four(cuda_four v, uint32_t dropped)
{
    if (dropped != 0) {
        v.x = rounded(v.x, dropped);
        v.y = rounded(v.y, dropped);
        v.z = rounded(v.z, dropped);
        v.w = rounded(v.w, dropped);
    }
    return v;
}

/* Σ over the threads of the block of first[THREAD] and second[THREAD], into element 0. THREADS is a
 * power of two. All threads must call it. */
#define SUM_BLOCK(first, second)                                                                   \
    do {                                                                                           \
        SYNC();                                                                                    \
        for (uint32_t half = THREADS / 2; half > 0; half /= 2) {                                   \
            if (THREAD < half) {                                                                   \
                (first)[THREAD] += (first)[THREAD + half];                                         \
                (second)[THREAD] += (second)[THREAD + half];                                       \
            }                                                                                      \
            SYNC();                                                                                \
        }                                                                                          \
    } while (0)

/* value ← Σ of it over the 32 threads that share a row, those with equal THREAD / 32. All threads
 * of the block must call it. `part` has THREADS elements. */
#define SUM_LANES(part, value)                                                                     \
    do {                                                                                           \
        (part)[THREAD] = (value);                                                                  \
        SYNC();                                                                                    \
        for (uint32_t half = 16; half > 0; half /= 2) {                                            \
            if (THREAD % 32 < half)                                                                \
                (part)[THREAD] += (part)[THREAD + half];                                           \
            SYNC();                                                                                \
        }                                                                                          \
        (value) = (part)[THREAD / 32 * 32];                                                        \
        SYNC();                                                                                    \
    } while (0)

#endif
