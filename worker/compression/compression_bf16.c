/*
 * compression_bf16.c — bfloat16, rounded to even: half the bytes, 8 significant bits and float32's
 * range. A value that would round to infinity becomes the largest finite value; the residual keeps
 * the rest. Values that are not finite stay so.
 */
#include "worker/compression/compression.h"
#include "base/vector.h"

#include <string.h>

static inline uint32_t brain_of(float value)
{
    const uint32_t infinity = 0xffu << 23;
    uint32_t all, size;
    memcpy(&all, &value, sizeof all);
    size = all & 0x7fffffffu;
    uint32_t rounded = (all + 0x7fffu + (all >> 16 & 1)) >> 16;
    uint32_t bounded = size >= 0x7f7f8000u ? (all >> 16 & 0x8000u) | 0x7f7fu : rounded;
    uint32_t special = all >> 16 | (size > infinity ? 0x40u : 0);
    return size >= infinity ? special : bounded;
}

static inline float float_of_brain(uint32_t brain)
{
    float value;
    uint32_t bits = brain << 16;
    memcpy(&value, &bits, sizeof value);
    return value;
}

VECTOR_CLONES
static void bf16_encode(compression *z UNUSED, float *restrict values, size_t count, void *code)
{
    uint16_t *restrict out = code;
    for (size_t i = 0; i < count; i++) {
        uint32_t brain = brain_of(values[i]);
        out[i] = (uint16_t)brain;
        values[i] -= float_of_brain(brain);
    }
}

VECTOR_CLONES
static void bf16_add(const compression *z UNUSED, const void *code, size_t count,
                     float *restrict sum)
{
    const uint16_t *restrict in = code;
    for (size_t i = 0; i < count; i++)
        sum[i] += float_of_brain(in[i]);
}

const struct compression_kind compression_bf16 = {
    .about = {.name = "bf16",
              .description = "bfloat16: half the bytes, float32's range",
              .source = "Kalamkar et al. 2019, A study of BFLOAT16 for deep learning training"},
    .float_bytes = sizeof(uint16_t),
    .encode = bf16_encode,
    .add = bf16_add,
};
