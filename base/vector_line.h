/* vector_line.h — one cache line as a vector of 16 floats, for loops that are compiled once per
 * vector width. Streamed stores bypass the caches, for outputs that do not fit into them: the
 * processor then does not read the line first, and the contents of the caches stay. In memory the
 * 16 values may also be bf16, the upper halves of floats. */
#ifndef GRADLAG_BASE_VECTOR_LINE_H
#define GRADLAG_BASE_VECTOR_LINE_H

#include "base/vector.h"

#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#define VECTOR_INLINE __attribute__((always_inline)) static inline

typedef float vector_line __attribute__((vector_size(4 * VECTOR_LANES)));
/* The result of comparing two lines: all bits of an element set, or none. */
typedef int32_t vector_mask __attribute__((vector_size(4 * VECTOR_LANES)));

/* Half a line. */
typedef float vector_half __attribute__((vector_size(2 * VECTOR_LANES)));
typedef int32_t vector_half_mask __attribute__((vector_size(2 * VECTOR_LANES)));

/* mask ← a < b. Without AVX-512 each half is compared by itself: see VECTOR_FORMS. */
VECTOR_INLINE void vector_below(vector_mask *mask, const vector_line *a, const vector_line *b,
                                bool avx512)
{
    if (avx512) {
        *mask = *a < *b;
        return;
    }
    for (size_t h = 0; h < 2; h++) {
        vector_half x, y;
        memcpy(&x, (const char *)a + h * sizeof x, sizeof x);
        memcpy(&y, (const char *)b + h * sizeof y, sizeof y);
        const vector_half_mask below = x < y;
        memcpy((char *)mask + h * sizeof below, &below, sizeof below);
    }
}

VECTOR_INLINE void vector_load(vector_line *value, const float *from)
{
    memcpy(value, from, sizeof *value);
}

/* `streamed`: the store bypasses the caches (only on x86-64); `to` must then be 16-byte aligned. */
VECTOR_INLINE void vector_store(float *to, const vector_line *value, bool streamed)
{
#if defined(__x86_64__)
    if (streamed) { /* the write buffer joins the four parts of the line */
        __m128 part[4];
        memcpy(part, value, sizeof part);
        for (int i = 0; i < 4; i++)
            _mm_stream_ps(to + 4 * i, part[i]);
        return;
    }
#else
    (void)streamed;
#endif
    memcpy(to, value, sizeof *value);
}

typedef uint16_t vector_halves __attribute__((vector_size(2 * VECTOR_LANES)));
typedef int16_t vector_signed_halves __attribute__((vector_size(2 * VECTOR_LANES)));
typedef uint32_t vector_bits __attribute__((vector_size(4 * VECTOR_LANES)));

/* The type in memory, and the conversion to bf16. BF16: rounds to nearest, ties to even; NaN stays
 * NaN. BF16_NATIVE: likewise, with one instruction; only in functions declared VECTOR_NATIVE.
 * BF16_EXACT: truncates; the values must be bf16 already. */
enum vector_type { VECTOR_FLOAT32, VECTOR_BF16, VECTOR_BF16_NATIVE, VECTOR_BF16_EXACT };

/* For functions that run only on processors with AVX512_BF16 (vector_native()). This is assembly
 * for two reasons: compilers widen 16 halves with four instructions instead of one, and intrinsics
 * would require the target in every function that they are inlined into. The rounding instruction
 * turns numbers below 2⁻¹²⁶ into zero. */
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && defined(__OPTIMIZE__) &&    \
    !defined(GRADLAG_SANITIZE)
#define VECTOR_NATIVE                     __attribute__((target("avx512f,avx512vl,avx512bf16")))
#define VECTOR_NATIVE_WIDEN(bits, halves) __asm__("vpmovzxwd %1, %0" : "=v"(bits) : "vm"(halves))
#define VECTOR_NATIVE_ROUND(halves, value)                                                         \
    __asm__("vcvtneps2bf16 %1, %0" : "=v"(halves) : "v"(value))
static inline bool vector_native(void)
{
    return __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512bf16");
}
#else
#define VECTOR_NATIVE
#define VECTOR_NATIVE_WIDEN(bits, halves)  ((bits) = (vector_bits){0}) /* never run */
#define VECTOR_NATIVE_ROUND(halves, value) ((halves) = (vector_halves){0})
static inline bool vector_native(void)
{
    return false;
}
#endif

VECTOR_INLINE void vector_widen(vector_line *value, const vector_halves *halves,
                                enum vector_type type)
{
    vector_bits bits;
    if (type == VECTOR_BF16_NATIVE)
        VECTOR_NATIVE_WIDEN(bits, *halves);
    else
        bits = __builtin_convertvector(*halves, vector_bits);
    *value = (vector_line)(bits << 16);
}

VECTOR_INLINE void vector_narrow(vector_halves *halves, const vector_line *value,
                                 enum vector_type type)
{
    vector_bits bits = (vector_bits)*value;
    if (type == VECTOR_BF16_NATIVE) {
        VECTOR_NATIVE_ROUND(*halves, *value);
        return;
    }
    if (type == VECTOR_BF16) {
        const vector_bits nan = (vector_bits)(*value != *value);
        vector_bits rounded = bits + 0x7fff + ((bits >> 16) & 1);
        bits = (rounded & ~nan) | ((bits | 0x400000) & nan);
    }
    *halves = __builtin_convertvector(bits >> 16, vector_halves);
}

VECTOR_INLINE void vector_store_halves(uint16_t *to, const vector_halves *halves, bool streamed)
{
#if defined(__x86_64__)
    if (streamed) {
        __m128i part[2];
        memcpy(part, halves, sizeof part);
        _mm_stream_si128((__m128i *)(void *)to, part[0]);
        _mm_stream_si128((__m128i *)(void *)(to + 8), part[1]);
        return;
    }
#else
    (void)streamed;
#endif
    memcpy(to, halves, sizeof *halves);
}

/* Element `at` and the 15 after it. */
VECTOR_INLINE void vector_load_from(vector_line *value, const void *from, size_t at,
                                    enum vector_type type)
{
    vector_halves halves;
    if (type == VECTOR_FLOAT32) {
        vector_load(value, (const float *)from + at);
    } else {
        memcpy(&halves, (const uint16_t *)from + at, sizeof halves);
        vector_widen(value, &halves, type);
    }
}

VECTOR_INLINE void vector_store_to(void *to, size_t at, const vector_line *value, bool streamed,
                                   enum vector_type type)
{
    vector_halves halves;
    if (type == VECTOR_FLOAT32) {
        vector_store((float *)to + at, value, streamed);
    } else {
        vector_narrow(&halves, value, type);
        vector_store_halves((uint16_t *)to + at, &halves, streamed);
    }
}

/* Call it after streamed stores, before another thread or process reads the stored values. */
VECTOR_INLINE void vector_streamed(void)
{
#if defined(__x86_64__)
    _mm_sfence();
#endif
}

#endif
