/*
 * backend_cpu_layer_norm.c — y = γ x̂ + β with x̂ = (x − mean) / √(variance + ε) over the features of
 * each row. Forward keeps mean and 1/√(variance + ε) of each row. With h = γ · (gradient of y) the
 * gradient of x is (h − mean(h) − x̂ mean(h x̂)) / √(variance + ε).
 */
#include "base/memory.h"
#include "worker/cpu/backend_cpu.h"
#include "worker/cpu/backend_cpu_lanes.h"

#include <math.h>

enum { LANES = VECTOR_LANES };

struct row_statistics {
    float mean, scale; /* scale = 1/√(variance + ε) */
};

struct cpu_layer_norm {
    backend_op op;
    size_t rows, features;
    struct row_statistics *statistics; /* [rows] */
};

VECTOR_INLINE void add_line(vector_lanes sum, const float *x)
{
#pragma GCC unroll 2
    for (size_t h = 0; h < 2; ++h) {
        vector_half v;
        lanes_load(&v, x, h);
        sum[h] += v;
    }
}

VECTOR_INLINE void add_squares(vector_lanes sum, const float *x, float mean)
{
#pragma GCC unroll 2
    for (size_t h = 0; h < 2; ++h) {
        vector_half v;
        lanes_load(&v, x, h);
        v -= mean;
        sum[h] += v * v;
    }
}

VECTOR_INLINE struct row_statistics statistics_of(const float *x, size_t features)
{
    vector_lanes sum = {0}, square = {0};
    float end[LANES];
    size_t i = 0;
    for (; i + LANES <= features; i += LANES)
        add_line(sum, x + i);
    if (i < features) {
        lanes_pad(end, x + i, features - i, 0);
        add_line(sum, end);
    }
    const float mean = lanes_sum(sum) / (float)features;
    for (i = 0; i + LANES <= features; i += LANES)
        add_squares(square, x + i, mean);
    if (i < features) {
        lanes_pad(end, x + i, features - i, mean);
        add_squares(square, end, mean);
    }
    const float variance = lanes_sum(square) / (float)features;
    return (struct row_statistics){mean, 1 / sqrtf(variance + LAYER_NORM_EPSILON)};
}

VECTOR_CLONES static void normalise(const struct cpu_layer_norm *l, const float *restrict x,
                                    const float *restrict scale, const float *restrict shift,
                                    float *restrict y)
{
    const size_t features = l->features;
    for (size_t r = 0; r < l->rows; ++r, x += features, y += features) {
        const struct row_statistics s = l->statistics[r] = statistics_of(x, features);
        if (shift != NULL)
            for (size_t i = 0; i < features; ++i)
                y[i] = (x[i] - s.mean) * s.scale * scale[i] + shift[i];
        else
            for (size_t i = 0; i < features; ++i)
                y[i] = (x[i] - s.mean) * s.scale * scale[i];
    }
}

/* sum += h, product += h x̂ with h = γ g; `scale` NULL: h = g. */
VECTOR_INLINE void add_pair(const struct row_statistics *s, const float *x, const float *g,
                            const float *scale, vector_lanes sum, vector_lanes product)
{
#pragma GCC unroll 2
    for (size_t k = 0; k < 2; ++k) {
        vector_half normal, h, w;
        lanes_load(&normal, x, k);
        lanes_load(&h, g, k);
        if (scale != NULL) {
            lanes_load(&w, scale, k);
            h *= w;
        }
        sum[k] += h;
        product[k] += h * ((normal - s->mean) * s->scale);
    }
}

VECTOR_INLINE void add_lanes(float *to, const vector_lanes lanes, size_t left)
{
    float values[LANES];
    memcpy(values, lanes, sizeof values);
    for (size_t l = 0; l < left && l < LANES; ++l)
        to[l] += values[l];
}

/* γ's gradient += Σ g x̂; β's += Σ g (NULL: no β). */
VECTOR_CLONES static void add_to_scale(const struct cpu_layer_norm *l, const float *x,
                                       const float *g, float *scale, float *shift)
{
    const size_t features = l->features;
    for (size_t i = 0; i < features; i += LANES) {
        vector_lanes sum = {0}, product = {0};
        for (size_t r = 0; r < l->rows; ++r) {
            const size_t at = r * features + i;
            if (i + LANES <= features) {
                add_pair(&l->statistics[r], x + at, g + at, NULL, sum, product);
            } else {
                float x_end[LANES], g_end[LANES];
                lanes_pad(x_end, x + at, features - i, 0);
                lanes_pad(g_end, g + at, features - i, 0);
                add_pair(&l->statistics[r], x_end, g_end, NULL, sum, product);
            }
        }
        add_lanes(scale + i, product, features - i);
        if (shift != NULL)
            add_lanes(shift + i, sum, features - i);
    }
}

VECTOR_INLINE void slopes_of_row(const struct row_statistics *s, const float *restrict x,
                                 const float *restrict scale, const float *restrict g,
                                 size_t features, float *restrict to, const bool add)
{
    vector_lanes sum = {0}, product = {0};
    size_t i = 0;
    for (; i + LANES <= features; i += LANES)
        add_pair(s, x + i, g + i, scale + i, sum, product);
    if (i < features) {
        float x_end[LANES], g_end[LANES], scale_end[LANES];
        lanes_pad(x_end, x + i, features - i, 0);
        lanes_pad(g_end, g + i, features - i, 0);
        lanes_pad(scale_end, scale + i, features - i, 0);
        add_pair(s, x_end, g_end, scale_end, sum, product);
    }
    const float mean = lanes_sum(sum) / (float)features;
    const float along = lanes_sum(product) / (float)features;
    for (i = 0; i < features; ++i) {
        const float normal = (x[i] - s->mean) * s->scale;
        const float slope = (g[i] * scale[i] - mean - normal * along) * s->scale;
        to[i] = add ? to[i] + slope : slope;
    }
}

/* `add` is a constant in each copy of the loop: the compiler forms no vectors of a loop with a
 * condition. */
VECTOR_CLONES static void find_slopes(const struct cpu_layer_norm *l, const float *x,
                                      const float *scale, const float *g, float *to, bool add)
{
    const size_t features = l->features;
    for (size_t r = 0; r < l->rows; ++r, x += features, g += features, to += features)
        if (add)
            slopes_of_row(&l->statistics[r], x, scale, g, features, to, true);
        else
            slopes_of_row(&l->statistics[r], x, scale, g, features, to, false);
}

static status forward(struct cpu *c, backend_op *op, const struct op_call *call)
{
    const float *shift = op->d.flags & OP_BIASED ? c->parameters + call->bias : NULL;
    normalise((const struct cpu_layer_norm *)op, call->input[0]->data, c->parameters + call->weight,
              shift, call->output->data);
    return OK;
}

static status backward(struct cpu *c, backend_op *op, const struct op_call *call)
{
    const struct cpu_layer_norm *l = (const struct cpu_layer_norm *)op;
    const float *x = call->input[0]->data, *g = call->output_gradient->data;
    float *scale = c->gradient + call->weight;
    float *shift = op->d.flags & OP_BIASED ? c->gradient + call->bias : NULL;
    if (!call->accumulate_weight)
        memset(scale, 0, l->features * sizeof(float));
    if (shift != NULL && !call->accumulate_bias)
        memset(shift, 0, l->features * sizeof(float));
    add_to_scale(l, x, g, scale, shift);
    if (call->input_gradient[0] != NULL) {
        find_slopes(l, x, c->parameters + call->weight, g, call->input_gradient[0]->data,
                    call->accumulate[0]);
    }
    return OK;
}

static void close_layer_norm(backend_op *op)
{
    memory_free(((struct cpu_layer_norm *)op)->statistics);
    memory_free(op);
}

status cpu_layer_norm_open(struct cpu *c, const struct op_description *d,
                           backend_buffer *const in[2], backend_op **out, backend_buffer **output)
{
    status result = OK;
    struct cpu_layer_norm *l = NULL;
    TRY(cpu_requires_plain(d, in[0]));
    TRY(memory_new(&l, 1, sizeof *l, "layer norm"));
    l->op = (backend_op){*d, forward, backward, close_layer_norm};
    l->rows = (size_t)d->batch * d->input.channels;
    l->features = d->input.width;
    TRY(memory_new(&l->statistics, l->rows, sizeof *l->statistics, "layer norm"));
    TRY(cpu_plain_buffer_new(c, d, output));
    *out = &l->op;
    l = NULL;
done:
    if (l != NULL)
        close_layer_norm(&l->op);
    return result;
}
