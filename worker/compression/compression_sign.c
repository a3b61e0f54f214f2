/*
 * compression_sign.c — one bit per float and one scale per tensor: the scaled sign,
 *
 *     C(p) = ‖p‖₁ / d · sign(p),    sign(0) = +1,
 *
 * for each tensor of d floats, layer by layer as in the paper's experiments. It is a δ-contraction
 * with δ = ‖p‖₁² / (d·‖p‖₂²) (lemma 8), as error feedback requires.
 *
 * A code is the tensors' scales, then the signs of the whole vector: float i in bit i mod 32 of
 * word i / 32, set if it is negative. If a float is not finite, its tensor's scale is not finite,
 * and no float of that tensor is finite after decoding.
 */
#include "worker/compression/compression.h"
#include "base/vector.h"

#include <math.h>
#include <string.h>

enum { LANES = VECTOR_LANES, BITS = 32 };

static size_t sign_code_bytes(const compression *z)
{
    return z->tensors * sizeof(float) + (z->count + BITS - 1) / BITS * sizeof(uint32_t);
}

/* ‖p‖₁ / d, summed in the same number of lanes on every processor. */
VECTOR_CLONES
static float scale_of(const float *p, size_t d)
{
    double lanes[LANES] = {0};
    const size_t whole = d / LANES * LANES;
    for (size_t i = 0; i < whole; i += LANES)
        for (size_t l = 0; l < LANES; l++)
            lanes[l] += (double)fabsf(p[i + l]);
    for (size_t i = whole; i < d; i++)
        lanes[i - whole] += (double)fabsf(p[i]);
    return d > 0 ? (float)(vector_total(lanes) / (double)d) : 0;
}

static inline float signed_scale(float scale, uint32_t negative)
{
    uint32_t bits;
    memcpy(&bits, &scale, sizeof bits);
    bits |= negative << 31;
    memcpy(&scale, &bits, sizeof bits);
    return scale;
}

static void encode_bits(float *values, uint32_t *words, size_t from, size_t to, float scale)
{
    for (size_t i = from; i < to; i++) {
        uint32_t negative = values[i] < 0;
        words[i / BITS] |= negative << i % BITS;
        values[i] -= signed_scale(scale, negative);
    }
}

VECTOR_CLONES
static void encode_words(float *restrict values, uint32_t *restrict words, size_t count,
                         float scale)
{
    for (size_t w = 0; w < count; w++) {
        float *at = values + w * BITS;
        uint32_t word = 0;
        for (uint32_t k = 0; k < BITS; k++) {
            uint32_t negative = at[k] < 0;
            word |= negative << k;
            at[k] -= signed_scale(scale, negative);
        }
        words[w] = word;
    }
}

static void add_bits(const uint32_t *words, size_t from, size_t to, float scale, float *sum)
{
    for (size_t i = from; i < to; i++)
        sum[i] += signed_scale(scale, words[i / BITS] >> i % BITS & 1);
}

VECTOR_CLONES
static void add_words(const uint32_t *restrict words, size_t count, float scale,
                      float *restrict sum)
{
    for (size_t w = 0; w < count; w++)
        for (uint32_t k = 0; k < BITS; k++)
            sum[w * BITS + k] += signed_scale(scale, words[w] >> k & 1);
}

/* The floats of a tensor [from, to) whose words contain no float of another tensor. */
static void whole_words(size_t from, size_t to, size_t *first, size_t *end)
{
    *first = (from + BITS - 1) / BITS * BITS;
    *end = to / BITS * BITS;
    if (*first > *end)
        *first = *end = to;
}

static void sign_encode(compression *z, float *values, size_t count, void *code)
{
    float *scales = code;
    uint32_t *words = (uint32_t *)code + z->tensors;
    size_t first, end;

    memset(words, 0, (count + BITS - 1) / BITS * sizeof *words);
    for (size_t t = 0, from = 0; t < z->tensors; from = z->ends[t++]) {
        const size_t to = z->ends[t];
        scales[t] = scale_of(values + from, to - from);
        whole_words(from, to, &first, &end);
        encode_bits(values, words, from, first, scales[t]);
        encode_words(values + first, words + first / BITS, (end - first) / BITS, scales[t]);
        encode_bits(values, words, end, to, scales[t]);
    }
}

static void sign_add(const compression *z, const void *code, size_t count UNUSED, float *sum)
{
    const float *scales = code;
    const uint32_t *words = (const uint32_t *)code + z->tensors;
    size_t first, end;

    for (size_t t = 0, from = 0; t < z->tensors; from = z->ends[t++]) {
        const size_t to = z->ends[t];
        whole_words(from, to, &first, &end);
        add_bits(words, from, first, scales[t], sum);
        add_words(words + first / BITS, (end - first) / BITS, scales[t], sum + first);
        add_bits(words, end, to, scales[t], sum);
    }
}

/* Bits after the last float are 0. */
static bool sign_is_valid(const compression *z, const void *code)
{
    const uint32_t *words = (const uint32_t *)code + z->tensors;
    const size_t used = z->count % BITS;
    return used == 0 || words[z->count / BITS] >> used == 0;
}

const struct compression_kind compression_sign = {
    .about = {.name = "sign",
              .description = "one bit per float and a scale per tensor: about 1/32 of the bytes",
              .source = "Karimireddy et al. 2019, Error feedback fixes SignSGD, algorithm 2; Seide "
                        "et al. 2014"},
    .code_bytes = sign_code_bytes,
    .encode = sign_encode,
    .add = sign_add,
    .is_valid = sign_is_valid,
};
