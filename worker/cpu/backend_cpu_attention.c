/*
 * backend_cpu_attention.c — causal self-attention of each sample and head by itself, one block of
 * queries after the other (after Dao et al. 2022: no T×T matrix in memory). The scores of a block
 * are stored with the queries in the lanes of a vector: [keys][ATTENTION_BLOCK], with as many keys
 * as the last query sees. Backward computes the probabilities again from queries and keys.
 *
 * The products read rows and columns in whole blocks. Where a head's matrix does not consist of
 * whole blocks, they read a copy padded with zeros. The calling thread computes all heads, so
 * numbers do not depend on the number of threads. With precision=bf16 the operands of all products
 * are rounded to bf16; sums and the softmax are float32.
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
    bool in_place;                     /* products read the tensors themselves */
    bool bf16;
    float scale; /* 1/√D */
    /* Of one head: copies of queries, keys, values, and the gradient of the result [rows][columns];
     * scaled queries and that gradient transposed [columns][rows]; gradients [rows][columns]. */
    float *q, *k, *v, *g, *q_across, *g_across, *k_slope, *v_slope;
    float *scores, *slopes; /* of one block, [rows][BLOCK] */
    float *result;          /* of one block, [BLOCK][columns] */
    float *memory;          /* owns all arrays above */
};

/* A matrix: one head's part of a tensor, or a copy. */
struct head_matrix {
    float *at;
    size_t row; /* distance of its rows */
};

enum { QUERY, KEY, VALUE }; /* parts of an input's row */

static struct head_matrix part_of(const struct cpu_attention *a, const backend_buffer *b,
                                  size_t sample, size_t head, size_t part)
{
    const size_t row = b->shape.width;
    return (struct head_matrix){
        b->data + sample * a->positions * row + part * a->width + head * a->features, row};
}

static struct attention_copy copy_of(const struct cpu_attention *a, struct head_matrix from,
                                     struct head_matrix to, float factor)
{
    return (struct attention_copy){.rows = a->positions,
                                   .columns = a->features,
                                   .from = from.at,
                                   .from_row = from.row,
                                   .to = to.at,
                                   .to_row = to.row,
                                   .factor = factor,
                                   .bf16 = a->bf16};
}

/* An operand of a product: `from` itself or its padded copy in `room`. */
static struct head_matrix operand(const struct cpu_attention *a, struct head_matrix from,
                                  float *room)
{
    const struct head_matrix copy = {room, a->columns};
    if (a->in_place)
        return from;
    const struct attention_copy c = copy_of(a, from, copy, 1);
    attention_gather(&c);
    return copy;
}

static void transpose(const struct cpu_attention *a, struct head_matrix from, float factor,
                      float *to)
{
    const struct attention_copy c = copy_of(a, from, (struct head_matrix){to, a->rows}, factor);
    attention_transpose(&c);
}

/* to ← (or +=) factor · `from`, at most `count` rows from row `first` of `to` on. */
static void scatter(const struct cpu_attention *a, float *from, size_t first, size_t count,
                    float factor, struct head_matrix to, bool add)
{
    const size_t left = a->positions - first;
    const struct head_matrix there = {to.at + first * to.row, to.row};
    struct attention_copy c = copy_of(a, (struct head_matrix){from, a->columns}, there, factor);
    c.rows = left < count ? left : count;
    attention_scatter(&c, add);
}

/* out[keys][BLOCK] ← x · across for the block of queries at `first`; keys = first + BLOCK. */
static void of_queries(const struct cpu_attention *a, struct head_matrix x, const float *across,
                       size_t first, float *out)
{
    attention_product(&(struct attention_product){.rows = first + BLOCK,
                                                  .columns = BLOCK,
                                                  .depth = a->features,
                                                  .a = x.at,
                                                  .a_row = x.row,
                                                  .a_step = 1,
                                                  .b = across + first,
                                                  .b_row = a->rows,
                                                  .out = out,
                                                  .out_row = BLOCK});
}

/* a->result[BLOCK][columns] ← weightsᵀ · x: for each query the sum over keys. */
static void sum_over_keys(const struct cpu_attention *a, const float *weights, struct head_matrix x,
                          size_t first)
{
    attention_product(&(struct attention_product){.rows = BLOCK,
                                                  .columns = a->columns,
                                                  .depth = first + BLOCK,
                                                  .a = weights,
                                                  .a_row = 1,
                                                  .a_step = BLOCK,
                                                  .b = x.at,
                                                  .b_row = x.row,
                                                  .out = a->result,
                                                  .out_row = a->columns});
}

/* out[keys][columns] += weights · x: for each key the sum over the queries from `first` on. */
static void add_over_queries(const struct cpu_attention *a, const float *weights,
                             struct head_matrix x, size_t first, float *out)
{
    attention_product(&(struct attention_product){.rows = first + BLOCK,
                                                  .columns = a->columns,
                                                  .depth = BLOCK,
                                                  .a = weights,
                                                  .a_row = BLOCK,
                                                  .a_step = 1,
                                                  .b = x.at + first * x.row,
                                                  .b_row = x.row,
                                                  .out = out,
                                                  .out_row = a->columns,
                                                  .add = true});
}

static void round_block(const struct cpu_attention *a, float *block, size_t first)
{
    if (a->bf16)
        attention_round(block, (first + BLOCK) * BLOCK);
}

static void forward_head(const struct cpu_attention *a, const struct op_call *call, size_t sample,
                         size_t head)
{
    const backend_buffer *x = call->input[0];
    const struct head_matrix to = part_of(a, call->output, sample, head, 0);
    const struct head_matrix k = operand(a, part_of(a, x, sample, head, KEY), a->k);
    const struct head_matrix v = operand(a, part_of(a, x, sample, head, VALUE), a->v);
    transpose(a, part_of(a, x, sample, head, QUERY), a->scale, a->q_across);
    for (size_t first = 0; first < a->positions; first += BLOCK) {
        of_queries(a, k, a->q_across, first, a->scores);
        attention_softmax(a->scores, first);
        round_block(a, a->scores, first);
        sum_over_keys(a, a->scores, v, first);
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

struct operands {
    struct head_matrix q, k, v, g;
};

/* Backward pass of one block of queries: adds to k_slope and v_slope, and writes the gradient of
 * the queries to a->result. */
static void backward_block(const struct cpu_attention *a, const struct operands *o, size_t first)
{
    of_queries(a, o->k, a->q_across, first, a->scores);
    attention_softmax(a->scores, first);
    of_queries(a, o->v, a->g_across, first, a->slopes);
    attention_softmax_backward(a->scores, a->slopes, first + BLOCK);
    round_block(a, a->scores, first);
    round_block(a, a->slopes, first);
    add_over_queries(a, a->scores, o->g, first, a->v_slope);
    add_over_queries(a, a->slopes, o->q, first, a->k_slope);
    sum_over_keys(a, a->slopes, o->k, first);
}

static void backward_head(const struct cpu_attention *a, const struct op_call *call, size_t sample,
                          size_t head)
{
    const bool add = call->accumulate[0];
    const backend_buffer *x = call->input[0], *to = call->input_gradient[0];
    const struct head_matrix q = part_of(a, x, sample, head, QUERY);
    const struct head_matrix g = part_of(a, call->output_gradient, sample, head, 0);
    const struct operands o = {.q = operand(a, q, a->q),
                               .k = operand(a, part_of(a, x, sample, head, KEY), a->k),
                               .v = operand(a, part_of(a, x, sample, head, VALUE), a->v),
                               .g = operand(a, g, a->g)};
    transpose(a, q, a->scale, a->q_across);
    transpose(a, g, 1, a->g_across);
    memset(a->k_slope, 0, a->rows * a->columns * sizeof(float));
    memset(a->v_slope, 0, a->rows * a->columns * sizeof(float));
    for (size_t first = 0; first < a->positions; first += BLOCK) {
        backward_block(a, &o, first);
        scatter(a, a->result, first, BLOCK, a->scale, part_of(a, to, sample, head, QUERY), add);
    }
    scatter(a, a->k_slope, 0, a->rows, a->scale, part_of(a, to, sample, head, KEY), add);
    scatter(a, a->v_slope, 0, a->rows, 1, part_of(a, to, sample, head, VALUE), add);
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
                                &a->q_across, &a->g_across, &a->k_slope, &a->v_slope};
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
    a->in_place = !a->bf16 && a->rows == a->positions && a->columns == a->features;
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
