/* backend_cpu_attention_kernels.c — the vector loops of causal attention; see
 * backend_cpu_attention.h. */
#include "worker/cpu/backend_cpu_attention.h"
#include "worker/cpu/backend_cpu_lanes.h"

enum { LANES = VECTOR_LANES, HALF = LANES / 2, MOST_LINES = 4, MOST_SUMS = 16 };

/* ---- products ---- */

/* `rows` × `lines` are constants in each copy, so that the sums stay in registers. */
VECTOR_INLINE void tile(const struct attention_product *p, size_t r0, size_t c0, const size_t rows,
                        const size_t lines)
{
    vector_line sum[MOST_SUMS] = {{0}};
    const size_t a_row = p->a_row, a_step = p->a_step, b_row = p->b_row, out_row = p->out_row;
    const float *a = p->a + r0 * a_row, *b = p->b + c0;
    float *out = p->out + r0 * out_row + c0;
    for (size_t k = 0; k < p->depth; ++k, a += a_step, b += b_row) {
        vector_line v[MOST_LINES] = {{0}};
#pragma GCC unroll 4
        for (size_t l = 0; l < lines; ++l)
            vector_load(&v[l], b + l * LANES);
#pragma GCC unroll 16
        for (size_t i = 0; i < rows * lines; ++i)
            sum[i] += a[i / lines * a_row] * v[i % lines];
    }
#pragma GCC unroll 16
    for (size_t i = 0; i < rows * lines; ++i) {
        vector_line before;
        vector_load(&before, out + i / lines * out_row + i % lines * LANES);
        if (p->add)
            sum[i] += before;
        vector_store(out + i / lines * out_row + i % lines * LANES, &sum[i], false);
    }
}

/* Four rows of 16 columns in halves of lines, for processors with 16 registers of 32 bytes. */
VECTOR_INLINE void tile_of_halves(const struct attention_product *p, size_t r0, size_t c0)
{
    enum { ROWS = 4, SUMS = 2 * ROWS };
    vector_half sum[SUMS] = {{0}};
    const size_t a_row = p->a_row, a_step = p->a_step, b_row = p->b_row, out_row = p->out_row;
    const float *a = p->a + r0 * a_row, *b = p->b + c0;
    float *out = p->out + r0 * out_row + c0;
    for (size_t k = 0; k < p->depth; ++k, a += a_step, b += b_row) {
        vector_half v[2];
        memcpy(&v[0], b, sizeof v[0]);
        memcpy(&v[1], b + HALF, sizeof v[1]);
#pragma GCC unroll 8
        for (size_t i = 0; i < SUMS; ++i)
            sum[i] += a[i / 2 * a_row] * v[i % 2];
    }
#pragma GCC unroll 8
    for (size_t i = 0; i < SUMS; ++i) {
        float *to = out + i / 2 * out_row + i % 2 * HALF;
        vector_half before;
        memcpy(&before, to, sizeof before);
        if (p->add)
            sum[i] += before;
        memcpy(to, &sum[i], sizeof sum[i]);
    }
}

VECTOR_INLINE void attention_product_loop(const struct attention_product *p, bool avx512)
{
    size_t c = 0;
    for (; avx512 && c + 4 * LANES <= p->columns; c += 4 * LANES)
        for (size_t r = 0; r < p->rows; r += 4)
            tile(p, r, c, 4, 4);
    for (; avx512 && c + 2 * LANES <= p->columns; c += 2 * LANES)
        for (size_t r = 0; r < p->rows; r += 8)
            tile(p, r, c, 8, 2);
    for (; avx512 && c < p->columns; c += LANES)
        for (size_t r = 0; r < p->rows; r += 8)
            tile(p, r, c, 8, 1);
    for (; c < p->columns; c += LANES)
        for (size_t r = 0; r < p->rows; r += 4)
            tile_of_halves(p, r, c);
}

VECTOR_FORMS(, void, attention_product, (const struct attention_product *p), p)

/* ---- softmax ---- */

/* Replaces the scores of keys that a query does not see, those of later positions. */
VECTOR_INLINE void hide(float *scores, size_t first, const float by[LANES])
{
    for (size_t j = 1; j < LANES; ++j)
        for (size_t l = 0; l < j; ++l)
            scores[(first + j) * LANES + l] = by[l];
}

/* The largest score of each of 8 queries; a NaN is ignored. */
VECTOR_INLINE void find_largest(const float *scores, size_t keys, float most[HALF])
{
    vector_half value, best;
    memcpy(&best, most, sizeof best);
    for (size_t j = 1; j < keys; ++j) {
        memcpy(&value, scores + j * LANES, sizeof value);
        lanes_larger(&best, &value);
    }
    memcpy(most, &best, sizeof best);
}

VECTOR_CLONES void attention_softmax(float *scores, size_t first)
{
    const size_t keys = first + ATTENTION_BLOCK;
    float most[LANES], sum[LANES] = {0};
    memcpy(most, scores, sizeof most);
    hide(scores, first, most);
    for (size_t l = 0; l < LANES; l += HALF)
        find_largest(scores + l, keys, most + l);
    for (size_t j = 0; j < keys; ++j)
        for (size_t l = 0; l < LANES; ++l)
            scores[j * LANES + l] = exponential(scores[j * LANES + l] - most[l]);
    hide(scores, first, sum);
    for (size_t j = 0; j < keys; ++j)
        for (size_t l = 0; l < LANES; ++l)
            sum[l] += scores[j * LANES + l];
    for (size_t l = 0; l < LANES; ++l)
        sum[l] = 1 / sum[l];
    for (size_t j = 0; j < keys; ++j)
        for (size_t l = 0; l < LANES; ++l)
            scores[j * LANES + l] *= sum[l];
}

VECTOR_CLONES void attention_softmax_backward(const float *restrict probabilities,
                                              float *restrict slopes, size_t keys)
{
    float expected[LANES] = {0};
    for (size_t j = 0; j < keys; ++j)
        for (size_t l = 0; l < LANES; ++l)
            expected[l] += probabilities[j * LANES + l] * slopes[j * LANES + l];
    for (size_t j = 0; j < keys; ++j)
        for (size_t l = 0; l < LANES; ++l)
            slopes[j * LANES + l] =
                probabilities[j * LANES + l] * (slopes[j * LANES + l] - expected[l]);
}

/* ---- copies ---- */

VECTOR_INLINE void round_line(vector_line *value)
{
    vector_halves halves;
    vector_narrow(&halves, value, VECTOR_BF16);
    vector_widen(value, &halves, VECTOR_BF16);
}

VECTOR_CLONES void attention_round(float *values, size_t count)
{
    for (size_t i = 0; i < count; i += LANES) {
        vector_line v;
        vector_load(&v, values + i);
        round_line(&v);
        vector_store(values + i, &v, false);
    }
}

VECTOR_CLONES void attention_gather(const struct attention_copy *c)
{
    const size_t whole = (c->columns + LANES - 1) / LANES * LANES;
    for (size_t r = 0; r < c->rows; ++r) {
        const float *restrict from = c->from + r * c->from_row;
        float *restrict to = c->to + r * c->to_row;
        for (size_t i = 0; i < c->columns; ++i)
            to[i] = from[i] * c->factor;
        for (size_t i = c->columns; i < whole; ++i)
            to[i] = 0;
        if (c->bf16)
            attention_round(to, whole);
    }
}

VECTOR_CLONES void attention_transpose(const struct attention_copy *c)
{
    const size_t whole = (c->rows + LANES - 1) / LANES * LANES;
    for (size_t i = 0; i < c->columns; ++i) {
        const float *restrict from = c->from + i;
        float *restrict to = c->to + i * c->to_row;
        for (size_t r = 0; r < c->rows; ++r)
            to[r] = from[r * c->from_row] * c->factor;
        if (c->bf16)
            attention_round(to, whole);
    }
}

VECTOR_CLONES void attention_scatter(const struct attention_copy *c, bool add)
{
    for (size_t r = 0; r < c->rows; ++r) {
        const float *restrict from = c->from + r * c->from_row;
        float *restrict to = c->to + r * c->to_row;
        if (add)
            for (size_t i = 0; i < c->columns; ++i)
                to[i] += from[i] * c->factor;
        else
            for (size_t i = 0; i < c->columns; ++i)
                to[i] = from[i] * c->factor;
    }
}
