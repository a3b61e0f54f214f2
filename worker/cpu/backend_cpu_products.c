/*
 * backend_cpu_products.c — the products of a linear layer in bf16. Operands are rounded to bf16 (to
 * nearest, ties to even) into row-major copies. Products are summed in float32. Results are float32
 * and written to the caller's memory. The weight is rounded at each step, because it changes.
 */
#include "base/memory.h"
#include "worker/cpu/backend_cpu.h"

/* c = a · b; the data pointers are set at each run. */
struct bf16_product {
    dnnl_primitive_t primitive;
    dnnl_memory_t a, b, c;
};

struct cpu_products {
    uint32_t rows, inputs, outputs;
    struct bf16_product forward, weight, input;
    /* Rounded copies: rows × inputs, outputs × inputs, rows × outputs. */
    struct cpu_block x, w, g;
    struct cpu_reorder round_x, round_w, round_g;
};

static const char what[] = "a matrix product in bf16";

static status matrix(onednn_layout *out, uint32_t rows, uint32_t columns, dnnl_data_type_t type,
                     bool transposed)
{
    const dnnl_dims_t dimensions = {rows, columns};
    return cpu_check(onednn_layout_open(out, 2, dimensions, type, transposed ? dnnl_ba : dnnl_ab),
                     what);
}

/* m×k times k×n. The memory of a transposed operand contains its transpose in row-major order. */
static status product_open(struct cpu *c, struct bf16_product *p, uint32_t m, uint32_t n,
                           uint32_t k, bool a_transposed, bool b_transposed)
{
    status result = OK;
    onednn_layout a = NULL, b = NULL, to = NULL;
    dnnl_primitive_desc_t description;
    TRY(matrix(&a, m, k, dnnl_bf16, a_transposed));
    TRY(matrix(&b, k, n, dnnl_bf16, b_transposed));
    TRY(matrix(&to, m, n, dnnl_f32, false));
    TRY_DNNL(onednn_matmul(&description, c->engine, a, b, NULL, to), what);
    TRY(cpu_primitive_new(c, &description, &p->primitive, what));
    TRY(cpu_memory_new(c, a, &p->a));
    TRY(cpu_memory_new(c, b, &p->b));
    TRY(cpu_memory_new(c, to, &p->c));
done:
    onednn_layout_close(&a);
    onednn_layout_close(&b);
    onednn_layout_close(&to);
    return result;
}

static void product_close(struct bf16_product *p)
{
    cpu_primitive_free(&p->primitive);
    cpu_memory_free(&p->a);
    cpu_memory_free(&p->b);
    cpu_memory_free(&p->c);
}

static status product_run(struct cpu *c, const struct bf16_product *p, const struct cpu_block *a,
                          const struct cpu_block *b, float *to)
{
    status result = OK;
    TRY_DNNL(dnnl_memory_set_data_handle(p->a, a->data), what);
    TRY_DNNL(dnnl_memory_set_data_handle(p->b, b->data), what);
    TRY_DNNL(dnnl_memory_set_data_handle(p->c, to), what);
    const dnnl_exec_arg_t arguments[] = {
        {DNNL_ARG_SRC, p->a}, {DNNL_ARG_WEIGHTS, p->b}, {DNNL_ARG_DST, p->c}};
    TRY(cpu_execute(c, p->primitive, 3, arguments, what));
done:
    return result;
}

static status rounding_open(struct cpu *c, onednn_const_layout from, onednn_const_layout to,
                            struct cpu_block *block, struct cpu_reorder *reorder)
{
    status result = OK;
    TRY(cpu_block_open(c, to, block));
    TRY(cpu_reorder_open(c, from, to, reorder));
done:
    return result;
}

/* The input may have any layout; the weight and the result's gradient are row-major. */
static status roundings_open(struct cpu *c, struct cpu_products *p, const backend_buffer *input)
{
    status result = OK;
    onednn_layout from = NULL, to = NULL;
    const struct shape s = input->shape;
    const dnnl_dims_t dimensions = {input->batch, s.channels, s.height, s.width};
    TRY_DNNL(onednn_layout_open(&to, 4, dimensions, dnnl_bf16, dnnl_nchw), what);
    TRY(rounding_open(c, input->layout, to, &p->x, &p->round_x));
    onednn_layout_close(&to);
    TRY(matrix(&from, p->outputs, p->inputs, dnnl_f32, false));
    TRY(matrix(&to, p->outputs, p->inputs, dnnl_bf16, false));
    TRY(rounding_open(c, from, to, &p->w, &p->round_w));
    onednn_layout_close(&from);
    onednn_layout_close(&to);
    TRY(matrix(&from, p->rows, p->outputs, dnnl_f32, false));
    TRY(matrix(&to, p->rows, p->outputs, dnnl_bf16, false));
    TRY(rounding_open(c, from, to, &p->g, &p->round_g));
done:
    onednn_layout_close(&from);
    onednn_layout_close(&to);
    return result;
}

status cpu_products_open(struct cpu *c, const struct op_description *d, const backend_buffer *input,
                         struct cpu_products **out)
{
    status result = OK;
    struct cpu_products *p = NULL;
    TRY(memory_new(&p, 1, sizeof *p, "a layer"));
    p->rows = d->batch * op_rows(d);
    p->inputs = op_features(d);
    p->outputs = (uint32_t)shape_count(d->output) / op_rows(d);
    TRY(roundings_open(c, p, input));
    TRY(product_open(c, &p->forward, p->rows, p->outputs, p->inputs, false, true));
    if (d->flags & OP_TRAINING) {
        TRY(product_open(c, &p->weight, p->outputs, p->inputs, p->rows, true, false));
        if (d->flags & OP_INPUT_GRADIENT)
            TRY(product_open(c, &p->input, p->rows, p->inputs, p->outputs, false, false));
    }
    *out = p;
    p = NULL;
done:
    cpu_products_close(&p);
    return result;
}

void cpu_products_close(struct cpu_products **out)
{
    struct cpu_products *p = *out;
    if (p == NULL)
        return;
    product_close(&p->forward);
    product_close(&p->weight);
    product_close(&p->input);
    cpu_block_close(&p->x);
    cpu_block_close(&p->w);
    cpu_block_close(&p->g);
    cpu_reorder_close(&p->round_x);
    cpu_reorder_close(&p->round_w);
    cpu_reorder_close(&p->round_g);
    memory_free(p);
    *out = NULL;
}

status cpu_products_forward(struct cpu *c, struct cpu_products *p, const float *input,
                            const float *weight, float *output)
{
    status result = OK;
    TRY(cpu_reorder_run(c, &p->round_x, input, p->x.data));
    TRY(cpu_reorder_run(c, &p->round_w, weight, p->w.data));
    TRY(product_run(c, &p->forward, &p->x, &p->w, output));
done:
    return result;
}

status cpu_products_weight(struct cpu *c, struct cpu_products *p, const float *output_gradient,
                           float *weight_gradient, bool accumulate)
{
    status result = OK;
    size_t count = (size_t)p->outputs * p->inputs;
    float *to;
    TRY(cpu_reorder_run(c, &p->round_g, output_gradient, p->g.data));
    TRY(cpu_target(c, weight_gradient, count, accumulate, &to));
    TRY(product_run(c, &p->weight, &p->g, &p->x, to));
    cpu_target_done(weight_gradient, to, count);
done:
    return result;
}

status cpu_products_input(struct cpu *c, struct cpu_products *p, float *input_gradient,
                          bool accumulate)
{
    status result = OK;
    size_t count = (size_t)p->rows * p->inputs;
    float *to;
    TRY(cpu_target(c, input_gradient, count, accumulate, &to));
    TRY(product_run(c, &p->input, &p->g, &p->w, to));
    cpu_target_done(input_gradient, to, count);
done:
    return result;
}
