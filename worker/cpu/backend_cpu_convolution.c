/*
 * backend_cpu_convolution.c — convolutions through oneDNN's direct algorithm or Winograd's.
 * cpu_choose_winograd selects it, because oneDNN's automatic choice selects Winograd's even where
 * that is ten times slower. Activations stay in the blocked layout that the primitive prefers.
 * Weights are small; they are copied into the primitive's layout at each step, and their gradient
 * is copied back.
 *
 * In bf16 the primitives read bf16 and sum in float32. Whole blocks of 16 channels are also written
 * in bf16 if kernels of this room read them (leaves_bf16), and are read directly. Weights and other
 * float32 data are rounded by the reorder into the primitive's layout. A rounded source or gradient
 * is computed once per step and used by both products that read it.
 */
#include "base/memory.h"
#include "worker/cpu/backend_cpu.h"
#include "base/vector.h"

#include <string.h>

struct cpu_convolution {
    backend_op op;
    dnnl_primitive_t forward, backward_data, backward_weights;
    size_t weight_count;
    dnnl_memory_t weight_plain, bias, bias_gradient; /* point into the flat vectors */

    /* Each one is used if the primitive's layout differs from the given layout. */
    struct cpu_block source, weight, weight_for_data, weight_gradient, source_gradient,
        source_for_weight, gradient, gradient_for_data;
    struct cpu_reorder source_in, weight_in, weight_for_data_in, weight_gradient_out,
        source_gradient_out, source_for_weight_in, gradient_in, gradient_for_data_in;
    struct cpu_parts *parts; /* NULL: the whole batch in one run */
    bool own_source; /* the weight gradient needs another source layout than the forward pass */
    bool shared_gradient; /* input and weight gradient read the same copy of the output gradient */
};

/* Opens `block` and `reorder` if the layouts differ. */
static status bridge(struct cpu *c, onednn_const_layout from, onednn_const_layout to,
                     onednn_const_layout inner, struct cpu_block *block,
                     struct cpu_reorder *reorder)
{
    status result = OK;
    if (!dnnl_memory_desc_equal(from, to)) {
        TRY(cpu_block_open(c, inner, block));
        TRY(cpu_reorder_open(c, from, to, reorder));
    }
done:
    return result;
}

/* Sets *out to the memory that a primitive reads: `m`, or its copy in the primitive's layout. */
static status bring(struct cpu *c, const struct cpu_block *block, const struct cpu_reorder *reorder,
                    const void *data, dnnl_memory_t m, dnnl_memory_t *out)
{
    status result = OK;
    *out = m;
    if (reorder->primitive != NULL) {
        TRY(cpu_reorder_run(c, reorder, data, block->data));
        *out = block->memory;
    }
done:
    return result;
}

static status point(dnnl_memory_t m, const void *at)
{
    return cpu_check(dnnl_memory_set_data_handle(m, (void *)at), "a convolution");
}

static status forward(struct cpu *c, backend_op *op, const struct op_call *call)
{
    status result = OK;
    struct cpu_convolution *k = (struct cpu_convolution *)op;
    const float *weight = c->parameters + call->weight;
    call->output->rectified = op->d.activation == ACTIVATION_RELU;
    call->output->gradient_rectified = false;
    dnnl_exec_arg_t a[4] = {{DNNL_ARG_SRC, NULL},
                            {DNNL_ARG_WEIGHTS, NULL},
                            {DNNL_ARG_DST, call->output->memory},
                            {DNNL_ARG_BIAS, k->bias}};
    TRY(bring(c, &k->source, &k->source_in, call->input[0]->data, call->input[0]->memory,
              &a[0].memory));
    TRY(point(k->weight_plain, weight));
    TRY(bring(c, &k->weight, &k->weight_in, weight, k->weight_plain, &a[1].memory));
    if (k->bias != NULL)
        TRY(point(k->bias, c->parameters + call->bias));
    if (k->parts != NULL) {
        TRY(cpu_parts_forward(c, k->parts, call, a[1].memory, k->bias));
        goto done;
    }
    TRY(cpu_execute(c, k->forward, k->bias != NULL ? 4 : 3, a, "a convolution"));
done:
    return result;
}

static status backward_weights(struct cpu *c, struct cpu_convolution *k, const struct op_call *call)
{
    status result = OK;
    backend_buffer *in = call->input[0], *g = call->output_gradient;
    dnnl_memory_t source = k->source_in.primitive != NULL ? k->source.memory : in->memory;
    dnnl_memory_t gradient;
    float *weight = c->gradient + call->weight, *bias = c->gradient + call->bias;
    size_t outputs = k->op.d.output.channels;
    float *to = weight, *bias_to = bias;
    if (call->accumulate_weight || call->accumulate_bias) {
        float *scratch;
        TRY(cpu_scratch(c, k->weight_count + outputs, &scratch));
        to = call->accumulate_weight ? scratch : weight;
        bias_to = call->accumulate_bias ? scratch + k->weight_count : bias;
    }
    bool moved = k->weight_gradient_out.primitive != NULL;
    TRY(point(k->weight_plain, to));
    if (k->own_source) {
        TRY(bring(c, &k->source_for_weight, &k->source_for_weight_in, in->data, in->memory,
                  &source));
    }
    TRY(bring(c, &k->gradient, &k->gradient_in, g->data, g->memory, &gradient));
    const dnnl_exec_arg_t a[] = {
        {DNNL_ARG_SRC, source},
        {DNNL_ARG_DIFF_DST, gradient},
        {DNNL_ARG_DIFF_WEIGHTS, moved ? k->weight_gradient.memory : k->weight_plain},
        {DNNL_ARG_DIFF_BIAS, k->bias_gradient}};
    if (k->bias_gradient != NULL)
        TRY(point(k->bias_gradient, bias_to));
    TRY(cpu_execute(c, k->backward_weights, k->bias_gradient != NULL ? 4 : 3, a,
                    "a convolution's weight gradient"));
    if (moved)
        TRY(cpu_reorder_run(c, &k->weight_gradient_out, k->weight_gradient.data, to));
    cpu_target_done(weight, to, k->weight_count);
    if (k->bias_gradient != NULL)
        cpu_target_done(bias, bias_to, outputs);
done:
    return result;
}

static status backward_data(struct cpu *c, struct cpu_convolution *k, const struct op_call *call)
{
    status result = OK;
    backend_buffer *to = call->input_gradient[0], *g = call->output_gradient;
    const float *weight = c->parameters + call->weight;
    void *write;
    dnnl_memory_t weights, gradient = k->gradient.memory;
    bool moved = k->source_gradient_out.primitive != NULL;
    if (!k->shared_gradient) {
        TRY(bring(c, &k->gradient_for_data, &k->gradient_for_data_in, g->data, g->memory,
                  &gradient));
    }
    TRY(point(k->weight_plain, weight));
    TRY(bring(c, &k->weight_for_data, &k->weight_for_data_in, weight, k->weight_plain, &weights));
    if (cpu_parts_backward(k->parts)) {
        TRY(cpu_parts_backward_data(c, k->parts, call, weights));
        goto done;
    }
    TRY(cpu_buffer_target(c, to, call->accumulate[0], &write));
    TRY(point(to->memory, write));
    const dnnl_exec_arg_t a[] = {
        {DNNL_ARG_DIFF_DST, gradient},
        {DNNL_ARG_WEIGHTS, weights},
        {DNNL_ARG_DIFF_SRC, moved ? k->source_gradient.memory : to->memory}};
    TRY(cpu_execute(c, k->backward_data, 3, a, "a convolution's input gradient"));
    if (moved)
        TRY(cpu_reorder_run(c, &k->source_gradient_out, k->source_gradient.data, write));
    TRY(point(to->memory, to->data));
    cpu_buffer_done(to, write);
done:
    return result;
}

static status backward(struct cpu *c, backend_op *op, const struct op_call *call)
{
    status result = OK;
    struct cpu_convolution *k = (struct cpu_convolution *)op;
    backend_buffer *g = call->output_gradient;
    if (!call->output->gradient_rectified && op->d.activation != ACTIVATION_NONE) {
        if (g->bf16)
            cpu_relu_backward_bf16(g->halves, call->output->halves, g->count);
        else
            cpu_activation_backward(g->data, call->output->data, g->count, op->d.activation);
    }
    TRY(backward_weights(c, k, call));
    if (call->input_gradient[0] != NULL)
        TRY(backward_data(c, k, call));
done:
    return result;
}

static void close_convolution(backend_op *op)
{
    struct cpu_convolution *k = (struct cpu_convolution *)op;
    cpu_primitive_free(&k->forward);
    cpu_primitive_free(&k->backward_data);
    cpu_primitive_free(&k->backward_weights);
    cpu_parts_close(&k->parts);
    cpu_memory_free(&k->weight_plain);
    cpu_memory_free(&k->bias);
    cpu_memory_free(&k->bias_gradient);
    struct cpu_block *blocks[] = {&k->source,          &k->weight,           &k->weight_for_data,
                                  &k->weight_gradient, &k->source_gradient,  &k->source_for_weight,
                                  &k->gradient,        &k->gradient_for_data};
    struct cpu_reorder *reorders[] = {&k->source_in,           &k->weight_in,
                                      &k->weight_for_data_in,  &k->weight_gradient_out,
                                      &k->source_gradient_out, &k->source_for_weight_in,
                                      &k->gradient_in,         &k->gradient_for_data_in};
    for (size_t i = 0; i < COUNT_OF(blocks); ++i) {
        cpu_block_close(blocks[i]);
        cpu_reorder_close(reorders[i]);
    }
    memory_free(k);
}

/* True: the result is bf16. A ReLU's derivative can be computed from a bf16 result; a tanh's
 * cannot. The kernels of this room that read bf16 require one thread and whole blocks of 16
 * channels. Other kernels would convert the result to float32 again.
 */
static bool leaves_bf16(const struct cpu *c, const struct op_description *d)
{
    return c->bf16 && c->threads == 1 && d->activation != ACTIVATION_TANH &&
           d->output.channels % VECTOR_LANES == 0;
}

/* Winograd's F(4×4, 3×3) (Lavin & Gray 2016) takes a quarter of the multiplications, transforms all
 * activations, and computes whole tiles of 4×4 positions. At 32 to 128 channels it was 1.1 to 2.0
 * times as fast where chosen here, with relative errors below 1e-5; at 16 channels it is slower.
 * The choice depends on the layer, the precision and whether threads is 1, never on a trial: that
 * could change bits from run to run. */
void cpu_choose_winograd(const struct cpu *c, const struct op_description *d,
                         struct onednn_window *window)
{
    enum { KERNEL = 3, CHANNELS = 32, CHANNELS_WEIGHTS = 64, TILE = 4, SIDE = 2 * TILE };
    const struct shape out = d->output;
    const bool fills_tiles =
        out.height >= SIDE && out.width >= SIDE && out.height % TILE == 0 && out.width % TILE == 0;
    window->winograd = !c->bf16 && c->threads == 1 && d->kernel_height == KERNEL &&
                       d->kernel_width == KERNEL && d->stride == 1 && fills_tiles &&
                       d->input.channels >= CHANNELS && out.channels >= CHANNELS;
    window->winograd_weights = window->winograd && out.channels >= CHANNELS_WEIGHTS;
}

/* Layouts that describe a convolution; `any` lets the primitive choose. Operands have the requested
 * precision; weight gradients and the bias are float32. */
struct layouts {
    onednn_layout source, weight, gradient;                      /* read */
    onednn_layout destination, source_gradient, weight_gradient; /* written */
    onednn_layout weight_plain, bias;                            /* the caller's layouts */
    struct onednn_window window;
};

/* `between`: requested layout of source and destination. */
static status layouts_open(struct cpu *c, struct layouts *l, const struct op_description *d,
                           const backend_buffer *given, dnnl_format_tag_t between)
{
    status result = OK;
    const dnnl_data_type_t type = c->bf16 ? dnnl_bf16 : dnnl_f32;
    const dnnl_dims_t weight = {d->output.channels, d->input.channels, d->kernel_height,
                                d->kernel_width};
    const dnnl_dims_t source = {d->batch, d->input.channels, d->input.height, d->input.width};
    const dnnl_dims_t destination = {d->batch, d->output.channels, d->output.height,
                                     d->output.width};
    const dnnl_format_tag_t any = dnnl_format_tag_any;
    TRY_DNNL(onednn_layout_open(&l->source, 4, source, type, between), "a layout");
    TRY_DNNL(onednn_layout_open(&l->weight, 4, weight, type, any), "a layout");
    TRY_DNNL(onednn_layout_open(&l->gradient, 4, destination, type, any), "a layout");
    TRY_DNNL(onednn_layout_open(&l->destination, 4, destination,
                                leaves_bf16(c, d) ? dnnl_bf16 : dnnl_f32, between),
             "a layout");
    TRY_DNNL(
        onednn_layout_open(&l->source_gradient, 4, source, given->bf16 ? dnnl_bf16 : dnnl_f32, any),
        "a layout");
    TRY_DNNL(onednn_layout_open(&l->weight_gradient, 4, weight, dnnl_f32, any), "a layout");
    TRY_DNNL(onednn_layout_open(&l->weight_plain, 4, weight, dnnl_f32, dnnl_oihw), "a layout");
    if (d->flags & OP_BIASED)
        TRY(cpu_vector_layout(&l->bias, d->output.channels));
    for (int i = 0; i < 2; ++i) {
        uint32_t in = i == 0 ? d->input.height : d->input.width;
        uint32_t out = i == 0 ? d->output.height : d->output.width;
        uint32_t kernel = i == 0 ? d->kernel_height : d->kernel_width;
        l->window.kernel[i] = kernel;
        l->window.strides[i] = d->stride;
        l->window.padding[i] = d->padding;
        l->window.padding_end[i] = (dnnl_dim_t)(out - 1) * d->stride + kernel - in - d->padding;
    }
    cpu_choose_winograd(c, d, &l->window);
done:
    return result;
}

static void layouts_close(struct layouts *l)
{
    onednn_layout_close(&l->source);
    onednn_layout_close(&l->weight);
    onednn_layout_close(&l->gradient);
    onednn_layout_close(&l->destination);
    onednn_layout_close(&l->source_gradient);
    onednn_layout_close(&l->weight_gradient);
    onednn_layout_close(&l->weight_plain);
    onednn_layout_close(&l->bias);
}

/* True: oneDNN chose its reference implementation, which is orders of magnitude slower. */
static bool is_reference(const_dnnl_primitive_desc_t p)
{
    const char *name = NULL;
    return dnnl_primitive_desc_query(p, dnnl_query_impl_info_str, 0, (void *)&name) ==
               dnnl_success &&
           name != NULL && strncmp(name, "ref", 3) == 0;
}

/* Source and output gradient exist in the forward pass's layouts. If no fast implementation accepts
 * these, copies in other layouts are used. A gradient that is rounded anyway goes directly into the
 * best layout. */
static status open_backward_weights(struct cpu *c, struct cpu_convolution *k,
                                    const struct layouts *l, dnnl_primitive_desc_t forward,
                                    onednn_const_layout given, onednn_const_layout source,
                                    onednn_const_layout destination)
{
    status result = OK;
    dnnl_primitive_desc_t p = NULL;
    static const char what[] = "a convolution's weight gradient";
    const bool rounded = c->bf16 && !leaves_bf16(c, &k->op.d);
    TRY_DNNL(onednn_convolution_backward_weights(&p, c->engine, source, l->weight_gradient, l->bias,
                                                 rounded ? l->gradient : destination, &l->window,
                                                 forward),
             what);
    if (is_reference(p)) {
        dnnl_primitive_desc_destroy(p);
        p = NULL;
        TRY_DNNL(onednn_convolution_backward_weights(&p, c->engine, l->source, l->weight_gradient,
                                                     l->bias, l->gradient, &l->window, forward),
                 what);
        onednn_const_layout chosen = cpu_chosen(p, dnnl_query_src_md);
        TRY(bridge(c, given, chosen, chosen, &k->source_for_weight, &k->source_for_weight_in));
        k->own_source = true;
    }
    onednn_const_layout gradient = cpu_chosen(p, dnnl_query_diff_dst_md);
    TRY(bridge(c, destination, gradient, gradient, &k->gradient, &k->gradient_in));
    onednn_const_layout weight = cpu_chosen(p, dnnl_query_diff_weights_md);
    TRY(bridge(c, weight, l->weight_plain, weight, &k->weight_gradient, &k->weight_gradient_out));
    TRY(cpu_primitive_new(c, &p, &k->backward_weights, what));
done:
    if (p != NULL)
        dnnl_primitive_desc_destroy(p);
    return result;
}

static status open_backward_data(struct cpu *c, struct cpu_convolution *k, const struct layouts *l,
                                 dnnl_primitive_desc_t forward, onednn_const_layout given,
                                 onednn_const_layout destination)
{
    status result = OK;
    dnnl_primitive_desc_t p = NULL;
    static const char what[] = "a convolution's input gradient";
    const bool rounded = c->bf16 && !leaves_bf16(c, &k->op.d);
    TRY_DNNL(onednn_convolution_backward_data(&p, c->engine, l->source_gradient, l->weight,
                                              rounded ? l->gradient : destination, &l->window,
                                              forward),
             what);
    if (is_reference(p)) { /* without AVX2: the forward pass's layout has no fast implementation */
        dnnl_primitive_desc_destroy(p);
        p = NULL;
        TRY_DNNL(onednn_convolution_backward_data(&p, c->engine, l->source_gradient, l->weight,
                                                  l->gradient, &l->window, forward),
                 what);
    }
    onednn_const_layout weight = cpu_chosen(p, dnnl_query_weights_md);
    onednn_const_layout chosen = cpu_chosen(p, dnnl_query_diff_src_md);
    TRY(bridge(c, l->weight_plain, weight, weight, &k->weight_for_data, &k->weight_for_data_in));
    TRY(bridge(c, chosen, given, chosen, &k->source_gradient, &k->source_gradient_out));
    chosen = cpu_chosen(p, dnnl_query_diff_dst_md);
    if (c->bf16 && k->gradient.memory != NULL) {
        onednn_const_layout current;
        TRY_DNNL(dnnl_memory_get_memory_desc(k->gradient.memory, &current), what);
        k->shared_gradient = dnnl_memory_desc_equal(current, chosen);
    }
    if (!k->shared_gradient) {
        TRY(bridge(c, destination, chosen, chosen, &k->gradient_for_data,
                   &k->gradient_for_data_in));
    }
    if (k->parts != NULL && k->source_gradient_out.primitive == NULL && !k->shared_gradient &&
        k->gradient_for_data_in.primitive == NULL) {
        const struct cpu_parts_wish wish = {.window = &l->window};
        TRY(cpu_parts_open_backward(c, &k->op.d, k->parts, &wish, p));
        goto done;
    }
    TRY(cpu_primitive_new(c, &p, &k->backward_data, what));
done:
    if (p != NULL)
        dnnl_primitive_desc_destroy(p);
    return result;
}

static status fused_activation(dnnl_primitive_attr_t *out, enum activation a)
{
    status result = OK;
    dnnl_post_ops_t after = NULL;
    TRY_DNNL(onednn_attributes_open(out), "a convolution");
    if (a != ACTIVATION_NONE) {
        TRY_DNNL(dnnl_post_ops_create(&after), "a convolution");
        TRY_DNNL(onednn_append_eltwise(after, a == ACTIVATION_RELU ? dnnl_eltwise_relu
                                                                   : dnnl_eltwise_tanh),
                 "a convolution");
        TRY_DNNL(dnnl_primitive_attr_set_post_ops(*out, after), "a convolution");
    }
done:
    if (after != NULL)
        dnnl_post_ops_destroy(after);
    return result;
}

/* With bf16 results AMX kernels can use one layout (nhwc) throughout, so that no reorders are
 * needed. It is requested explicitly, because some layers alone would choose another layout. */
static status open_forward(struct cpu *c, struct layouts *l, const struct op_description *d,
                           const backend_buffer *given, const_dnnl_primitive_attr_t attributes,
                           dnnl_primitive_desc_t *out)
{
    status result = OK;
    const dnnl_format_tag_t any = dnnl_format_tag_any;
    const dnnl_format_tag_t wishes[] = {leaves_bf16(c, d) && onednn_has_amx() ? dnnl_nhwc : any,
                                        any};
    for (size_t i = 0; i < COUNT_OF(wishes) && *out == NULL; ++i) {
        layouts_close(l);
        TRY(layouts_open(c, l, d, given, wishes[i]));
        TRY_DNNL(onednn_convolution_forward(
                     out, c->engine,
                     d->flags & OP_TRAINING ? dnnl_forward_training : dnnl_forward_inference,
                     l->source, l->weight, l->bias, l->destination, &l->window, attributes),
                 "a convolution");
        if (wishes[i] != any && is_reference(*out)) {
            dnnl_primitive_desc_destroy(*out);
            *out = NULL;
        }
    }
done:
    return result;
}

status cpu_convolution_open(struct cpu *c, const struct op_description *d,
                            backend_buffer *const in[2], backend_op **out, backend_buffer **output)
{
    status result = OK;
    struct cpu_convolution *k = NULL;
    struct layouts l = {0};
    dnnl_primitive_desc_t p = NULL;
    dnnl_primitive_attr_t attributes = NULL;
    TRY(memory_new(&k, 1, sizeof *k, "a layer"));
    k->op = (backend_op){*d, forward, backward, close_convolution};
    k->weight_count =
        (size_t)d->output.channels * d->input.channels * d->kernel_height * d->kernel_width;
    TRY(fused_activation(&attributes, d->activation));
    TRY(open_forward(c, &l, d, in[0], attributes, &p));
    bool training = d->flags & OP_TRAINING;
    onednn_const_layout source = cpu_chosen(p, dnnl_query_src_md);
    onednn_const_layout weight = cpu_chosen(p, dnnl_query_weights_md);
    TRY(bridge(c, in[0]->layout, source, source, &k->source, &k->source_in));
    TRY(bridge(c, l.weight_plain, weight, weight, &k->weight, &k->weight_in));
    TRY(cpu_memory_new(c, l.weight_plain, &k->weight_plain));
    if (d->flags & OP_BIASED) {
        TRY(cpu_memory_new(c, l.bias, &k->bias));
        TRY(cpu_memory_new(c, l.bias, &k->bias_gradient));
    }
    if (k->source_in.primitive == NULL) {
        const struct cpu_parts_wish wish = {l.bias, &l.window, attributes};
        TRY(cpu_parts_open(c, d, &wish, p, &k->parts));
    }
    onednn_const_layout destination = cpu_chosen(p, dnnl_query_dst_md);
    TRY(cpu_buffer_new(c, d->batch, d->output, destination, output));
    if (training) {
        TRY(open_backward_weights(c, k, &l, p, in[0]->layout, source, destination));
        if (d->flags & OP_INPUT_GRADIENT)
            TRY(open_backward_data(c, k, &l, p, in[0]->layout, destination));
    }
    if (k->parts == NULL)
        TRY(cpu_primitive_new(c, &p, &k->forward, "a convolution"));
    *out = &k->op;
    k = NULL;
done:
    if (p != NULL)
        dnnl_primitive_desc_destroy(p);
    if (attributes != NULL)
        dnnl_primitive_attr_destroy(attributes);
    layouts_close(&l);
    if (k != NULL) {
        close_convolution(&k->op);
        cpu_buffer_free(*output);
        *output = NULL;
    }
    return result;
}
