/* backend_cuda_sequence.c — embeddings and layer norm, on ROWS: [batch][T][C] is one row of C
 * features for each position. Inputs in LANES are transposed, as are their gradients. */
#include "base/memory.h"
#include "worker/cuda/backend_cuda.h"

static void close_plain(struct cuda *c UNUSED, backend_op *op)
{
    memory_free(op);
}

/* An operation with no buffer but its output. */
static status table_open(struct cuda *c, const struct op_description *d,
                         const backend_op *functions, backend_op **out, backend_buffer **output)
{
    status result = OK;
    backend_op *op = NULL;
    TRY(memory_new(&op, 1, sizeof *op, "an embedding"));
    *op = *functions;
    op->d = *d;
    op->close = close_plain;
    TRY(cuda_buffer_new(c, d->batch, d->output, ROWS, output));
    *out = op;
    op = NULL;
done:
    memory_free(op);
    return result;
}

/* ---- the embedding of tokens --------------------------------------------------------------------
 */

static status embedding_forward(struct cuda *c, backend_op *op, const struct op_call *call)
{
    status result = OK;
    backend_buffer *y = call->output;
    const float *tokens;
    TRY(cuda_read(c, call->input[0], ROWS, &tokens));
    TRY(CUDA_LAUNCH(c, embedding_forward, cuda_grid_over(y->count, 256), .tokens = tokens,
                    .table = cuda_parameter(c, call->weight), .y = cuda_write(y),
                    .count = (uint32_t)y->count, .width = op->d.output.width,
                    .vocabulary = op->d.vocabulary));
done:
    return result;
}

/* Sorts the rows by token, so that one block can add the rows of a token. */
static status embedding_backward(struct cuda *c, backend_op *op, const struct op_call *call)
{
    status result = OK;
    const struct op_description *d = &op->d;
    const uint32_t rows = d->batch * d->output.channels, width = d->output.width;
    const struct cuda_grid sort = {d->vocabulary, 1, 1, CUDA_ORDER_THREADS};
    const struct cuda_grid sum = {d->vocabulary, (width + 31) / 32, 1, 256};
    const float *tokens, *g;
    TRY(cuda_read(c, call->input[0], ROWS, &tokens));
    TRY(cuda_read(c, call->output_gradient, ROWS, &g));
    TRY(cuda_room_for(c, &c->scratch, ((size_t)d->vocabulary + 1 + rows) * sizeof(uint32_t),
                      "an embedding's order"));
    uint32_t *first = c->scratch.at, *order = first + d->vocabulary + 1;
    TRY(CUDA_LAUNCH(c, embedding_order, sort, .tokens = tokens, .first = first, .order = order,
                    .count = rows, .vocabulary = d->vocabulary));
    TRY(CUDA_LAUNCH(c, embedding_gradient, sum, .g = g, .first = first, .order = order,
                    .table = cuda_gradient(c, call->weight), .width = width,
                    .accumulate = call->accumulate_weight));
    TRY(cuda_gradient_written(c, call->weight, (size_t)d->vocabulary * width));
done:
    return result;
}

status cuda_embedding_open(struct cuda *c, const struct op_description *d,
                           backend_buffer *const in[2] UNUSED, backend_op **out,
                           backend_buffer **output)
{
    return table_open(c, d,
                      &(backend_op){.forward = embedding_forward, .backward = embedding_backward},
                      out, output);
}

/* ---- the embedding of positions -----------------------------------------------------------------
 */

static status position_forward(struct cuda *c, backend_op *op, const struct op_call *call)
{
    status result = OK;
    backend_buffer *y = call->output;
    const float *x;
    TRY(cuda_read(c, call->input[0], ROWS, &x));
    TRY(CUDA_LAUNCH(c, add_to_each, cuda_grid_over(y->count, 256), .x = x,
                    .table = cuda_parameter(c, call->weight), .y = cuda_write(y),
                    .count = (uint32_t)y->count, .period = (uint32_t)shape_count(op->d.output)));
done:
    return result;
}

static status position_backward(struct cuda *c, backend_op *op, const struct op_call *call)
{
    status result = OK;
    const uint32_t count = (uint32_t)shape_count(op->d.output);
    const struct cuda_grid sums = {(count + 31) / 32, 1, 1, 256};
    backend_buffer *g = call->output_gradient, *to = call->input_gradient[0];
    const float *at;
    TRY(cuda_read(c, g, ROWS, &at));
    TRY(CUDA_LAUNCH(c, column_sums, sums, .g = at, .out = cuda_gradient(c, call->weight),
                    .rows = op->d.batch, .columns = count, .accumulate = call->accumulate_weight));
    TRY(cuda_gradient_written(c, call->weight, count));
    if (to != NULL && to != g)
        TRY(cuda_pass(c, g, to, call->accumulate[0]));
done:
    return result;
}

status cuda_position_embedding_open(struct cuda *c, const struct op_description *d,
                                    backend_buffer *const in[2] UNUSED, backend_op **out,
                                    backend_buffer **output)
{
    return table_open(c, d,
                      &(backend_op){.forward = position_forward, .backward = position_backward},
                      out, output);
}

/* ---- layer norm ---------------------------------------------------------------------------------
 */

/* One block adds up a chunk of rows, at least this number; a second kernel adds up the chunks. */
enum { CHUNK = 64, CHUNKS = 256 };

struct cuda_layer_norm {
    backend_op op;
    uint32_t rows, features, chunk, chunks;
    struct cuda_room statistics; /* mean[rows], 1/√(variance + ε)[rows] */
};

static float *mean_of(const struct cuda_layer_norm *n)
{
    return n->statistics.at;
}

static float *inverse_of(const struct cuda_layer_norm *n)
{
    return (float *)n->statistics.at + n->rows;
}

static struct cuda_grid rows_grid(const struct cuda_layer_norm *n)
{
    return (struct cuda_grid){(n->rows + CUDA_ROWS_AT_ONCE - 1) / CUDA_ROWS_AT_ONCE, 1, 1, 256};
}

static status norm_forward(struct cuda *c, backend_op *op, const struct op_call *call)
{
    status result = OK;
    const struct cuda_layer_norm *n = (const struct cuda_layer_norm *)op;
    const float *x;
    TRY(cuda_read(c, call->input[0], ROWS, &x));
    TRY(CUDA_LAUNCH(c, layer_norm_forward, rows_grid(n), .x = x,
                    .scale = cuda_parameter(c, call->weight),
                    .shift = op->d.flags & OP_BIASED ? cuda_parameter(c, call->bias) : NULL,
                    .y = cuda_write(call->output), .mean = mean_of(n), .inverse = inverse_of(n),
                    .rows = n->rows, .features = n->features));
done:
    return result;
}

/* The gradient at `offset` (+)= the sums of all chunks. */
static status add_chunks(struct cuda *c, const struct cuda_layer_norm *n, const float *sums,
                         size_t offset, bool accumulate)
{
    status result = OK;
    const struct cuda_grid g = {(n->features + 31) / 32, 1, 1, 256};
    TRY(CUDA_LAUNCH(c, column_sums, g, .g = sums, .out = cuda_gradient(c, offset),
                    .rows = n->chunks, .columns = n->features, .accumulate = accumulate));
    TRY(cuda_gradient_written(c, offset, n->features));
done:
    return result;
}

static status norm_backward(struct cuda *c, backend_op *op, const struct op_call *call)
{
    status result = OK;
    const struct cuda_layer_norm *n = (const struct cuda_layer_norm *)op;
    const struct cuda_grid by_column = {(n->features + 31) / 32, n->chunks, 1, 256};
    const size_t count = (size_t)n->chunks * n->features;
    backend_buffer *to = call->input_gradient[0];
    const float *x, *g;
    float *target;
    bool add;
    TRY(cuda_read(c, call->input[0], ROWS, &x));
    TRY(cuda_read(c, call->output_gradient, ROWS, &g));
    TRY(cuda_room_for(c, &c->scratch, 2 * count * sizeof(float), "layer norm's sums"));
    float *products = c->scratch.at, *sums = products + count;
    TRY(CUDA_LAUNCH(c, layer_norm_sums, by_column, .x = x, .g = g, .mean = mean_of(n),
                    .inverse = inverse_of(n), .products = products, .sums = sums, .rows = n->rows,
                    .features = n->features, .chunk = n->chunk));
    TRY(add_chunks(c, n, products, call->weight, call->accumulate_weight));
    if (op->d.flags & OP_BIASED)
        TRY(add_chunks(c, n, sums, call->bias, call->accumulate_bias));
    if (to == NULL)
        goto done;
    TRY(cuda_target(c, to, ROWS, call->accumulate[0], &target, &add));
    TRY(CUDA_LAUNCH(c, layer_norm_backward, rows_grid(n), .x = x, .g = g,
                    .scale = cuda_parameter(c, call->weight), .mean = mean_of(n),
                    .inverse = inverse_of(n), .to = target, .rows = n->rows,
                    .features = n->features, .accumulate = add));
    TRY(cuda_target_done(c, to, ROWS, call->accumulate[0]));
done:
    return result;
}

static void close_norm(struct cuda *c, backend_op *op)
{
    cuda_room_close(c, &((struct cuda_layer_norm *)op)->statistics);
    memory_free(op);
}

status cuda_layer_norm_open(struct cuda *c, const struct op_description *d,
                            backend_buffer *const in[2] UNUSED, backend_op **out,
                            backend_buffer **output)
{
    status result = OK;
    struct cuda_layer_norm *n = NULL;
    TRY(memory_new(&n, 1, sizeof *n, "layer norm"));
    n->op = (backend_op){*d, norm_forward, norm_backward, close_norm};
    n->rows = d->batch * d->input.channels;
    n->features = d->input.width;
    n->chunk = (n->rows + CHUNKS - 1) / CHUNKS;
    n->chunk = n->chunk > CHUNK ? n->chunk : CHUNK;
    n->chunks = (n->rows + n->chunk - 1) / n->chunk;
    TRY(cuda_room_for(c, &n->statistics, 2 * (size_t)n->rows * sizeof(float),
                      "layer norm's statistics"));
    TRY(cuda_buffer_new(c, d->batch, d->output, ROWS, output));
    *out = &n->op;
    n = NULL;
done:
    if (n != NULL)
        close_norm(c, &n->op);
    return result;
}
