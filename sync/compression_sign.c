/*
 * compression_sign.c — one bit per float and one scale per tensor: the scaled sign,
 *
 *     C(p) = ‖p‖₁ / d · sign(p),    sign(0) = +1,
 *
 * of each tensor of d floats by itself, as the paper's experiments do it layer by layer. It is a
 * δ-contraction with δ = ‖p‖₁² / (d·‖p‖₂²) (lemma 8), which is what error feedback needs.
 *
 * A code is the tensors' scales, then the signs of the whole vector, float i in bit i mod 32 of
 * word i / 32, set where it is negative. Not finite: the scale is not either, so all of that
 * tensor.
 */
#include "sync/compression.h"

#include <math.h>
#include <string.h>

static size_t sign_code_bytes(const compression *z)
{
    return z->tensors * sizeof(float) + (z->count + 31) / 32 * sizeof(uint32_t);
}

/* ‖p‖₁ / d. */
static float scale_of(const float *p, size_t d)
{
    double sum = 0;
    for (size_t i = 0; i < d; i++)
        sum += (double)fabsf(p[i]);
    return d > 0 ? (float)(sum / (double)d) : 0;
}

static void sign_encode(compression *z, float *values, size_t count, void *code)
{
    float *scales = code;
    uint32_t *words = (uint32_t *)code + z->tensors;

    memset(words, 0, (count + 31) / 32 * sizeof *words);
    for (size_t t = 0, i = 0; t < z->tensors; t++) {
        const float scale = scale_of(values + i, z->ends[t] - i);
        scales[t] = scale;
        for (; i < z->ends[t]; i++) {
            bool negative = values[i] < 0;
            words[i / 32] |= (uint32_t)negative << i % 32;
            values[i] -= negative ? -scale : scale;
        }
    }
}

static void sign_add(const compression *z, const void *code, size_t count UNUSED, float *sum)
{
    const float *scales = code;
    const uint32_t *words = (const uint32_t *)code + z->tensors;

    for (size_t t = 0, i = 0; t < z->tensors; t++) {
        for (; i < z->ends[t]; i++)
            sum[i] += words[i / 32] >> i % 32 & 1 ? -scales[t] : scales[t];
    }
}

const struct compression_kind compression_sign = {
    .about = {.name = "sign",
              .description = "one bit per float and a scale per tensor: about 1/32 of the bytes",
              .source = "Karimireddy et al. 2019, Error feedback fixes SignSGD, algorithm 2; Seide "
                        "et al. 2014"},
    .code_bytes = sign_code_bytes,
    .encode = sign_encode,
    .add = sign_add,
};
