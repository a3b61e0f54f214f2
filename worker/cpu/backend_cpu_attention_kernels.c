/* backend_cpu_attention_kernels.c — the vector loops of causal attention; see
 * backend_cpu_attention.h. */
#include "worker/cpu/backend_cpu_attention.h"
#include "worker/cpu/backend_cpu_lines.h"

enum { LANES = VECTOR_LANES, MOST_LINES = 4, MOST_SUMS = 16 };

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
    for (size_t i = 0; i < rows * lines; ++i)
        lines_put(out + i / lines * out_row + i % lines * LANES, &sum[i], LANES, p->add);
}

VECTOR_CLONES void attention_product(const struct attention_product *p)
{
    size_t c = 0;
    for (; c + 4 * LANES <= p->columns; c += 4 * LANES)
        for (size_t r = 0; r < p->rows; r += 4)
            tile(p, r, c, 4, 4);
    for (; c + 2 * LANES <= p->columns; c += 2 * LANES)
        for (size_t r = 0; r < p->rows; r += 8)
            tile(p, r, c, 8, 2);
    for (; c < p->columns; c += LANES)
        for (size_t r = 0; r < p->rows; r += 8)
            tile(p, r, c, 8, 1);
}

/* ---- softmax ---- */

/* Replaces the values of key j for all queries before position j, which do not see this key. */
VECTOR_INLINE void hide(vector_line *value, size_t j, size_t first, const vector_line *by)
{
    if (j > first) {
        vector_mask before;
        lines_first(&before, j - first);
        lines_choose(value, &before, by);
    }
}

VECTOR_INLINE void attention_softmax_loop(float *scores, size_t first, bool avx512)
{
    const size_t keys = first + ATTENTION_BLOCK;
    const vector_line none = {0};
    vector_line most, start, sum = {0}, v;
    vector_load(&start, scores);
    most = start;
    for (size_t j = 1; j < keys; ++j) {
        vector_load(&v, scores + j * LANES);
        hide(&v, j, first, &start);
        lines_larger(&most, &v, avx512);
    }
    for (size_t j = 0; j < keys; ++j) {
        vector_load(&v, scores + j * LANES);
        v -= most;
        lines_exp(&v, avx512);
        hide(&v, j, first, &none);
        vector_store(scores + j * LANES, &v, false);
        sum += v;
    }
    const vector_line scale = 1 / sum;
    for (size_t j = 0; j < keys; ++j) {
        vector_load(&v, scores + j * LANES);
        v *= scale;
        vector_store(scores + j * LANES, &v, false);
    }
}

VECTOR_FORMS(, void, attention_softmax, (float *scores, size_t first), scores, first)

VECTOR_CLONES void attention_softmax_backward(const float *probabilities, float *slopes,
                                              size_t keys)
{
    vector_line expected = {0}, p, g;
    for (size_t j = 0; j < keys; ++j) {
        vector_load(&p, probabilities + j * LANES);
        vector_load(&g, slopes + j * LANES);
        expected += p * g;
    }
    for (size_t j = 0; j < keys; ++j) {
        vector_load(&p, probabilities + j * LANES);
        vector_load(&g, slopes + j * LANES);
        p *= g - expected;
        vector_store(slopes + j * LANES, &p, false);
    }
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
    for (size_t r = 0; r < c->rows; ++r) {
        for (size_t i = 0; i < c->columns; i += LANES) {
            vector_line v;
            lines_load(&v, c->from + r * c->from_row + i, c->columns - i);
            v *= c->factor;
            if (c->bf16)
                round_line(&v);
            vector_store(c->to + r * c->to_row + i, &v, false);
        }
    }
}

VECTOR_CLONES void attention_transpose(const struct attention_copy *c)
{
    for (size_t r = 0; r < c->rows; ++r) {
        for (size_t i = 0; i < c->columns; i += LANES) {
            vector_line v;
            const size_t left = c->columns - i;
            lines_load(&v, c->from + r * c->from_row + i, left);
            v *= c->factor;
            if (c->bf16)
                round_line(&v);
            for (size_t l = 0; l < LANES && l < left; ++l)
                c->to[(i + l) * c->to_row + r] = v[l];
        }
    }
}

VECTOR_CLONES void attention_scatter(const struct attention_copy *c, bool add)
{
    for (size_t r = 0; r < c->rows; ++r) {
        for (size_t i = 0; i < c->columns; i += LANES) {
            vector_line v;
            vector_load(&v, c->from + r * c->from_row + i);
            v *= c->factor;
            lines_put(c->to + r * c->to_row + i, &v, c->columns - i, add);
        }
    }
}
