/*
 * backend_cpu_lines.h — rows of floats of any length as lines of 16 lanes, and the exponential of a
 * line. For functions that are VECTOR_CLONES or, with a parameter avx512, VECTOR_FORMS;
 * numbers do not depend on the vector width.
 */
#ifndef GRADLAG_WORKER_CPU_BACKEND_CPU_LINES_H
#define GRADLAG_WORKER_CPU_BACKEND_CPU_LINES_H

#include "base/vector_line.h"

/* The first `left` floats at `from`, at most 16; the other lanes are 0. */
VECTOR_INLINE void lines_load(vector_line *value, const float *from, size_t left)
{
    *value = (vector_line){0};
    if (left >= VECTOR_LANES)
        vector_load(value, from);
    else
        memcpy(value, from, left * sizeof(float));
}

VECTOR_INLINE void lines_store(float *to, const vector_line *value, size_t left)
{
    if (left >= VECTOR_LANES)
        vector_store(to, value, false);
    else
        memcpy(to, value, left * sizeof(float));
}

/* Writes the first `left` lanes or, with `add`, adds them. */
VECTOR_INLINE void lines_put(float *to, const vector_line *value, size_t left, bool add)
{
    vector_line sum = *value, before;
    if (add) {
        lines_load(&before, to, left);
        sum += before;
    }
    lines_store(to, &sum, left);
}

/* where ← to, in the lanes of the mask */
VECTOR_INLINE void lines_choose(vector_line *where, const vector_mask *mask, const vector_line *to)
{
    *where = (vector_line)(((vector_mask)*where & ~*mask) | ((vector_mask)*to & *mask));
}

#define LINES_NUMBERS ((vector_mask){0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15})

/* The lanes below `count`: the sign of the difference in all bits. */
VECTOR_INLINE void lines_first(vector_mask *mask, size_t count)
{
    *mask = (LINES_NUMBERS - (int32_t)(count < VECTOR_LANES ? count : VECTOR_LANES)) >> 16;
}

/* Sets the lanes from `left` on to `other`. */
VECTOR_INLINE void lines_fill(vector_line *value, size_t left, float other)
{
    vector_mask before;
    lines_first(&before, left);
    vector_line fill = (vector_line){0} + other;
    lines_choose(&fill, &before, value);
    *value = fill;
}

/* The lanes moved by 8, 4, 2 or 1 places, so that lanes of both halves meet. */
#define LINES_BY_8(v)                                                                              \
    __builtin_shufflevector(v, v, 8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7)
#define LINES_BY_4(v)                                                                              \
    __builtin_shufflevector(v, v, 4, 5, 6, 7, 0, 1, 2, 3, 12, 13, 14, 15, 8, 9, 10, 11)
#define LINES_BY_2(v)                                                                              \
    __builtin_shufflevector(v, v, 2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13)
#define LINES_BY_1(v)                                                                              \
    __builtin_shufflevector(v, v, 1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10, 13, 12, 15, 14)

/* The sum of the lanes, by halves. */
VECTOR_INLINE float lines_sum(const vector_line *value)
{
    vector_line v = *value;
    v += LINES_BY_8(v);
    v += LINES_BY_4(v);
    v += LINES_BY_2(v);
    v += LINES_BY_1(v);
    return v[0];
}

/* most ← the larger one in each lane; a NaN of `value` is ignored. */
VECTOR_INLINE void lines_larger(vector_line *most, const vector_line *value, bool avx512)
{
    vector_mask more;
    vector_below(&more, most, value, avx512);
    lines_choose(most, &more, value);
}

/* The largest lane. */
VECTOR_INLINE float lines_largest(const vector_line *value, bool avx512)
{
    vector_line v = *value, other = LINES_BY_8(v);
    lines_larger(&v, &other, avx512);
    other = LINES_BY_4(v);
    lines_larger(&v, &other, avx512);
    other = LINES_BY_2(v);
    lines_larger(&v, &other, avx512);
    other = LINES_BY_1(v);
    lines_larger(&v, &other, avx512);
    return v[0];
}

/* x ← eˣ for x ≤ 0 with a relative error below 2⁻²² where x > −87; 1 at 0; below −87 a number
 * smaller than 2⁻¹²⁵; NaN stays NaN. x = n ln 2 + r with |r| ≤ ln 2 / 2; eʳ by the polynomial of
 * Cephes (Moshier 1989, expf), n ln 2 in two parts. */
VECTOR_INLINE void lines_exp(vector_line *x, bool avx512)
{
    const float shifter = 12582912; /* 1.5 × 2²³: a sum with it is rounded to a whole number */
    const vector_line least = (vector_line){0} - 87;
    vector_mask below;
    vector_below(&below, x, &least, avx512);
    vector_line v = *x;
    lines_choose(&v, &below, &least);
    vector_line z = v * 1.44269504088896341f + shifter;
    vector_line n = z - shifter;
    vector_line r = v - n * 0.693359375f + n * 2.12194440e-4f;
    vector_line p = r * 1.9875691500e-4f + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1;
    *x = p * (vector_line)(((vector_bits)z << 23) + 0x3f800000);
}

#endif
