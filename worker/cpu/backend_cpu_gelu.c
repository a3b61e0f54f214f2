/*
 * backend_cpu_gelu.c — y = x Φ(x) with Φ(x) = 1 − φ(x) (b₁ t + … + b₅ t⁵) for x ≥ 0, t = 1/(1 + p
 * x) (Abramowitz & Stegun 1964, 26.2.17). Forward and backward share the exponential in φ. The
 * absolute error of Φ is below 2⁻²².
 */
#include "base/memory.h"
#include "worker/cpu/backend_cpu.h"
#include "worker/cpu/backend_cpu_lanes.h"

#include <math.h>

/* Φ(x) and φ(x) */
VECTOR_INLINE float normal_of(float x, float *density)
{
    const float t = 1 / (fabsf(x) * 0.2316419f + 1);
    *density = exponential(x * x * -0.5f) * 0.39894228040143268f;
    float p = t * 1.330274429f - 1.821255978f;
    p = p * t + 1.781477937f;
    p = p * t - 0.356563782f;
    p = p * t + 0.319381530f;
    const float below = 1 - p * t * *density, other = 1 - below;
    return x < 0 ? other : below;
}

VECTOR_CLONES static void apply(const float *restrict x, size_t count, float *restrict y)
{
    for (size_t i = 0; i < count; ++i) {
        float density;
        y[i] = x[i] * normal_of(x[i], &density);
    }
}

/* to ← (or +=) g · (Φ(x) + x φ(x)). `add` is a constant in each copy: the compiler forms no vectors
 * of a loop with a condition. */
VECTOR_INLINE void backward_loop(const float *restrict x, const float *restrict g, size_t count,
                                 float *restrict to, const bool add)
{
    for (size_t i = 0; i < count; ++i) {
        float density;
        const float below = normal_of(x[i], &density);
        const float slope = g[i] * (below + x[i] * density);
        to[i] = add ? to[i] + slope : slope;
    }
}

VECTOR_CLONES static void apply_backward(const float *x, const float *g, size_t count, float *to,
                                         bool add)
{
    if (add)
        backward_loop(x, g, count, to, true);
    else
        backward_loop(x, g, count, to, false);
}

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
