/*
 * backend_cpu_bf16_fallback.c — an operation without bf16 kernels, between activations in bf16.
 * Inputs are converted to float32 in the same layout, and their gradients are rounded. The result
 * is float32.
 */
#include "base/memory.h"
#include "worker/cpu/backend_cpu.h"

struct bf16_fallback {
    backend_op op;
    backend_op *inner;
    struct { /* used if the input is bf16 */
        backend_buffer *value, *gradient;
        struct cpu_reorder widen, round;
    } input[2];
};

static status forward(struct cpu *c, backend_op *op, const struct op_call *call)
{
    status result = OK;
    struct bf16_fallback *w = (struct bf16_fallback *)op;
    struct op_call inner = *call;
    for (int i = 0; i < 2; ++i) {
        backend_buffer *value = w->input[i].value;
        if (value != NULL) {
            TRY(cpu_reorder_run(c, &w->input[i].widen, call->input[i]->data, value->data));
            inner.input[i] = value;
        }
    }
    TRY(w->inner->forward(c, w->inner, &inner));
done:
    return result;
}

static status backward(struct cpu *c, backend_op *op, const struct op_call *call)
{
    status result = OK;
    struct bf16_fallback *w = (struct bf16_fallback *)op;
    struct op_call inner = *call;
    for (int i = 0; i < 2; ++i) {
        if (w->input[i].value != NULL) {
            inner.input[i] = w->input[i].value;
            if (call->input_gradient[i] != NULL) {
                inner.input_gradient[i] = w->input[i].gradient;
                inner.accumulate[i] = false;
            }
        }
    }
    TRY(w->inner->backward(c, w->inner, &inner));
    for (int i = 0; i < 2; ++i) {
        backend_buffer *to = call->input_gradient[i];
        if (to != NULL && w->input[i].value != NULL) {
            void *write;
            TRY(cpu_buffer_target(c, to, call->accumulate[i], &write));
            TRY(cpu_reorder_run(c, &w->input[i].round, w->input[i].gradient->data, write));
            cpu_buffer_done(to, write);
        }
    }
done:
    return result;
}

static void close_widened(backend_op *op)
{
    struct bf16_fallback *w = (struct bf16_fallback *)op;
    for (int i = 0; i < 2; ++i) {
        cpu_buffer_free(w->input[i].value);
        cpu_buffer_free(w->input[i].gradient);
        cpu_reorder_close(&w->input[i].widen);
        cpu_reorder_close(&w->input[i].round);
    }
    if (w->inner != NULL)
        w->inner->close(w->inner);
    memory_free(w);
}

static status open_input(struct cpu *c, struct bf16_fallback *w, int i, const backend_buffer *in)
{
    status result = OK;
    onednn_layout layout = NULL;
    TRY(cpu_tagged_layout(&layout, in->batch, in->shape, dnnl_f32,
                          in->tag == dnnl_format_tag_undef ? dnnl_nchw : in->tag));
    TRY(cpu_buffer_new(c, in->batch, in->shape, layout, &w->input[i].value));
    TRY(cpu_reorder_open(c, in->layout, layout, &w->input[i].widen));
    if (w->op.d.flags & OP_INPUT_GRADIENT) {
        TRY(cpu_buffer_new(c, in->batch, in->shape, layout, &w->input[i].gradient));
        TRY(cpu_reorder_open(c, layout, in->layout, &w->input[i].round));
    }
done:
    onednn_layout_close(&layout);
    return result;
}

status cpu_widened_open(struct cpu *c, const struct op_description *d, backend_buffer *const in[2],
                        backend_op **out, backend_buffer **output)
{
    status result = OK;
    struct bf16_fallback *w = NULL;
    backend_buffer *inputs[2] = {in[0], in[1]};
    TRY(memory_new(&w, 1, sizeof *w, "a layer"));
    w->op = (backend_op){*d, forward, backward, close_widened};
    for (int i = 0; i < 2; ++i) {
        if (in[i] != NULL && in[i]->bf16) {
            TRY(open_input(c, w, i, in[i]));
            inputs[i] = w->input[i].value;
        }
    }
    TRY(cpu_op_open(c, d, inputs, &w->inner, output));
    *out = &w->op;
    w = NULL;
done:
    if (w != NULL)
        close_widened(&w->op);
    return result;
}
