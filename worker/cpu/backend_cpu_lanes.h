/*
 * backend_cpu_lanes.h — the exponential, and sums over rows of floats: element i is added to lane i
 * mod 16, so that numbers do not depend on the vector width. For functions that are VECTOR_CLONES.
 */
#ifndef GRADLAG_WORKER_CPU_BACKEND_CPU_LANES_H
#define GRADLAG_WORKER_CPU_BACKEND_CPU_LANES_H

#include "base/vector_line.h"

/* eˣ for x ≤ 0 with a relative error below 2⁻²² where x > −87; 1 at 0; below −87 a number smaller
 * than 2⁻¹²⁵; NaN stays NaN. x = n ln 2 + r with |r| ≤ ln 2 / 2; eʳ by the polynomial of Cephes
 * (Moshier 1989, expf), n ln 2 in two parts. */
VECTOR_INLINE float exponential(float x)
{
    const float shifter = 12582912; /* 1.5 × 2²³: a sum with it is rounded to a whole number */
    const float v = x < -87 ? -87 : x;
    const float z = v * 1.44269504088896341f + shifter;
    const float n = z - shifter;
    const float r = v - n * 0.693359375f + n * 2.12194440e-4f;
    float p = r * 1.9875691500e-4f + 1.3981999507e-3f, power;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1;
    uint32_t bits;
    memcpy(&bits, &z, sizeof bits);
    bits = (bits << 23) + 0x3f800000;
    memcpy(&power, &bits, sizeof power);
    return p * power;
}

/* The 16 lanes as two halves, which fit into registers of 32 bytes. */
typedef vector_half vector_lanes[2];

/* Lane l of half h, which is lane 8 h + l, is at from[8 h + l]. */
VECTOR_INLINE void lanes_load(vector_half *half, const float *from, size_t h)
{
    memcpy(half, from + h * (VECTOR_LANES / 2), sizeof *half);
}

/* most ← the larger one in each lane; a NaN of `value` is ignored. */
VECTOR_INLINE void lanes_larger(vector_half *most, const vector_half *value)
{
    const vector_half_mask more = *most < *value;
    *most = (vector_half)(((vector_half_mask)*value & more) | ((vector_half_mask)*most & ~more));
}

/* The first `left` floats, then `other`. */
VECTOR_INLINE void lanes_pad(float to[VECTOR_LANES], const float *from, size_t left, float other)
{
    for (size_t l = 0; l < VECTOR_LANES; ++l)
        to[l] = l < left ? from[l] : other;
}

/* The sum of the lanes, by halves. */
VECTOR_INLINE float lanes_sum(const vector_lanes lanes)
{
    vector_half v = lanes[0] + lanes[1];
    v += __builtin_shufflevector(v, v, 4, 5, 6, 7, 0, 1, 2, 3);
    v += __builtin_shufflevector(v, v, 2, 3, 0, 1, 6, 7, 4, 5);
    v += __builtin_shufflevector(v, v, 1, 0, 3, 2, 5, 4, 7, 6);
    return v[0];
}

#endif
