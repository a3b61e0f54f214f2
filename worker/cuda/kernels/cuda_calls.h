/*
 * cuda_calls.h — the arguments of every kernel: struct NAME_call for kernel NAME of
 * cuda_kernels.def. All pointers are device memory.
 *
 * Members are ordered so that no struct has padding, because calls are compared byte by byte. ROWS
 * is [batch][features]; LANES is [features][batch], features in C,H,W order. `activation` is an
 * enum activation (backend.h). "Blocks: x per A, y per B" gives the grid.
 */
#ifndef GRADLAG_WORKER_CUDA_KERNELS_CUDA_CALLS_H
#define GRADLAG_WORKER_CUDA_KERNELS_CUDA_CALLS_H

#include "worker/cuda/cuda_device.h"
#include "worker/data/dataset.h"
#include "worker/device_vectors.h"

#pragma GCC diagnostic push
#pragma GCC diagnostic error "-Wpadded"

/* ---- elementwise ------------------------------------------------------------------------------
 * Kernels on buffers compute four elements per thread, so pointers are aligned to 16 bytes. The
 * last thread computes the rest. */
enum { CUDA_ACTIVATION_NONE, CUDA_ACTIVATION_RELU, CUDA_ACTIVATION_TANH, CUDA_ACTIVATION_GELU };

/* to[i] = from[i], or to[i] += from[i]; one element per thread, any alignment */
struct pass_on_call {
    float *to;
    const float *from;
    uint32_t count, accumulate;
};

/* to[i] = from[i] rounded to bf16, to even; one element per thread */
struct round_call {
    uint16_t *to;
    const float *from;
    size_t count;
};

/* y = a(x) */
struct activation_forward_call {
    float *y;
    const float *x;
    size_t count;
    uint32_t activation, unused;
};

/* to (+)= g · a'(x); ReLU and tanh compute a' from y; `to` may be g */
struct activation_backward_call {
    float *to;
    const float *g, *x, *y;
    size_t count;
    uint32_t activation, accumulate;
};

/* y = a(p + q) */
struct add_two_call {
    float *y;
    const float *p, *q;
    size_t count;
    uint32_t activation, unused;
};

/* y = a(y + bias[(i / inner) % channels]); bias may be NULL */
struct bias_activate_call {
    float *y;
    const float *bias;
    uint32_t count, inner, channels, activation;
};

/* ---- sums and changes of layout ----------------------------------------------------------------
 */

/* out[column] (+)= Σ over rows of g[rows][columns]. One block of 256 threads per 32 columns. */
struct column_sums_call {
    const float *g;
    float *out;
    uint32_t rows, columns, accumulate, unused;
};

/* out[row] (+)= Σ over columns of g[rows][columns]. One block of CUDA_BLOCK_THREADS per row. */
struct row_sums_call {
    const float *g;
    float *out;
    uint32_t columns, accumulate;
};

/* to[columns][rows] (+)= from[rows][columns]. Blocks of 256 threads: x per tile of
 * 32 × 32, down the rows first, because either side may exceed the limits of y. */
struct transpose_call {
    float *to;
    const float *from;
    uint32_t rows, columns, accumulate, unused;
};

/* ---- the loss ----------------------------------------------------------------------------------
 */

/* Sums for struct op_loss. */
struct cuda_loss {
    double sum;
    uint32_t correct, unused;
};

enum { CUDA_LOSS_ROWS = 256 }; /* rows and threads per block */

/* out[block] = loss and correct answers of the rows of the block that belong to the first *valid
 * samples, `targets` rows each. Logit k of row n is logits[n·per_row + k·per_class]. gradient has
 * the layout of logits; it (+)= the gradient of the mean loss of these rows, and 0 for the rest.
 * NULL: no gradient. */
struct cross_entropy_call {
    const float *logits;
    const uint32_t *labels, *valid;
    struct cuda_loss *out;
    float *gradient;
    uint32_t rows, classes, per_row, per_class;
    uint32_t accumulate, targets;
    float right, other; /* of op_targets in worker/backend.h */
};

/* The same for many classes: 32 threads compute a row, CUDA_ROWS_AT_ONCE rows per block. Only
 * ROWS: per_row = classes, per_class = 1. */
#define cross_entropy_wide_call cross_entropy_call

/* total = Σ parts, in a fixed order. One block of 256 threads. */
struct loss_total_call {
    const struct cuda_loss *parts;
    struct cuda_loss *total;
    uint32_t count, unused;
};

/* ---- pools, LANES ------------------------------------------------------------------------------
 * Blocks: x per channel and row of places, y over places of the row × batch. */
struct pool_shape {
    uint32_t height, width, out_height, out_width;
    uint32_t kernel_height, kernel_width, stride, batch;
};

/* y = a(maximum of the window), and the index of the maximum, the first of equal ones. One thread
 * per CUDA_AT_ONCE(batch) outputs. */
struct max_pool_call {
    const float *x;
    float *y;
    uint16_t *which; /* NULL: not stored */
    struct pool_shape s;
    uint32_t activation, unused;
};

struct average_pool_call {
    const float *x;
    float *y;
    struct pool_shape s;
    uint32_t activation, unused;
};

/* One thread per CUDA_AT_ONCE(batch) inputs: to (+)= the gradients of all windows that contain the
 * input. y is the output of the pool, for a'. `gate` (may be NULL) is the input of the pool: the
 * gradient is 0 where it is not positive, which applies the ReLU before the pool. `which` NULL:
 * average. */
struct pool_backward_call {
    const float *g, *y, *gate;
    const uint16_t *which;
    float *to;
    struct pool_shape s;
    uint32_t activation, accumulate;
};

/* ---- convolutions, LANES -----------------------------------------------------------------------
 * A tap is one weight of an output element, with the position of its factor relative to the place.
 */
struct conv_tap {
    int32_t source; /* ((channel·height + down)·width + right)·batch */
    int32_t weight; /* offset in the weights of row 0 */
    int16_t down, right;
    uint32_t one; /* the factor is 1: the bias */
} __attribute__((aligned(16)));

/* Places that share their taps. A forward convolution has one class; the input gradient has one for
 * each remainder of the place by the stride. */
struct conv_class {
    uint32_t tap, taps;                /* range of the table */
    uint32_t places_high, places_wide; /* places of this class */
    uint32_t to;                       /* position of the result of place (0, 0), lane 0, row 0 */
    uint32_t unused[3];
};

/* to[row][place][lane] = Σ over taps of weight[row·weight_row + tap.weight] · source at the place,
 * + bias[row], then the activation, and 0 where `gate` (layout of `to`) is not positive. Source and
 * weights are rounded by dropping `dropped` bits of the mantissa. Blocks: x over places × batch, y
 * over rows, z over classes. */
struct conv_call {
    const float *source, *weight, *bias, *gate;
    float *to;
    const struct conv_tap *taps;
    const struct conv_class *classes;
    uint32_t rows, weight_row, batch, step; /* place p of a class is at step·p in the source */
    uint32_t source_height, source_width;
    uint32_t to_row, to_down,
        to_right; /* distance to the next row, the place below, the place to the right */
    uint32_t activation, accumulate, dropped;
};

/* partial[split][row][tap] = Σ over the places × batch of the split of g[row][place][lane] · source
 * of the tap there, both rounded. Blocks: x over taps, y over rows, z over splits. */
struct conv_weight_call {
    const float *g, *source;
    float *partial;
    const struct conv_tap *taps;
    uint32_t rows, tap_count, batch, step;
    uint32_t source_height, source_width, places_wide, columns; /* columns: places × batch */
    uint32_t share, dropped;                                    /* columns of one split */
};

/* weight[row][tap] (+)= Σ over splits, in a fixed order; the tap after the last weight is the bias.
 * One block of 256 threads per 32 elements. */
struct conv_weight_sum_call {
    const float *partial;
    float *weight, *bias; /* bias NULL: there is none */
    uint32_t rows, weights, splits, accumulate_weight;
    uint32_t accumulate_bias, unused;
};

/* to[tap][place][lane] = source of the tap, or its bf16. Blocks: x over columns/4, y over taps. */
struct spread_call {
    const float *source;
    float *to;
    uint16_t *to16; /* instead of `to` if not NULL */
    const struct conv_tap *taps;
    uint32_t batch, step, source_height, source_width, places_wide, columns;
};

/* The reverse: to[channel][y][x][lane] (+)= Σ over the taps that read this element. Blocks and
 * threads as for pools. */
struct collect_call {
    const float *from;
    const float *gate;
    float *to;
    struct pool_shape s;
    uint32_t padding, accumulate;
};

/* ---- batch norm, LANES: a channel is `length` = places × batch elements in a row ---------------
 * Blocks of 256 threads: x over chunks of the channel, y channels. A chunk is a multiple of
 * CUDA_AT_ONCE(length). */
enum { CUDA_NORM_THREADS = 256, CUDA_NORM_CHUNKS = 128 };

struct cuda_sums {
    double first, second;
};

/* parts[channel][chunk] = Σ (x − x₀), Σ (x − x₀)², x₀ the channel's first element */
struct norm_sums_call {
    const float *x;
    struct cuda_sums *parts;
    uint32_t length, chunk;
};

/* y = a(γ (x − mean)/√(variance + ε) + β + other). Unless `given`, statistics come from `parts`,
 * and the kernel writes them to mean and variance. */
struct norm_forward_call {
    const float *x, *other, *scale, *shift;
    const struct cuda_sums *parts;
    float *mean, *variance, *y;
    uint32_t length, chunk, parts_count, given;
    uint32_t activation, unused;
};

/* parts = Σ g, Σ g·x̂. With y, the kernel first sets g to 0 where y is not positive. */
struct norm_backward_sums_call {
    const float *x, *y, *mean, *variance;
    float *g;
    struct cuda_sums *parts;
    uint32_t length, chunk;
};

/* to (+)= gradient of x; other (+)= g; of γ and β. `to` and `other` may be NULL. */
struct norm_backward_call {
    const float *x, *g, *scale, *mean, *variance;
    const struct cuda_sums *parts;
    float *to, *other, *scale_gradient, *shift_gradient;
    uint32_t length, chunk, parts_count, unused;
    uint32_t accumulate, accumulate_other, accumulate_scale, accumulate_shift;
};

/* ---- sequences, ROWS: one row of features for each position ------------------------------------
 */
enum {
    CUDA_ROWS_AT_ONCE = 8,    /* rows of a block of 256 threads, 32 threads for each */
    CUDA_ORDER_THREADS = 256, /* of embedding_order */
};

/* y[row] = table[tokens[row]]; NaN where a token is no row of the table. One thread per element. */
struct embedding_forward_call {
    const float *tokens, *table;
    float *y;
    uint32_t count, width, vocabulary, unused; /* count: rows × width */
};

/* order[first[v] … first[v + 1] − 1] = the rows with token v, in order. One block per v. */
struct embedding_order_call {
    const float *tokens;
    uint32_t *first, *order; /* [vocabulary + 1], [count] */
    uint32_t count, vocabulary;
};

/* table[v] (+)= Σ of the rows of g with token v, in a fixed order. Blocks of 256 threads: x per v,
 * y per 32 columns. */
struct embedding_gradient_call {
    const float *g;
    const uint32_t *first, *order;
    float *table;
    uint32_t width, accumulate;
};

/* y[i] = x[i] + table[i % period]; one thread per element */
struct add_to_each_call {
    const float *x, *table;
    float *y;
    uint32_t count, period;
};

/* y = γ x̂ + β, x̂ = (x − mean) · inverse, inverse = 1/√(variance + ε); shift NULL: no β. */
struct layer_norm_forward_call {
    const float *x, *scale, *shift;
    float *y, *mean, *inverse;
    uint32_t rows, features;
};

/* to (+)= gradient of x */
struct layer_norm_backward_call {
    const float *x, *g, *scale, *mean, *inverse;
    float *to;
    uint32_t rows, features, accumulate, unused;
};

/* products[chunk] = Σ g·x̂, sums[chunk] = Σ g over `chunk` rows. Blocks of 256 threads: x per 32
 * columns, y per chunk. */
struct layer_norm_sums_call {
    const float *x, *g, *mean, *inverse;
    float *products, *sums; /* [chunks][features] */
    uint32_t rows, features, chunk, unused;
};

/* ---- causal attention (cuda_kernels_attention.h) -----------------------------------------------
 * x is [batch][positions][3C], y and g are [batch][positions][C], norm and slope are
 * [batch][heads][positions]; C = heads × features. Blocks of CUDA_ATTENTION_THREADS: x per head of
 * a sample, y per tile of positions. */
enum {
    CUDA_ATTENTION_THREADS = 256,
    CUDA_ATTENTION_WIDEST = 128, /* features of a head, at most */
    CUDA_ATTENTION_OWN = 8,      /* features of a thread, at most */
    CUDA_ATTENTION_DOTS = 4,     /* scores of a thread in each tile, at most */
};

struct attention_shape {
    uint32_t positions, heads, features;
    uint32_t tile; /* positions of a tile: 32; 16 for more than 64 features */
    float scale;   /* 1/√features */
    uint32_t unused;
};

struct attention_forward_call {
    const float *x;
    float *y, *norm;
    struct attention_shape s;
};

/* to (+)= the gradient of the queries in x, and `slope` for attention_keys */
struct attention_queries_call {
    const float *x, *y, *g, *norm;
    float *to, *slope;
    struct attention_shape s;
    uint32_t accumulate, unused;
};

/* to (+)= the gradients of keys and values in x */
struct attention_keys_call {
    const float *x, *g, *norm, *slope;
    float *to;
    struct attention_shape s;
    uint32_t accumulate, unused;
};

/* One struct for the kernels of all tile sizes. */
#define conv_any_call              conv_call
#define conv_8_call                conv_call
#define conv_16_call               conv_call
#define conv_32_call               conv_call
#define conv_64_call               conv_call
#define conv_tensor_8_call         conv_call
#define conv_tensor_16_call        conv_call
#define conv_tensor_32_call        conv_call
#define conv_tensor_64_call        conv_call
#define conv_weight_any_call       conv_weight_call
#define conv_weight_16_call        conv_weight_call
#define conv_weight_32_call        conv_weight_call
#define conv_weight_64_call        conv_weight_call
#define conv_weight_tensor_16_call conv_weight_call
#define conv_weight_tensor_32_call conv_weight_call
#define conv_weight_tensor_64_call conv_weight_call

/* ---- data --------------------------------------------------------------------------------------
 */

/* to = samples indices[0..batch) as numbers values[channel][byte], shifted and mirrored according
 * to `crops` (NULL: unchanged), in LANES or ROWS. Blocks of 256 threads: x per 32 elements of an
 * image, y per 32 samples. */
struct gather_call {
    const uint8_t *images;
    const uint32_t *indices;
    const struct crop *crops;
    const float *values;
    float *to;
    uint32_t stride; /* bytes from a sample to the next; 1: indices are places in a text */
    uint32_t channels, height, width, batch, lanes;
};

/* ---- updates (cuda_kernels_update.h) ------------------------------------------------------------
 */
enum { CUDA_SQUARES_THREADS = 256, CUDA_SQUARES_CHUNK = 2048 };

/* parts[block] = Σ x² over CUDA_SQUARES_CHUNK elements, in double */
struct squares_call {
    const float *x;
    double *parts;
    size_t count;
};

/* The inputs of one step, in device memory: the host writes them into the block of
 * backend_cuda_data.c. They are not part of the commands, so a captured step serves every learning
 * rate. */
struct cuda_step {
    uint32_t valid; /* samples of the loss */
    uint32_t first; /* 1: first step since the last results; ignores earlier verdicts */
    double targets; /* number of targets that the mean loss is over */
    double damping; /* `scale` without the rate that may be part of it */
    float scale, lr, momentum, weight_decay;
    float notes[DEVICE_NOTES]; /* of this rank; the device writes the first */
};

/* notes ← the mean loss, then the step's other notes; one thread */
struct step_notes_call {
    const struct cuda_step *step;
    const struct cuda_loss *loss;
    float *notes;
};

/* The result of the step: Σ parts, the loss, and whether the update may follow: loss and sum are
 * finite, optimizer_takes(sum, damping), and the step before was updated, too. `loss` NULL: there
 * is none. `notes` NULL: the first note is this rank's mean loss. One block. */
struct step_verdict_call {
    const struct cuda_step *step;
    const double *parts;
    const struct cuda_loss *loss;
    const float *notes;
    struct device_result *result;
    uint32_t count, unused;
};

/* θ and v ← update(θ, v, scale · gradient) in place, if result->updated */
struct update_call {
    const struct cuda_step *step;
    const struct device_result *result;
    float *parameters, *state; /* state NULL: sgd */
    const float *gradient;
    size_t count;
    uint32_t form, unused; /* of enum optimizer_form */
};

/* ---- kernels that try the device (cuda_kernels_test.h) -----------------------------------------
 */

/* ---- epilogues of products, where cublasLt has none (with bias_activate) ------------------------
 */

/* mask bit (row, column) = d[row][column] > 0; 0 beyond the columns; layout of cuda_mask_bytes. One
 * thread per word of the mask; `words` per row. */
struct product_mask_write_call {
    const float *d;
    uint32_t *mask;
    uint32_t rows, columns, words, unused;
};

/* d[row][column] = 0 where the mask is 0; one thread per element */
struct product_mask_apply_call {
    float *d;
    const uint32_t *mask;
    uint32_t rows, columns, words, unused;
};

/* out[row] = Σ over inner of a[row·row_step + k·inner_step], of float or bf16. One block of 256
 * threads per 32 rows. */
struct product_sums_call {
    const void *a;
    float *out;
    size_t row_step, inner_step;
    uint32_t rows, inner, bf16, unused;
};

/* ---- trying a GPU
 * --------------------------------------------------------------------------------- */

struct test_where_call {
    uint32_t *out; /* [blocks][threads][4] */
};

struct test_tree_sum_call {
    const float *x; /* [count] */
    float *sums;    /* [blocks] */
    size_t count;
};

#pragma GCC diagnostic pop

#endif
