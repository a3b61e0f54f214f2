/* backend_cuda_linear.c — fully connected layers. cublasLt computes the product with bias, ReLU,
 * bias gradient and the mask of the previous ReLU. A LANES input is read transposed, and its
 * gradient is written transposed, so flattening images needs no copy. A layer per position reads
 * ROWS: a row of the product is a position. */
#include "base/memory.h"
#include "worker/cuda/backend_cuda.h"

struct cuda_linear {
    backend_op op;
    uint32_t rows, inputs, outputs;
    struct cuda_room weight,
        weight_gradient;   /* used if their places in the flat vector are not aligned */
    struct cuda_room mask; /* bits: the result of the ReLU is positive */
};

static enum cuda_layout layout_of(const struct cuda_linear *l, const backend_buffer *x)
{
    return l->op.d.flags & OP_PER_POSITION ? ROWS : x->layout;
}

static enum cuda_epilogue epilogue_of(const struct cuda_linear *l, const struct op_call *call)
{
    enum activation a = l->op.d.activation;
    bool simple = a == ACTIVATION_NONE || a == ACTIVATION_RELU;
    if (!(l->op.d.flags & OP_BIASED) || !cuda_aligned(call->bias) || !simple)
        return CUDA_PLAIN;
    if (a == ACTIVATION_NONE)
        return CUDA_BIAS;
    return l->mask.at != NULL ? CUDA_BIAS_RELU_MASK : CUDA_BIAS_RELU;
}

static status forward(struct cuda *c, backend_op *op, const struct op_call *call)
{
    status result = OK;
    struct cuda_linear *l = (struct cuda_linear *)op;
    const enum cuda_layout layout = layout_of(l, call->input[0]);
    bool biased = op->d.flags & OP_BIASED;
    struct cuda_product_shape shape = {.rows = l->rows,
                                       .columns = l->outputs,
                                       .inner = l->inputs,
                                       .a_transposed = layout == LANES,
                                       .b_transposed = true,
                                       .arithmetic = c->arithmetic,
                                       .epilogue = epilogue_of(l, call)};
    struct cuda_product_call k = {.d = cuda_write(call->output)};
    TRY(cuda_operand(c, call->input[0], layout, &k.a));
    TRY(cuda_weight(c, &l->weight, call->weight, (size_t)l->inputs * l->outputs, &k.b));
    if (shape.epilogue != CUDA_PLAIN)
        k.bias = (float *)cuda_parameter(c, call->bias);
    call->output->mask = shape.epilogue == CUDA_BIAS_RELU_MASK ? l->mask.at : NULL;
    k.mask = call->output->mask;
    TRY(cuda_queue_product(c, &shape, &k));
    if (shape.epilogue == CUDA_PLAIN && (biased || op->d.activation != ACTIVATION_NONE)) {
        uint32_t count = l->rows * l->outputs;
        TRY(CUDA_LAUNCH(c, bias_activate, cuda_grid_over(count, 256), .y = k.d,
                        .bias = biased ? cuda_parameter(c, call->bias) : NULL, .count = count,
                        .inner = 1, .channels = l->outputs, .activation = op->d.activation));
    }
done:
    return result;
}

/* True: the product can apply the ReLU that wrote x, because its mask has the same rows. */
static bool masks(const struct cuda_linear *l, const backend_buffer *x, const struct op_call *call)
{
    return x->mask != NULL && op_rows(&x->relu->d) == op_rows(&l->op.d) && !call->accumulate[0];
}

static status input_gradient(struct cuda *c, struct cuda_linear *l, const struct op_call *call)
{
    status result = OK;
    backend_buffer *x = call->input[0], *to = call->input_gradient[0];
    const enum cuda_layout layout = layout_of(l, to);
    const void *g, *weight;
    float *target;
    bool add;
    TRY(cuda_operand(c, call->output_gradient, ROWS, &g));
    TRY(cuda_weight(c, &l->weight, call->weight, (size_t)l->inputs * l->outputs, &weight));
    TRY(cuda_target(c, to, layout, call->accumulate[0], &target, &add));
    bool rows = layout == ROWS, masked = to->layout == ROWS && masks(l, x, call);
    const struct cuda_product_shape shape = {
        .rows = rows ? l->rows : l->inputs,
        .columns = rows ? l->inputs : l->rows,
        .inner = l->outputs,
        .a_transposed = !rows,
        .b_transposed = !rows,
        .arithmetic = c->arithmetic,
        .epilogue = masked ? CUDA_MASKED : CUDA_PLAIN,
        .accumulate = add,
    };
    const struct cuda_product_call k = {.a = rows ? g : weight,
                                        .b = rows ? weight : g,
                                        .d = target,
                                        .mask = masked ? x->mask : NULL};
    TRY(cuda_queue_product(c, &shape, &k));
    TRY(cuda_target_done(c, to, layout, call->accumulate[0]));
    to->masked_by = masked ? x->relu : NULL;
done:
    return result;
}

static status backward(struct cuda *c, backend_op *op, const struct op_call *call)
{
    status result = OK;
    struct cuda_linear *l = (struct cuda_linear *)op;
    backend_buffer *g = call->output_gradient, *x = call->input[0];
    const enum cuda_layout layout = layout_of(l, x);
    TRY(cuda_unactivate(c, op, g, call->output));
    struct cuda_weight_product p = {.shape = {.rows = l->outputs,
                                              .columns = l->inputs,
                                              .inner = l->rows,
                                              .a_transposed = true,
                                              .b_transposed = layout == LANES},
                                    .gradient = g,
                                    .own = &l->weight_gradient,
                                    .biased = op->d.flags & OP_BIASED};
    TRY(cuda_operand(c, g, ROWS, &p.g));
    TRY(cuda_operand(c, x, layout, &p.x));
    TRY(cuda_weight_gradient(c, &p, call));
    if (call->input_gradient[0] != NULL)
        TRY(input_gradient(c, l, call));
done:
    return result;
}

static void close_linear(struct cuda *c, backend_op *op)
{
    struct cuda_linear *l = (struct cuda_linear *)op;
    cuda_room_close(c, &l->weight);
    cuda_room_close(c, &l->weight_gradient);
    cuda_room_close(c, &l->mask);
    memory_free(l);
}

status cuda_linear_open(struct cuda *c, const struct op_description *d,
                        backend_buffer *const in[2] UNUSED, backend_op **out,
                        backend_buffer **output)
{
    status result = OK;
    struct cuda_linear *l = NULL;
    TRY(memory_new(&l, 1, sizeof *l, "a layer"));
    l->op = (backend_op){*d, forward, backward, close_linear};
    l->rows = d->batch * op_rows(d);
    l->inputs = op_features(d);
    l->outputs = (uint32_t)shape_count(d->output) / op_rows(d);
    bool relu = d->activation == ACTIVATION_RELU && (d->flags & OP_TRAINING);
    if (relu)
        TRY(cuda_room_for(c, &l->mask, cuda_mask_bytes(l->rows, l->outputs), "a layer's ReLU"));
    TRY(cuda_buffer_new(c, d->batch, d->output, ROWS, output));
    (*output)->relu = relu ? &l->op : NULL;
    *out = &l->op;
    l = NULL;
done:
    if (l != NULL)
        close_linear(c, &l->op);
    return result;
}
