/*
 * Max pooling over 2×2 places for one thread in the blocked layout [batch][channels/16][places][16]
 * that convolutions leave. Forwards keeps one byte per result, which place it came from, so that
 * backwards reads a quarter of the input's count and not the input. Of equal values the first
 * counts, in row order. Where the input is a ReLU's result, a window without a positive value
 * passes no gradient on: the pass over the gradient that the ReLU would need is then saved.
 */
#include "worker/backend_cpu.h"
#include "worker/vector_line.h"

enum { WIDTH = VECTOR_LANES, WINDOW = 2, NOWHERE = WINDOW * WINDOW };

typedef uint8_t vector_bytes __attribute__((vector_size(VECTOR_LANES)));

struct pool16 {
    backend_op op;
    size_t planes; /* of 16 channels, over the batch */
    bool streamed; /* the input's gradient is too large to stay in the cache */
    uint8_t *from; /* [planes][output places][16]: 0 to 3 in row order, or NOWHERE */
};

bool cpu_pool16_fits(const struct cpu *c, const struct op_description *d,
                     const backend_buffer *input)
{
    return d->kind == OP_MAX_POOL && d->kernel_height == WINDOW && d->kernel_width == WINDOW &&
           d->stride == WINDOW && c->threads == 1 && cpu_is_blocked(input);
}

VECTOR_INLINE void larger(vector_line *most, vector_mask *from, const float *at, int32_t place)
{
    vector_line v;
    vector_load(&v, at);
    vector_mask more = v > *most;
    *most = (vector_line)(((vector_mask)*most & ~more) | ((vector_mask)v & more));
    *from = (*from & ~more) | (place & more);
}

/* One row of results from two of the input. */
VECTOR_CLONES
static void pool_row(const float *restrict x, size_t width, size_t results, bool rectified,
                     float *restrict y, uint8_t *restrict from)
{
    const vector_mask rectify = (vector_mask){0} - (int32_t)rectified; /* all bits or none */
    for (size_t i = 0; i < results; ++i) {
        const float *at = x + i * WINDOW * WIDTH;
        vector_line most;
        vector_mask place = {0};
        vector_load(&most, at);
        larger(&most, &place, at + WIDTH, 1);
        larger(&most, &place, at + width * WIDTH, 2);
        larger(&most, &place, at + (width + 1) * WIDTH, 3);
        vector_mask nowhere = rectify & (most <= 0);
        place = (place & ~nowhere) | (NOWHERE & nowhere);
        vector_store(y + i * WIDTH, &most, false);
        vector_bytes bytes = __builtin_convertvector(place, vector_bytes);
        memcpy(from + i * WIDTH, &bytes, sizeof bytes);
    }
}

VECTOR_INLINE void put(float *to, const vector_line *value, bool accumulate, bool streamed)
{
    vector_line v = *value, before;
    if (accumulate) {
        vector_load(&before, to);
        v = before + v;
    }
    vector_store(to, &v, streamed);
}

/* Two rows of the input's gradient from one of results; places beyond the last window get none. */
VECTOR_INLINE void spread_row(const float *restrict g, const uint8_t *restrict from, size_t width,
                              size_t results, bool accumulate, bool streamed, float *restrict to)
{
    const vector_line none = {0};
    for (size_t row = 0; row < WINDOW; ++row) {
        float *at = to + row * width * WIDTH;
        for (size_t i = 0; i < results; ++i) {
            vector_line v;
            vector_bytes bytes;
            vector_load(&v, g + i * WIDTH);
            memcpy(&bytes, from + i * WIDTH, sizeof bytes);
            vector_mask place = __builtin_convertvector(bytes, vector_mask);
            for (size_t column = 0; column < WINDOW; ++column) {
                vector_mask here = place == (int32_t)(row * WINDOW + column);
                vector_line mine = (vector_line)((vector_mask)v & here);
                put(at + (i * WINDOW + column) * WIDTH, &mine, accumulate, streamed);
            }
        }
        for (size_t i = results * WINDOW; i < width; ++i) {
            put(at + i * WIDTH, &none, accumulate, streamed);
        }
    }
}

VECTOR_CLONES
static void spread(const float *restrict g, const uint8_t *restrict from, size_t width,
                   size_t results, bool accumulate, bool streamed, float *restrict to)
{
    if (accumulate) {
        spread_row(g, from, width, results, true, false, to);
    } else if (streamed) {
        spread_row(g, from, width, results, false, true, to);
    } else {
        spread_row(g, from, width, results, false, false, to);
    }
}

static status forward(struct cpu *c UNUSED, backend_op *op, const struct op_call *call)
{
    struct pool16 *k = (struct pool16 *)op;
    const struct shape in = op->d.input, out = op->d.output;
    for (size_t p = 0; p < k->planes; ++p) {
        const float *x = call->input[0]->data + p * in.height * in.width * WIDTH;
        for (size_t row = 0; row < out.height; ++row) {
            size_t at = (p * out.height + row) * out.width * WIDTH;
            pool_row(x + row * WINDOW * in.width * WIDTH, in.width, out.width,
                     call->input[0]->rectified, call->output->data + at, k->from + at);
        }
    }
    return OK;
}

static status backward(struct cpu *c UNUSED, backend_op *op, const struct op_call *call)
{
    struct pool16 *k = (struct pool16 *)op;
    const struct shape in = op->d.input, out = op->d.output;
    size_t row_count = (size_t)in.width * WIDTH;
    bool accumulate = call->accumulate[0];
    for (size_t p = 0; call->input_gradient[0] != NULL && p < k->planes; ++p) {
        float *to = call->input_gradient[0]->data + p * in.height * row_count;
        for (size_t row = 0; row < out.height; ++row) {
            size_t at = (p * out.height + row) * out.width * WIDTH;
            spread(call->output_gradient->data + at, k->from + at, in.width, out.width, accumulate,
                   k->streamed, to + row * WINDOW * row_count);
        }
        if (in.height % WINDOW != 0 && !accumulate) {
            memset(to + (in.height - 1) * row_count, 0, row_count * sizeof *to);
        }
    }
    /* Only if nothing else was or will be written there. */
    call->input[0]->gradient_rectified =
        call->input[0]->rectified && call->complete[0] && !accumulate;
    return OK;
}

static void close_pool(backend_op *op)
{
    struct pool16 *k = (struct pool16 *)op;
    memory_free(k->from);
    memory_free(k);
}

status cpu_pool16_open(struct cpu *c, const struct op_description *d, backend_buffer *const in[2],
                       backend_op **out, backend_buffer **output)
{
    status result = OK;
    struct pool16 *k = NULL;
    onednn_layout layout = NULL;
    TRY(memory_new(&k, 1, sizeof *k, "a layer"));
    k->op = (backend_op){*d, forward, backward, close_pool};
    k->planes = (size_t)d->batch * (d->input.channels / WIDTH);
    k->streamed = in[0]->count * sizeof(float) > CPU_STREAM_ABOVE;
    TRY(memory_new(&k->from, d->batch, shape_count(d->output), "a layer"));
    TRY(cpu_blocked_layout(&layout, d->batch, d->output));
    TRY(cpu_buffer_new(c, d->batch, d->output, layout, output));
    *out = &k->op;
    k = NULL;
done:
    onednn_layout_close(&layout);
    if (k != NULL) {
        close_pool(&k->op);
    }
    return result;
}
