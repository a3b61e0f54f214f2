/*
 * backend_cpu_linear.c — fully connected layers as GEMMs on the caller's vectors: the weight is
 * read in place, and its gradient is written in place, without copies. dnnl_sgemm is row-major. In
 * bf16 the three products are those of backend_cpu_products.c.
 */
#include "base/memory.h"
#include "worker/cpu/backend_cpu.h"

struct cpu_linear {
    backend_op op;
    uint32_t rows, inputs, outputs;
    dnnl_primitive_t activation; /* tanh in place on the output, or NULL */
    /* Used if the input is not row-major. */
    struct cpu_block matrix, matrix_gradient;
    struct cpu_reorder gather, scatter;
    struct cpu_products *bf16; /* the products in bf16, or NULL */
};

static status sgemm(char ta, char tb, uint32_t m, uint32_t n, uint32_t k, const float *a,
                    const float *b, float *out, bool accumulate)
{
    return cpu_check(dnnl_sgemm(ta, tb, m, n, k, 1, a, ta == 'N' ? k : m, b, tb == 'N' ? n : k,
                                accumulate ? 1 : 0, out, n),
                     "a matrix product");
}

/* The input as a matrix of rows × inputs. */
static status input_matrix(struct cpu *c, struct cpu_linear *l, backend_buffer *input, bool refresh,
                           const float **out)
{
    status result = OK;
    *out = input->data;
    if (l->gather.primitive != NULL) {
        if (refresh)
            TRY(cpu_reorder_run(c, &l->gather, input->data, l->matrix.data));
        *out = l->matrix.data;
    }
done:
    return result;
}

static status forward(struct cpu *c, backend_op *op, const struct op_call *call)
{
    status result = OK;
    struct cpu_linear *l = (struct cpu_linear *)op;
    const float *x;
    float *y = call->output->data;
    const float *bias = op->d.flags & OP_BIASED ? c->parameters + call->bias : NULL;
    const float *weight = c->parameters + call->weight;
    if (l->bf16 != NULL) {
        TRY(cpu_products_forward(c, l->bf16, call->input[0]->data, weight, y));
    } else {
        TRY(input_matrix(c, l, call->input[0], true, &x));
        TRY(sgemm('N', 'T', l->rows, l->outputs, l->inputs, x, weight, y, false));
    }
    cpu_bias_activate(y, bias, l->rows, l->outputs, op->d.activation);
    if (l->activation != NULL) {
        const dnnl_exec_arg_t arguments[] = {{DNNL_ARG_SRC, call->output->memory},
                                             {DNNL_ARG_DST, call->output->memory}};
        TRY(cpu_execute(c, l->activation, 2, arguments, "an activation"));
    }
done:
    return result;
}

static status backward(struct cpu *c, backend_op *op, const struct op_call *call)
{
    status result = OK;
    struct cpu_linear *l = (struct cpu_linear *)op;
    const float *x;
    float *g = call->output_gradient->data;
    cpu_activation_backward(g, call->output->data, (size_t)l->rows * l->outputs, op->d.activation);
    if (op->d.flags & OP_BIASED)
        cpu_column_sums(g, l->rows, l->outputs, c->gradient + call->bias, call->accumulate_bias);
    /* `matrix` still holds this call's input, because a tape uses an operation once per step. */
    float *weight = c->gradient + call->weight;
    if (l->bf16 != NULL) {
        TRY(cpu_products_weight(c, l->bf16, g, weight, call->accumulate_weight));
    } else {
        TRY(input_matrix(c, l, call->input[0], false, &x));
        TRY(sgemm('T', 'N', l->outputs, l->inputs, l->rows, g, x, weight, call->accumulate_weight));
    }
    backend_buffer *gradient = call->input_gradient[0];
    if (gradient != NULL) {
        bool moved = l->scatter.primitive != NULL;
        float *to = moved ? l->matrix_gradient.data : gradient->data;
        bool add = !moved && call->accumulate[0];
        if (l->bf16 != NULL) {
            TRY(cpu_products_input(c, l->bf16, to, add));
        } else {
            TRY(sgemm('N', 'N', l->rows, l->inputs, l->outputs, g, c->parameters + call->weight, to,
                      add));
        }
        if (moved) {
            void *write;
            TRY(cpu_buffer_target(c, gradient, call->accumulate[0], &write));
            TRY(cpu_reorder_run(c, &l->scatter, to, write));
            cpu_buffer_done(gradient, write);
        }
    }
done:
    return result;
}

static void close_linear(backend_op *op)
{
    struct cpu_linear *l = (struct cpu_linear *)op;
    cpu_primitive_free(&l->activation);
    cpu_block_close(&l->matrix);
    cpu_block_close(&l->matrix_gradient);
    cpu_reorder_close(&l->gather);
    cpu_reorder_close(&l->scatter);
    cpu_products_close(&l->bf16);
    memory_free(l);
}

static status open_reorders(struct cpu *c, struct cpu_linear *l, const backend_buffer *input)
{
    status result = OK;
    onednn_layout plain = NULL;
    TRY(cpu_plain_layout(&plain, input->batch, input->shape));
    if (!c->bf16) {
        TRY(cpu_block_open(c, plain, &l->matrix));
        TRY(cpu_reorder_open(c, input->layout, plain, &l->gather));
    }
    if (l->op.d.flags & OP_INPUT_GRADIENT) {
        TRY(cpu_block_open(c, plain, &l->matrix_gradient));
        TRY(cpu_reorder_open(c, plain, input->layout, &l->scatter));
    }
done:
    onednn_layout_close(&plain);
    return result;
}

status cpu_linear_open(struct cpu *c, const struct op_description *d, backend_buffer *const in[2],
                       backend_op **out, backend_buffer **output)
{
    status result = OK;
    struct cpu_linear *l = NULL;
    onednn_layout plain = NULL;
    TRY(memory_new(&l, 1, sizeof *l, "a layer"));
    l->op = (backend_op){*d, forward, backward, close_linear};
    l->rows = d->batch * op_rows(d);
    l->inputs = op_features(d);
    l->outputs = (uint32_t)shape_count(d->output) / op_rows(d);
    if (!in[0]->plain)
        TRY(open_reorders(c, l, in[0]));
    if (c->bf16)
        TRY(cpu_products_open(c, d, in[0], &l->bf16));
    TRY(cpu_plain_layout(&plain, d->batch, d->output));
    if (d->activation == ACTIVATION_TANH) {
        dnnl_primitive_desc_t p;
        TRY_DNNL(
            onednn_eltwise_forward(&p, c->engine, dnnl_forward_inference, dnnl_eltwise_tanh, plain),
            "an activation");
        TRY(cpu_primitive_new(c, &p, &l->activation, "an activation"));
    }
    TRY(cpu_buffer_new(c, d->batch, d->output, plain, output));
    *out = &l->op;
    l = NULL;
done:
    onednn_layout_close(&plain);
    if (l != NULL)
        close_linear(&l->op);
    return result;
}
