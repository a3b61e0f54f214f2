/* backend_cuda_attention.c — causal self-attention, on ROWS. One kernel forward, two backward
 * (kernels/cuda_kernels_attention.h). Forward keeps one number for each query, backward one more.
 */
#include "base/memory.h"
#include "worker/cuda/backend_cuda.h"

#include <math.h>

struct cuda_attention {
    backend_op op;
    struct attention_shape shape;
    struct cuda_grid grid;
    struct cuda_room rows; /* norm, slope: [batch][heads][positions] each */
    size_t count;          /* of each */
};

static float *norm_of(const struct cuda_attention *a)
{
    return a->rows.at;
}

static float *slope_of(const struct cuda_attention *a)
{
    return (float *)a->rows.at + a->count;
}

static status forward(struct cuda *c, backend_op *op, const struct op_call *call)
{
    status result = OK;
    const struct cuda_attention *a = (const struct cuda_attention *)op;
    const float *x;
    TRY(cuda_read(c, call->input[0], ROWS, &x));
    TRY(CUDA_LAUNCH(c, attention_forward, a->grid, .x = x, .y = cuda_write(call->output),
                    .norm = norm_of(a), .s = a->shape));
done:
    return result;
}

static status backward(struct cuda *c, backend_op *op, const struct op_call *call)
{
    status result = OK;
    const struct cuda_attention *a = (const struct cuda_attention *)op;
    backend_buffer *to = call->input_gradient[0];
    const float *x, *y, *g;
    float *target;
    bool add;
    if (to == NULL)
        goto done;
    TRY(cuda_read(c, call->input[0], ROWS, &x));
    TRY(cuda_read(c, call->output, ROWS, &y));
    TRY(cuda_read(c, call->output_gradient, ROWS, &g));
    TRY(cuda_target(c, to, ROWS, call->accumulate[0], &target, &add));
    TRY(CUDA_LAUNCH(c, attention_queries, a->grid, .x = x, .y = y, .g = g, .norm = norm_of(a),
                    .to = target, .slope = slope_of(a), .s = a->shape, .accumulate = add));
    TRY(CUDA_LAUNCH(c, attention_keys, a->grid, .x = x, .g = g, .norm = norm_of(a),
                    .slope = slope_of(a), .to = target, .s = a->shape, .accumulate = add));
    TRY(cuda_target_done(c, to, ROWS, call->accumulate[0]));
done:
    return result;
}

static void close_attention(struct cuda *c, backend_op *op)
{
    cuda_room_close(c, &((struct cuda_attention *)op)->rows);
    memory_free(op);
}

static status choose_tiles(struct cuda_attention *a)
{
    status result = OK;
    const struct op_description *d = &a->op.d;
    const uint32_t features = d->output.width / d->heads, positions = d->input.channels;
    const uint32_t tile = features <= CUDA_ATTENTION_WIDEST / 2 ? 32 : 16;
    if (features > CUDA_ATTENTION_WIDEST) {
        FAIL(ERROR_USAGE,
             "device=cuda: attention with %u features in each head is too wide; at most %d are "
             "possible: use more heads (model.heads) or device=cpu",
             features, CUDA_ATTENTION_WIDEST);
    }
    a->shape = (struct attention_shape){.positions = positions,
                                        .heads = d->heads,
                                        .features = features,
                                        .tile = tile,
                                        .scale = 1 / sqrtf((float)features)};
    a->grid = (struct cuda_grid){d->batch * d->heads, (positions + tile - 1) / tile, 1,
                                 CUDA_ATTENTION_THREADS};
done:
    return result;
}

status cuda_attention_open(struct cuda *c, const struct op_description *d,
                           backend_buffer *const in[2] UNUSED, backend_op **out,
                           backend_buffer **output)
{
    status result = OK;
    struct cuda_attention *a = NULL;
    TRY(memory_new(&a, 1, sizeof *a, "attention"));
    a->op = (backend_op){*d, forward, backward, close_attention};
    TRY(choose_tiles(a));
    a->count = (size_t)d->batch * d->heads * d->input.channels;
    TRY(cuda_room_for(c, &a->rows, 2 * a->count * sizeof(float), "attention"));
    TRY(cuda_buffer_new(c, d->batch, d->output, ROWS, output));
    *out = &a->op;
    a = NULL;
done:
    if (a != NULL)
        close_attention(c, &a->op);
    return result;
}
