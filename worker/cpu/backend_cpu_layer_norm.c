/*
 * backend_cpu_layer_norm.c — y = γ x̂ + β with x̂ = (x − mean) / √(variance + ε) over the features of
 * each row. Forward keeps mean and 1/√(variance + ε) of each row. With h = γ · (gradient of y) the
 * gradient of x is (h − mean(h) − x̂ mean(h x̂)) / √(variance + ε).
 */
#include "base/memory.h"
#include "worker/cpu/backend_cpu.h"
#include "worker/cpu/backend_cpu_lines.h"

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

VECTOR_INLINE struct row_statistics statistics_of(const float *x, size_t features)
{
    vector_line sum = {0}, square = {0}, v;
    for (size_t i = 0; i < features; i += LANES) {
        lines_load(&v, x + i, features - i);
        sum += v;
    }
    const float mean = lines_sum(&sum) / (float)features;
    for (size_t i = 0; i < features; i += LANES) {
        lines_load(&v, x + i, features - i);
        v -= mean;
        lines_fill(&v, features - i, 0);
        square += v * v;
    }
    const float variance = lines_sum(&square) / (float)features;
    return (struct row_statistics){mean, 1 / sqrtf(variance + LAYER_NORM_EPSILON)};
}

VECTOR_CLONES static void normalise(const struct cpu_layer_norm *l, const float *x,
                                    const float *scale, const float *shift, float *y)
{
    const size_t features = l->features;
    for (size_t r = 0; r < l->rows; ++r, x += features, y += features) {
        const struct row_statistics s = l->statistics[r] = statistics_of(x, features);
        for (size_t i = 0; i < features; i += LANES) {
            vector_line v, w;
            lines_load(&v, x + i, features - i);
            lines_load(&w, scale + i, features - i);
            v = (v - s.mean) * s.scale * w;
            if (shift != NULL) {
                lines_load(&w, shift + i, features - i);
                v += w;
            }
            lines_store(y + i, &v, features - i);
        }
    }
}

/* Line i of a row: x̂ and the gradient of y. */
VECTOR_INLINE void load_pair(const struct row_statistics *s, const float *x, const float *g,
                             size_t left, vector_line *normal, vector_line *slope)
{
    lines_load(normal, x, left);
    *normal = (*normal - s->mean) * s->scale;
    lines_load(slope, g, left);
}

/* γ's gradient += Σ g x̂; β's += Σ g (NULL: no β). */
VECTOR_CLONES static void add_to_scale(const struct cpu_layer_norm *l, const float *x,
                                       const float *g, float *scale, float *shift)
{
    const size_t features = l->features;
    for (size_t i = 0; i < features; i += LANES) {
        vector_line sum = {0}, product = {0}, normal, slope;
        for (size_t r = 0; r < l->rows; ++r) {
            const size_t at = r * features + i;
            load_pair(&l->statistics[r], x + at, g + at, features - i, &normal, &slope);
            product += slope * normal;
            sum += slope;
        }
        lines_put(scale + i, &product, features - i, true);
        if (shift != NULL)
            lines_put(shift + i, &sum, features - i, true);
    }
}

VECTOR_CLONES static void find_slopes(const struct cpu_layer_norm *l, const float *x,
                                      const float *scale, const float *g, float *to, bool add)
{
    const size_t features = l->features;
    for (size_t r = 0; r < l->rows; ++r, x += features, g += features, to += features) {
        const struct row_statistics *s = &l->statistics[r];
        vector_line sum = {0}, product = {0}, normal, slope, w;
        for (size_t i = 0; i < features; i += LANES) {
            load_pair(s, x + i, g + i, features - i, &normal, &slope);
            lines_load(&w, scale + i, features - i);
            sum += slope * w;
            product += slope * w * normal;
        }
        const float mean = lines_sum(&sum) / (float)features;
        const float along = lines_sum(&product) / (float)features;
        for (size_t i = 0; i < features; i += LANES) {
            load_pair(s, x + i, g + i, features - i, &normal, &slope);
            lines_load(&w, scale + i, features - i);
            w = (slope * w - mean - normal * along) * s->scale;
            lines_put(to + i, &w, features - i, add);
        }
    }
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
