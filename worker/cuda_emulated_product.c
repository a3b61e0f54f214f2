/* cuda_emulated_product.c — matrix products with their epilogues, plain and slow. */
#include "worker/cuda_emulated.h"

#include <string.h>

enum { TILE = 32 /* of `inner`, summed by itself as a GPU's are: one long sum is less exact */ };

static float from_bf16(uint16_t x)
{
    uint32_t bits = (uint32_t)x << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* To 10 bits of mantissa, halves away from zero. */
static float to_tf32(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    if ((bits & 0x7f800000u) != 0x7f800000u) { /* infinities and NaN stay */
        bits = (bits + 0x1000u) & ~0x1fffu;
    }
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* An operand as [rows][columns] of floats, as the product reads it. */
static void unpack(float *to, const void *from, enum cuda_arithmetic arithmetic, size_t rows,
                   size_t columns, bool transposed)
{
    for (size_t i = 0; i < rows; i++) {
        for (size_t j = 0; j < columns; j++) {
            const size_t at = transposed ? j * rows + i : i * columns + j;
            float value;
            if (arithmetic == CUDA_BF16) {
                value = from_bf16(((const uint16_t *)from)[at]);
            } else {
                value = ((const float *)from)[at];
            }
            to[i * columns + j] = arithmetic == CUDA_TF32 ? to_tf32(value) : value;
        }
    }
}

/* sums[columns] of row `i` becomes row `i` of D. */
static void finish_row(const struct cuda_product_shape *s, const struct cuda_product_call *call,
                       uint32_t i, const float *sums)
{
    float *d = call->d + (size_t)i * s->columns;
    const size_t mask_row = cuda_mask_bytes(1, s->columns);
    uint8_t *mask = call->mask == NULL ? NULL : (uint8_t *)call->mask + i * mask_row;
    if (s->epilogue == CUDA_BIAS_RELU_MASK) {
        memset(mask, 0, mask_row);
    }
    for (uint32_t j = 0; j < s->columns; j++) {
        float value = s->accumulate ? d[j] + sums[j] : sums[j];
        if (s->epilogue == CUDA_BIAS || s->epilogue == CUDA_BIAS_RELU ||
            s->epilogue == CUDA_BIAS_RELU_MASK) {
            value += call->bias[j];
        }
        if (s->epilogue == CUDA_BIAS_RELU_MASK && value > 0) {
            mask[j / 8] |= (uint8_t)(1u << j % 8);
        }
        if (s->epilogue == CUDA_BIAS_RELU || s->epilogue == CUDA_BIAS_RELU_MASK) {
            value = value < 0 ? 0 : value; /* not (value > 0): NaN must stay */
        }
        if (s->epilogue == CUDA_MASKED && (mask[j / 8] >> j % 8 & 1) == 0) {
            value = 0;
        }
        d[j] = value;
    }
}

/* Nearly all of a product's time, within memory of its own: fast in a sanitizer build, too. */
__attribute__((no_sanitize("address", "undefined"))) static void
add_multiple(float *restrict to, const float *restrict row, float factor, uint32_t count)
{
    for (uint32_t j = 0; j < count; j++) {
        to[j] += factor * row[j];
    }
}

status cuda_emulated_product(const struct cuda_product_shape *s,
                             const struct cuda_product_call *call)
{
    status result = OK;
    float *a = NULL, *b = NULL, *sums = NULL, *part;
    TRY(memory_new(&a, s->rows, s->inner * sizeof *a, "emulated product"));
    TRY(memory_new(&b, s->inner, s->columns * sizeof *b, "emulated product"));
    TRY(memory_new(&sums, s->columns, 2 * sizeof *sums, "emulated product"));
    part = sums + s->columns;
    unpack(a, call->a, s->arithmetic, s->rows, s->inner, s->a_transposed);
    unpack(b, call->b, s->arithmetic, s->inner, s->columns, s->b_transposed);
    for (uint32_t i = 0; i < s->rows; i++) {
        memset(sums, 0, s->columns * sizeof *sums);
        float row_sum = 0;
        for (uint32_t first = 0; first < s->inner; first += TILE) {
            const uint32_t end = first + TILE < s->inner ? first + TILE : s->inner;
            memset(part, 0, s->columns * sizeof *part);
            for (uint32_t k = first; k < end; k++) {
                const float factor = a[(size_t)i * s->inner + k];
                row_sum += factor;
                add_multiple(part, b + (size_t)k * s->columns, factor, s->columns);
            }
            for (uint32_t j = 0; j < s->columns; j++) {
                sums[j] += part[j];
            }
        }
        finish_row(s, call, i, sums);
        if (s->epilogue == CUDA_COLUMN_SUMS) {
            call->bias[i] = row_sum;
        }
    }
done:
    memory_free(a);
    memory_free(b);
    memory_free(sums);
    return result;
}
