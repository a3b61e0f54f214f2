/*
 * backend_cpu_parts.c — a convolution that runs part by part of its batch. A part's result is still
 * in the cache when the batch norm that reads it computes its sums (struct cpu_watch), or when it
 * is added to an existing gradient. A whole batch would have left the cache by then. The images of
 * a batch are independent, so every value is the same as in one run.
 */
#include "base/memory.h"
#include "worker/cpu/backend_cpu.h"

enum {
    PART_BYTES = 1 << 19, /* a part's input and output; the next operation needs cache, too */
    /* In bf16 fewer, larger parts are better: oneDNN's AMX kernels query the tile configuration
     * (CPUID) in each call, and under a hypervisor this takes as long as a tenth of a part. */
    PART_BYTES_BF16 = 1 << 21,
    SMALLEST = 4 /* images; smaller parts are slower */
};

struct cpu_parts {
    uint32_t count, images;                 /* number of parts; images in each */
    size_t source_bytes, destination_bytes; /* of one part */
    dnnl_primitive_t forward, backward_data;
    dnnl_memory_t source, destination;
};

static const char what[] = "a part of a convolution";

static size_t image_bytes(struct shape s, onednn_const_layout layout)
{
    return shape_count(s) * cpu_element_bytes(onednn_layout_type(layout) == dnnl_bf16);
}

static uint32_t images_per_part(const struct cpu *c, const struct op_description *d,
                                onednn_const_layout from, onednn_const_layout to)
{
    size_t bytes = image_bytes(d->input, from) + image_bytes(d->output, to);
    const size_t most = onednn_layout_type(to) == dnnl_bf16 ? PART_BYTES_BF16 : PART_BYTES;
    uint32_t images = d->batch;
    if (c->threads == 1 && d->batch * bytes > most &&
        onednn_layout_type(from) == onednn_layout_type(to)) {
        for (images = d->batch - 1; images > 1; --images)
            if (d->batch % images == 0 && images * bytes <= most)
                break;
    }
    return images < SMALLEST ? d->batch : images;
}

static status part_layout(onednn_layout *out, onednn_const_layout whole, uint32_t images,
                          struct shape s)
{
    const dnnl_dims_t dimensions = {images, s.channels, s.height, s.width};
    return cpu_check(onednn_layout_part(out, whole, dimensions), what);
}

static status open_memories(struct cpu *c, struct cpu_parts *p, onednn_const_layout source,
                            onednn_const_layout destination)
{
    status result = OK;
    p->source_bytes = dnnl_memory_desc_get_size(source);
    p->destination_bytes = dnnl_memory_desc_get_size(destination);
    TRY(cpu_memory_new(c, source, &p->source));
    TRY(cpu_memory_new(c, destination, &p->destination));
done:
    return result;
}

/* True: `count` parts follow each other without a gap. */
static bool adds_up(onednn_const_layout part, onednn_const_layout whole, uint32_t count)
{
    return dnnl_memory_desc_get_size(part) * count == dnnl_memory_desc_get_size(whole);
}

status cpu_parts_open(struct cpu *c, const struct op_description *d,
                      const struct cpu_parts_wish *wish, const_dnnl_primitive_desc_t whole,
                      struct cpu_parts **out)
{
    status result = OK;
    struct cpu_parts *p = NULL;
    onednn_layout source = NULL, destination = NULL;
    onednn_const_layout from = cpu_chosen(whole, dnnl_query_src_md);
    onednn_const_layout to = cpu_chosen(whole, dnnl_query_dst_md);
    dnnl_primitive_desc_t description = NULL;
    uint32_t images = images_per_part(c, d, from, to);
    *out = NULL;
    if (images == d->batch)
        goto done;
    TRY(memory_new(&p, 1, sizeof *p, "a layer"));
    p->images = images;
    p->count = d->batch / images;
    TRY(part_layout(&source, from, images, d->input));
    TRY(part_layout(&destination, to, images, d->output));
    if (!adds_up(source, from, p->count) || !adds_up(destination, to, p->count))
        goto done;
    TRY(open_memories(c, p, source, destination));
    TRY_DNNL(onednn_convolution_forward(&description, c->engine,
                                        d->flags & OP_TRAINING ? dnnl_forward_training
                                                               : dnnl_forward_inference,
                                        source, cpu_chosen(whole, dnnl_query_weights_md),
                                        wish->bias, destination, wish->window, wish->attributes),
             what);
    TRY(cpu_primitive_new(c, &description, &p->forward, what));
    *out = p;
    p = NULL;
done:
    onednn_layout_close(&source);
    onednn_layout_close(&destination);
    cpu_parts_close(&p);
    return result;
}

status cpu_parts_open_backward(struct cpu *c, const struct op_description *d, struct cpu_parts *p,
                               const struct cpu_parts_wish *wish, const_dnnl_primitive_desc_t whole)
{
    status result = OK;
    onednn_layout source = NULL, destination = NULL;
    const_dnnl_primitive_desc_t forward;
    dnnl_primitive_desc_t description = NULL;
    TRY(part_layout(&source, cpu_chosen(whole, dnnl_query_diff_src_md), p->images, d->input));
    TRY(part_layout(&destination, cpu_chosen(whole, dnnl_query_diff_dst_md), p->images, d->output));
    TRY_DNNL(dnnl_primitive_get_primitive_desc(p->forward, &forward), what);
    TRY_DNNL(onednn_convolution_backward_data(&description, c->engine, source,
                                              cpu_chosen(whole, dnnl_query_weights_md), destination,
                                              wish->window, forward),
             what);
    TRY(cpu_primitive_new(c, &description, &p->backward_data, what));
done:
    onednn_layout_close(&source);
    onednn_layout_close(&destination);
    return result;
}

bool cpu_parts_backward(const struct cpu_parts *p)
{
    return p != NULL && p->backward_data != NULL;
}

void cpu_parts_close(struct cpu_parts **out)
{
    struct cpu_parts *p = *out;
    if (p != NULL) {
        cpu_primitive_free(&p->forward);
        cpu_primitive_free(&p->backward_data);
        cpu_memory_free(&p->source);
        cpu_memory_free(&p->destination);
        memory_free(p);
        *out = NULL;
    }
}

static status point(const struct cpu_parts *p, void *source, void *destination)
{
    status result = OK;
    TRY_DNNL(dnnl_memory_set_data_handle(p->source, source), what);
    TRY_DNNL(dnnl_memory_set_data_handle(p->destination, destination), what);
done:
    return result;
}

static void show(const struct cpu_watch *watch, void *data, const struct cpu_parts *p, uint32_t i)
{
    if (watch->see != NULL)
        watch->see(watch->reader, data, (size_t)i * p->images, p->images);
}

static void *part(const backend_buffer *b, size_t i, size_t bytes)
{
    return (char *)b->data + i * bytes;
}

status cpu_parts_forward(struct cpu *c, const struct cpu_parts *p, const struct op_call *call,
                         dnnl_memory_t weights, dnnl_memory_t bias)
{
    status result = OK;
    const dnnl_exec_arg_t a[] = {{DNNL_ARG_SRC, p->source},
                                 {DNNL_ARG_WEIGHTS, weights},
                                 {DNNL_ARG_DST, p->destination},
                                 {DNNL_ARG_BIAS, bias}};
    for (uint32_t i = 0; i < p->count; ++i) {
        TRY(point(p, part(call->input[0], i, p->source_bytes),
                  part(call->output, i, p->destination_bytes)));
        TRY(cpu_execute(c, p->forward, bias != NULL ? 4 : 3, a, what));
        show(&call->output->value_watch, call->output->data, p, i);
    }
done:
    return result;
}

status cpu_parts_backward_data(struct cpu *c, const struct cpu_parts *p, const struct op_call *call,
                               dnnl_memory_t weights)
{
    status result = OK;
    const dnnl_exec_arg_t a[] = {{DNNL_ARG_DIFF_DST, p->destination},
                                 {DNNL_ARG_WEIGHTS, weights},
                                 {DNNL_ARG_DIFF_SRC, p->source}};
    const backend_buffer *to = call->input_gradient[0];
    for (uint32_t i = 0; i < p->count; ++i) {
        void *at = part(to, i, p->source_bytes), *write = at;
        if (call->accumulate[0]) {
            float *scratch;
            TRY(cpu_scratch(c, p->source_bytes / sizeof(float), &scratch));
            write = scratch;
        }
        TRY(point(p, write, part(call->output_gradient, i, p->destination_bytes)));
        TRY(cpu_execute(c, p->backward_data, 3, a, what));
        if (write != at)
            cpu_add_elements(at, write, p->source_bytes / cpu_element_bytes(to->bf16), to->bf16);
        if (call->complete[0])
            show(&call->input[0]->gradient_watch, to->data, p, i);
    }
done:
    return result;
}
