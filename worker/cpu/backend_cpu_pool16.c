/*
 * backend_cpu_pool16.c — max pooling over 2×2 positions for one thread, 16 channels at a time
 * (struct cpu_panels). The forward pass stores one byte per result: the position of its source. The
 * backward pass reads these bytes, a quarter as many as the input has elements, instead of the
 * input. Among equal values the first one in row order counts. If the input is the result of a
 * ReLU, a window without a positive value passes no gradient; the ReLU then needs no separate pass
 * over the gradient.
 */
#include "base/memory.h"
#include "worker/cpu/backend_cpu.h"
#include "base/vector_line.h"

enum { WIDTH = VECTOR_LANES, WINDOW = 2, NOWHERE = WINDOW * WINDOW };

/* A gradient with more bytes leaves the cache before it is read, so it is written past the cache.
 */
enum { STREAM_ABOVE = 1 << 20 };

typedef uint8_t vector_bytes __attribute__((vector_size(VECTOR_LANES)));

struct pool16 {
    backend_op op;
    struct cpu_panels in, out;
    bool streamed; /* the input's gradient is too large for the cache */
    uint8_t *from; /* source of each result: 0 to 3 in row order, or NOWHERE */
};

/* One row of windows in one block of channels. */
struct pool16_row {
    size_t width, results; /* positions in an input row; windows */
    size_t place;          /* elements between neighbouring positions */
    bool bf16, rectified, accumulate, streamed;
};

bool cpu_pool16_fits(const struct cpu *c, const struct op_description *d,
                     const backend_buffer *input)
{
    return d->kind == OP_MAX_POOL && d->kernel_height == WINDOW && d->kernel_width == WINDOW &&
           d->stride == WINDOW && c->threads == 1 && cpu_panels_of(input).blocks > 0;
}

VECTOR_INLINE void larger(vector_line *most, vector_mask *from, const void *x, size_t at,
                          enum vector_type type, int32_t place)
{
    vector_line v;
    vector_load_from(&v, x, at, type);
    vector_mask more = v > *most;
    *most = (vector_line)(((vector_mask)*most & ~more) | ((vector_mask)v & more));
    *from = (*from & ~more) | (place & more);
}

VECTOR_INLINE void pool_loop(const void *restrict x, const struct pool16_row *r, size_t step,
                             enum vector_type type, void *restrict y, uint8_t *restrict from)
{
    const vector_mask rectify = (vector_mask){0} - (int32_t)r->rectified; /* all bits or none */
    for (size_t i = 0; i < r->results; ++i) {
        const size_t at = i * WINDOW * step;
        vector_line most;
        vector_mask place = {0};
        vector_load_from(&most, x, at, type);
        larger(&most, &place, x, at + step, type, 1);
        larger(&most, &place, x, at + r->width * step, type, 2);
        larger(&most, &place, x, at + (r->width + 1) * step, type, 3);
        vector_mask nowhere = rectify & (most <= 0);
        place = (place & ~nowhere) | (NOWHERE & nowhere);
        vector_store_to(y, i * step, &most, false, type);
        vector_bytes bytes = __builtin_convertvector(place, vector_bytes);
        memcpy(from + i * step, &bytes, sizeof bytes);
    }
}

/* Computes one row of results from two rows of the input. */
VECTOR_CLONES
static void pool_row(const void *restrict x, const struct pool16_row *r, void *restrict y,
                     uint8_t *restrict from)
{
    if (r->bf16)
        pool_loop(x, r, r->place, VECTOR_BF16_EXACT, y, from);
    else
        pool_loop(x, r, WIDTH, VECTOR_FLOAT32, y, from);
}

VECTOR_INLINE void put(void *to, size_t at, const vector_line *value, enum vector_type type,
                       bool accumulate, bool streamed)
{
    vector_line v = *value, before;
    if (accumulate) {
        vector_load_from(&before, to, at, type);
        v = before + v;
    }
    vector_store_to(to, at, &v, streamed, type);
}

VECTOR_INLINE void spread_loop(const void *restrict g, const uint8_t *restrict from,
                               const struct pool16_row *r, size_t step, enum vector_type type,
                               bool accumulate, bool streamed, void *restrict to)
{
    const vector_line none = {0};
    for (size_t row = 0; row < WINDOW; ++row) {
        const size_t first = row * r->width * step;
        for (size_t i = 0; i < r->results; ++i) {
            vector_line v;
            vector_bytes bytes;
            vector_load_from(&v, g, i * step, type);
            memcpy(&bytes, from + i * step, sizeof bytes);
            vector_mask place = __builtin_convertvector(bytes, vector_mask);
            for (size_t column = 0; column < WINDOW; ++column) {
                vector_mask here = place == (int32_t)(row * WINDOW + column);
                vector_line mine = (vector_line)((vector_mask)v & here);
                put(to, first + (i * WINDOW + column) * step, &mine, type, accumulate, streamed);
            }
        }
        for (size_t i = r->results * WINDOW; i < r->width; ++i)
            put(to, first + i * step, &none, type, accumulate, streamed);
    }
}

/* Computes two rows of the input's gradient from one row of results. Positions beyond the last
 * window get 0. */
VECTOR_CLONES
static void spread(const void *restrict g, const uint8_t *restrict from, const struct pool16_row *r,
                   void *restrict to)
{
    if (r->bf16 && r->accumulate)
        spread_loop(g, from, r, r->place, VECTOR_BF16, true, false, to);
    else if (r->bf16)
        spread_loop(g, from, r, r->place, VECTOR_BF16_EXACT, false, false, to);
    else if (r->accumulate)
        spread_loop(g, from, r, WIDTH, VECTOR_FLOAT32, true, false, to);
    else if (r->streamed)
        spread_loop(g, from, r, WIDTH, VECTOR_FLOAT32, false, true, to);
    else
        spread_loop(g, from, r, WIDTH, VECTOR_FLOAT32, false, false, to);
}

/* Offset of the n-th block of channels of the batch. */
static size_t panel(const struct cpu_panels *p, size_t n)
{
    return n / p->blocks * p->image + n % p->blocks * p->block;
}

static status forward(struct cpu *c UNUSED, backend_op *op, const struct op_call *call)
{
    struct pool16 *k = (struct pool16 *)op;
    const backend_buffer *x = call->input[0];
    const struct shape out = op->d.output;
    const struct pool16_row r = {.width = op->d.input.width,
                                 .results = out.width,
                                 .place = k->in.place,
                                 .bf16 = x->bf16,
                                 .rectified = x->rectified};
    for (size_t p = 0; p < op->d.batch * k->in.blocks; ++p) {
        for (size_t row = 0; row < out.height; ++row) {
            size_t from = panel(&k->in, p) + row * WINDOW * r.width * r.place;
            size_t to = panel(&k->out, p) + row * r.results * r.place;
            pool_row(cpu_element(x->data, from, r.bf16), &r,
                     cpu_element(call->output->data, to, r.bf16), k->from + to);
        }
    }
    return OK;
}

static status backward(struct cpu *c UNUSED, backend_op *op, const struct op_call *call)
{
    struct pool16 *k = (struct pool16 *)op;
    backend_buffer *to = call->input_gradient[0];
    const struct shape in = op->d.input, out = op->d.output;
    const struct pool16_row r = {.width = in.width,
                                 .results = out.width,
                                 .place = k->in.place,
                                 .bf16 = call->output->bf16,
                                 .accumulate = call->accumulate[0],
                                 .streamed = k->streamed};
    for (size_t p = 0; to != NULL && p < op->d.batch * k->in.blocks; ++p) {
        const size_t first = panel(&k->in, p), row_count = r.width * r.place;
        for (size_t row = 0; row < out.height; ++row) {
            size_t at = panel(&k->out, p) + row * r.results * r.place;
            spread(cpu_element(call->output_gradient->data, at, r.bf16), k->from + at, &r,
                   cpu_element(to->data, first + row * WINDOW * row_count, r.bf16));
        }
        for (size_t i = 0; i < r.width && in.height % WINDOW != 0 && !r.accumulate; ++i) {
            size_t at = first + (in.height - 1) * row_count + i * r.place;
            memset(cpu_element(to->data, at, r.bf16), 0, cpu_buffer_bytes(to) / to->count * WIDTH);
        }
    }
    /* Only if no other operation wrote there or will write there. */
    call->input[0]->gradient_rectified =
        call->input[0]->rectified && call->complete[0] && !r.accumulate;
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
    k->streamed = cpu_buffer_bytes(in[0]) > STREAM_ABOVE;
    TRY(memory_new(&k->from, d->batch, shape_count(d->output), "a layer"));
    TRY(cpu_tagged_layout(&layout, d->batch, d->output, in[0]->bf16 ? dnnl_bf16 : dnnl_f32,
                          in[0]->tag));
    TRY(cpu_buffer_new(c, d->batch, d->output, layout, output));
    k->in = cpu_panels_of(in[0]);
    k->out = cpu_panels_of(*output);
    *out = &k->op;
    k = NULL;
done:
    onednn_layout_close(&layout);
    if (k != NULL)
        close_pool(&k->op);
    return result;
}
