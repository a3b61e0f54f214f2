/*
 * compression_fp16.c — IEEE 754 binary16, rounded to even: half the bytes, 11 significant bits.
 *
 * Finite values beyond ±65504 become ±65504, and values below 2⁻²⁵ become zero; the residual keeps
 * the rest. Values that are not finite stay so. Conversions use integer arithmetic, which gives the
 * same bits on every processor.
 */
#include "worker/compression/compression.h"
#include "base/vector.h"

#include <string.h>

static inline uint32_t bits_of(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static inline float float_of(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* All cases are computed for every float and one is selected, so that the loops vectorise. */
static inline uint32_t either(bool which, uint32_t a, uint32_t b)
{
    const uint32_t mask = 0u - (uint32_t)which;
    return (a & mask) | (b & ~mask);
}

/* A float's exponent has a bias of 127, binary16's of 15; 23 and 10 bits follow. */
static inline uint32_t half_of(float value)
{
    const uint32_t infinity = 0xffu << 23, least_normal = (127u - 14u) << 23;
    const uint32_t greatest = bits_of(65504.0f), tiny = bits_of(0.5f);
    uint32_t all = bits_of(value), sign = all & 0x80000000u, size = all ^ sign;
    uint32_t finite = either(size > greatest, greatest, size);
    uint32_t bounded = either(size >= infinity, size, finite);
    uint32_t odd = bounded >> 13 & 1;
    uint32_t normal = (bounded - ((127u - 15u) << 23) + 0xfffu + odd) >> 13;
    /* The last bit of ½ is 2⁻²⁴, like that of subnormal halves, so adding ½ rounds to them. */
    uint32_t small = bits_of(float_of(bounded) + 0.5f) - tiny;
    uint32_t special = either(size > infinity, 0x7e00u, 0x7c00u);
    uint32_t half = either(bounded < least_normal, small, normal);
    return either(size >= infinity, special, half) | sign >> 16;
}

static inline float float_of_half(uint32_t half)
{
    const uint32_t exponent = 0x1fu << 23;
    uint32_t size = (half & 0x7fffu) << 13, sign = (half & 0x8000u) << 16;
    uint32_t normal = size + ((127u - 15u) << 23);
    /* Reads a subnormal half as 1.m · 2⁻¹⁴ and subtracts the leading 1, which it does not have. */
    uint32_t small = bits_of(float_of(normal + (1u << 23)) - float_of((127u - 14u) << 23));
    uint32_t special = normal + ((128u - 16u) << 23);
    uint32_t which = size & exponent;
    uint32_t value = either(which == 0, small, normal);
    return float_of(either(which == exponent, special, value) | sign);
}

VECTOR_CLONES
static void fp16_encode(compression *z UNUSED, float *restrict values, size_t count, void *code)
{
    uint16_t *restrict out = code;
    for (size_t i = 0; i < count; i++) {
        uint32_t half = half_of(values[i]);
        out[i] = (uint16_t)half;
        values[i] -= float_of_half(half);
    }
}

VECTOR_CLONES
static void fp16_add(const compression *z UNUSED, const void *code, size_t count,
                     float *restrict sum)
{
    const uint16_t *restrict in = code;
    for (size_t i = 0; i < count; i++)
        sum[i] += float_of_half(in[i]);
}

const struct compression_kind compression_fp16 = {
    .about = {.name = "fp16",
              .description = "binary16: half the bytes",
              .source = "Akiba et al. 2017, section 3 (half-precision communication)"},
    .float_bytes = sizeof(uint16_t),
    .encode = fp16_encode,
    .add = fp16_add,
};
