#include "worker/cpu/backend_cpu.h"
#include "worker/cpu/backend_cpu_lanes.h"

#include <math.h>

VECTOR_CLONES void cpu_add_into(float *restrict to, const float *restrict from, size_t count)
{
    for (size_t i = 0; i < count; ++i)
        to[i] += from[i];
}

VECTOR_INLINE void add_bf16(uint16_t *restrict to, const uint16_t *restrict from, size_t count,
                            enum vector_type type)
{
    enum { AHEAD = 512 };
    for (size_t i = 0; i < count; i += VECTOR_LANES) {
        vector_line a, b;
        vector_load_from(&a, to, i, type);
        vector_load_from(&b, from, i, type);
        __builtin_prefetch(to + i + AHEAD);
        a += b;
        vector_store_to(to, i, &a, false, type);
    }
}

VECTOR_NATIVE static void add_natively(uint16_t *restrict to, const uint16_t *restrict from,
                                       size_t count)
{
    add_bf16(to, from, count, VECTOR_BF16_NATIVE);
}

VECTOR_CLONES static void add_by_integers(uint16_t *restrict to, const uint16_t *restrict from,
                                          size_t count)
{
    add_bf16(to, from, count, VECTOR_BF16);
}

void cpu_add_into_bf16(uint16_t *restrict to, const uint16_t *restrict from, size_t count)
{
    if (vector_native())
        add_natively(to, from, count);
    else
        add_by_integers(to, from, count);
}

/* NaN stays NaN, so that the loss shows it. */
VECTOR_INLINE float rectified(float v)
{
    return v <= 0 ? 0 : v;
}

VECTOR_CLONES void cpu_bias_activate(float *restrict y, const float *restrict bias, size_t rows,
                                     size_t columns, enum activation a)
{
    for (size_t r = 0; r < rows; ++r) {
        float *restrict row = y + r * columns;
        if (bias == NULL)
            for (size_t i = 0; a == ACTIVATION_RELU && i < columns; ++i)
                row[i] = rectified(row[i]);
        else if (a == ACTIVATION_RELU)
            for (size_t i = 0; i < columns; ++i)
                row[i] = rectified(row[i] + bias[i]);
        else
            for (size_t i = 0; i < columns; ++i)
                row[i] += bias[i];
    }
}

VECTOR_CLONES void cpu_activation_backward(float *restrict g, const float *restrict y, size_t count,
                                           enum activation a)
{
    if (a == ACTIVATION_RELU)
        for (size_t i = 0; i < count; ++i)
            g[i] = y[i] > 0 ? g[i] : 0;
    else if (a == ACTIVATION_TANH)
        for (size_t i = 0; i < count; ++i)
            g[i] *= 1 - y[i] * y[i];
}

/* The bits of a bf16 number, read as int16, have the same sign as the number. */
VECTOR_CLONES void cpu_relu_backward_bf16(uint16_t *restrict g, const uint16_t *restrict y,
                                          size_t count)
{
    for (size_t i = 0; i < count; ++i)
        g[i] = (int16_t)y[i] > 0 ? g[i] : 0;
}

VECTOR_CLONES void cpu_column_sums(const float *restrict g, size_t rows, size_t columns,
                                   float *restrict out, bool accumulate)
{
    if (!accumulate)
        memset(out, 0, columns * sizeof *out);
    for (size_t r = 0; r < rows; ++r)
        for (size_t i = 0; i < columns; ++i)
            out[i] += g[r * columns + i];
}

VECTOR_CLONES void cpu_add_two(float *restrict out, const float *restrict a,
                               const float *restrict b, size_t count, enum activation act)
{
    if (act == ACTIVATION_RELU)
        for (size_t i = 0; i < count; ++i)
            out[i] = rectified(a[i] + b[i]);
    else
        for (size_t i = 0; i < count; ++i)
            out[i] = a[i] + b[i];
}

/* ---- cross-entropy ---- */

/* A row with fewer classes does not fill the lanes: expf is faster. */
enum { LEAST_FOR_LANES = VECTOR_LANES };

VECTOR_CLONES static float largest_in_lanes(const float *row, uint32_t classes)
{
    enum { HALF = VECTOR_LANES / 2 };
    vector_half most = (vector_half){0} + row[0], value;
    uint32_t k = 0;
    for (; k + HALF <= classes; k += HALF) {
        memcpy(&value, row + k, sizeof value);
        lanes_larger(&most, &value);
    }
    float largest = row[0];
    for (size_t l = 0; l < HALF; ++l)
        largest = largest < most[l] ? most[l] : largest;
    for (; k < classes; ++k)
        largest = largest < row[k] ? row[k] : largest;
    return largest;
}

/* Index of the largest element; the first one among equal elements. */
static uint32_t largest(const float *row, uint32_t classes)
{
    uint32_t best = 0;
    if (classes < LEAST_FOR_LANES) {
        for (uint32_t k = 1; k < classes; ++k)
            if (row[k] > row[best])
                best = k;
        return best;
    }
    const float most = largest_in_lanes(row, classes);
    while (best < classes && row[best] != most)
        ++best;
    return best < classes ? best : 0; /* NaN equals nothing */
}

/* Σ exp(row − most) */
VECTOR_CLONES static float sum_in_lanes(const float *row, uint32_t classes, float most)
{
    float sum[VECTOR_LANES] = {0};
    const uint32_t whole = classes - classes % VECTOR_LANES;
    for (uint32_t k = 0; k < whole; k += VECTOR_LANES)
        for (uint32_t l = 0; l < VECTOR_LANES; ++l)
            sum[l] += exponential(row[k + l] - most);
    for (uint32_t k = whole; k < classes; ++k)
        sum[k - whole] += exponential(row[k] - most);
    vector_lanes lanes;
    memcpy(lanes, sum, sizeof lanes);
    return lanes_sum(lanes);
}

/* g += exp(row − most) × scale */
VECTOR_CLONES static void add_in_lanes(const float *restrict row, uint32_t classes, float most,
                                       float scale, float *restrict g)
{
    for (uint32_t k = 0; k < classes; ++k)
        g[k] += exponential(row[k] - most) * scale;
}

/* Σ over classes of target × logit. */
static float target_logit(const float *row, uint32_t classes, uint32_t label, struct op_targets t)
{
    if (t.other == 0)
        return row[label];
    float sum = 0;
    for (uint32_t k = 0; k < classes; ++k)
        sum += row[k] * (k == label ? t.right : t.other);
    return sum;
}

void cpu_cross_entropy(const struct cpu_answers *a, struct op_loss *loss)
{
    loss->sum = 0;
    loss->correct = 0;
    for (uint32_t n = 0; n < a->valid; ++n) {
        const float *row = a->logits + (size_t)n * a->classes;
        uint32_t best = largest(row, a->classes);
        float total = 1; /* exp(0) of the largest logit */
        if (a->classes >= LEAST_FOR_LANES)
            total = sum_in_lanes(row, a->classes, row[best]);
        else
            for (uint32_t k = 0; k < a->classes; ++k)
                total += k == best ? 0 : expf(row[k] - row[best]);
        loss->sum += (double)(logf(total) + row[best] -
                              target_logit(row, a->classes, a->labels[n], a->targets));
        loss->correct += best == a->labels[n];
    }
}

/* g += softmax / valid */
static void add_softmax(const struct cpu_answers *a, const float *row, float *g)
{
    const float most = row[largest(row, a->classes)], valid = (float)a->valid;
    float total = 0;
    if (a->classes >= LEAST_FOR_LANES) {
        total = sum_in_lanes(row, a->classes, most);
        add_in_lanes(row, a->classes, most, 1 / (total * valid), g);
        return;
    }
    for (uint32_t k = 0; k < a->classes; ++k)
        total += expf(row[k] - most);
    float scale = 1 / (total * valid);
    for (uint32_t k = 0; k < a->classes; ++k)
        g[k] += expf(row[k] - most) * scale;
}

void cpu_cross_entropy_backward(const struct cpu_answers *a, uint32_t rows, float *gradient,
                                bool accumulate)
{
    const float valid = (float)a->valid;
    const float right = a->targets.right / valid, other = a->targets.other / valid;
    if (!accumulate)
        memset(gradient, 0, (size_t)rows * a->classes * sizeof *gradient);
    for (uint32_t n = 0; n < a->valid; ++n) {
        float *g = gradient + (size_t)n * a->classes;
        add_softmax(a, a->logits + (size_t)n * a->classes, g);
        for (uint32_t k = 0; other != 0 && k < a->classes; ++k)
            g[k] -= k == a->labels[n] ? 0 : other;
        g[a->labels[n]] -= right;
    }
}
