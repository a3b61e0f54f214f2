/*
 * vector_line.h — one cache line as one vector of 16 floats, in loops that are compiled once per
 * vector width, and stores past the caches for outputs too large to stay in them: a line that is
 * overwritten whole is then not read first, and what is in the cache stays there.
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

/* After streamed stores, before another thread or process may read what they wrote. */
VECTOR_INLINE void vector_streamed(void)
{
#if defined(__x86_64__)
    _mm_sfence();
#endif
}

#endif
