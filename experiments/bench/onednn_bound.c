/* onednn_bound.c — see onednn_bound.h. */
#include "experiments/bench/onednn_bound.h"

#include "base/memory.h"
#include "worker/cpu/backend_cpu.h"

#include <string.h>

enum { ARGUMENTS = 8 };

/* One primitive, or one product, with memory of its own. */
struct piece {
    dnnl_primitive_t primitive;
    int count;
    dnnl_exec_arg_t arguments[ARGUMENTS];
    struct cpu_block blocks[ARGUMENTS];
    bool is_product; /* dnnl_sgemm in place of a primitive, float32: blocks 0·1 → 2 */
    char ta, tb;
    dnnl_dim_t m, n, k;
};

struct onednn_bound {
    struct cpu *c;
    backend *backend;
    struct piece *pieces;
    size_t count, capacity;
};

static struct piece *new_piece(onednn_bound *b)
{
    REQUIRE(b->count < b->capacity);
    return &b->pieces[b->count++];
}

/* Normal small numbers, both as float32 and as bf16 (two in a word). */
static void fill(struct cpu_block *block)
{
    for (size_t i = 0; i < block->count; ++i) {
        uint32_t half = 0x3c00u + 4u * (uint32_t)(i % 17), bits = half << 16 | half;
        memcpy(&block->data[i], &bits, sizeof bits);
    }
}

static status argument(onednn_bound *b, struct piece *p, int which, onednn_const_layout layout)
{
    status result = OK;
    REQUIRE(p->count < ARGUMENTS);
    struct cpu_block *block = &p->blocks[p->count];
    TRY(cpu_block_open(b->c, layout, block));
    fill(block);
    p->arguments[p->count++] = (dnnl_exec_arg_t){which, block->memory};
done:
    return result;
}

struct argument_query { /* an argument of a primitive, and the query for its layout */
    int argument;
    dnnl_query_t query;
};

/* Adds the primitive of a descriptor; consumes the descriptor. */
static status add_piece(onednn_bound *b, dnnl_primitive_desc_t *d,
                        const struct argument_query *queries, size_t count)
{
    status result = OK;
    struct piece *p = new_piece(b);
    for (size_t i = 0; i < count; ++i) {
        onednn_const_layout layout = cpu_chosen(*d, queries[i].query);
        if (layout != NULL && dnnl_memory_desc_get_size(layout) > 0)
            TRY(argument(b, p, queries[i].argument, layout));
    }
    TRY(cpu_primitive_new(b->c, d, &p->primitive, "a primitive of the bound"));
done:
    if (*d != NULL) {
        dnnl_primitive_desc_destroy(*d);
        *d = NULL;
    }
    return result;
}

/* a · b = c; c is a float32 weight gradient if ta is 'T', else bf16. */
static status add_product_bf16(onednn_bound *b, char ta, char tb, uint32_t m, uint32_t n,
                               uint32_t k)
{
    static const struct argument_query queries[] = {{DNNL_ARG_SRC, dnnl_query_src_md},
                                                    {DNNL_ARG_WEIGHTS, dnnl_query_weights_md},
                                                    {DNNL_ARG_DST, dnnl_query_dst_md}};
    status result = OK;
    onednn_layout layouts[3] = {NULL};
    dnnl_primitive_desc_t d = NULL;
    const dnnl_dims_t shapes[3] = {{m, k}, {k, n}, {m, n}};
    (void)tb; /* unused: oneDNN chooses the layout of every operand */
    for (int i = 0; i < 3; ++i) {
        TRY_DNNL(onednn_layout_open(&layouts[i], 2, shapes[i],
                                    i == 2 && ta == 'T' ? dnnl_f32 : dnnl_bf16,
                                    dnnl_format_tag_any),
                 "a layout");
    }
    TRY_DNNL(onednn_matmul(&d, b->c->engine, layouts[0], layouts[1], NULL, layouts[2]),
             "a matrix product in bf16");
    TRY(add_piece(b, &d, queries, COUNT_OF(queries)));
done:
    for (int i = 0; i < 3; ++i)
        onednn_layout_close(&layouts[i]);
    return result;
}

static status add_product(onednn_bound *b, char ta, char tb, uint32_t m, uint32_t n, uint32_t k)
{
    status result = OK;
    struct piece *p = new_piece(b);
    const uint32_t counts[3] = {m * k, k * n, m * n};
    p->is_product = true;
    p->ta = ta;
    p->tb = tb;
    p->m = m;
    p->n = n;
    p->k = k;
    for (int i = 0; i < 3; ++i) {
        onednn_layout l = NULL;
        TRY(cpu_vector_layout(&l, counts[i]));
        result = argument(b, p, i, l);
        onednn_layout_close(&l);
        TRY(result);
    }
done:
    return result;
}

static status add_linear(onednn_bound *b, const struct op_description *d)
{
    status result = OK;
    uint32_t rows = d->batch * op_rows(d);
    uint32_t inputs = (uint32_t)shape_count(d->input) / op_rows(d);
    uint32_t outputs = (uint32_t)shape_count(d->output) / op_rows(d);
    status (*product)(onednn_bound *, char, char, uint32_t, uint32_t, uint32_t) =
        b->c->bf16 ? add_product_bf16 : add_product;
    TRY(product(b, 'N', 'T', rows, outputs, inputs));
    TRY(product(b, 'T', 'N', outputs, inputs, rows));
    if (d->flags & OP_INPUT_GRADIENT)
        TRY(product(b, 'N', 'N', rows, inputs, outputs));
done:
    return result;
}

static void fill_window(struct onednn_window *w, const struct op_description *d)
{
    *w = (struct onednn_window){.kernel = {d->kernel_height, d->kernel_width},
                                .strides = {d->stride, d->stride},
                                .padding = {d->padding, d->padding}};
    w->padding_end[0] = (dnnl_dim_t)(d->output.height - 1) * d->stride + d->kernel_height -
                        d->input.height - d->padding;
    w->padding_end[1] = (dnnl_dim_t)(d->output.width - 1) * d->stride + d->kernel_width -
                        d->input.width - d->padding;
}

static status any_layout(onednn_bound *b, onednn_layout *out, uint32_t batch, struct shape s)
{
    return cpu_tagged_layout(out, batch, s, b->c->bf16 ? dnnl_bf16 : dnnl_f32, dnnl_format_tag_any);
}

static status add_convolution(onednn_bound *b, const struct op_description *d)
{
    static const struct argument_query forward[] = {{DNNL_ARG_SRC, dnnl_query_src_md},
                                                    {DNNL_ARG_WEIGHTS, dnnl_query_weights_md},
                                                    {DNNL_ARG_DST, dnnl_query_dst_md}};
    static const struct argument_query data[] = {{DNNL_ARG_DIFF_SRC, dnnl_query_diff_src_md},
                                                 {DNNL_ARG_WEIGHTS, dnnl_query_weights_md},
                                                 {DNNL_ARG_DIFF_DST, dnnl_query_diff_dst_md}};
    static const struct argument_query weights[] = {
        {DNNL_ARG_SRC, dnnl_query_src_md},
        {DNNL_ARG_DIFF_WEIGHTS, dnnl_query_diff_weights_md},
        {DNNL_ARG_DIFF_DST, dnnl_query_diff_dst_md}};
    status result = OK;
    onednn_layout in = NULL, out = NULL, weight = NULL, gradient = NULL;
    const dnnl_data_type_t type = b->c->bf16 ? dnnl_bf16 : dnnl_f32;
    dnnl_primitive_desc_t f = NULL, p = NULL;
    struct onednn_window w;
    const dnnl_dims_t shape = {d->output.channels, d->input.channels, d->kernel_height,
                               d->kernel_width};
    fill_window(&w, d);
    cpu_choose_winograd(b->c, d, &w);
    TRY(any_layout(b, &in, d->batch, d->input));
    TRY(any_layout(b, &out, d->batch, d->output));
    TRY_DNNL(onednn_layout_open(&weight, 4, shape, type, dnnl_format_tag_any), "a layout");
    TRY_DNNL(onednn_layout_open(&gradient, 4, shape, dnnl_f32, dnnl_format_tag_any), "a layout");
    TRY_DNNL(onednn_convolution_forward(&f, b->c->engine, dnnl_forward_training, in, weight, NULL,
                                        out, &w, NULL),
             "a convolution");
    TRY_DNNL(onednn_convolution_backward_weights(&p, b->c->engine, in, gradient, NULL, out, &w, f),
             "a convolution's weight gradient");
    TRY(add_piece(b, &p, weights, COUNT_OF(weights)));
    if (d->flags & OP_INPUT_GRADIENT) {
        TRY_DNNL(onednn_convolution_backward_data(&p, b->c->engine, in, weight, out, &w, f),
                 "a convolution's input gradient");
        TRY(add_piece(b, &p, data, COUNT_OF(data)));
    }
    TRY(add_piece(b, &f, forward, COUNT_OF(forward)));
done:
    if (f != NULL)
        dnnl_primitive_desc_destroy(f);
    onednn_layout_close(&in);
    onednn_layout_close(&out);
    onednn_layout_close(&weight);
    onednn_layout_close(&gradient);
    return result;
}

/* The layout of activations between convolutions on this processor. */
static status between_layout(onednn_bound *b, onednn_layout *out, uint32_t batch, struct shape s)
{
    if (b->c->bf16) {
        return cpu_tagged_layout(out, batch, s, dnnl_bf16,
                                 onednn_has_amx() ? dnnl_nhwc : dnnl_nChw16c);
    }
    bool wide =
        (dnnl_get_effective_cpu_isa() & dnnl_cpu_isa_avx512_core) == dnnl_cpu_isa_avx512_core &&
        s.channels > 8;
    return cpu_tagged_layout(out, batch, s, dnnl_f32, wide ? dnnl_nChw16c : dnnl_nChw8c);
}

static status add_pool(onednn_bound *b, const struct op_description *d)
{
    static const struct argument_query forward[] = {{DNNL_ARG_SRC, dnnl_query_src_md},
                                                    {DNNL_ARG_DST, dnnl_query_dst_md},
                                                    {DNNL_ARG_WORKSPACE, dnnl_query_workspace_md}};
    static const struct argument_query backward[] = {{DNNL_ARG_DIFF_SRC, dnnl_query_diff_src_md},
                                                     {DNNL_ARG_DIFF_DST, dnnl_query_diff_dst_md},
                                                     {DNNL_ARG_WORKSPACE, dnnl_query_workspace_md}};
    status result = OK;
    onednn_layout in = NULL, out = NULL;
    dnnl_primitive_desc_t f = NULL, p = NULL;
    struct onednn_window w;
    dnnl_alg_kind_t algorithm =
        d->kind == OP_MAX_POOL ? dnnl_pooling_max : dnnl_pooling_avg_exclude_padding;
    fill_window(&w, d);
    TRY(between_layout(b, &in, d->batch, d->input));
    TRY(between_layout(b, &out, d->batch, d->output));
    TRY_DNNL(
        onednn_pooling_forward(&f, b->c->engine, dnnl_forward_training, algorithm, in, out, &w),
        "a pool");
    TRY_DNNL(onednn_pooling_backward(&p, b->c->engine, algorithm, in, out, &w, f), "a pool");
    TRY(add_piece(b, &p, backward, COUNT_OF(backward)));
    TRY(add_piece(b, &f, forward, COUNT_OF(forward)));
done:
    if (f != NULL)
        dnnl_primitive_desc_destroy(f);
    onednn_layout_close(&in);
    onednn_layout_close(&out);
    return result;
}

static status add_batch_norm(onednn_bound *b, const struct op_description *d)
{
    static const struct argument_query forward[] = {{DNNL_ARG_SRC, dnnl_query_src_md},
                                                    {DNNL_ARG_DST, dnnl_query_dst_md},
                                                    {DNNL_ARG_WORKSPACE, dnnl_query_workspace_md}};
    static const struct argument_query backward[] = {{DNNL_ARG_SRC, dnnl_query_src_md},
                                                     {DNNL_ARG_DIFF_SRC, dnnl_query_diff_src_md},
                                                     {DNNL_ARG_DIFF_DST, dnnl_query_diff_dst_md},
                                                     {DNNL_ARG_WORKSPACE, dnnl_query_workspace_md}};
    status result = OK;
    onednn_layout data = NULL, vector = NULL;
    dnnl_primitive_desc_t f = NULL, p = NULL;
    unsigned flags = d->activation == ACTIVATION_RELU ? dnnl_fuse_norm_relu : 0;
    TRY(between_layout(b, &data, d->batch, d->input));
    TRY(cpu_vector_layout(&vector, d->input.channels));
    TRY_DNNL(onednn_batch_norm_forward(&f, b->c->engine, dnnl_forward_training, data,
                                       BATCH_NORM_EPSILON, flags),
             "batch norm");
    TRY_DNNL(onednn_batch_norm_backward(&p, b->c->engine, data, BATCH_NORM_EPSILON, flags, f),
             "batch norm");
    for (int i = 0; i < 2; ++i) {
        dnnl_primitive_desc_t *chosen = i == 0 ? &p : &f;
        const struct argument_query *queries = i == 0 ? backward : forward;
        TRY(add_piece(b, chosen, queries, i == 0 ? COUNT_OF(backward) : COUNT_OF(forward)));
        TRY(argument(b, &b->pieces[b->count - 1], DNNL_ARG_MEAN, vector));
        TRY(argument(b, &b->pieces[b->count - 1], DNNL_ARG_VARIANCE, vector));
    }
done:
    if (f != NULL)
        dnnl_primitive_desc_destroy(f);
    onednn_layout_close(&data);
    onednn_layout_close(&vector);
    return result;
}

static status add_operation(onednn_bound *b, const struct op_description *d, bool products_only)
{
    switch (d->kind) {
    case OP_LINEAR:
        return add_linear(b, d);
    case OP_CONVOLUTION:
        return add_convolution(b, d);
    case OP_MAX_POOL:
    case OP_AVERAGE_POOL:
        return products_only ? OK : add_pool(b, d);
    case OP_BATCH_NORM:
        return products_only ? OK : add_batch_norm(b, d);
    default:
        return OK; /* elementwise: a bound may assume that it is fused */
    }
}

status onednn_bound_open(onednn_bound **out, const struct op_description *operations, size_t count,
                         bool products_only, const struct backend_options *o)
{
    status result = OK;
    onednn_bound *b = NULL;
    *out = NULL;
    TRY(memory_new(&b, 1, sizeof *b, "the bound"));
    b->capacity = 3 * count;
    TRY(memory_new(&b->pieces, b->capacity, sizeof *b->pieces, "the bound"));
    TRY(backend_cpu.open(&b->backend, o));
    b->c = (struct cpu *)b->backend;
    for (size_t i = 0; i < count; ++i)
        TRY(add_operation(b, &operations[i], products_only));
    *out = b;
    b = NULL;
done:
    onednn_bound_close(&b);
    return result;
}

void onednn_bound_close(onednn_bound **out)
{
    onednn_bound *b = *out;
    if (b == NULL)
        return;
    for (size_t i = 0; b->pieces != NULL && i < b->count; ++i) {
        cpu_primitive_free(&b->pieces[i].primitive);
        for (int k = 0; k < b->pieces[i].count; ++k)
            cpu_block_close(&b->pieces[i].blocks[k]);
    }
    memory_free(b->pieces);
    backend_close(&b->backend);
    memory_free(b);
    *out = NULL;
}

status onednn_bound_run(onednn_bound *b)
{
    status result = OK;
    onednn_set_threads(b->c->threads);
    for (size_t i = 0; i < b->count; ++i) {
        struct piece *p = &b->pieces[i];
        if (p->is_product) {
            dnnl_dim_t lda = p->ta == 'N' ? p->k : p->m, ldb = p->tb == 'N' ? p->n : p->k;
            TRY_DNNL(dnnl_sgemm(p->ta, p->tb, p->m, p->n, p->k, 1, p->blocks[0].data, lda,
                                p->blocks[1].data, ldb, 0, p->blocks[2].data, p->n),
                     "a matrix product");
        } else {
            TRY(cpu_execute(b->c, p->primitive, p->count, p->arguments, "a primitive"));
        }
    }
done:
    return result;
}
