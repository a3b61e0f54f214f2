/* backend_cpu_objects.c — layouts, memories, primitives, the scratchpad and oneDNN's errors; see
 * backend_cpu.h. */
#include "base/memory.h"
#include "worker/cpu/backend_cpu.h"
#include "worker/cpu/backend_cpu_batch16.h"
#include "base/vector.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- oneDNN's errors ---- */

status cpu_check(dnnl_status_t s, const char *what)
{
    status result = OK;
    switch (s) {
    case dnnl_success:
        break;
    case dnnl_out_of_memory:
        FAIL(ERROR_OTHER, "oneDNN ran out of memory in %s; use a smaller batch or fewer workers",
             what);
    case dnnl_unimplemented:
        FAIL(ERROR_USAGE,
             "oneDNN has no implementation of %s for these shapes on this processor; try "
             "precision=fp32 or another model",
             what);
    default:
        FAIL(ERROR_OTHER, "oneDNN: %s failed with status %d; set ONEDNN_VERBOSE=1 to see the call",
             what, (int)s);
    }
done:
    return result;
}

/* ---- layouts, memories, primitives ---- */

status cpu_tagged_layout(onednn_layout *out, uint32_t batch, struct shape s, dnnl_data_type_t type,
                         dnnl_format_tag_t tag)
{
    const dnnl_dims_t dimensions = {batch, s.channels, s.height, s.width};
    return cpu_check(onednn_layout_open(out, 4, dimensions, type, tag), "a tensor's layout");
}

status cpu_plain_layout(onednn_layout *out, uint32_t batch, struct shape s)
{
    return cpu_tagged_layout(out, batch, s, dnnl_f32, dnnl_nchw);
}

status cpu_any_layout(onednn_layout *out, uint32_t batch, struct shape s)
{
    return cpu_tagged_layout(out, batch, s, dnnl_f32, dnnl_format_tag_any);
}

status cpu_vector_layout(onednn_layout *out, uint32_t count)
{
    const dnnl_dims_t dimensions = {count};
    return cpu_check(onednn_layout_open(out, 1, dimensions, dnnl_f32, dnnl_x), "a vector's layout");
}

static bool has_tag(const backend_buffer *b, dnnl_format_tag_t tag)
{
    onednn_layout l = NULL;
    bool same =
        cpu_tagged_layout(&l, b->batch, b->shape, b->bf16 ? dnnl_bf16 : dnnl_f32, tag) == OK &&
        dnnl_memory_desc_equal(l, b->layout);
    onednn_layout_close(&l);
    return same;
}

/* The layout's tag, if it is one of those that kernels test for. */
static dnnl_format_tag_t tag_of(const backend_buffer *b)
{
    static const dnnl_format_tag_t tags[] = {dnnl_nChw16c, dnnl_nhwc, dnnl_Abcd16a};
    for (size_t i = 0; i < COUNT_OF(tags); ++i)
        if (has_tag(b, tags[i]))
            return tags[i];
    return dnnl_format_tag_undef;
}

/* Without spatial positions and padding, a layout blocked by channels is row-major too. */
static bool is_plain(const backend_buffer *b)
{
    if (b->bf16 || has_tag(b, dnnl_nchw))
        return !b->bf16;
    return b->shape.height == 1 && b->shape.width == 1 &&
           b->count == b->batch * shape_count(b->shape) && b->shape.channels % 16 == 0 &&
           b->tag != dnnl_Abcd16a;
}

status cpu_buffer_new(struct cpu *c, uint32_t batch, struct shape s, onednn_const_layout layout,
                      backend_buffer **out)
{
    status result = OK;
    backend_buffer *b = NULL;
    TRY(memory_new(&b, 1, sizeof *b, "a tensor"));
    b->shape = s;
    b->batch = batch;
    TRY_DNNL(onednn_layout_copy(&b->layout, layout), "a tensor's layout");
    b->bf16 = onednn_layout_type(layout) == dnnl_bf16;
    b->tag = tag_of(b);
    size_t bytes = dnnl_memory_desc_get_size(b->layout);
    b->count = bytes / cpu_element_bytes(b->bf16);
    TRY(memory_new(&b->data, bytes, 1, "a tensor"));
    TRY_DNNL(dnnl_memory_create(&b->memory, b->layout, c->engine, b->data), "a tensor");
    b->plain = is_plain(b);
    *out = b;
    b = NULL;
done:
    cpu_buffer_free(b);
    return result;
}

struct cpu_panels cpu_panels_of(const backend_buffer *b)
{
    const size_t places = (size_t)b->shape.height * b->shape.width, channels = b->shape.channels;
    bool blocked = b->tag == dnnl_nChw16c;
    if (channels % VECTOR_LANES != 0 || !(blocked || (b->bf16 && b->tag == dnnl_nhwc)))
        return (struct cpu_panels){0};
    return (struct cpu_panels){.blocks = channels / VECTOR_LANES,
                               .places = places,
                               .place = blocked ? VECTOR_LANES : channels,
                               .block = blocked ? places * VECTOR_LANES : VECTOR_LANES,
                               .image = places * channels};
}

status cpu_plain_buffer_new(struct cpu *c, const struct op_description *d, backend_buffer **out)
{
    status result = OK;
    onednn_layout plain = NULL;
    TRY(cpu_plain_layout(&plain, d->batch, d->output));
    TRY(cpu_buffer_new(c, d->batch, d->output, plain, out));
done:
    onednn_layout_close(&plain);
    return result;
}

status cpu_requires_plain(const struct op_description *d, const backend_buffer *input)
{
    status result = OK;
    if (!input->plain) {
        FAIL(ERROR_USAGE,
             "%s requires a row-major input; the model must call linear or reshape before it",
             op_name(d->kind));
    }
done:
    return result;
}

void cpu_buffer_free(backend_buffer *b)
{
    if (b != NULL) {
        if (b->read != NULL) {
            cpu_reorder_close(b->read);
            memory_free(b->read);
        }
        cpu_memory_free(&b->memory);
        onednn_layout_close(&b->layout);
        memory_free(b->data);
        memory_free(b);
    }
}

onednn_const_layout cpu_chosen(const_dnnl_primitive_desc_t p, dnnl_query_t what)
{
    return dnnl_primitive_desc_query_md(p, what, 0);
}

status cpu_memory_new(struct cpu *c, onednn_const_layout layout, dnnl_memory_t *out)
{
    return cpu_check(dnnl_memory_create(out, layout, c->engine, DNNL_MEMORY_NONE), "a memory");
}

void cpu_memory_free(dnnl_memory_t *m)
{
    if (*m != NULL) {
        dnnl_memory_destroy(*m);
        *m = NULL;
    }
}

void cpu_scratchpad_close(struct cpu *c)
{
    cpu_memory_free(&c->scratchpad);
    memory_free(c->scratchpad_data);
    c->scratchpad_data = NULL;
    c->scratchpad_bytes = 0;
}

static status grow_scratchpad(struct cpu *c, size_t bytes)
{
    status result = OK;
    onednn_layout layout = NULL;
    const dnnl_dims_t dimensions = {(dnnl_dim_t)bytes};
    if (bytes <= c->scratchpad_bytes)
        goto done;
    cpu_scratchpad_close(c);
    TRY(memory_new(&c->scratchpad_data, bytes, 1, "oneDNN's scratchpad"));
    TRY_DNNL(onednn_layout_open(&layout, 1, dimensions, dnnl_u8, dnnl_x), "a scratchpad's layout");
    TRY_DNNL(dnnl_memory_create(&c->scratchpad, layout, c->engine, c->scratchpad_data),
             "a scratchpad");
    c->scratchpad_bytes = bytes;
done:
    onednn_layout_close(&layout);
    return result;
}

status cpu_primitive_new(struct cpu *c, dnnl_primitive_desc_t *description, dnnl_primitive_t *out,
                         const char *what)
{
    status result = OK;
    REQUIRE(onednn_leaves_scratchpad(*description));
    onednn_const_layout scratchpad = cpu_chosen(*description, dnnl_query_scratchpad_md);
    TRY(grow_scratchpad(c, scratchpad != NULL ? dnnl_memory_desc_get_size(scratchpad) : 0));
    TRY_DNNL(dnnl_primitive_create(out, *description), what);
done:
    dnnl_primitive_desc_destroy(*description);
    *description = NULL;
    return result;
}

void cpu_primitive_free(dnnl_primitive_t *p)
{
    if (*p != NULL) {
        dnnl_primitive_destroy(*p);
        *p = NULL;
    }
}

enum { MOST_ARGUMENTS = 12 };

/* A primitive without a scratchpad ignores this argument. */
status cpu_execute(struct cpu *c, dnnl_primitive_t p, int count, const dnnl_exec_arg_t *arguments,
                   const char *what)
{
    dnnl_exec_arg_t all[MOST_ARGUMENTS + 1];
    REQUIRE(count <= MOST_ARGUMENTS);
    memcpy(all, arguments, (size_t)count * sizeof *all);
    if (c->scratchpad != NULL)
        all[count++] = (dnnl_exec_arg_t){DNNL_ARG_SCRATCHPAD, c->scratchpad};
    return cpu_check(dnnl_primitive_execute(p, c->stream, count, all), what);
}

status cpu_block_open(struct cpu *c, onednn_const_layout layout, struct cpu_block *out)
{
    status result = OK;
    size_t bytes = dnnl_memory_desc_get_size(layout);
    out->count = (bytes + sizeof(float) - 1) / sizeof(float);
    TRY(memory_new(&out->data, out->count, sizeof(float), "a layer's buffer"));
    TRY_DNNL(dnnl_memory_create(&out->memory, layout, c->engine, out->data), "a layer's buffer");
done:
    return result;
}

void cpu_block_close(struct cpu_block *b)
{
    cpu_memory_free(&b->memory);
    memory_free(b->data);
    b->data = NULL;
}

status cpu_reorder_open(struct cpu *c, onednn_const_layout from, onednn_const_layout to,
                        struct cpu_reorder *out)
{
    status result = OK;
    dnnl_primitive_desc_t description;
    TRY_DNNL(onednn_reorder(&description, c->engine, from, to), "a change of layout");
    TRY(cpu_primitive_new(c, &description, &out->primitive, "a change of layout"));
    TRY(cpu_memory_new(c, from, &out->from));
    TRY(cpu_memory_new(c, to, &out->to));
done:
    return result;
}

void cpu_reorder_close(struct cpu_reorder *r)
{
    cpu_primitive_free(&r->primitive);
    cpu_memory_free(&r->from);
    cpu_memory_free(&r->to);
}

status cpu_reorder_run(struct cpu *c, const struct cpu_reorder *r, const void *from, void *to)
{
    status result = OK;
    TRY_DNNL(dnnl_memory_set_data_handle(r->from, (void *)from), "a change of layout");
    TRY_DNNL(dnnl_memory_set_data_handle(r->to, to), "a change of layout");
    const dnnl_exec_arg_t arguments[] = {{DNNL_ARG_FROM, r->from}, {DNNL_ARG_TO, r->to}};
    TRY(cpu_execute(c, r->primitive, 2, arguments, "a change of layout"));
done:
    return result;
}

status cpu_scratch(struct cpu *c, size_t count, float **out)
{
    status result = OK;
    if (c->scratch_count < count) {
        memory_free(c->scratch);
        c->scratch = NULL;
        c->scratch_count = 0;
        TRY(memory_new(&c->scratch, count, sizeof(float), "scratch space"));
        c->scratch_count = count;
    }
    *out = c->scratch;
done:
    return result;
}

status cpu_target(struct cpu *c, float *at, size_t count, bool accumulate, float **write)
{
    *write = at;
    return accumulate ? cpu_scratch(c, count, write) : OK;
}

void cpu_target_done(float *at, const float *written, size_t count)
{
    if (at != written)
        cpu_add_into(at, written, count);
}

status cpu_buffer_target(struct cpu *c, backend_buffer *b, bool accumulate, void **write)
{
    status result = OK;
    float *scratch;
    *write = b->data;
    if (accumulate) {
        TRY(cpu_scratch(c, b->count, &scratch));
        *write = scratch;
    }
done:
    return result;
}

void cpu_add_elements(void *to, const void *from, size_t count, bool bf16)
{
    if (bf16)
        cpu_add_into_bf16(to, from, count);
    else
        cpu_add_into(to, from, count);
}

void cpu_buffer_done(backend_buffer *b, const void *written)
{
    if (written != b->data)
        cpu_add_elements(b->data, written, b->count, b->bf16);
}

void cpu_buffer_take(backend_buffer *b, const backend_buffer *from, bool accumulate)
{
    if (accumulate)
        cpu_add_elements(b->data, from->data, b->count, b->bf16);
    else
        memcpy(b->data, from->data, cpu_buffer_bytes(b));
}
