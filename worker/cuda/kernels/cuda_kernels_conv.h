/*
 * cuda_kernels_conv.h — convolutions in LANES as implicit matrix products. Rows are channels,
 * columns are places × batch. Sums run over taps, or over columns for the weight gradient. A block
 * has a tile of both factors in shared memory, a thread a tile of the result in registers. Threads
 * load the next piece of the factors while they use the present one. The order of each sum does not
 * depend on the tile.
 *
 * The fast kernels read four lanes at once and require batch % 4 == 0; kernels named `_any` accept
 * every batch.
 */
#ifndef GRADLAG_WORKER_CUDA_KERNELS_CUDA_KERNELS_CONV_H
#define GRADLAG_WORKER_CUDA_KERNELS_CUDA_KERNELS_CONV_H

#include "worker/cuda/kernels/cuda_kernels_common.h"
#include "worker/cuda/kernels/cuda_kernels_tensor.h"

enum { CONV_THREADS = 128, CONV_TAPS = 8 /* taps in shared memory at a time */ };

/* ---- where a column is, and what a tap finds there ----------------------------------------------
 */

struct conv_place {
    int32_t base, y, x; /* position in the source without the tap */
    uint32_t live;
};

CUDA_FUNCTION struct conv_place conv_place_of(uint32_t column, uint32_t columns, uint32_t wide,
                                              uint32_t batch, uint32_t step, uint32_t source_width)
{
    uint32_t place = column / batch;
    struct conv_place p;
    p.y = (int32_t)(place / wide * step);
    p.x = (int32_t)(place % wide * step);
    p.base = (p.y * (int32_t)source_width + p.x) * (int32_t)batch + (int32_t)(column % batch);
    p.live = column < columns;
    return p;
}

CUDA_FUNCTION bool conv_inside(const struct conv_place *p, const struct conv_tap *tap,
                               uint32_t height, uint32_t width)
{
    return p->live && (tap->one || ((uint32_t)(p->y + tap->down) < height &&
                                    (uint32_t)(p->x + tap->right) < width));
}

CUDA_FUNCTION float conv_one(const float *source, const struct conv_place *p,
                             const struct conv_tap *tap, uint32_t height, uint32_t width)
{
    if (!conv_inside(p, tap, height, width))
        return 0;
    return tap->one ? 1 : source[p->base + tap->source];
}

CUDA_FUNCTION cuda_four conv_four(const float *source, const struct conv_place *p,
                                  const struct conv_tap *tap, uint32_t height, uint32_t width)
{
    if (!conv_inside(p, tap, height, width))
        return four_of(0);
    return tap->one ? four_of(1) : four_at(source + p->base + tap->source);
}

/* ---- forward, and the input gradient ------------------------------------------------------------
 */

CUDA_FUNCTION float conv_finish(const struct conv_call *c, float v, float bias, size_t at)
{
    v = activate_fused(v + bias, c->activation);
    if (c->gate != NULL && !(c->gate[at] > 0))
        v = 0;
    return c->accumulate ? c->to[at] + v : v;
}

CUDA_FUNCTION size_t conv_to(const struct conv_call *c, const struct conv_class *k, uint32_t column)
{
    uint32_t place = column / c->batch;
    return (size_t)k->to + (size_t)(place / k->places_wide) * c->to_down +
           (size_t)(place % k->places_wide) * c->to_right + column % c->batch;
}

CUDA_FUNCTION float conv_weight_at(const struct conv_call *c, const struct conv_tap *taps,
                                   uint32_t count, uint32_t tap, uint32_t row)
{
    return tap < count && row < c->rows
               ? c->weight[(size_t)row * c->weight_row + (size_t)taps[tap].weight]
               : 0;
}

/* sum += w · x over the taps in shared memory, for `rows` rows from `row` on and four columns. */
CUDA_FUNCTION void conv_multiply(float sum[8][4], const float *w, const float *x, uint32_t row,
                                 uint32_t column, const uint32_t wide, const uint32_t tile_rows,
                                 const uint32_t rows)
{
    CUDA_UNROLL
    for (uint32_t k = 0; k < CONV_TAPS; k++) {
        cuda_four b = four_at(x + k * wide + column);
        CUDA_UNROLL
        for (uint32_t r = 0; r < rows; r++) {
            float a = w[k * (tile_rows + 4) + row + r];
            sum[r][0] += a * b.x;
            sum[r][1] += a * b.y;
            sum[r][2] += a * b.z;
            sum[r][3] += a * b.w;
        }
    }
}

/* The same on the tensor cores: a warp has a quarter of the columns and all rows of the tile. */
CUDA_FUNCTION void conv_multiply_tensor(float sum[8][4], const float *w, const float *x,
                                        const uint32_t w_pitch, const uint32_t x_pitch,
                                        const uint32_t high, const uint32_t wide)
{
    CUDA_UNROLL
    for (uint32_t m = 0; m < wide / 4; m += TENSOR_COLUMNS) {
        CUDA_UNROLL
        for (uint32_t n = 0; n < high; n += TENSOR_ROWS) {
            const struct tensor_factor b = {x + THREAD / 32 * (wide / 4) + m, x_pitch, 1};
            const struct tensor_factor a = {w + n, w_pitch, 1};
            tensor_multiply(sum[(m / TENSOR_COLUMNS * high + n) / TENSOR_ROWS], b, a);
        }
    }
}

CUDA_FUNCTION void conv_store_tensor(const struct conv_call *c, const struct conv_class *k,
                                     float sum[8][4], uint32_t columns, const uint32_t high,
                                     const uint32_t wide)
{
    CUDA_UNROLL
    for (uint32_t i = 0; i < wide / 4 * high / 128 * 4; i++) {
        const uint32_t f = i / 4, e = i % 4;
        const uint32_t row =
            BLOCK_Y * high + f % (high / TENSOR_ROWS) * TENSOR_ROWS + tensor_row(e);
        const uint32_t column = BLOCK_X * wide + THREAD / 32 * (wide / 4) +
                                f / (high / TENSOR_ROWS) * TENSOR_COLUMNS + tensor_column(e);
        if (row < c->rows && column < columns) {
            size_t at = conv_to(c, k, column) + (size_t)row * c->to_row;
            c->to[at] = conv_finish(c, sum[f][e], c->bias != NULL ? c->bias[row] : 0, at);
        }
    }
}

/* `rows` rows from `row0` on, four columns from `column` on. */
CUDA_FUNCTION void conv_store(const struct conv_call *c, const struct conv_class *k,
                              float sum[8][4], uint32_t row0, uint32_t column, const uint32_t rows)
{
    size_t to = conv_to(c, k, column);
    CUDA_UNROLL
    for (uint32_t r = 0; r < rows; r++) {
        uint32_t row = row0 + r;
        if (row < c->rows) {
            size_t at = to + (size_t)row * c->to_row;
            float bias = c->bias != NULL ? c->bias[row] : 0;
            cuda_four v;
            v.x = conv_finish(c, sum[r][0], bias, at);
            v.y = conv_finish(c, sum[r][1], bias, at + 1);
            v.z = conv_finish(c, sum[r][2], bias, at + 2);
            v.w = conv_finish(c, sum[r][3], bias, at + 3);
            four_to(c->to + at, v);
        }
    }
}

/* The tile of a block has `high` rows × `wide` columns; the tile of a thread has `rows` × 4. */
CUDA_FUNCTION void conv_tile(const struct conv_call *c, float *w, float *x, const uint32_t high,
                             const uint32_t wide, const uint32_t rows, const bool tensor)
{
    /* pitches without bank conflicts */
    const uint32_t w_pitch = !tensor ? high + 4 : high > 8 ? high + 8 : high;
    const uint32_t x_pitch = tensor ? wide + 8 : wide;
    const struct conv_class k = c->classes[BLOCK_Z];
    const struct conv_tap *taps = c->taps + k.tap;
    const uint32_t columns = k.places_high * k.places_wide * c->batch;
    const uint32_t groups = high / rows, loads = CONV_TAPS / groups;
    const uint32_t weight_loads = (CONV_TAPS * high + CONV_THREADS - 1) / CONV_THREADS;
    if (BLOCK_X * wide >= columns)
        return; /* classes differ in size */
    const uint32_t near = THREAD % (wide / 4) * 4, group = THREAD / (wide / 4);
    const uint32_t column = BLOCK_X * wide + near, row0 = BLOCK_Y * high;
    const struct conv_place p =
        conv_place_of(column, columns, k.places_wide, c->batch, c->step, c->source_width);
    float sum[8][4] = {{0}}, weight[4] = {0};
    cuda_four factor[4] = {{0, 0, 0, 0}};
    for (uint32_t at = 0; at < k.taps + CONV_TAPS; at += CONV_TAPS) {
        if (at > 0) { /* values that the previous round loaded */
            CUDA_UNROLL
            for (uint32_t i = 0; i < loads; i++) {
                four_to(x + (group + i * groups) * x_pitch + near,
                        rounded_four(factor[i], c->dropped));
            }
            CUDA_UNROLL
            for (uint32_t i = 0; i < weight_loads; i++) {
                uint32_t e = THREAD + i * CONV_THREADS;
                if (e < CONV_TAPS * high)
                    w[e % CONV_TAPS * w_pitch + e / CONV_TAPS] = rounded(weight[i], c->dropped);
            }
            SYNC();
        }
        CUDA_UNROLL
        for (uint32_t i = 0; i < loads; i++) {
            uint32_t tap = at + group + i * groups;
            factor[i] = tap < k.taps ? conv_four(c->source, &p, &taps[tap], c->source_height,
                                                 c->source_width)
                                     : four_of(0);
        }
        CUDA_UNROLL
        for (uint32_t i = 0; i < weight_loads; i++) {
            uint32_t e = THREAD + i * CONV_THREADS;
            weight[i] = e < CONV_TAPS * high ? conv_weight_at(c, taps, k.taps, at + e % CONV_TAPS,
                                                              row0 + e / CONV_TAPS)
                                             : 0;
        }
        if (at > 0) {
            if (tensor)
                conv_multiply_tensor(sum, w, x, w_pitch, x_pitch, high, wide);
            else
                conv_multiply(sum, w, x, group * rows, near, wide, high, rows);
            SYNC();
        }
    }
    if (tensor)
        conv_store_tensor(c, &k, sum, columns, high, wide);
    else if (p.live)
        conv_store(c, &k, sum, row0 + group * rows, column, rows);
}

#define CONV_KERNEL(name, high, wide, rows, tensor)                                                \
    CUDA_KERNEL(name)                                                                              \
    {                                                                                              \
        SHARED(cuda_four, w, CONV_TAPS *((high) + 8) / 4);                                         \
        SHARED(cuda_four, x, CONV_TAPS *((wide) + 8) / 4);                                         \
        conv_tile(&c, (float *)w, (float *)x, high, wide, rows, tensor);                           \
    }
CONV_KERNEL(conv_8, 8, 256, 4, false)
CONV_KERNEL(conv_16, 16, 128, 4, false)
CONV_KERNEL(conv_32, 32, 128, 8, false)
CONV_KERNEL(conv_64, 64, 64, 8, false)
CONV_KERNEL(conv_tensor_8, 8, 256, 4, true)
CONV_KERNEL(conv_tensor_16, 16, 128, 4, true)
CONV_KERNEL(conv_tensor_32, 32, 128, 8, true)
CONV_KERNEL(conv_tensor_64, 64, 64, 8, true)

/* Tile of a block: 16 rows × 64 columns; of a thread: 2 × 4. */
CUDA_KERNEL(conv_any)
{
    SHARED(cuda_four, w, CONV_TAPS * 20 / 4);
    SHARED(cuda_four, x, CONV_TAPS * 64 / 4);
    const struct conv_class k = c.classes[BLOCK_Z];
    const struct conv_tap *taps = c.taps + k.tap;
    const uint32_t columns = k.places_high * k.places_wide * c.batch;
    if (BLOCK_X * 64 >= columns)
        return;
    const uint32_t near = THREAD % 64, group = THREAD / 16, row0 = BLOCK_Y * 16;
    const struct conv_place p =
        conv_place_of(BLOCK_X * 64 + near, columns, k.places_wide, c.batch, c.step, c.source_width);
    float sum[8][4] = {{0}};
    for (uint32_t at = 0; at < k.taps; at += CONV_TAPS) {
        for (uint32_t i = THREAD / 64; i < CONV_TAPS; i += 2) {
            float v = at + i < k.taps
                          ? conv_one(c.source, &p, &taps[at + i], c.source_height, c.source_width)
                          : 0;
            ((float *)x)[i * 64 + near] = rounded(v, c.dropped);
        }
        uint32_t tap = THREAD % CONV_TAPS, row = THREAD / CONV_TAPS;
        float weight = conv_weight_at(&c, taps, k.taps, at + tap, row0 + row);
        ((float *)w)[tap * 20 + row] = rounded(weight, c.dropped);
        SYNC();
        conv_multiply(sum, (const float *)w, (const float *)x, group * 2, THREAD % 16 * 4, 64, 16,
                      2);
        SYNC();
    }
    CUDA_UNROLL
    for (uint32_t r = 0; r < 2; r++) {
        CUDA_UNROLL
        for (uint32_t q = 0; q < 4; q++) {
            uint32_t column = BLOCK_X * 64 + THREAD % 16 * 4 + q, row = row0 + group * 2 + r;
            if (column < columns && row < c.rows) {
                size_t at = conv_to(&c, &k, column) + (size_t)row * c.to_row;
                c.to[at] = conv_finish(&c, sum[r][q], c.bias != NULL ? c.bias[row] : 0, at);
            }
        }
    }
}

/* ---- the weight gradient ------------------------------------------------------------------------
 * Tiles hold 32 columns of each row and each tap, 36 apart, so that neighbouring threads read
 * different banks. */

enum { CONV_COLUMNS = 32, CONV_ROW = CONV_COLUMNS + 4, CONV_WEIGHT_TAPS = 64 };

/* One product after the other, each a single fused instruction. */
CUDA_FUNCTION float dot_four(cuda_four a, cuda_four b, float sum)
{
    sum += a.x * b.x;
    sum += a.y * b.y;
    sum += a.z * b.z;
    sum += a.w * b.w;
    return sum;
}

/* The rows of a thread are `group`, `group + high/rows`, …, its taps `near`, `near + 16`, … */
CUDA_FUNCTION void conv_weight_multiply(float sum[8][4], const float *g, const float *x,
                                        uint32_t group, uint32_t near, const uint32_t high,
                                        const uint32_t rows)
{
    CUDA_UNROLL
    for (uint32_t n = 0; n < CONV_COLUMNS; n += 4) {
        cuda_four b0 = four_at(x + near * CONV_ROW + n);
        cuda_four b1 = four_at(x + (near + 16) * CONV_ROW + n);
        cuda_four b2 = four_at(x + (near + 32) * CONV_ROW + n);
        cuda_four b3 = four_at(x + (near + 48) * CONV_ROW + n);
        CUDA_UNROLL
        for (uint32_t r = 0; r < rows; r++) {
            cuda_four a = four_at(g + (group + r * (high / rows)) * CONV_ROW + n);
            sum[r][0] = dot_four(a, b0, sum[r][0]);
            sum[r][1] = dot_four(a, b1, sum[r][1]);
            sum[r][2] = dot_four(a, b2, sum[r][2]);
            sum[r][3] = dot_four(a, b3, sum[r][3]);
        }
    }
}

/* The same on the tensor cores: a warp has 16 of the taps and all rows of the tile. */
CUDA_FUNCTION void conv_weight_multiply_tensor(float sum[8][4], const float *g, const float *x,
                                               const uint32_t high)
{
    CUDA_UNROLL
    for (uint32_t n = 0; n < CONV_COLUMNS; n += TENSOR_TAPS) {
        const struct tensor_factor b = {x + THREAD / 32 * TENSOR_COLUMNS * CONV_ROW + n, 1,
                                        CONV_ROW};
        CUDA_UNROLL
        for (uint32_t r = 0; r < high; r += TENSOR_ROWS) {
            const struct tensor_factor a = {g + r * CONV_ROW + n, 1, CONV_ROW};
            tensor_multiply(sum[r / TENSOR_ROWS], b, a);
        }
    }
}

CUDA_FUNCTION void conv_weight_store(const struct conv_weight_call *c, uint32_t row, uint32_t tap,
                                     float sum)
{
    if (row < c->rows && tap < c->tap_count)
        c->partial[((size_t)BLOCK_Z * c->rows + row) * c->tap_count + tap] = sum;
}

CUDA_FUNCTION void conv_weight_write_tensor(const struct conv_weight_call *c, float sum[8][4],
                                            uint32_t row0, uint32_t tap0, const uint32_t high)
{
    CUDA_UNROLL
    for (uint32_t f = 0; f < high / TENSOR_ROWS; f++) {
        CUDA_UNROLL
        for (uint32_t e = 0; e < 4; e++)
            conv_weight_store(c, row0 + f * TENSOR_ROWS + tensor_row(e),
                              tap0 + THREAD / 32 * TENSOR_COLUMNS + tensor_column(e), sum[f][e]);
    }
}

CUDA_FUNCTION void conv_weight_write(const struct conv_weight_call *c, float sum[8][4],
                                     uint32_t row0, uint32_t tap0, const uint32_t high,
                                     const uint32_t rows)
{
    CUDA_UNROLL
    for (uint32_t r = 0; r < rows; r++) {
        uint32_t row = row0 + r * (high / rows);
        CUDA_UNROLL
        for (uint32_t q = 0; q < 4; q++)
            conv_weight_store(c, row, tap0 + q * 16, sum[r][q]);
    }
}

CUDA_FUNCTION void conv_weight_tile(const struct conv_weight_call *c, float *gs, float *xs,
                                    const uint32_t high, const uint32_t rows, const bool tensor)
{
    const uint32_t quad = THREAD % 8 * 4, line = THREAD / 8, row0 = BLOCK_Y * high;
    const uint32_t tap0 = BLOCK_X * CONV_WEIGHT_TAPS, g_loads = high / 16;
    const uint32_t begin = BLOCK_Z * c->share, end = begin + c->share;
    const uint32_t limit = end < c->columns ? end : c->columns;
    float sum[8][4] = {{0}};
    cuda_four g[4] = {{0, 0, 0, 0}}, x[4] = {{0, 0, 0, 0}};
    for (uint32_t at = begin; at < limit + CONV_COLUMNS; at += CONV_COLUMNS) {
        if (at > begin) {
            CUDA_UNROLL
            for (uint32_t i = 0; i < g_loads; i++)
                four_to(gs + (line + i * 16) * CONV_ROW + quad, rounded_four(g[i], c->dropped));
            CUDA_UNROLL
            for (uint32_t i = 0; i < 4; i++)
                four_to(xs + (line + i * 16) * CONV_ROW + quad, rounded_four(x[i], c->dropped));
            SYNC();
        }
        uint32_t column = at + quad;
        const struct conv_place p =
            conv_place_of(column, limit, c->places_wide, c->batch, c->step, c->source_width);
        CUDA_UNROLL
        for (uint32_t i = 0; i < g_loads; i++) {
            uint32_t row = row0 + line + i * 16;
            g[i] = p.live && row < c->rows ? four_at(c->g + (size_t)row * c->columns + column)
                                           : four_of(0);
        }
        CUDA_UNROLL
        for (uint32_t i = 0; i < 4; i++) {
            uint32_t tap = tap0 + line + i * 16;
            x[i] = tap < c->tap_count
                       ? conv_four(c->source, &p, &c->taps[tap], c->source_height, c->source_width)
                       : four_of(0);
        }
        if (at > begin) {
            if (tensor)
                conv_weight_multiply_tensor(sum, gs, xs, high);
            else
                conv_weight_multiply(sum, gs, xs, THREAD / 16, THREAD % 16, high, rows);
            SYNC();
        }
    }
    if (tensor)
        conv_weight_write_tensor(c, sum, row0, tap0, high);
    else
        conv_weight_write(c, sum, row0 + THREAD / 16, tap0 + THREAD % 16, high, rows);
}

#define CONV_WEIGHT_KERNEL(name, high, rows, tensor)                                               \
    CUDA_KERNEL(name)                                                                              \
    {                                                                                              \
        SHARED(cuda_four, g, CONV_ROW *(high) / 4);                                                \
        SHARED(cuda_four, x, CONV_ROW *CONV_WEIGHT_TAPS / 4);                                      \
        conv_weight_tile(&c, (float *)g, (float *)x, high, rows, tensor);                          \
    }
CONV_WEIGHT_KERNEL(conv_weight_16, 16, 2, false)
CONV_WEIGHT_KERNEL(conv_weight_32, 32, 4, false)
CONV_WEIGHT_KERNEL(conv_weight_64, 64, 8, false)
CONV_WEIGHT_KERNEL(conv_weight_tensor_16, 16, 2, true)
CONV_WEIGHT_KERNEL(conv_weight_tensor_32, 32, 4, true)
CONV_WEIGHT_KERNEL(conv_weight_tensor_64, 64, 8, true)

CUDA_KERNEL(conv_weight_any)
{
    SHARED(cuda_four, gs, CONV_ROW * 16 / 4);
    SHARED(cuda_four, xs, CONV_ROW * CONV_WEIGHT_TAPS / 4);
    const uint32_t near = THREAD % 32, line = THREAD / 32, row0 = BLOCK_Y * 16;
    const uint32_t tap0 = BLOCK_X * CONV_WEIGHT_TAPS, begin = BLOCK_Z * c.share;
    const uint32_t limit = begin + c.share < c.columns ? begin + c.share : c.columns;
    float sum[8][4] = {{0}};
    for (uint32_t at = begin; at < limit; at += CONV_COLUMNS) {
        const struct conv_place p =
            conv_place_of(at + near, limit, c.places_wide, c.batch, c.step, c.source_width);
        for (uint32_t i = line; i < 16; i += 4) {
            float v =
                p.live && row0 + i < c.rows ? c.g[(size_t)(row0 + i) * c.columns + at + near] : 0;
            ((float *)gs)[i * CONV_ROW + near] = rounded(v, c.dropped);
        }
        for (uint32_t i = line; i < CONV_WEIGHT_TAPS; i += 4) {
            float v = tap0 + i < c.tap_count ? conv_one(c.source, &p, &c.taps[tap0 + i],
                                                        c.source_height, c.source_width)
                                             : 0;
            ((float *)xs)[i * CONV_ROW + near] = rounded(v, c.dropped);
        }
        SYNC();
        conv_weight_multiply(sum, (const float *)gs, (const float *)xs, THREAD / 16, THREAD % 16,
                             16, 2);
        SYNC();
    }
    conv_weight_write(&c, sum, row0 + THREAD / 16, tap0 + THREAD % 16, 16, 2);
}

/* There are few weights and many splits: 8 threads per weight, each adds every eighth split. */
CUDA_KERNEL(conv_weight_sum)
{
    SHARED(float, sums, 256);
    const uint32_t taps = c.weights + (c.bias != NULL), count = c.rows * taps;
    const uint32_t i = BLOCK_X * 32 + THREAD % 32;
    float sum = 0, second = 0, third = 0, fourth = 0; /* so that loads need not wait for sums */
    uint32_t k = THREAD / 32;
    for (; k + 24 < c.splits && i < count; k += 32) {
        const float *at = c.partial + (size_t)k * count + i;
        sum += at[0];
        second += at[(size_t)8 * count];
        third += at[(size_t)16 * count];
        fourth += at[(size_t)24 * count];
    }
    for (; k < c.splits && i < count; k += 8)
        sum += c.partial[(size_t)k * count + i];
    sum = (sum + second) + (third + fourth);
    sums[THREAD] = sum;
    SYNC();
    if (THREAD < 32 && i < count) {
        for (k = 1; k < 8; k++)
            sum += sums[k * 32 + THREAD];
        uint32_t row = i / taps, tap = i % taps;
        float *to = tap < c.weights ? c.weight + (size_t)row * c.weights + tap : c.bias + row;
        bool accumulate = tap < c.weights ? c.accumulate_weight : c.accumulate_bias;
        *to = (accumulate ? *to : 0) + sum;
    }
}

/* ---- for matrix products ------------------------------------------------------------------------
 */

CUDA_FUNCTION void spread_to(const struct spread_call *c, size_t at, float v)
{
    if (c->to16 != NULL)
        c->to16[at] = bf16_of(v);
    else
        c->to[at] = v;
}

CUDA_KERNEL(spread)
{
    uint32_t column = (BLOCK_X * THREADS + THREAD) * 4;
    const struct conv_tap tap = c.taps[BLOCK_Y];
    size_t row = (size_t)BLOCK_Y * c.columns;
    if (column + 4 <= c.columns && c.batch % 4 == 0) {
        const struct conv_place p =
            conv_place_of(column, c.columns, c.places_wide, c.batch, c.step, c.source_width);
        cuda_four v = conv_four(c.source, &p, &tap, c.source_height, c.source_width);
        if (c.to16 == NULL) {
            four_to(c.to + row + column, v);
        } else {
            const cuda_four16 v16 = {bf16_of(v.x), bf16_of(v.y), bf16_of(v.z), bf16_of(v.w)};
            *(cuda_four16 *)(c.to16 + row + column) = v16;
        }
        return;
    }
    for (uint32_t i = column; i < column + 4 && i < c.columns; i++) {
        const struct conv_place p =
            conv_place_of(i, c.columns, c.places_wide, c.batch, c.step, c.source_width);
        spread_to(&c, row + i, conv_one(c.source, &p, &tap, c.source_height, c.source_width));
    }
}

CUDA_KERNEL(collect)
{
    const uint32_t at_once = CUDA_AT_ONCE(c.s.batch), i = (BLOCK_Y * THREADS + THREAD) * at_once;
    if (i >= c.s.width * c.s.batch)
        return;
    const uint32_t channel = BLOCK_X / c.s.height, y = BLOCK_X % c.s.height + c.padding;
    const uint32_t x = i / c.s.batch + c.padding, lane = i % c.s.batch;
    const size_t columns = (size_t)c.s.out_height * c.s.out_width * c.s.batch;
    cuda_four sum = four_of(0);
    for (uint32_t ky = 0; ky < c.s.kernel_height && ky <= y; ky++) {
        const uint32_t oy = (y - ky) / c.s.stride;
        if ((y - ky) % c.s.stride != 0 || oy >= c.s.out_height)
            continue;
        for (uint32_t kx = 0; kx < c.s.kernel_width && kx <= x; kx++) {
            const uint32_t ox = (x - kx) / c.s.stride;
            if ((x - kx) % c.s.stride == 0 && ox < c.s.out_width) {
                const size_t tap = (size_t)(channel * c.s.kernel_height + ky) * c.s.kernel_width;
                const size_t place = (size_t)(oy * c.s.out_width + ox) * c.s.batch + lane;
                const cuda_four v = some_at(c.from + (tap + kx) * columns + place, at_once);
                sum.x += v.x;
                sum.y += v.y;
                sum.z += v.z;
                sum.w += v.w;
            }
        }
    }
    const size_t at = (size_t)BLOCK_X * c.s.width * c.s.batch + i;
    gated_to(c.to + at, c.gate != NULL ? c.gate + at : NULL, sum, at_once, c.accumulate);
}

#endif
