/* backend_cuda_simple.c — pools, activations, add, reshape and the loss: operations without
 * parameters. */
#include "base/memory.h"
#include "worker/cuda/backend_cuda.h"

static void close_plain(struct cuda *c UNUSED, backend_op *op)
{
    memory_free(op);
}

static status plain_new(const struct op_description *d, const backend_op *functions,
                        backend_op **out)
{
    status result = memory_new(out, 1, sizeof **out, "a layer");
    if (result == OK) {
        **out = *functions;
        (*out)->d = *d;
        (*out)->close = close_plain;
    }
    return result;
}

/* ---- pools --------------------------------------------------------------------------------------
 */

struct cuda_pool {
    backend_op op;
    struct cuda_room
        which; /* index of the largest element of each window; empty for average pools */
};

static struct pool_shape pool_shape_of(const struct op_description *d)
{
    return (struct pool_shape){d->input.height,  d->input.width,  d->output.height, d->output.width,
                               d->kernel_height, d->kernel_width, d->stride,        d->batch};
}

struct cuda_grid cuda_pool_grid(const struct op_description *d, struct shape over)
{
    const size_t row = (size_t)over.width * d->batch;
    struct cuda_grid g = cuda_grid_over(row / CUDA_AT_ONCE(d->batch), 128);
    g.y = g.x;
    g.x = over.channels * over.height;
    return g;
}

static status pool_forward(struct cuda *c, backend_op *op, const struct op_call *call)
{
    status result = OK;
    const struct op_description *d = &op->d;
    struct cuda_grid g = cuda_pool_grid(d, d->output);
    float *y = cuda_write(call->output);
    const float *x;
    TRY(cuda_read(c, call->input[0], LANES, &x));
    if (d->kind == OP_MAX_POOL) {
        TRY(CUDA_LAUNCH(c, max_pool, g, .x = x, .y = y, .which = ((struct cuda_pool *)op)->which.at,
                        .s = pool_shape_of(d), .activation = d->activation));
    } else {
        TRY(CUDA_LAUNCH(c, average_pool, g, .x = x, .y = y, .s = pool_shape_of(d),
                        .activation = d->activation));
    }
done:
    return result;
}

static status pool_backward(struct cuda *c, backend_op *op, const struct op_call *call)
{
    status result = OK;
    const struct op_description *d = &op->d;
    backend_buffer *to = call->input_gradient[0], *g = call->output_gradient, *x = call->input[0];
    bool add = call->accumulate[0], add_here;
    float *target;
    if (to == NULL)
        goto done;
    bool done_before = d->activation == ACTIVATION_RELU && g->masked_by == op;
    bool gated = x->relu != NULL && x->layout == LANES && !add;
    TRY(cuda_target(c, to, LANES, add, &target, &add_here));
    TRY(CUDA_LAUNCH(
        c, pool_backward, cuda_pool_grid(d, d->input), .g = g->at[LANES],
        .y = call->output->at[LANES], .gate = gated ? x->at[LANES] : NULL,
        .which = ((struct cuda_pool *)op)->which.at, .to = target, .s = pool_shape_of(d),
        .activation = done_before ? ACTIVATION_NONE : d->activation, .accumulate = add_here));
    TRY(cuda_target_done(c, to, LANES, add));
    to->masked_by = gated ? x->relu : NULL;
done:
    return result;
}

static void close_pool(struct cuda *c, backend_op *op)
{
    cuda_room_close(c, &((struct cuda_pool *)op)->which);
    memory_free(op);
}

status cuda_pool_open(struct cuda *c, const struct op_description *d,
                      backend_buffer *const in[2] UNUSED, backend_op **out, backend_buffer **output)
{
    status result = OK;
    struct cuda_pool *p = NULL;
    if (d->kind == OP_MAX_POOL && (size_t)d->kernel_height * d->kernel_width > UINT16_MAX) {
        FAIL(ERROR_USAGE,
             "device=cuda: a max pool over %u×%u places is too large; at most 65535 are possible",
             d->kernel_height, d->kernel_width);
    }
    TRY(memory_new(&p, 1, sizeof *p, "a layer"));
    p->op = (backend_op){*d, pool_forward, pool_backward, close_pool};
    if (d->kind == OP_MAX_POOL) {
        TRY(cuda_room_for(c, &p->which, d->batch * shape_count(d->output) * sizeof(uint16_t),
                          "a pool's choices"));
    }
    TRY(cuda_buffer_new(c, d->batch, d->output, LANES, output));
    (*output)->relu = d->activation == ACTIVATION_RELU ? &p->op : NULL;
    *out = &p->op;
    p = NULL;
done:
    if (p != NULL)
        close_pool(c, &p->op);
    return result;
}

/* ---- activations --------------------------------------------------------------------------------
 */

static status activation_forward(struct cuda *c, backend_op *op, const struct op_call *call)
{
    status result = OK;
    backend_buffer *y = call->output;
    const float *x;
    TRY(cuda_read(c, call->input[0], y->layout, &x));
    TRY(CUDA_LAUNCH(c, activation_forward, cuda_grid_over((y->count + 3) / 4, 256),
                    .y = cuda_write(y), .x = x, .count = y->count, .activation = op->d.activation));
done:
    return result;
}

static status activation_backward(struct cuda *c, backend_op *op, const struct op_call *call)
{
    backend_buffer *to = call->input_gradient[0], *y = call->output;
    if (to == NULL)
        return OK;
    return CUDA_LAUNCH(c, activation_backward, cuda_grid_over((y->count + 3) / 4, 256),
                       .to = cuda_write(to), .g = call->output_gradient->at[y->layout],
                       .x = call->input[0]->at[y->layout], .y = y->at[y->layout], .count = y->count,
                       .activation = op->d.activation, .accumulate = call->accumulate[0]);
}

status cuda_activation_open(struct cuda *c, const struct op_description *d,
                            backend_buffer *const in[2], backend_op **out, backend_buffer **output)
{
    status result = OK;
    REQUIRE(d->activation != ACTIVATION_NONE);
    TRY(cuda_buffer_new(c, d->batch, d->output, in[0]->layout, output));
    TRY(plain_new(d, &(backend_op){.forward = activation_forward, .backward = activation_backward},
                  out));
done:
    return result;
}

/* ---- add ----------------------------------------------------------------------------------------
 */

static status add_forward(struct cuda *c, backend_op *op, const struct op_call *call)
{
    status result = OK;
    backend_buffer *y = call->output;
    const float *p, *q;
    TRY(cuda_read(c, call->input[0], y->layout, &p));
    TRY(cuda_read(c, call->input[1], y->layout, &q));
    TRY(CUDA_LAUNCH(c, add_two, cuda_grid_over((y->count + 3) / 4, 256), .y = cuda_write(y), .p = p,
                    .q = q, .count = y->count, .activation = op->d.activation));
done:
    return result;
}

static status add_backward(struct cuda *c, backend_op *op, const struct op_call *call)
{
    status result = OK;
    backend_buffer *g = call->output_gradient;
    TRY(cuda_unactivate(c, op, g, call->output));
    for (int i = 0; i < 2; ++i) {
        backend_buffer *to = call->input_gradient[i];
        if (to != NULL && to != g)
            TRY(cuda_pass(c, g, to, call->accumulate[i]));
    }
done:
    return result;
}

status cuda_add_open(struct cuda *c, const struct op_description *d, backend_buffer *const in[2],
                     backend_op **out, backend_buffer **output)
{
    status result = OK;
    TRY(cuda_buffer_new(c, d->batch, d->output, in[0]->layout, output));
    TRY(plain_new(d, &(backend_op){.forward = add_forward, .backward = add_backward}, out));
    (*output)->relu = d->activation == ACTIVATION_RELU ? *out : NULL;
done:
    return result;
}

/* ---- reshape ------------------------------------------------------------------------------------
 * Both layouts keep features in C,H,W order, so the result is the same memory. */

static status reshape_forward(struct cuda *c, backend_op *op UNUSED, const struct op_call *call)
{
    status result = OK;
    backend_buffer *y = call->output;
    const float *x;
    TRY(cuda_read(c, call->input[0], y->layout, &x));
    y->at[y->layout] = (float *)x;
    (void)cuda_write(y);
done:
    return result;
}

static status reshape_backward(struct cuda *c, backend_op *op UNUSED, const struct op_call *call)
{
    backend_buffer *to = call->input_gradient[0];
    return to == NULL ? OK : cuda_pass(c, call->output_gradient, to, call->accumulate[0]);
}

status cuda_reshape_open(struct cuda *c UNUSED, const struct op_description *d,
                         backend_buffer *const in[2], backend_op **out, backend_buffer **output)
{
    status result = OK;
    backend_buffer *y = NULL;
    TRY(memory_new(&y, 1, sizeof *y, "a batch of activations"));
    *y = (backend_buffer){.shape = d->output,
                          .batch = d->batch,
                          .count = in[0]->count,
                          .layout = in[0]->layout,
                          .borrowed = true};
    TRY(plain_new(d, &(backend_op){.forward = reshape_forward, .backward = reshape_backward}, out));
    *output = y;
    y = NULL;
done:
    memory_free(y);
    return result;
}

/* ---- cross-entropy ------------------------------------------------------------------------------
 */

/* From this number of classes on, 32 threads compute a row. */
enum { WIDE = 64 };

struct cuda_cross_entropy {
    backend_op op;
    enum cuda_layout layout; /* in which the kernel reads the logits */
    bool wide;
    uint32_t rows, blocks;
    struct cuda_room parts; /* one per block, then the total */
    struct cuda_loss *loss; /* pinned */
};

/* Queues the loss of the logits and, if `gradient` is not NULL, their gradient. */
static status queue_kernels(struct cuda *c, struct cuda_cross_entropy *e,
                            const struct op_call *call, float *gradient, bool accumulate)
{
    status result = OK;
    const struct op_description *d = &e->op.d;
    const uint32_t classes = op_features(d);
    const struct op_targets targets = op_targets(d->smoothing, classes);
    struct cuda_loss *parts = e->parts.at;
    struct cross_entropy_call k = {.out = parts,
                                   .gradient = gradient,
                                   .right = targets.right,
                                   .other = targets.other,
                                   .rows = e->rows,
                                   .classes = classes,
                                   .per_row = e->layout == ROWS ? classes : 1,
                                   .per_class = e->layout == ROWS ? 1 : d->batch,
                                   .accumulate = accumulate,
                                   .targets = op_rows(d)};
    struct cuda_grid g = {e->blocks, 1, 1, 256};
    TRY(cuda_stage_labels(c, call->labels, e->rows, call->valid, &k.labels, &k.valid));
    TRY(cuda_read(c, call->input[0], e->layout, &k.logits));
    TRY(cuda_queue_launch(c, e->wide ? CUDA_cross_entropy_wide : CUDA_cross_entropy, g, &k,
                          sizeof k));
    if (e->blocks > 1) {
        struct cuda_grid one = {1, 1, 1, 256};
        TRY(CUDA_LAUNCH(c, loss_total, one, .parts = parts, .total = parts + e->blocks,
                        .count = e->blocks));
    }
done:
    return result;
}

static status queue_loss(struct cuda *c, backend_op *op, const struct op_call *call,
                         backend_buffer *to)
{
    status result = OK;
    struct cuda_cross_entropy *e = (struct cuda_cross_entropy *)op;
    struct cuda_loss *parts = e->parts.at;
    float *gradient = NULL;
    bool add = false;
    if (to != NULL)
        TRY(cuda_target(c, to, e->layout, call->accumulate[0], &gradient, &add));
    TRY(queue_kernels(c, e, call, gradient, add));
    if (to != NULL)
        TRY(cuda_target_done(c, to, e->layout, call->accumulate[0]));
    struct cuda_loss *total = e->blocks > 1 ? parts + e->blocks : parts;
    if (c->resident.updates) {
        TRY(cuda_resident_loss(c, total, (double)call->valid * op_rows(&op->d)));
    } else {
        TRY(cuda_queue_down(c, e->loss, total, sizeof *total));
        TRY(cuda_deliver_loss(c, call->loss, e->loss));
    }
done:
    return result;
}

/* If backward follows, one kernel computes loss and gradient there. */
static status loss_forward(struct cuda *c, backend_op *op, const struct op_call *call)
{
    return c->gradient_at != NULL ? OK : queue_loss(c, op, call, NULL);
}

static status loss_backward(struct cuda *c, backend_op *op, const struct op_call *call)
{
    return queue_loss(c, op, call, call->input_gradient[0]);
}

static void close_loss(struct cuda *c, backend_op *op)
{
    struct cuda_cross_entropy *e = (struct cuda_cross_entropy *)op;
    cuda_room_close(c, &e->parts);
    if (e->loss != NULL)
        c->kind->host_free(c->device, e->loss);
    memory_free(e);
}

status cuda_cross_entropy_open(struct cuda *c, const struct op_description *d,
                               backend_buffer *const in[2], backend_op **out,
                               backend_buffer **output UNUSED)
{
    status result = OK;
    struct cuda_cross_entropy *e = NULL;
    TRY(memory_new(&e, 1, sizeof *e, "the loss"));
    e->op = (backend_op){*d, loss_forward, loss_backward, close_loss};
    e->layout = d->flags & OP_PER_POSITION ? ROWS : in[0]->layout;
    e->wide = e->layout == ROWS && op_features(d) >= WIDE;
    e->rows = d->batch * op_rows(d);
    const uint32_t at_once = e->wide ? CUDA_ROWS_AT_ONCE : CUDA_LOSS_ROWS;
    e->blocks = (e->rows + at_once - 1) / at_once;
    TRY(cuda_room_for(c, &e->parts, (e->blocks + 1) * sizeof(struct cuda_loss), "the loss"));
    TRY_CUDA(c, host_new, &e->loss, sizeof *e->loss, "the loss");
    *out = &e->op;
    e = NULL;
done:
    if (e != NULL)
        close_loss(c, &e->op);
    return result;
}
