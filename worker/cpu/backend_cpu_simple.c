/*
 * backend_cpu_simple.c — operations without parameters: pools, activations, add, reshape and the
 * losses. All use the given layout, except reshape, whose result is row-major, and the losses,
 * which require a row-major input.
 */
#include "base/memory.h"
#include "worker/cpu/backend_cpu.h"

#include <string.h>

struct cpu_simple {
    backend_op op;
    dnnl_primitive_t forward, backward;
    struct cpu_block workspace; /* position of the largest element */
    struct cpu_reorder in,
        out; /* add: second input to the first's layout and back; reshape: both directions */
    struct cpu_block moved; /* the copy that `in` writes or `out` reads */
};

static void close_simple(backend_op *op)
{
    struct cpu_simple *s = (struct cpu_simple *)op;
    cpu_primitive_free(&s->forward);
    cpu_primitive_free(&s->backward);
    cpu_block_close(&s->workspace);
    cpu_block_close(&s->moved);
    cpu_reorder_close(&s->in);
    cpu_reorder_close(&s->out);
    memory_free(s);
}

static status simple_new(const struct op_description *d, const backend_op *functions,
                         struct cpu_simple **out)
{
    status result = memory_new(out, 1, sizeof **out, "a layer");
    if (result == OK) {
        (*out)->op = *functions;
        (*out)->op.d = *d;
    }
    return result;
}

/* Runs a backward primitive whose result may be added to an existing gradient. */
static status run_backward(struct cpu *c, dnnl_primitive_t p, dnnl_exec_arg_t *arguments, int count,
                           backend_buffer *to, bool accumulate, const char *what)
{
    status result = OK;
    float *write;
    TRY(cpu_target(c, to->data, to->count, accumulate, &write));
    TRY_DNNL(dnnl_memory_set_data_handle(to->memory, write), what);
    arguments[count] = (dnnl_exec_arg_t){DNNL_ARG_DIFF_SRC, to->memory};
    TRY(cpu_execute(c, p, count + 1, arguments, what));
    TRY_DNNL(dnnl_memory_set_data_handle(to->memory, to->data), what);
    cpu_target_done(to->data, write, to->count);
done:
    return result;
}

/* ---- pools ---- */

static status pool_forward(struct cpu *c, backend_op *op, const struct op_call *call)
{
    struct cpu_simple *s = (struct cpu_simple *)op;
    const dnnl_exec_arg_t a[] = {{DNNL_ARG_SRC, call->input[0]->memory},
                                 {DNNL_ARG_DST, call->output->memory},
                                 {DNNL_ARG_WORKSPACE, s->workspace.memory}};
    return cpu_execute(c, s->forward, s->workspace.memory != NULL ? 3 : 2, a, "a pool");
}

static status pool_backward(struct cpu *c, backend_op *op, const struct op_call *call)
{
    struct cpu_simple *s = (struct cpu_simple *)op;
    if (call->input_gradient[0] == NULL)
        return OK;
    dnnl_exec_arg_t a[3] = {{DNNL_ARG_DIFF_DST, call->output_gradient->memory},
                            {DNNL_ARG_WORKSPACE, s->workspace.memory}};
    return run_backward(c, s->backward, a, s->workspace.memory != NULL ? 2 : 1,
                        call->input_gradient[0], call->accumulate[0], "a pool's gradient");
}

static struct onednn_window window_of(const struct op_description *d)
{
    struct onednn_window w = {.kernel = {d->kernel_height, d->kernel_width},
                              .strides = {d->stride, d->stride}};
    w.padding_end[0] =
        (dnnl_dim_t)(d->output.height - 1) * d->stride + d->kernel_height - d->input.height;
    w.padding_end[1] =
        (dnnl_dim_t)(d->output.width - 1) * d->stride + d->kernel_width - d->input.width;
    return w;
}

status cpu_pool_open(struct cpu *c, const struct op_description *d, backend_buffer *const in[2],
                     backend_op **out, backend_buffer **output)
{
    status result = OK;
    struct cpu_simple *s = NULL;
    onednn_layout any = NULL;
    dnnl_primitive_desc_t p = NULL, back = NULL;
    TRY(simple_new(
        d, &(backend_op){.forward = pool_forward, .backward = pool_backward, .close = close_simple},
        &s));
    TRY(cpu_any_layout(&any, d->batch, d->output));
    const struct onednn_window w = window_of(d);
    dnnl_alg_kind_t algorithm =
        d->kind == OP_MAX_POOL ? dnnl_pooling_max : dnnl_pooling_avg_exclude_padding;
    bool training = d->flags & OP_TRAINING;
    TRY_DNNL(onednn_pooling_forward(&p, c->engine,
                                    training ? dnnl_forward_training : dnnl_forward_inference,
                                    algorithm, in[0]->layout, any, &w),
             "a pool");
    onednn_const_layout destination = cpu_chosen(p, dnnl_query_dst_md);
    TRY(cpu_buffer_new(c, d->batch, d->output, destination, output));
    if (training && d->kind == OP_MAX_POOL)
        TRY(cpu_block_open(c, cpu_chosen(p, dnnl_query_workspace_md), &s->workspace));
    if (training) {
        TRY_DNNL(
            onednn_pooling_backward(&back, c->engine, algorithm, in[0]->layout, destination, &w, p),
            "a pool's gradient");
        TRY(cpu_primitive_new(c, &back, &s->backward, "a pool's gradient"));
    }
    TRY(cpu_primitive_new(c, &p, &s->forward, "a pool"));
    *out = &s->op;
    s = NULL;
done:
    if (p != NULL)
        dnnl_primitive_desc_destroy(p);
    onednn_layout_close(&any);
    if (s != NULL) {
        close_simple(&s->op);
        cpu_buffer_free(*output);
        *output = NULL;
    }
    return result;
}

/* ---- activations ---- */

static status activation_forward(struct cpu *c, backend_op *op, const struct op_call *call)
{
    struct cpu_simple *s = (struct cpu_simple *)op;
    const dnnl_exec_arg_t a[] = {{DNNL_ARG_SRC, call->input[0]->memory},
                                 {DNNL_ARG_DST, call->output->memory}};
    return cpu_execute(c, s->forward, 2, a, "an activation");
}

static status activation_backward(struct cpu *c UNUSED, backend_op *op, const struct op_call *call)
{
    backend_buffer *to = call->input_gradient[0], *g = call->output_gradient;
    if (to == NULL)
        return OK;
    cpu_activation_backward(g->data, call->output->data, g->count, op->d.activation);
    if (call->accumulate[0])
        cpu_add_into(to->data, g->data, g->count);
    else
        memcpy(to->data, g->data, g->count * sizeof(float));
    return OK;
}

status cpu_activation_open(struct cpu *c, const struct op_description *d,
                           backend_buffer *const in[2], backend_op **out, backend_buffer **output)
{
    static const dnnl_alg_kind_t algorithms[] = {
        [ACTIVATION_NONE] = dnnl_eltwise_linear,
        [ACTIVATION_RELU] = dnnl_eltwise_relu,
        [ACTIVATION_TANH] = dnnl_eltwise_tanh,
    };
    status result = OK;
    struct cpu_simple *s = NULL;
    dnnl_primitive_desc_t p = NULL;
    REQUIRE(d->activation != ACTIVATION_NONE);
    if (d->activation == ACTIVATION_GELU)
        return cpu_gelu_open(c, d, in, out, output);
    TRY(simple_new(d,
                   &(backend_op){.forward = activation_forward,
                                 .backward = activation_backward,
                                 .close = close_simple},
                   &s));
    bool training = d->flags & OP_TRAINING;
    TRY_DNNL(onednn_eltwise_forward(&p, c->engine,
                                    training ? dnnl_forward_training : dnnl_forward_inference,
                                    algorithms[d->activation], in[0]->layout),
             "an activation");
    TRY(cpu_primitive_new(c, &p, &s->forward, "an activation"));
    TRY(cpu_buffer_new(c, d->batch, d->output, in[0]->layout, output));
    *out = &s->op;
    s = NULL;
done:
    if (p != NULL)
        dnnl_primitive_desc_destroy(p);
    if (s != NULL)
        close_simple(&s->op);
    return result;
}

/* ---- add ---- */

static status add_forward(struct cpu *c, backend_op *op, const struct op_call *call)
{
    status result = OK;
    struct cpu_simple *s = (struct cpu_simple *)op;
    const float *second = call->input[1]->data;
    if (s->in.primitive != NULL) {
        TRY(cpu_reorder_run(c, &s->in, second, s->moved.data));
        second = s->moved.data;
    }
    cpu_add_two(call->output->data, call->input[0]->data, second, call->output->count,
                op->d.activation);
done:
    return result;
}

static status add_backward(struct cpu *c, backend_op *op, const struct op_call *call)
{
    status result = OK;
    struct cpu_simple *s = (struct cpu_simple *)op;
    backend_buffer *g = call->output_gradient;
    cpu_activation_backward(g->data, call->output->data, g->count, op->d.activation);
    for (int i = 0; i < 2; ++i) {
        backend_buffer *to = call->input_gradient[i];
        if (to == NULL || to == g)
            continue;
        if (i == 1 && s->out.primitive != NULL) {
            float *write;
            TRY(cpu_target(c, to->data, to->count, call->accumulate[i], &write));
            TRY(cpu_reorder_run(c, &s->out, g->data, write));
            cpu_target_done(to->data, write, to->count);
        } else if (call->accumulate[i]) {
            cpu_add_into(to->data, g->data, g->count);
        } else {
            memcpy(to->data, g->data, g->count * sizeof(float));
        }
    }
done:
    return result;
}

status cpu_add_open(struct cpu *c, const struct op_description *d, backend_buffer *const in[2],
                    backend_op **out, backend_buffer **output)
{
    status result = OK;
    struct cpu_simple *s = NULL;
    TRY(simple_new(
        d, &(backend_op){.forward = add_forward, .backward = add_backward, .close = close_simple},
        &s));
    if (!dnnl_memory_desc_equal(in[0]->layout, in[1]->layout)) {
        TRY(cpu_block_open(c, in[0]->layout, &s->moved));
        TRY(cpu_reorder_open(c, in[1]->layout, in[0]->layout, &s->in));
        TRY(cpu_reorder_open(c, in[0]->layout, in[1]->layout, &s->out));
    }
    TRY(cpu_buffer_new(c, d->batch, d->output, in[0]->layout, output));
    *out = &s->op;
    s = NULL;
done:
    if (s != NULL)
        close_simple(&s->op);
    return result;
}

/* ---- reshape ---- */

static status reshape_forward(struct cpu *c, backend_op *op, const struct op_call *call)
{
    struct cpu_simple *s = (struct cpu_simple *)op;
    return cpu_reorder_run(c, &s->in, call->input[0]->data, call->output->data);
}

static status reshape_backward(struct cpu *c, backend_op *op, const struct op_call *call)
{
    status result = OK;
    struct cpu_simple *s = (struct cpu_simple *)op;
    backend_buffer *to = call->input_gradient[0];
    if (to != NULL) {
        float *write;
        TRY(cpu_target(c, to->data, to->count, call->accumulate[0], &write));
        TRY(cpu_reorder_run(c, &s->out, call->output_gradient->data, write));
        cpu_target_done(to->data, write, to->count);
    }
done:
    return result;
}

status cpu_reshape_open(struct cpu *c, const struct op_description *d, backend_buffer *const in[2],
                        backend_op **out, backend_buffer **output)
{
    status result = OK;
    struct cpu_simple *s = NULL;
    onednn_layout before = NULL, after = NULL;
    TRY(simple_new(d,
                   &(backend_op){.forward = reshape_forward,
                                 .backward = reshape_backward,
                                 .close = close_simple},
                   &s));
    TRY(cpu_plain_layout(&before, d->batch, d->input));
    TRY(cpu_plain_layout(&after, d->batch, d->output));
    TRY(cpu_reorder_open(c, in[0]->layout, before, &s->in));
    TRY(cpu_reorder_open(c, before, in[0]->layout, &s->out));
    TRY(cpu_buffer_new(c, d->batch, d->output, after, output));
    *out = &s->op;
    s = NULL;
done:
    onednn_layout_close(&before);
    onednn_layout_close(&after);
    if (s != NULL)
        close_simple(&s->op);
    return result;
}

/* ---- cross-entropy ---- */

static struct cpu_answers answers_of(const backend_op *op, const struct op_call *call)
{
    const uint32_t classes = op_features(&op->d);
    return (struct cpu_answers){call->input[0]->data, call->labels, call->valid * op_rows(&op->d),
                                classes, op_targets(op->d.smoothing, classes)};
}

static status loss_forward(struct cpu *c UNUSED, backend_op *op, const struct op_call *call)
{
    struct cpu_answers answers = answers_of(op, call);
    cpu_cross_entropy(&answers, call->loss);
    return OK;
}

static status loss_backward(struct cpu *c UNUSED, backend_op *op, const struct op_call *call)
{
    struct cpu_answers answers = answers_of(op, call);
    if (call->input_gradient[0] != NULL) {
        cpu_cross_entropy_backward(&answers, op->d.batch * op_rows(&op->d),
                                   call->input_gradient[0]->data, call->accumulate[0]);
    }
    return OK;
}

static status loss_open(const struct op_description *d, backend_buffer *const in[2],
                        const struct backend_op *functions, backend_op **out)
{
    status result = OK;
    struct cpu_simple *s = NULL;
    TRY(cpu_requires_plain(d, in[0]));
    TRY(simple_new(d, functions, &s));
    *out = &s->op;
done:
    return result;
}

status cpu_cross_entropy_open(struct cpu *c UNUSED, const struct op_description *d,
                              backend_buffer *const in[2], backend_op **out,
                              backend_buffer **output UNUSED)
{
    return loss_open(
        d, in,
        &(backend_op){.forward = loss_forward, .backward = loss_backward, .close = close_simple},
        out);
}

/* ---- squared error ---- */

static status squares_forward(struct cpu *c UNUSED, backend_op *op, const struct op_call *call)
{
    const uint32_t outputs = op->d.input.channels;
    *call->loss = (struct op_loss){0};
    for (uint32_t n = 0; n < call->valid; ++n) {
        float target = op->d.target_scale * (float)call->labels[n] + op->d.target_shift;
        for (uint32_t k = 0; k < outputs; ++k) {
            double off = (double)call->input[0]->data[(size_t)n * outputs + k] - (double)target;
            call->loss->sum += off * off / 2;
        }
    }
    return OK;
}

static status squares_backward(struct cpu *c UNUSED, backend_op *op, const struct op_call *call)
{
    const uint32_t outputs = op->d.input.channels;
    const float *y = call->input[0]->data;
    for (uint32_t n = 0; call->input_gradient[0] != NULL && n < op->d.batch; ++n) {
        float target = op->d.target_scale * (float)call->labels[n] + op->d.target_shift;
        float *g = call->input_gradient[0]->data + (size_t)n * outputs;
        for (uint32_t k = 0; k < outputs; ++k) {
            float slope = n < call->valid ? (y[n * outputs + k] - target) / (float)call->valid : 0;
            g[k] = call->accumulate[0] ? g[k] + slope : slope;
        }
    }
    return OK;
}

status cpu_squared_error_open(struct cpu *c UNUSED, const struct op_description *d,
                              backend_buffer *const in[2], backend_op **out,
                              backend_buffer **output UNUSED)
{
    return loss_open(d, in,
                     &(backend_op){.forward = squares_forward,
                                   .backward = squares_backward,
                                   .close = close_simple},
                     out);
}
