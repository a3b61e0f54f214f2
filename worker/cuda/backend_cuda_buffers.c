/* backend_cuda_buffers.c — buffers. An operation writes a buffer in one layout. The other layout
 * and the values rounded to bf16 are computed when an operation first reads them in a step. Images
 * that the device gathers from the dataset are written directly in the layouts that are read. */
#include "base/memory.h"
#include "worker/cuda/backend_cuda.h"

#include <string.h>

status cuda_room_for(struct cuda *c, struct cuda_room *r, size_t bytes, const char *what)
{
    status result = OK;
    if (r->bytes < bytes) {
        cuda_commands_retire(c, r->at, NULL);
        *r = (struct cuda_room){0};
        TRY_CUDA(c, memory_new, &r->at, bytes, what);
        r->bytes = bytes;
    }
done:
    return result;
}

void cuda_room_close(struct cuda *c, struct cuda_room *r)
{
    if (r->at != NULL)
        c->kind->memory_free(c->device, r->at);
    *r = (struct cuda_room){0};
}

status cuda_upload(struct cuda *c, void *to, const void *from, size_t bytes)
{
    status result = OK;
    TRY_CUDA(c, copy_up, CUDA_COMPUTE, to, from, bytes);
    TRY(c->kind->synchronize(c->device));
done:
    return result;
}

/* ---- buffers ------------------------------------------------------------------------------------
 */

status cuda_buffer_new(struct cuda *c, uint32_t batch, struct shape s, enum cuda_layout layout,
                       backend_buffer **out)
{
    status result = OK;
    backend_buffer *b = NULL;
    size_t count = batch * shape_count(s);
    if (count > INT32_MAX) {
        FAIL(ERROR_USAGE,
             "device=cuda: %u samples of %u×%u×%u numbers are too many for one buffer; use a "
             "smaller batch",
             batch, s.channels, s.height, s.width);
    }
    TRY(memory_new(&b, 1, sizeof *b, "a batch of activations"));
    b->shape = s;
    b->batch = batch;
    b->count = count;
    b->layout = layout;
    TRY_CUDA(c, memory_new, &b->at[layout], count * sizeof(float), "a batch of activations");
    *out = b;
    b = NULL;
done:
    cuda_buffer_free(c, b);
    return result;
}

void cuda_buffer_free(struct cuda *c, backend_buffer *b)
{
    if (b == NULL)
        return;
    for (int i = 0; i < LAYOUTS; ++i) {
        if (b->at[i] != NULL && !(b->borrowed && i == (int)b->layout))
            c->kind->memory_free(c->device, b->at[i]);
        if (b->rounded[i] != NULL)
            c->kind->memory_free(c->device, b->rounded[i]);
    }
    if (b->host != NULL)
        c->kind->host_free(c->device, b->host);
    memory_free(b);
}

static status queue_transpose(struct cuda *c, const backend_buffer *b, enum cuda_layout from,
                              const float *source, float *to, bool accumulate)
{
    uint32_t features = (uint32_t)(b->count / b->batch);
    uint32_t rows = from == ROWS ? b->batch : features;
    uint32_t columns = from == ROWS ? features : b->batch;
    struct cuda_grid g = {(rows + 31) / 32 * ((columns + 31) / 32), 1, 1, 256};
    return CUDA_LAUNCH(c, transpose, g, .to = to, .from = source, .rows = rows, .columns = columns,
                       .accumulate = accumulate);
}

static status queue_gather(struct cuda *c, const backend_buffer *b, enum cuda_layout layout)
{
    status result = OK;
    const struct cuda_data *d = &c->data;
    const struct cuda_staging *s = &c->staging;
    const uint32_t elements = (uint32_t)dataset_image_size(&d->shape);
    TRY(cuda_stage(c));
    const uint8_t *device = s->device.at;
    struct cuda_grid g = {(elements + 31) / 32, (b->batch + 31) / 32, 1, 256};
    TRY(CUDA_LAUNCH(
        c, gather, g, .images = d->images[b->split],
        .indices = (const uint32_t *)(device + CUDA_STAGED_INDICES),
        .crops = b->cropped ? (const struct crop *)(device + cuda_staged_crops(s->capacity)) : NULL,
        .values = d->values, .to = b->at[layout], .stride = d->shape.tokens ? 1 : elements,
        .channels = d->shape.channels, .height = d->shape.height, .width = d->shape.width,
        .batch = b->batch, .lanes = layout == LANES));
done:
    return result;
}

status cuda_read(struct cuda *c, backend_buffer *b, enum cuda_layout layout, const float **out)
{
    status result = OK;
    if (b->at[layout] == NULL)
        TRY_CUDA(c, memory_new, &b->at[layout], b->count * sizeof(float), "a batch of activations");
    if (!b->valid[layout]) {
        if (b->gathered) {
            TRY(queue_gather(c, b, layout));
        } else {
            REQUIRE(b->valid[b->layout]);
            TRY(queue_transpose(c, b, b->layout, b->at[b->layout], b->at[layout], false));
        }
        b->valid[layout] = true;
    }
    *out = b->at[layout];
done:
    return result;
}

status cuda_operand(struct cuda *c, backend_buffer *b, enum cuda_layout layout, const void **out)
{
    status result = OK;
    const float *full;
    if (c->arithmetic == CUDA_BF16 && b->rounded_valid[layout]) {
        *out = b->rounded[layout];
        goto done;
    }
    TRY(cuda_read(c, b, layout, &full));
    *out = full;
    if (c->arithmetic == CUDA_BF16) {
        if (b->rounded[layout] == NULL) {
            TRY_CUDA(c, memory_new, &b->rounded[layout], b->count * sizeof(uint16_t),
                     "a batch rounded to bf16");
        }
        TRY(CUDA_LAUNCH(c, round, cuda_grid_over(b->count, 256), .to = b->rounded[layout],
                        .from = full, .count = b->count));
        b->rounded_valid[layout] = true;
        *out = b->rounded[layout];
    }
done:
    return result;
}

float *cuda_write(backend_buffer *b)
{
    for (int i = 0; i < LAYOUTS; ++i) {
        b->valid[i] = i == (int)b->layout;
        b->rounded_valid[i] = false;
    }
    b->gathered = false;
    b->masked_by = NULL;
    return b->at[b->layout];
}

status cuda_target(struct cuda *c, backend_buffer *b, enum cuda_layout layout, bool accumulate,
                   float **to, bool *add)
{
    status result = OK;
    if (layout == b->layout) {
        *to = cuda_write(b);
        *add = accumulate;
        goto done;
    }
    if (b->at[layout] == NULL)
        TRY_CUDA(c, memory_new, &b->at[layout], b->count * sizeof(float), "a batch of gradients");
    *to = b->at[layout];
    *add = false;
done:
    return result;
}

status cuda_target_done(struct cuda *c, backend_buffer *b, enum cuda_layout layout, bool accumulate)
{
    if (layout == b->layout)
        return OK;
    return queue_transpose(c, b, layout, b->at[layout], cuda_write(b), accumulate);
}

status cuda_pass(struct cuda *c, backend_buffer *from, backend_buffer *to, bool accumulate)
{
    float *target = cuda_write(to);
    if (from->layout != to->layout)
        return queue_transpose(c, from, from->layout, from->at[from->layout], target, accumulate);
    return CUDA_LAUNCH(c, pass_on, cuda_grid_over(from->count, 256), .to = target,
                       .from = from->at[from->layout], .count = (uint32_t)from->count,
                       .accumulate = accumulate);
}

status cuda_unactivate(struct cuda *c, const backend_op *op, backend_buffer *g, backend_buffer *y)
{
    status result = OK;
    enum activation a = op->d.activation;
    if (a == ACTIVATION_NONE || (a == ACTIVATION_RELU && g->masked_by == op))
        goto done;
    float *at = cuda_write(g);
    TRY(CUDA_LAUNCH(c, activation_backward, cuda_grid_over((g->count + 3) / 4, 256), .to = at,
                    .g = at, .y = y->at[y->layout], .count = g->count, .activation = a));
done:
    return result;
}

/* ---- parameters ---------------------------------------------------------------------------------
 */

status cuda_weight(struct cuda *c, struct cuda_room *own, size_t offset, size_t count,
                   const void **out)
{
    status result = OK;
    bool bf16 = c->arithmetic == CUDA_BF16;
    if (offset % (bf16 ? 8 : 4) == 0) {
        *out = bf16 ? (const void *)((const uint16_t *)c->parameters16.at + offset)
                    : (const void *)cuda_parameter(c, offset);
        goto done;
    }
    TRY(cuda_room_for(c, own, count * sizeof(float), "a layer's weights"));
    *out = own->at;
    if (bf16) {
        TRY(CUDA_LAUNCH(c, round, cuda_grid_over(count, 256), .to = own->at,
                        .from = cuda_parameter(c, offset), .count = count));
    } else {
        TRY(CUDA_LAUNCH(c, pass_on, cuda_grid_over(count, 256), .to = own->at,
                        .from = cuda_parameter(c, offset), .count = (uint32_t)count));
    }
done:
    return result;
}

static status bias_gradient(struct cuda *c, const struct cuda_weight_product *p,
                            const struct op_call *call)
{
    status result = OK;
    const backend_buffer *g = p->gradient;
    float *to = cuda_gradient(c, call->bias);
    uint32_t rows = p->shape.rows;
    if (g->layout == ROWS) {
        struct cuda_grid grid = {(rows + 31) / 32, 1, 1, 256};
        TRY(CUDA_LAUNCH(c, column_sums, grid, .g = g->at[ROWS], .out = to,
                        .rows = (uint32_t)(g->count / rows), .columns = rows,
                        .accumulate = call->accumulate_bias));
    } else {
        struct cuda_grid grid = {rows, 1, 1, CUDA_BLOCK_THREADS};
        TRY(CUDA_LAUNCH(c, row_sums, grid, .g = g->at[LANES], .out = to,
                        .columns = (uint32_t)(g->count / rows),
                        .accumulate = call->accumulate_bias));
    }
    TRY(cuda_gradient_written(c, call->bias, rows));
done:
    return result;
}

status cuda_weight_gradient(struct cuda *c, struct cuda_weight_product *p,
                            const struct op_call *call)
{
    status result = OK;
    size_t count = (size_t)p->shape.rows * p->shape.columns;
    bool here = cuda_aligned(call->weight), add = call->accumulate_weight;
    /* A convolution's gradient (LANES) does not use CUDA_COLUMN_SUMS. Its product is small and its
     * sums are long, so cublasLt splits the sums, and this epilogue does not allow that. */
    bool sums = p->biased && p->gradient->layout == ROWS && cuda_aligned(call->bias) &&
                !call->accumulate_bias && !(here && add);
    struct cuda_product_call k = {.a = p->g, .b = p->x, .d = cuda_gradient(c, call->weight)};
    if (!here) {
        TRY(cuda_room_for(c, p->own, count * sizeof(float), "a layer's gradient"));
        k.d = p->own->at;
    }
    p->shape.arithmetic = c->arithmetic;
    p->shape.accumulate = here && add;
    p->shape.epilogue = sums ? CUDA_COLUMN_SUMS : CUDA_PLAIN;
    k.bias = sums ? cuda_gradient(c, call->bias) : NULL;
    TRY(cuda_queue_product(c, &p->shape, &k));
    if (sums)
        TRY(cuda_gradient_written(c, call->bias, p->shape.rows));
    if (!here) {
        TRY(CUDA_LAUNCH(c, pass_on, cuda_grid_over(count, 256),
                        .to = cuda_gradient(c, call->weight), .from = p->own->at,
                        .count = (uint32_t)count, .accumulate = add));
    }
    TRY(cuda_gradient_written(c, call->weight, count));
    if (p->biased && !sums)
        TRY(bias_gradient(c, p, call));
done:
    return result;
}
