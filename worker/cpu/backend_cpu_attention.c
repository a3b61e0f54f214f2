/*
 * backend_cpu_attention.c — causal self-attention of each sample and head by itself, one block of
 * queries after the other (after Dao et al. 2022: no T×T matrix in memory). A block's scores have
 * ATTENTION_BLOCK rows and as many columns as its last query sees. Backward computes the
 * probabilities again from queries and keys.
 *
 * The matrices of one head are copied to row-major matrices whose rows and columns are padded with
 * zeros to whole blocks. The calling thread computes all heads, so numbers do not depend on the
 * number of threads. With precision=bf16 the operands of all products are rounded to bf16; sums and
 * the softmax are float32.
 */
#include "base/memory.h"
#include "worker/cpu/backend_cpu.h"
#include "worker/cpu/backend_cpu_attention.h"

#include <math.h>
#include <string.h>

enum { BLOCK = ATTENTION_BLOCK };

struct cpu_attention {
    backend_op op;
    size_t positions, width, features; /* T, C, D = C / heads */
    size_t rows, columns;              /* T and D, padded */
    bool bf16;
    float scale; /* 1/√D */
    /* Of one head: queries times `scale`, keys, values, gradient of the result [rows][columns]; …
     */
    float *q, *k, *v, *g;
    float *k_across, *v_across; /* … transposed [columns][rows] … */
    float *k_slope, *v_slope;   /* … and gradients [rows][columns]. */
    float *scores, *slopes,
        *result;   /* of one block [BLOCK][rows], [BLOCK][rows], [BLOCK][columns] */
    float *memory; /* all of them */
};

/* The place of one head in a row-major tensor with `width` features at each position. */
struct place {
    float *at;
    size_t row;
};

static struct place place_of(const struct cpu_attention *a, const backend_buffer *b, size_t sample,
                             size_t head, size_t part)
{
    const size_t row = b->shape.width;
    return (struct place){
        b->data + sample * a->positions * row + part * a->width + head * a->features, row};
}

enum { QUERY, KEY, VALUE }; /* parts of an input's row */

static struct attention_copy copy_of(const struct cpu_attention *a, struct place from, float *to)
{
    return (struct attention_copy){.rows = a->positions,
                                   .columns = a->features,
                                   .from = from.at,
                                   .from_row = from.row,
                                   .to = to,
                                   .to_row = a->columns,
                                   .factor = 1,
                                   .bf16 = a->bf16};
}

static void gather(const struct cpu_attention *a, struct place from, float factor, float *to)
{
    struct attention_copy c = copy_of(a, from, to);
    c.factor = factor;
    attention_gather(&c);
}

static void transpose(const struct cpu_attention *a, struct place from, float *to)
{
    struct attention_copy c = copy_of(a, from, to);
    c.to_row = a->rows;
    attention_transpose(&c);
}

/* to ← (or +=) factor · rows first … of `from`, at most `count`. */
static void scatter(const struct cpu_attention *a, const float *from, size_t first, size_t count,
                    float factor, struct place to, bool add)
{
    const size_t left = a->positions - first;
    const struct attention_copy c = {.rows = left < count ? left : count,
                                     .columns = a->features,
                                     .from = from,
                                     .from_row = a->columns,
                                     .to = to.at + first * to.row,
                                     .to_row = to.row,
                                     .factor = factor};
    attention_scatter(&c, add);
}

/* out[BLOCK][rows] ← x · across, of the block that begins with position `first` and the columns
 * that it sees. */
static void against_columns(const struct cpu_attention *a, const float *x, const float *across,
                            size_t first, float *out)
{
    attention_product(&(struct attention_product){.rows = BLOCK,
                                                  .columns = first + BLOCK,
                                                  .depth = a->features,
                                                  .a = x + first * a->columns,
                                                  .a_row = a->columns,
                                                  .a_step = 1,
                                                  .b = across,
                                                  .b_row = a->rows,
                                                  .out = out,
                                                  .out_row = a->rows});
}

/* a->result ← weights · x. */
static void weighted_sum(const struct cpu_attention *a, const float *weights, const float *x,
                         size_t first)
{
    attention_product(&(struct attention_product){.rows = BLOCK,
                                                  .columns = a->columns,
                                                  .depth = first + BLOCK,
                                                  .a = weights,
                                                  .a_row = a->rows,
                                                  .a_step = 1,
                                                  .b = x,
                                                  .b_row = a->columns,
                                                  .out = a->result,
                                                  .out_row = a->columns});
}

/* out[rows][columns] += weightsᵀ · x, of this block's rows of x. */
static void add_across(const struct cpu_attention *a, const float *weights, const float *x,
                       size_t first, float *out)
{
    attention_product(&(struct attention_product){.rows = first + BLOCK,
                                                  .columns = a->columns,
                                                  .depth = BLOCK,
                                                  .a = weights,
                                                  .a_row = 1,
                                                  .a_step = a->rows,
                                                  .b = x + first * a->columns,
                                                  .b_row = a->columns,
                                                  .out = out,
                                                  .out_row = a->columns,
                                                  .add = true});
}

static void round_block(const struct cpu_attention *a, float *block)
{
    if (a->bf16)
        attention_round(block, BLOCK * a->rows);
}

static void forward_head(const struct cpu_attention *a, const struct op_call *call, size_t sample,
                         size_t head)
{
    const struct place to = place_of(a, call->output, sample, head, 0);
    gather(a, place_of(a, call->input[0], sample, head, QUERY), a->scale, a->q);
    transpose(a, place_of(a, call->input[0], sample, head, KEY), a->k_across);
    gather(a, place_of(a, call->input[0], sample, head, VALUE), 1, a->v);
    for (size_t first = 0; first < a->positions; first += BLOCK) {
        against_columns(a, a->q, a->k_across, first, a->scores);
        attention_softmax(a->scores, a->rows, first);
        round_block(a, a->scores);
        weighted_sum(a, a->scores, a->v, first);
        scatter(a, a->result, first, BLOCK, 1, to, false);
    }
}

static status forward(struct cpu *c UNUSED, backend_op *op, const struct op_call *call)
{
    for (size_t sample = 0; sample < op->d.batch; ++sample)
        for (size_t head = 0; head < op->d.heads; ++head)
            forward_head((const struct cpu_attention *)op, call, sample, head);
    return OK;
}

/* The gradients through the queries of one block. */
static void backward_block(const struct cpu_attention *a, size_t first, struct place queries,
                           bool add)
{
    against_columns(a, a->q, a->k_across, first, a->scores);
    attention_softmax(a->scores, a->rows, first);
    against_columns(a, a->g, a->v_across, first, a->slopes);
    attention_softmax_backward(a->scores, a->slopes, a->rows, first);
    round_block(a, a->scores);
    round_block(a, a->slopes);
    add_across(a, a->scores, a->g, first, a->v_slope);
    add_across(a, a->slopes, a->q, first, a->k_slope);
    weighted_sum(a, a->slopes, a->k, first);
    scatter(a, a->result, first, BLOCK, a->scale, queries, add);
}

static void backward_head(const struct cpu_attention *a, const struct op_call *call, size_t sample,
                          size_t head)
{
    const bool add = call->accumulate[0];
    backend_buffer *x = call->input[0], *to = call->input_gradient[0];
    gather(a, place_of(a, x, sample, head, QUERY), a->scale, a->q);
    gather(a, place_of(a, x, sample, head, KEY), 1, a->k);
    transpose(a, place_of(a, x, sample, head, KEY), a->k_across);
    transpose(a, place_of(a, x, sample, head, VALUE), a->v_across);
    gather(a, place_of(a, call->output_gradient, sample, head, 0), 1, a->g);
    memset(a->k_slope, 0, a->rows * a->columns * sizeof(float));
    memset(a->v_slope, 0, a->rows * a->columns * sizeof(float));
    for (size_t first = 0; first < a->positions; first += BLOCK)
        backward_block(a, first, place_of(a, to, sample, head, QUERY), add);
    scatter(a, a->k_slope, 0, a->rows, 1, place_of(a, to, sample, head, KEY), add);
    scatter(a, a->v_slope, 0, a->rows, 1, place_of(a, to, sample, head, VALUE), add);
}

static status backward(struct cpu *c UNUSED, backend_op *op, const struct op_call *call)
{
    if (call->input_gradient[0] == NULL)
        return OK;
    for (size_t sample = 0; sample < op->d.batch; ++sample)
        for (size_t head = 0; head < op->d.heads; ++head)
            backward_head((const struct cpu_attention *)op, call, sample, head);
    return OK;
}

static void close_attention(backend_op *op)
{
    memory_free(((struct cpu_attention *)op)->memory);
    memory_free(op);
}

static status open_memory(struct cpu_attention *a)
{
    status result = OK;
    const size_t matrix = a->rows * a->columns, block = BLOCK * a->rows;
    float **const matrices[] = {&a->q,        &a->k,        &a->v,       &a->g,
                                &a->k_across, &a->v_across, &a->k_slope, &a->v_slope};
    TRY(memory_new(&a->memory, COUNT_OF(matrices) * matrix + 2 * block + BLOCK * a->columns,
                   sizeof(float), "attention"));
    float *next = a->memory;
    for (size_t i = 0; i < COUNT_OF(matrices); ++i, next += matrix)
        *matrices[i] = next;
    a->scores = next;
    a->slopes = next + block;
    a->result = next + 2 * block;
done:
    return result;
}

static size_t padded(size_t count)
{
    return (count + BLOCK - 1) / BLOCK * BLOCK;
}

status cpu_attention_open(struct cpu *c, const struct op_description *d,
                          backend_buffer *const in[2], backend_op **out, backend_buffer **output)
{
    status result = OK;
    struct cpu_attention *a = NULL;
    TRY(cpu_requires_plain(d, in[0]));
    TRY(memory_new(&a, 1, sizeof *a, "attention"));
    a->op = (backend_op){*d, forward, backward, close_attention};
    a->positions = d->input.channels;
    a->width = d->output.width;
    a->features = a->width / d->heads;
    a->rows = padded(a->positions);
    a->columns = padded(a->features);
    a->bf16 = c->bf16;
    a->scale = 1 / sqrtf((float)a->features);
    TRY(open_memory(a));
    TRY(cpu_plain_buffer_new(c, d, output));
    *out = &a->op;
    a = NULL;
done:
    if (a != NULL)
        close_attention(&a->op);
    return result;
}
