/*
 * backend_cpu_gelu.c — y = x Φ(x) with Φ(x) = 1 − φ(x) (b₁ t + … + b₅ t⁵) for x ≥ 0, t = 1/(1 + p
 * x) (Abramowitz & Stegun 1964, 26.2.17). Forward and backward share the exponential in φ. The
 * absolute error of Φ is below 2⁻²².
 */
#include "base/memory.h"
#include "worker/cpu/backend_cpu.h"
#include "worker/cpu/backend_cpu_lines.h"

enum { LANES = VECTOR_LANES };

/* Φ(x) and φ(x) */
VECTOR_INLINE void normal_of(const vector_line *x, vector_line *below, vector_line *density,
                             bool avx512)
{
    const vector_line size = (vector_line)((vector_bits)*x & 0x7fffffff);
    const vector_line t = 1 / (size * 0.2316419f + 1);
    vector_line e = *x * *x * -0.5f;
    lines_exp(&e, avx512);
    *density = e * 0.39894228040143268f;
    vector_line p = t * 1.330274429f - 1.821255978f;
    p = p * t + 1.781477937f;
    p = p * t - 0.356563782f;
    p = p * t + 0.319381530f;
    *below = 1 - p * t * *density;
    const vector_line zero = {0}, other = 1 - *below;
    vector_mask negative;
    vector_below(&negative, x, &zero, avx512);
    lines_choose(below, &negative, &other);
}

VECTOR_INLINE void apply_loop(const float *x, size_t count, float *y, bool avx512)
{
    for (size_t i = 0; i < count; i += LANES) {
        vector_line v, below, density;
        lines_load(&v, x + i, count - i);
        normal_of(&v, &below, &density, avx512);
        v *= below;
        lines_store(y + i, &v, count - i);
    }
}

VECTOR_FORMS(static, void, apply, (const float *x, size_t count, float *y), x, count, y)

/* to ← (or +=) g · (Φ(x) + x φ(x)) */
VECTOR_INLINE void apply_backward_loop(const float *x, const float *g, size_t count, float *to,
                                       bool add, bool avx512)
{
    for (size_t i = 0; i < count; i += LANES) {
        vector_line v, slope, below, density;
        lines_load(&v, x + i, count - i);
        lines_load(&slope, g + i, count - i);
        normal_of(&v, &below, &density, avx512);
        slope *= below + v * density;
        lines_put(to + i, &slope, count - i, add);
    }
}

VECTOR_FORMS(static, void, apply_backward,
             (const float *x, const float *g, size_t count, float *to, bool add), x, g, count, to,
             add)

static status forward(struct cpu *c UNUSED, backend_op *op UNUSED, const struct op_call *call)
{
    apply(call->input[0]->data, call->output->count, call->output->data);
    return OK;
}

static status backward(struct cpu *c UNUSED, backend_op *op UNUSED, const struct op_call *call)
{
    backend_buffer *to = call->input_gradient[0], *g = call->output_gradient;
    if (to != NULL)
        apply_backward(call->input[0]->data, g->data, g->count, to->data, call->accumulate[0]);
    return OK;
}

static void close_gelu(backend_op *op)
{
    memory_free(op);
}

/* In any layout: padding stays 0. */
status cpu_gelu_open(struct cpu *c, const struct op_description *d, backend_buffer *const in[2],
                     backend_op **out, backend_buffer **output)
{
    status result = OK;
    backend_op *op = NULL;
    TRY(memory_new(&op, 1, sizeof *op, "an activation"));
    *op = (backend_op){*d, forward, backward, close_gelu};
    TRY(cpu_buffer_new(c, d->batch, d->output, in[0]->layout, output));
    *out = op;
    op = NULL;
done:
    memory_free(op);
    return result;
}
