#include "worker/cpu/backend_cpu_batch16.h"

#include "base/memory.h"
#include "worker/cpu/onednn_instructions.h"

const struct batch16_kernels *batch16_form(size_t i)
{
#if defined(__x86_64__) && defined(__GNUC__)
    if (__builtin_cpu_supports("avx512f") && i-- == 0)
        return &batch16_avx512;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && i == 0)
        return &batch16_avx2;
#endif
    (void)i;
    return NULL;
}

static status batch16_layout(onednn_layout *out, uint32_t batch, struct shape s)
{
    return cpu_tagged_layout(out, batch, s, dnnl_f32, dnnl_Abcd16a);
}

/* ---- convolution ---- */

struct cpu_lanes {
    backend_op op;
    const struct batch16_kernels *kernels;
    struct batch16_convolution shape;
    struct cpu_block source, source_gradient; /* used if the input has another layout */
    struct cpu_reorder source_in, source_gradient_out;
    dnnl_primitive_t activation; /* tanh in place, or NULL */
    float *sums;
};

bool cpu_lanes_convolution_fits(const struct op_description *d)
{
    const struct batch16_kernels *kernels = batch16_form(0);
    uint32_t in = d->input.channels, out = d->output.channels;
    if (kernels == NULL || d->batch < LANES || in > 32 || out > 32 || d->stride != 1 ||
        d->padding != 0 || d->kernel_height != d->kernel_width ||
        (d->kernel_height != 3 && d->kernel_height != 5))
        return false;
    /* Without AVX-512 oneDNN's blocks have 8 channels. If oneDNN need not pad, its kernels and
     * these are equally fast up to 16 channels. Above 16 channels oneDNN is faster. */
    if (!onednn_offers("AVX512_CORE") && in % 8 == 0 && out % 8 == 0 && (in > 16 || out > 16))
        return false;
    return out % 16 != 0 || (in > 4 && in < 16);
}

static status forward(struct cpu *c, backend_op *op, const struct op_call *call)
{
    status result = OK;
    struct cpu_lanes *k = (struct cpu_lanes *)op;
    const float *in = call->input[0]->data;
    if (k->source_in.primitive != NULL) {
        TRY(cpu_reorder_run(c, &k->source_in, in, k->source.data));
        in = k->source.data;
    }
    k->kernels->forward(&k->shape, in, c->parameters + call->weight,
                        op->d.flags & OP_BIASED ? c->parameters + call->bias : NULL,
                        op->d.activation == ACTIVATION_RELU, call->output->data);
    if (k->activation != NULL) {
        const dnnl_exec_arg_t a[] = {{DNNL_ARG_SRC, call->output->memory},
                                     {DNNL_ARG_DST, call->output->memory}};
        TRY(cpu_execute(c, k->activation, 2, a, "an activation"));
    }
done:
    return result;
}

static status backward(struct cpu *c, backend_op *op, const struct op_call *call)
{
    status result = OK;
    struct cpu_lanes *k = (struct cpu_lanes *)op;
    backend_buffer *g = call->output_gradient, *to = call->input_gradient[0];
    const float *in = k->source_in.primitive != NULL ? k->source.data : call->input[0]->data;
    cpu_activation_backward(g->data, call->output->data, g->count, op->d.activation);
    k->kernels->backward_weights(
        &k->shape, in, g->data, k->sums, c->gradient + call->weight, call->accumulate_weight,
        op->d.flags & OP_BIASED ? c->gradient + call->bias : NULL, call->accumulate_bias);
    if (to == NULL)
        goto done;
    const float *weight = c->parameters + call->weight;
    if (k->source_gradient_out.primitive == NULL) {
        k->kernels->backward_data(&k->shape, g->data, weight, call->accumulate[0], to->data);
        goto done;
    }
    float *write;
    k->kernels->backward_data(&k->shape, g->data, weight, false, k->source_gradient.data);
    TRY(cpu_target(c, to->data, to->count, call->accumulate[0], &write));
    TRY(cpu_reorder_run(c, &k->source_gradient_out, k->source_gradient.data, write));
    cpu_target_done(to->data, write, to->count);
done:
    return result;
}

static void close_convolution(backend_op *op)
{
    struct cpu_lanes *k = (struct cpu_lanes *)op;
    cpu_block_close(&k->source);
    cpu_block_close(&k->source_gradient);
    cpu_reorder_close(&k->source_in);
    cpu_reorder_close(&k->source_gradient_out);
    cpu_primitive_free(&k->activation);
    memory_free(k->sums);
    memory_free(k);
}

static status open_source(struct cpu *c, struct cpu_lanes *k, const backend_buffer *in)
{
    status result = OK;
    onednn_layout layout = NULL;
    if (in->tag == dnnl_Abcd16a)
        goto done;
    TRY(batch16_layout(&layout, in->batch, in->shape));
    TRY(cpu_block_open(c, layout, &k->source));
    TRY(cpu_reorder_open(c, in->layout, layout, &k->source_in));
    if (k->op.d.flags & OP_INPUT_GRADIENT) {
        TRY(cpu_block_open(c, layout, &k->source_gradient));
        TRY(cpu_reorder_open(c, layout, in->layout, &k->source_gradient_out));
    }
done:
    onednn_layout_close(&layout);
    return result;
}

status cpu_lanes_convolution_open(struct cpu *c, const struct op_description *d,
                                  backend_buffer *const in[2], backend_op **out,
                                  backend_buffer **output)
{
    status result = OK;
    struct cpu_lanes *k = NULL;
    onednn_layout layout = NULL;
    dnnl_primitive_desc_t p;
    TRY(memory_new(&k, 1, sizeof *k, "a layer"));
    k->op = (backend_op){*d, forward, backward, close_convolution};
    k->kernels = batch16_form(0);
    k->shape = (struct batch16_convolution){(d->batch + LANES - 1) / LANES,
                                            d->input.channels,
                                            d->input.height,
                                            d->input.width,
                                            d->output.channels,
                                            d->output.height,
                                            d->output.width,
                                            d->kernel_height};
    TRY(open_source(c, k, in[0]));
    TRY(batch16_layout(&layout, d->batch, d->output));
    if (d->flags & OP_TRAINING) {
        size_t per_output = (size_t)d->input.channels * d->kernel_height * d->kernel_width + 1;
        TRY(memory_new(&k->sums, d->output.channels * per_output * LANES, sizeof(float),
                       "a layer's sums"));
    }
    if (d->activation == ACTIVATION_TANH) {
        TRY_DNNL(onednn_eltwise_forward(&p, c->engine, dnnl_forward_inference, dnnl_eltwise_tanh,
                                        layout),
                 "an activation");
        TRY(cpu_primitive_new(c, &p, &k->activation, "an activation"));
    }
    TRY(cpu_buffer_new(c, d->batch, d->output, layout, output));
    *out = &k->op;
    k = NULL;
done:
    onednn_layout_close(&layout);
    if (k != NULL)
        close_convolution(&k->op);
    return result;
}

/* ---- max pool ---- */

struct cpu_lanes_pool {
    backend_op op;
    const struct batch16_kernels *kernels;
    struct batch16_pool shape;
    uint8_t *which;
};

bool cpu_lanes_pool_fits(const struct op_description *d, const backend_buffer *input)
{
    return batch16_form(0) != NULL && d->kind == OP_MAX_POOL &&
           d->kernel_height * d->kernel_width < 256 && input->tag == dnnl_Abcd16a;
}

static status pool_forward(struct cpu *c UNUSED, backend_op *op, const struct op_call *call)
{
    struct cpu_lanes_pool *k = (struct cpu_lanes_pool *)op;
    k->kernels->max_pool(&k->shape, call->input[0]->data, call->output->data, k->which);
    return OK;
}

static status pool_backward(struct cpu *c UNUSED, backend_op *op, const struct op_call *call)
{
    struct cpu_lanes_pool *k = (struct cpu_lanes_pool *)op;
    if (call->input_gradient[0] != NULL) {
        k->kernels->max_pool_backward(&k->shape, call->output_gradient->data, k->which,
                                      call->accumulate[0], call->input_gradient[0]->data);
    }
    return OK;
}

static void close_pool(backend_op *op)
{
    struct cpu_lanes_pool *k = (struct cpu_lanes_pool *)op;
    memory_free(k->which);
    memory_free(k);
}

status cpu_lanes_pool_open(struct cpu *c, const struct op_description *d,
                           backend_buffer *const in[2] UNUSED, backend_op **out,
                           backend_buffer **output)
{
    status result = OK;
    struct cpu_lanes_pool *k = NULL;
    onednn_layout layout = NULL;
    TRY(memory_new(&k, 1, sizeof *k, "a layer"));
    k->op = (backend_op){*d, pool_forward, pool_backward, close_pool};
    k->kernels = batch16_form(0);
    k->shape = (struct batch16_pool){(d->batch + LANES - 1) / LANES * d->input.channels,
                                     d->input.height,
                                     d->input.width,
                                     d->output.height,
                                     d->output.width,
                                     d->kernel_height,
                                     d->kernel_width,
                                     d->stride};
    TRY(batch16_layout(&layout, d->batch, d->output));
    TRY(cpu_buffer_new(c, d->batch, d->output, layout, output));
    TRY(memory_new(&k->which, (*output)->count, 1, "a pool's choices"));
    *out = &k->op;
    k = NULL;
done:
    onednn_layout_close(&layout);
    if (k != NULL) {
        close_pool(&k->op);
        cpu_buffer_free(*output);
        *output = NULL;
    }
    return result;
}
