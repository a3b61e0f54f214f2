/*
 * cuda_kernels_attention.h — causal self-attention (after Dao et al. 2022, Dao 2023). A block
 * computes `tile` positions of one head of one sample. It reads the other positions tile by tile,
 * so that probabilities are only in shared memory. Sums are float32 in every precision.
 *
 * Forward keeps norm = ln Σ exp(score) of each query. With it, backward computes the probabilities
 * p = exp(score − norm) again, one kernel for the gradients of the queries and one for those of
 * keys and values. With dp = gradient of y · v, the gradient of a score is p (dp − slope),
 * slope = Σ p dp = gradient of y · y.
 *
 * A tile in shared memory has one more column than features, so that the threads of a warp read
 * different banks. Thread (row, lane) of a block computes the scores of columns lane, lane + lanes,
 * …, and the features lane, lane + lanes, … of its row.
 */
#ifndef GRADLAG_WORKER_CUDA_KERNELS_CUDA_KERNELS_ATTENTION_H
#define GRADLAG_WORKER_CUDA_KERNELS_CUDA_KERNELS_ATTENTION_H

#include "worker/cuda/kernels/cuda_kernels_common.h"

/* The largest tiles: 32 rows of 64 features, 16 rows of 128 features. */
enum {
    ATTENTION_TILE = 32 * 65,
    ATTENTION_SCORES = 32 * 33,
    ATTENTION_OWN = CUDA_ATTENTION_OWN,
};

struct attention_place {
    uint32_t row, lane, lanes; /* of this thread; threads of a row */
    uint32_t head, sample;
    uint32_t stride, step; /* floats from a row to the next: in a tile, in a tile of scores */
    size_t width;          /* C */
};

CUDA_FUNCTION struct attention_place attention_place_of(const struct attention_shape *s)
{
    struct attention_place p;
    p.lanes = CUDA_ATTENTION_THREADS / s->tile;
    p.row = THREAD / p.lanes;
    p.lane = THREAD % p.lanes;
    p.head = BLOCK_X % s->heads;
    p.sample = BLOCK_X / s->heads;
    p.stride = s->features + 1;
    p.step = s->tile + 1;
    p.width = (size_t)s->heads * s->features;
    return p;
}

/* The first feature of a position: of y, and of the query in x (keys and values follow C and 2C
 * floats after it). */
CUDA_FUNCTION size_t attention_row(const struct attention_shape *s, const struct attention_place *p,
                                   uint32_t position, uint32_t parts)
{
    return ((size_t)p->sample * s->positions + position) * parts * p->width +
           (size_t)p->head * s->features;
}

/* Index of a position in arrays with one number for each sample, head and position. */
CUDA_FUNCTION size_t attention_number(const struct attention_shape *s, uint32_t position)
{
    return (size_t)BLOCK_X * s->positions + position;
}

/* tile ← factor · the rows from position `first` on; 0 beyond the last position. `from`: the array,
 * beginning at the wanted part of its first row. */
CUDA_FUNCTION void attention_load(const struct attention_shape *s, const struct attention_place *p,
                                  const float *from, uint32_t parts, uint32_t first, float factor,
                                  float *tile)
{
    const uint32_t position = first + p->row;
    const bool there = position < s->positions;
    const float *at = from + attention_row(s, p, there ? position : 0, parts);
    for (uint32_t d = p->lane; d < s->features; d += p->lanes)
        tile[p->row * p->stride + d] = there ? factor * at[d] : 0;
}

/* out[j] = row `row` of `a` · row lane + j · lanes of `b`. */
CUDA_FUNCTION void attention_dots(const struct attention_shape *s, const struct attention_place *p,
                                  const float *a, const float *b, float out[CUDA_ATTENTION_DOTS])
{
    CUDA_UNROLL
    for (uint32_t j = 0; j < CUDA_ATTENTION_DOTS; j++)
        out[j] = 0;
    for (uint32_t d = 0; d < s->features; d++) {
        const float factor = a[p->row * p->stride + d];
        CUDA_UNROLL
        for (uint32_t j = 0; j < CUDA_ATTENTION_DOTS; j++)
            if (j * p->lanes < s->tile)
                out[j] += factor * b[(p->lane + j * p->lanes) * p->stride + d];
    }
}

/* sum += Σ over k of weights[row][k] · row k of `tile`. */
CUDA_FUNCTION void attention_add(const struct attention_shape *s, const struct attention_place *p,
                                 const float *weights, const float *tile, float sum[ATTENTION_OWN])
{
    for (uint32_t k = 0; k < s->tile; k++) {
        const float weight = weights[p->row * p->step + k];
        CUDA_UNROLL
        for (uint32_t j = 0; j < ATTENTION_OWN; j++)
            if (p->lane + j * p->lanes < s->features)
                sum[j] += weight * tile[k * p->stride + p->lane + j * p->lanes];
    }
}

/* to (+)= factor · sum, in the row of this thread. */
CUDA_FUNCTION void attention_store(const struct attention_shape *s, const struct attention_place *p,
                                   float *to, const float sum[ATTENTION_OWN], float factor,
                                   bool add)
{
    CUDA_UNROLL
    for (uint32_t j = 0; j < ATTENTION_OWN; j++) {
        const uint32_t d = p->lane + j * p->lanes;
        if (d < s->features)
            to[d] = (add ? to[d] : 0) + factor * sum[j];
    }
}

/* Replaces the scores of the tile that begins with key `begin` by exp(score − maximum), 0 for keys
 * after the query. *most and *total: the largest score and Σ exp over all tiles so far. Returns the
 * factor to apply to earlier sums. */
CUDA_FUNCTION float attention_softmax(const struct attention_shape *s,
                                      const struct attention_place *p, float *scores,
                                      uint32_t query, uint32_t begin, float *most, float *total)
{
    float *row = scores + p->row * p->step, high = *most, sum = 0;
    const uint32_t seen = query - begin < s->tile ? query - begin + 1 : s->tile;
    for (uint32_t k = 0; k < seen; k++)
        high = fmaxf(high, row[k]);
    SYNC();
    for (uint32_t k = p->lane; k < s->tile; k += p->lanes)
        row[k] = k < seen ? expf(row[k] - high) : 0;
    SYNC();
    for (uint32_t k = 0; k < seen; k++)
        sum += row[k];
    const float factor = expf(*most - high); /* 0 at the first tile */
    *total = *total * factor + sum;
    *most = high;
    return factor;
}

CUDA_KERNEL(attention_forward)
{
    SHARED(float, queries, ATTENTION_TILE);
    SHARED(float, keys, ATTENTION_TILE);
    SHARED(float, values, ATTENTION_TILE);
    SHARED(float, scores, ATTENTION_SCORES);
    const struct attention_place p = attention_place_of(&c.s);
    const uint32_t first = (BLOCKS_Y - 1 - BLOCK_Y) * c.s.tile; /* the longest blocks start first */
    const uint32_t query = first + p.row;
    float most = -INFINITY, total = 0, sum[ATTENTION_OWN] = {0}, dots[CUDA_ATTENTION_DOTS];
    attention_load(&c.s, &p, c.x, 3, first, c.s.scale, queries);
    for (uint32_t begin = 0; begin <= first; begin += c.s.tile) {
        SYNC();
        attention_load(&c.s, &p, c.x + p.width, 3, begin, 1, keys);
        attention_load(&c.s, &p, c.x + 2 * p.width, 3, begin, 1, values);
        SYNC();
        attention_dots(&c.s, &p, queries, keys, dots);
        CUDA_UNROLL
        for (uint32_t j = 0; j < CUDA_ATTENTION_DOTS; j++)
            if (j * p.lanes < c.s.tile)
                scores[p.row * p.step + p.lane + j * p.lanes] = dots[j];
        SYNC();
        const float factor = attention_softmax(&c.s, &p, scores, query, begin, &most, &total);
        CUDA_UNROLL
        for (uint32_t j = 0; j < ATTENTION_OWN; j++)
            sum[j] *= factor;
        attention_add(&c.s, &p, scores, values, sum);
    }
    if (query >= c.s.positions)
        return;
    attention_store(&c.s, &p, c.y + attention_row(&c.s, &p, query, 1), sum, 1 / total, false);
    if (p.lane == 0)
        c.norm[attention_number(&c.s, query)] = most + logf(total);
}

/* Gradient of y · y of this thread's query, in all threads of the row. */
CUDA_FUNCTION float attention_slope(const struct attention_shape *s,
                                    const struct attention_place *p, const float *g, const float *y,
                                    uint32_t query, float *scores)
{
    const size_t at = attention_row(s, p, query < s->positions ? query : 0, 1);
    float part = 0, slope = 0;
    for (uint32_t d = p->lane; d < s->features; d += p->lanes)
        part += g[at + d] * y[at + d];
    scores[THREAD] = part;
    SYNC();
    for (uint32_t k = 0; k < p->lanes; k++)
        slope += scores[p->row * p->lanes + k];
    return slope;
}

CUDA_KERNEL(attention_queries)
{
    SHARED(float, queries, ATTENTION_TILE);
    SHARED(float, slopes, ATTENTION_TILE);
    SHARED(float, keys, ATTENTION_TILE);
    SHARED(float, values, ATTENTION_TILE);
    SHARED(float, scores, ATTENTION_SCORES);
    const struct attention_place p = attention_place_of(&c.s);
    const uint32_t first = (BLOCKS_Y - 1 - BLOCK_Y) * c.s.tile, query = first + p.row;
    const float slope = attention_slope(&c.s, &p, c.g, c.y, query, scores);
    const float norm = query < c.s.positions ? c.norm[attention_number(&c.s, query)] : 0;
    float sum[ATTENTION_OWN] = {0}, dots[CUDA_ATTENTION_DOTS], of_p[CUDA_ATTENTION_DOTS];
    if (p.lane == 0 && query < c.s.positions)
        c.slope[attention_number(&c.s, query)] = slope;
    attention_load(&c.s, &p, c.x, 3, first, c.s.scale, queries);
    attention_load(&c.s, &p, c.g, 1, first, 1, slopes);
    for (uint32_t begin = 0; begin <= first; begin += c.s.tile) {
        SYNC();
        attention_load(&c.s, &p, c.x + p.width, 3, begin, 1, keys);
        attention_load(&c.s, &p, c.x + 2 * p.width, 3, begin, 1, values);
        SYNC();
        attention_dots(&c.s, &p, queries, keys, dots);
        attention_dots(&c.s, &p, slopes, values, of_p);
        CUDA_UNROLL
        for (uint32_t j = 0; j < CUDA_ATTENTION_DOTS; j++) {
            const uint32_t k = p.lane + j * p.lanes;
            const bool seen = begin + k <= query && query < c.s.positions;
            if (k < c.s.tile)
                scores[p.row * p.step + k] = seen ? expf(dots[j] - norm) * (of_p[j] - slope) : 0;
        }
        SYNC();
        attention_add(&c.s, &p, scores, keys, sum);
    }
    if (query < c.s.positions)
        attention_store(&c.s, &p, c.to + attention_row(&c.s, &p, query, 3), sum, c.s.scale,
                        c.accumulate);
}

/* Rows of `scores` and `slopes` are keys, columns are queries. */
CUDA_KERNEL(attention_keys)
{
    SHARED(float, queries, ATTENTION_TILE);
    SHARED(float, gradients, ATTENTION_TILE);
    SHARED(float, keys, ATTENTION_TILE);
    SHARED(float, values, ATTENTION_TILE);
    SHARED(float, scores, ATTENTION_SCORES);
    SHARED(float, slopes, ATTENTION_SCORES);
    const struct attention_place p = attention_place_of(&c.s);
    const uint32_t first = BLOCK_Y * c.s.tile, key = first + p.row;
    float of_key[ATTENTION_OWN] = {0}, of_value[ATTENTION_OWN] = {0};
    float dots[CUDA_ATTENTION_DOTS], of_p[CUDA_ATTENTION_DOTS];
    attention_load(&c.s, &p, c.x + p.width, 3, first, 1, keys);
    attention_load(&c.s, &p, c.x + 2 * p.width, 3, first, 1, values);
    for (uint32_t begin = first; begin < c.s.positions; begin += c.s.tile) {
        SYNC();
        attention_load(&c.s, &p, c.x, 3, begin, c.s.scale, queries);
        attention_load(&c.s, &p, c.g, 1, begin, 1, gradients);
        SYNC();
        attention_dots(&c.s, &p, keys, queries, dots);
        attention_dots(&c.s, &p, values, gradients, of_p);
        CUDA_UNROLL
        for (uint32_t j = 0; j < CUDA_ATTENTION_DOTS; j++) {
            const uint32_t k = p.lane + j * p.lanes, query = begin + k;
            const bool seen = key <= query && query < c.s.positions;
            const size_t at = attention_number(&c.s, seen ? query : 0);
            const float weight = seen ? expf(dots[j] - c.norm[at]) : 0;
            if (k < c.s.tile) {
                scores[p.row * p.step + k] = weight;
                slopes[p.row * p.step + k] = weight * (of_p[j] - c.slope[at]);
            }
        }
        SYNC();
        attention_add(&c.s, &p, scores, gradients, of_value);
        attention_add(&c.s, &p, slopes, queries, of_key);
    }
    if (key >= c.s.positions)
        return;
    float *to = c.to + attention_row(&c.s, &p, key, 3);
    attention_store(&c.s, &p, to + p.width, of_key, 1, c.accumulate);
    attention_store(&c.s, &p, to + 2 * p.width, of_value, 1, c.accumulate);
}

#endif
