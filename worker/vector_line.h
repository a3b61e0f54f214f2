/*
 * vector_line.h — one cache line as one vector of 16 floats, in loops that are compiled once per
 * vector width, and stores past the caches for outputs too large to stay in them: a line that is
 * overwritten whole is then not read first, and what is in the cache stays there. In memory the 16
 * may also be bf16, the upper halves of floats.
 */
#ifndef GRADLAG_WORKER_VECTOR_LINE_H
#define GRADLAG_WORKER_VECTOR_LINE_H

#include "worker/vector.h"

#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#define VECTOR_INLINE __attribute__((always_inline)) static inline

typedef float vector_line __attribute__((vector_size(4 * VECTOR_LANES)));
/* What comparing two lines gives: all bits of an element set or none. */
typedef int32_t vector_mask __attribute__((vector_size(4 * VECTOR_LANES)));

VECTOR_INLINE void vector_load(vector_line *value, const float *from)
{
    memcpy(value, from, sizeof *value);
}

/* Streamed: past the caches; `to` is then 16-byte aligned. */
VECTOR_INLINE void vector_store(float *to, const vector_line *value, bool streamed)
{
#if defined(__x86_64__)
    if (streamed) { /* four parts of one line, which the write buffer joins */
        __m128 part[4];
        memcpy(part, value, sizeof part);
        for (int i = 0; i < 4; i++) {
            _mm_stream_ps(to + 4 * i, part[i]);
        }
        return;
    }
#endif
    memcpy(to, value, sizeof *value);
}

typedef uint16_t vector_halves __attribute__((vector_size(2 * VECTOR_LANES)));
typedef uint32_t vector_bits __attribute__((vector_size(4 * VECTOR_LANES)));

VECTOR_INLINE void vector_load_bf16(vector_line *value, const uint16_t *from)
{
    vector_halves halves;
    memcpy(&halves, from, sizeof halves);
    *value = (vector_line)(__builtin_convertvector(halves, vector_bits) << 16);
}

/* Rounded to nearest, ties to even; NaN stays NaN. */
VECTOR_INLINE void vector_store_bf16(uint16_t *to, const vector_line *value, bool streamed)
{
    const vector_bits nan = (vector_bits)(*value != *value);
    vector_bits bits = (vector_bits)*value;
    vector_bits rounded = bits + 0x7fff + ((bits >> 16) & 1);
    bits = (rounded & ~nan) | ((bits | 0x400000) & nan);
    vector_halves halves = __builtin_convertvector(bits >> 16, vector_halves);
#if defined(__x86_64__)
    if (streamed) {
        __m128i part[2];
        memcpy(part, &halves, sizeof part);
        _mm_stream_si128((__m128i *)(void *)to, part[0]);
        _mm_stream_si128((__m128i *)(void *)(to + 8), part[1]);
        return;
    }
#endif
    memcpy(to, &halves, sizeof halves);
}

/* Element `at` and the 15 after it, of either type. */
VECTOR_INLINE void vector_load_from(vector_line *value, const void *from, size_t at, bool bf16)
{
    if (bf16) {
        vector_load_bf16(value, (const uint16_t *)from + at);
    } else {
        vector_load(value, (const float *)from + at);
    }
}

VECTOR_INLINE void vector_store_to(void *to, size_t at, const vector_line *value, bool streamed,
                                   bool bf16)
{
    if (bf16) {
        vector_store_bf16((uint16_t *)to + at, value, streamed);
    } else {
        vector_store((float *)to + at, value, streamed);
    }
}

/* After streamed stores, before another thread or process may read what they wrote. */
VECTOR_INLINE void vector_streamed(void)
{
#if defined(__x86_64__)
    _mm_sfence();
#endif
}

#endif
