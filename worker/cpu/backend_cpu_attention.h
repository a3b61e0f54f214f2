/*
 * backend_cpu_attention.h — shared by backend_cpu_attention.c (the operation) and
 * backend_cpu_attention_kernels.c (its vector loops).
 */
#ifndef GRADLAG_WORKER_CPU_BACKEND_CPU_ATTENTION_H
#define GRADLAG_WORKER_CPU_BACKEND_CPU_ATTENTION_H

#include "base/vector.h"

#include <stdbool.h>
#include <stddef.h>

/* Rows and columns of all matrices here are padded to multiples of this number. */
enum { ATTENTION_BLOCK = VECTOR_LANES };

/* out[rows][columns] ← (or +=) a[rows][depth] · b[depth][columns]. Element (r, k) of `a` is at
 * a[r·a_row + k·a_step]; rows of `b` and `out` are b_row and out_row floats apart. `rows` and
 * `columns` are multiples of ATTENTION_BLOCK. Each sum is in order of k. */
struct attention_product {
    size_t rows, columns, depth;
    const float *a, *b;
    float *out;
    size_t a_row, a_step, b_row, out_row;
    bool add;
};
void attention_product(const struct attention_product *p);

/* The next two functions work on a block [keys][ATTENTION_BLOCK], keys = first + ATTENTION_BLOCK.
 * Lane l of row j belongs to key j and query first + l. A query sees the keys up to its own
 * position. */

/* Scores → probabilities: for each query, softmax over the keys that it sees; 0 for the others. */
void attention_softmax(float *scores, size_t first);
/* slopes ← p · (slopes − Σ p · slopes): the gradient of the probabilities → that of the scores. */
void attention_softmax_backward(const float *probabilities, float *slopes, size_t keys);

/* Copies `rows` rows of `columns` floats, `from_row` apart, times `factor`, to rows `to_row` apart.
 * `bf16`: rounded to bf16. */
struct attention_copy {
    size_t rows, columns, from_row, to_row;
    const float *from;
    float *to;
    float factor;
    bool bf16;
};
void attention_gather(const struct attention_copy *c);
/* The same, transposed: row r becomes column r. */
void attention_transpose(const struct attention_copy *c);
/* The same; with `add`, to += from. */
void attention_scatter(const struct attention_copy *c, bool add);
/* Rounds whole lines to bf16 in place. */
void attention_round(float *values, size_t count);

#endif
