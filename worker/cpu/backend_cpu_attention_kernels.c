/* backend_cpu_attention_kernels.c — the vector loops of causal attention; see
 * backend_cpu_attention.h. */
#include "worker/cpu/backend_cpu_attention.h"
#include "worker/cpu/backend_cpu_lines.h"

enum { LANES = VECTOR_LANES, MOST_ROWS = 8, MOST_LINES = 4 };

/* ---- products ---- */

/* `rows` × `lines` are constants in each copy, so that the sums stay in registers. */
VECTOR_INLINE void tile(const struct attention_product *p, size_t r0, size_t c0, size_t rows,
                        size_t lines)
{
    vector_line sum[MOST_ROWS][MOST_LINES];
    const float *a = p->a + r0 * p->a_row;
    for (size_t r = 0; r < rows; ++r)
        for (size_t l = 0; l < lines; ++l)
            if (p->add)
                vector_load(&sum[r][l], p->out + (r0 + r) * p->out_row + c0 + l * LANES);
            else
                sum[r][l] = (vector_line){0};
    for (size_t k = 0; k < p->depth; ++k) {
        vector_line b[MOST_LINES];
        for (size_t l = 0; l < lines; ++l)
            vector_load(&b[l], p->b + k * p->b_row + c0 + l * LANES);
        for (size_t r = 0; r < rows; ++r)
            for (size_t l = 0; l < lines; ++l)
                sum[r][l] += a[r * p->a_row + k * p->a_step] * b[l];
    }
    for (size_t r = 0; r < rows; ++r)
        for (size_t l = 0; l < lines; ++l)
            vector_store(p->out + (r0 + r) * p->out_row + c0 + l * LANES, &sum[r][l], false);
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

VECTOR_INLINE void larger(vector_line *most, const vector_line *value)
{
    const vector_mask more = *value > *most;
    lines_choose(most, &more, value);
}

/* One row, which sees `seen` columns. The others of the last line become 0. */
VECTOR_INLINE void softmax_row(float *s, size_t seen)
{
    vector_line most = (vector_line){0} + s[0], sum = {0}, v;
    for (size_t i = 0; i < seen; i += LANES) {
        vector_load(&v, s + i);
        lines_fill(&v, seen - i, s[0]);
        larger(&most, &v);
    }
    const float largest = lines_largest(&most);
    for (size_t i = 0; i < seen; i += LANES) {
        vector_load(&v, s + i);
        v -= largest;
        lines_exp(&v);
        lines_fill(&v, seen - i, 0);
        sum += v;
        vector_store(s + i, &v, false);
    }
    const float scale = 1 / lines_sum(&sum);
    for (size_t i = 0; i < seen; i += LANES) {
        vector_load(&v, s + i);
        v *= scale;
        vector_store(s + i, &v, false);
    }
}

VECTOR_CLONES void attention_softmax(float *scores, size_t row, size_t first)
{
    for (size_t r = 0; r < ATTENTION_BLOCK; ++r)
        softmax_row(scores + r * row, first + r + 1);
}

VECTOR_CLONES void attention_softmax_backward(const float *probabilities, float *slopes, size_t row,
                                              size_t first)
{
    const size_t columns = first + ATTENTION_BLOCK;
    for (size_t r = 0; r < ATTENTION_BLOCK; ++r) {
        const float *p = probabilities + r * row;
        float *g = slopes + r * row;
        vector_line sum = {0}, a, b;
        for (size_t i = 0; i < columns; i += LANES) {
            vector_load(&a, p + i);
            vector_load(&b, g + i);
            sum += a * b;
        }
        const float expected = lines_sum(&sum);
        for (size_t i = 0; i < columns; i += LANES) {
            vector_load(&a, p + i);
            vector_load(&b, g + i);
            a *= b - expected;
            vector_store(g + i, &a, false);
        }
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
