/* backend_cuda_norm.c — batch norm in LANES, with the residual sum and the ReLU after it. Forward
 * takes two kernels: sums over chunks of a channel, then the result, which adds the chunks.
 * Backward takes two kernels likewise. */
#include "base/memory.h"
#include "worker/cuda/backend_cuda.h"

#include <string.h>

enum { CHUNK = 2048 /* elements of a channel per block */ };

struct cuda_norm {
    backend_op op;
    uint32_t length, chunk, chunks;
    struct cuda_room parts, statistics; /* mean[channels], variance[channels] */
    float *host; /* the same in pinned memory; for evaluation and re-estimation */
};

static struct cuda_grid grid_of(const struct cuda_norm *n)
{
    return (struct cuda_grid){n->chunks, n->op.d.input.channels, 1, CUDA_NORM_THREADS};
}

static float *mean_of(const struct cuda_norm *n)
{
    return n->statistics.at;
}

static float *variance_of(const struct cuda_norm *n)
{
    return (float *)n->statistics.at + n->op.d.input.channels;
}

/* Copies given statistics to the device, and computed statistics to the host. */
static status exchange(struct cuda *c, struct cuda_norm *n, const struct op_call *call, bool given)
{
    status result = OK;
    size_t channels = n->op.d.input.channels, bytes = channels * sizeof(float);
    if (given) {
        memcpy(n->host, call->mean, bytes);
        memcpy(n->host + channels, call->variance, bytes);
        c->needs_host = true;
        TRY(cuda_queue_up(c, n->statistics.at, n->host, 2 * bytes));
    } else if (call->mean != NULL) {
        TRY(cuda_queue_down(c, n->host, n->statistics.at, 2 * bytes));
        TRY(cuda_deliver(c, call->mean, n->host, bytes));
        TRY(cuda_deliver(c, call->variance, n->host + channels, bytes));
    }
done:
    return result;
}

static status forward(struct cuda *c, backend_op *op, const struct op_call *call)
{
    status result = OK;
    struct cuda_norm *n = (struct cuda_norm *)op;
    bool given = op->d.flags & OP_GIVEN_STATISTICS;
    const float *x, *other = NULL;
    TRY(cuda_read(c, call->input[0], LANES, &x));
    if (op->d.flags & OP_RESIDUAL)
        TRY(cuda_read(c, call->input[1], LANES, &other));
    if (given) {
        TRY(exchange(c, n, call, true));
    } else {
        TRY(CUDA_LAUNCH(c, norm_sums, grid_of(n), .x = x, .parts = n->parts.at, .length = n->length,
                        .chunk = n->chunk));
    }
    TRY(CUDA_LAUNCH(c, norm_forward, grid_of(n), .x = x, .other = other,
                    .scale = cuda_parameter(c, call->weight),
                    .shift = cuda_parameter(c, call->bias), .parts = n->parts.at,
                    .mean = mean_of(n), .variance = variance_of(n), .y = cuda_write(call->output),
                    .length = n->length, .chunk = n->chunk, .parts_count = given ? 0 : n->chunks,
                    .given = given, .activation = op->d.activation));
    if (!given)
        TRY(exchange(c, n, call, false));
done:
    return result;
}

static status backward(struct cuda *c, backend_op *op, const struct op_call *call)
{
    status result = OK;
    struct cuda_norm *n = (struct cuda_norm *)op;
    backend_buffer *g = call->output_gradient, *to = call->input_gradient[0];
    backend_buffer *other = call->input_gradient[1] == g ? NULL : call->input_gradient[1];
    bool masks = op->d.activation == ACTIVATION_RELU && g->masked_by != op, add = false;
    const float *x = call->input[0]->at[LANES];
    float *at = cuda_write(g), *target = NULL;
    TRY(CUDA_LAUNCH(c, norm_backward_sums, grid_of(n), .x = x,
                    .y = masks ? call->output->at[LANES] : NULL, .mean = mean_of(n),
                    .variance = variance_of(n), .g = at, .parts = n->parts.at, .length = n->length,
                    .chunk = n->chunk));
    if (to != NULL)
        TRY(cuda_target(c, to, LANES, call->accumulate[0], &target, &add));
    TRY(CUDA_LAUNCH(
        c, norm_backward, grid_of(n), .x = x, .g = at, .scale = cuda_parameter(c, call->weight),
        .mean = mean_of(n), .variance = variance_of(n), .parts = n->parts.at, .to = target,
        .other = other != NULL ? cuda_write(other) : NULL,
        .scale_gradient = cuda_gradient(c, call->weight),
        .shift_gradient = cuda_gradient(c, call->bias), .length = n->length, .chunk = n->chunk,
        .parts_count = n->chunks, .accumulate = add, .accumulate_other = call->accumulate[1],
        .accumulate_scale = call->accumulate_weight, .accumulate_shift = call->accumulate_bias));
    TRY(cuda_gradient_written(c, call->weight, op->d.input.channels));
    TRY(cuda_gradient_written(c, call->bias, op->d.input.channels));
    if (to != NULL)
        TRY(cuda_target_done(c, to, LANES, call->accumulate[0]));
done:
    return result;
}

static void close_norm(struct cuda *c, backend_op *op)
{
    struct cuda_norm *n = (struct cuda_norm *)op;
    cuda_room_close(c, &n->parts);
    cuda_room_close(c, &n->statistics);
    if (n->host != NULL)
        c->kind->host_free(c->device, n->host);
    memory_free(n);
}

status cuda_batch_norm_open(struct cuda *c, const struct op_description *d,
                            backend_buffer *const in[2] UNUSED, backend_op **out,
                            backend_buffer **output)
{
    status result = OK;
    struct cuda_norm *n = NULL;
    size_t channels = d->input.channels, bytes = 2 * channels * sizeof(float);
    TRY(memory_new(&n, 1, sizeof *n, "a layer"));
    n->op = (backend_op){*d, forward, backward, close_norm};
    n->length = d->input.height * d->input.width * d->batch;
    n->chunks = (n->length + CHUNK - 1) / CHUNK;
    n->chunks = n->chunks < CUDA_NORM_CHUNKS ? n->chunks : CUDA_NORM_CHUNKS;
    n->chunk = ((n->length + n->chunks - 1) / n->chunks + 3) / 4 * 4;
    n->chunks = (n->length + n->chunk - 1) / n->chunk;
    TRY(cuda_room_for(c, &n->parts, channels * n->chunks * sizeof(struct cuda_sums),
                      "batch norm's sums"));
    TRY(cuda_room_for(c, &n->statistics, bytes, "batch norm's statistics"));
    TRY_CUDA(c, host_new, &n->host, bytes, "batch norm's statistics");
    TRY(cuda_buffer_new(c, d->batch, d->output, LANES, output));
    (*output)->relu = d->activation == ACTIVATION_RELU ? &n->op : NULL;
    *out = &n->op;
    n = NULL;
done:
    if (n != NULL)
        close_norm(c, &n->op);
    return result;
}
