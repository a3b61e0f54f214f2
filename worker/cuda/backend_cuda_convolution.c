/*
 * backend_cuda_convolution.c — convolutions in LANES. Shape and precision select one of two ways:
 *
 *   implicit   gradlag's kernels (cuda_kernels_conv.h) read the images in place and round them as
 *              they read. A table of taps, computed here, gives the element that each weight
 *              multiplies. In tf32 and bf16 all three products use the tensor cores if
 *              batch % 4 == 0.
 *   spread     a kernel writes the images as one row per weight (im2col; in LANES a copy of rows),
 *              and cublasLt multiplies. This costs 8 bytes of traffic per weight and place, for
 *              2 × channels floating-point operations. Backward reads the copy of forward if the
 *              GPU has enough memory. Bits do not depend on that.
 */
#include "base/memory.h"
#include "worker/cuda/backend_cuda.h"

#include <stdlib.h>
#include <string.h>

enum {
    MANY_WEIGHTS = 100,  /* per output channel; with fewer, the copy of the images costs too much */
    MANY_CHANNELS = 32,  /* of input and output; from here on cublasLt is faster in float32 */
    FEW_COLUMNS = 16384, /* up to this, the implicit kernels have too few blocks for a large GPU */
    SPLIT_BLOCKS =
        512, /* blocks of the weight gradient: about four per multiprocessor of a large GPU */
    SPLIT_COLUMNS = 256, /* minimum of columns per block */
};

struct cuda_convolution {
    backend_op op;
    uint32_t columns, weights; /* places × batch of the output; weights of one output channel */
    bool spread, direct;       /* direct: 1×1, so the images need no copy */
    size_t kept; /* bytes of `images` that are kept from forward to backward; 0: none */
    uint32_t backward_taps, backward_classes, class_places;
    struct conv_tap *taps; /* taps of forward, of the bias, of backward */
    struct conv_class *classes;
    struct cuda_room weight, weight_gradient, images;
};

static uint32_t tap_count(const struct cuda_convolution *v)
{
    return v->weights + (v->op.d.flags & OP_BIASED ? 1 : 0);
}

/* ---- tables -------------------------------------------------------------------------------------
 */

static void forward_taps(const struct op_description *d, struct conv_tap *taps)
{
    struct conv_tap *t = taps;
    for (uint32_t c = 0; c < d->input.channels; ++c) {
        for (uint32_t i = 0; i < d->kernel_height; ++i) {
            for (uint32_t j = 0; j < d->kernel_width; ++j, ++t) {
                int32_t down = (int32_t)i - (int32_t)d->padding;
                int32_t right = (int32_t)j - (int32_t)d->padding;
                int32_t row = (int32_t)(c * d->input.height) + down;
                t->source = (row * (int32_t)d->input.width + right) * (int32_t)d->batch;
                t->weight = (int32_t)(t - taps);
                t->down = (int16_t)down;
                t->right = (int16_t)right;
            }
        }
    }
    t->one = 1;
}

/* Writes the taps that read input places ≡ (y, x) modulo the stride. Returns their number. */
static uint32_t backward_taps(const struct op_description *d, uint32_t y, uint32_t x,
                              struct conv_tap *t)
{
    uint32_t count = 0, s = d->stride, area = d->kernel_height * d->kernel_width;
    for (uint32_t o = 0; o < d->output.channels; ++o) {
        for (uint32_t i = 0; i < d->kernel_height; ++i) {
            for (uint32_t j = 0; j < d->kernel_width; ++j) {
                int32_t down = (int32_t)(y + d->padding) - (int32_t)i;
                int32_t right = (int32_t)(x + d->padding) - (int32_t)j;
                if (down % (int32_t)s != 0 || right % (int32_t)s != 0)
                    continue;
                down /= (int32_t)s;
                right /= (int32_t)s;
                int32_t row = (int32_t)(o * d->output.height) + down;
                t[count].source = (row * (int32_t)d->output.width + right) * (int32_t)d->batch;
                t[count].weight = (int32_t)(o * d->input.channels * area + i * d->kernel_width + j);
                t[count].down = (int16_t)down;
                t[count].right = (int16_t)right;
                count++;
            }
        }
    }
    return count;
}

static void backward_tables(struct cuda_convolution *v, struct conv_tap *taps,
                            struct conv_class *classes)
{
    const struct op_description *d = &v->op.d;
    uint32_t s = d->stride;
    for (uint32_t y = 0; y < s; ++y) {
        for (uint32_t x = 0; x < s; ++x) {
            struct conv_class *k = &classes[y * s + x];
            k->tap = v->backward_taps;
            k->taps = backward_taps(d, y, x, taps + v->backward_taps);
            k->places_high = y < d->input.height ? (d->input.height - y + s - 1) / s : 0;
            k->places_wide = x < d->input.width ? (d->input.width - x + s - 1) / s : 0;
            k->to = (y * d->input.width + x) * d->batch;
            v->backward_taps += k->taps;
            uint32_t places = k->places_high * k->places_wide;
            v->class_places = places > v->class_places ? places : v->class_places;
        }
    }
    v->backward_classes = s * s;
}

static status open_tables(struct cuda *c, struct cuda_convolution *v)
{
    status result = OK;
    const struct op_description *d = &v->op.d;
    size_t area = (size_t)d->kernel_height * d->kernel_width;
    size_t most = v->weights + 1 + d->output.channels * area;
    size_t classes = 1 + (size_t)d->stride * d->stride;
    struct conv_tap *t = NULL;
    struct conv_class *k = NULL;
    TRY(memory_new(&t, most, sizeof *t, "a convolution's taps"));
    TRY(memory_new(&k, classes, sizeof *k, "a convolution's taps"));
    forward_taps(d, t);
    k[0] = (struct conv_class){
        .taps = v->weights, .places_high = d->output.height, .places_wide = d->output.width};
    backward_tables(v, t + v->weights + 1, k + 1);
    TRY_CUDA(c, memory_new, &v->taps, most * sizeof *t, "a convolution's taps");
    TRY_CUDA(c, memory_new, &v->classes, classes * sizeof *k, "a convolution's taps");
    TRY(cuda_upload(c, v->taps, t, most * sizeof *t));
    TRY(cuda_upload(c, v->classes, k, classes * sizeof *k));
done:
    memory_free(t);
    memory_free(k);
    return result;
}

/* ---- implicit -----------------------------------------------------------------------------------
 */

/* Bits of the mantissa that this precision drops. */
static uint32_t dropped_bits(const struct cuda *c)
{
    return c->arithmetic == CUDA_BF16 ? 16 : c->arithmetic == CUDA_TF32 ? 13 : 0;
}

/* Selects the tile: rows for the channels, and four lanes at once if the batch allows it. */
static status queue_tiles(struct cuda *c, const struct conv_call *k, uint32_t columns,
                          uint32_t classes)
{
    static const struct {
        enum cuda_kernel kernel, tensor;
        uint32_t high, wide;
    } tiles[] = {{CUDA_conv_8, CUDA_conv_tensor_8, 8, 256},
                 {CUDA_conv_16, CUDA_conv_tensor_16, 16, 128},
                 {CUDA_conv_32, CUDA_conv_tensor_32, 32, 128},
                 {CUDA_conv_64, CUDA_conv_tensor_64, 64, 64},
                 {CUDA_conv_any, CUDA_conv_any, 16, 64}};
    int tile = k->rows <= 8 ? 0 : k->rows <= 16 ? 1 : k->rows <= 32 ? 2 : 3;
    tile = k->batch % 4 == 0 ? tile : 4;
    struct cuda_grid g = {(columns + tiles[tile].wide - 1) / tiles[tile].wide,
                          (k->rows + tiles[tile].high - 1) / tiles[tile].high, classes, 128};
    return cuda_queue_launch(c, k->dropped > 0 ? tiles[tile].tensor : tiles[tile].kernel, g, k,
                             sizeof *k);
}

static status implicit_forward(struct cuda *c, struct cuda_convolution *v,
                               const struct op_call *call)
{
    status result = OK;
    const struct op_description *d = &v->op.d;
    struct conv_call k = {
        .weight = cuda_parameter(c, call->weight),
        .bias = d->flags & OP_BIASED ? cuda_parameter(c, call->bias) : NULL,
        .to = cuda_write(call->output),
        .taps = v->taps,
        .classes = v->classes,
        .rows = d->output.channels,
        .weight_row = v->weights,
        .batch = d->batch,
        .step = d->stride,
        .source_height = d->input.height,
        .source_width = d->input.width,
        .to_row = v->columns,
        .to_down = d->output.width * d->batch,
        .to_right = d->batch,
        .activation = d->activation,
        .dropped = dropped_bits(c),
    };
    TRY(cuda_read(c, call->input[0], LANES, &k.source));
    TRY(queue_tiles(c, &k, v->columns, 1));
done:
    return result;
}

static status implicit_input(struct cuda *c, struct cuda_convolution *v, const struct op_call *call,
                             const float *gate, float *to, bool accumulate)
{
    const struct op_description *d = &v->op.d;
    const struct conv_call k = {
        .source = call->output_gradient->at[LANES],
        .weight = cuda_parameter(c, call->weight),
        .gate = gate,
        .to = to,
        .taps = v->taps + v->weights + 1,
        .classes = v->classes + 1,
        .rows = d->input.channels,
        .weight_row = d->kernel_height * d->kernel_width,
        .batch = d->batch,
        .step = 1,
        .source_height = d->output.height,
        .source_width = d->output.width,
        .to_row = d->input.height * d->input.width * d->batch,
        .to_down = d->stride * d->input.width * d->batch,
        .to_right = d->stride * d->batch,
        .accumulate = accumulate,
        .dropped = dropped_bits(c),
    };
    return queue_tiles(c, &k, v->class_places * d->batch, v->backward_classes);
}

static status implicit_weight(struct cuda *c, struct cuda_convolution *v,
                              const struct op_call *call)
{
    status result = OK;
    const struct op_description *d = &v->op.d;
    uint32_t rows = d->output.channels, taps = tap_count(v);
    bool fours = d->batch % 4 == 0, biased = d->flags & OP_BIASED;
    static const enum cuda_kernel kernels[2][3] = {
        {CUDA_conv_weight_16, CUDA_conv_weight_32, CUDA_conv_weight_64},
        {CUDA_conv_weight_tensor_16, CUDA_conv_weight_tensor_32, CUDA_conv_weight_tensor_64}};
    const uint32_t tile = !fours || rows <= 16 ? 0 : rows <= 32 ? 1 : 2, high = 16u << tile;
    const enum cuda_kernel kernel = kernels[dropped_bits(c) > 0][tile];
    struct cuda_grid g = {(taps + 63) / 64, (rows + high - 1) / high, 1, 128};
    uint32_t splits = (SPLIT_BLOCKS + g.x * g.y - 1) / (g.x * g.y);
    uint32_t most = (v->columns + SPLIT_COLUMNS - 1) / SPLIT_COLUMNS;
    splits = splits < most ? splits : most;
    uint32_t share = ((v->columns + splits - 1) / splits + 31) / 32 * 32;
    g.z = (v->columns + share - 1) / share;
    TRY(cuda_room_for(c, &c->scratch, (size_t)g.z * rows * taps * sizeof(float),
                      "a convolution's gradient"));
    struct conv_weight_call k = {.g = call->output_gradient->at[LANES],
                                 .partial = c->scratch.at,
                                 .taps = v->taps,
                                 .rows = rows,
                                 .tap_count = taps,
                                 .batch = d->batch,
                                 .step = d->stride,
                                 .source_height = d->input.height,
                                 .source_width = d->input.width,
                                 .places_wide = d->output.width,
                                 .columns = v->columns,
                                 .share = share,
                                 .dropped = dropped_bits(c)};
    TRY(cuda_read(c, call->input[0], LANES, &k.source));
    TRY(cuda_queue_launch(c, fours ? kernel : CUDA_conv_weight_any, g, &k, sizeof k));
    struct cuda_grid sums = {(rows * taps + 31) / 32, 1, 1, 256};
    TRY(CUDA_LAUNCH(c, conv_weight_sum, sums, .partial = c->scratch.at,
                    .weight = cuda_gradient(c, call->weight),
                    .bias = biased ? cuda_gradient(c, call->bias) : NULL, .rows = rows,
                    .weights = v->weights, .splits = g.z,
                    .accumulate_weight = call->accumulate_weight,
                    .accumulate_bias = call->accumulate_bias));
    TRY(cuda_gradient_written(c, call->weight, (size_t)rows * v->weights));
    if (biased)
        TRY(cuda_gradient_written(c, call->bias, rows));
done:
    return result;
}

/* ---- spread -------------------------------------------------------------------------------------
 */

static size_t spread_bytes(const struct cuda *c, const struct cuda_convolution *v)
{
    size_t each = c->arithmetic == CUDA_BF16 ? sizeof(uint16_t) : sizeof(float);
    return (size_t)v->weights * v->columns * each;
}

/* The input as [weights][columns], rounded if the precision requires it. */
static status spread_input(struct cuda *c, struct cuda_convolution *v, backend_buffer *x,
                           const void **out)
{
    status result = OK;
    const struct op_description *d = &v->op.d;
    bool bf16 = c->arithmetic == CUDA_BF16;
    struct cuda_room *to = v->kept > 0 ? &v->images : &c->scratch;
    if (v->direct) {
        TRY(cuda_operand(c, x, LANES, out));
        goto done;
    }
    TRY(cuda_room_for(c, to, spread_bytes(c, v), "spread images"));
    const float *source;
    TRY(cuda_read(c, x, LANES, &source));
    struct cuda_grid g = cuda_grid_over((v->columns + 3) / 4, 128);
    g.y = v->weights;
    TRY(CUDA_LAUNCH(
        c, spread, g, .source = source, .to = bf16 ? NULL : to->at, .to16 = bf16 ? to->at : NULL,
        .taps = v->taps, .batch = d->batch, .step = d->stride, .source_height = d->input.height,
        .source_width = d->input.width, .places_wide = d->output.width, .columns = v->columns));
    *out = to->at;
done:
    return result;
}

static status spread_forward(struct cuda *c, struct cuda_convolution *v, const struct op_call *call)
{
    status result = OK;
    const struct op_description *d = &v->op.d;
    bool biased = d->flags & OP_BIASED;
    const struct cuda_product_shape shape = {.rows = d->output.channels,
                                             .columns = v->columns,
                                             .inner = v->weights,
                                             .arithmetic = c->arithmetic};
    struct cuda_product_call k = {.d = cuda_write(call->output)};
    TRY(cuda_weight(c, &v->weight, call->weight, (size_t)shape.rows * v->weights, &k.a));
    TRY(spread_input(c, v, call->input[0], &k.b));
    TRY(cuda_queue_product(c, &shape, &k));
    if (biased || d->activation != ACTIVATION_NONE) {
        TRY(CUDA_LAUNCH(c, bias_activate,
                        cuda_grid_over(call->output->count / CUDA_AT_ONCE(v->columns), 256),
                        .y = k.d, .bias = biased ? cuda_parameter(c, call->bias) : NULL,
                        .count = (uint32_t)call->output->count, .inner = v->columns,
                        .channels = d->output.channels, .activation = d->activation));
    }
done:
    return result;
}

static status spread_weight(struct cuda *c, struct cuda_convolution *v, const struct op_call *call)
{
    status result = OK;
    const struct op_description *d = &v->op.d;
    struct cuda_weight_product p = {.shape = {.rows = d->output.channels,
                                              .columns = v->weights,
                                              .inner = v->columns,
                                              .b_transposed = true},
                                    .gradient = call->output_gradient,
                                    .own = &v->weight_gradient,
                                    .biased = d->flags & OP_BIASED};
    TRY(cuda_operand(c, call->output_gradient, LANES, &p.g));
    if (v->kept > 0)
        p.x = v->images.at;
    else
        TRY(spread_input(c, v, call->input[0], &p.x));
    TRY(cuda_weight_gradient(c, &p, call));
done:
    return result;
}

static status spread_input_gradient(struct cuda *c, struct cuda_convolution *v,
                                    const struct op_call *call, const float *gate, float *to,
                                    bool accumulate)
{
    status result = OK;
    const struct op_description *d = &v->op.d;
    struct cuda_product_shape shape = {.rows = v->weights,
                                       .columns = v->columns,
                                       .inner = d->output.channels,
                                       .a_transposed = true,
                                       .arithmetic = c->arithmetic};
    struct cuda_product_call k = {0};
    TRY(cuda_room_for(c, &c->scratch, (size_t)v->weights * v->columns * sizeof(float),
                      "spread images"));
    k.d = c->scratch.at;
    TRY(cuda_weight(c, &v->weight, call->weight, (size_t)shape.inner * v->weights, &k.a));
    TRY(cuda_operand(c, call->output_gradient, LANES, &k.b));
    TRY(cuda_queue_product(c, &shape, &k));
    TRY(CUDA_LAUNCH(c, collect, cuda_pool_grid(d, d->input), .from = c->scratch.at, .gate = gate,
                    .to = to,
                    .s = {d->input.height, d->input.width, d->output.height, d->output.width,
                          d->kernel_height, d->kernel_width, d->stride, d->batch},
                    .padding = d->padding, .accumulate = accumulate));
done:
    return result;
}

/* ---- the operation ------------------------------------------------------------------------------
 */

static status forward(struct cuda *c, backend_op *op, const struct op_call *call)
{
    struct cuda_convolution *v = (struct cuda_convolution *)op;
    return v->spread ? spread_forward(c, v, call) : implicit_forward(c, v, call);
}

static status backward(struct cuda *c, backend_op *op, const struct op_call *call)
{
    status result = OK;
    struct cuda_convolution *v = (struct cuda_convolution *)op;
    backend_buffer *to = call->input_gradient[0], *x = call->input[0];
    bool add = call->accumulate[0], add_here;
    float *target;
    TRY(cuda_unactivate(c, op, call->output_gradient, call->output));
    TRY(v->spread ? spread_weight(c, v, call) : implicit_weight(c, v, call));
    if (to == NULL)
        goto done;
    bool gated = x->relu != NULL && x->layout == LANES && !add;
    const float *gate = gated ? x->at[LANES] : NULL;
    TRY(cuda_target(c, to, LANES, add, &target, &add_here));
    TRY(v->spread ? spread_input_gradient(c, v, call, gate, target, add_here)
                  : implicit_input(c, v, call, gate, target, add_here));
    TRY(cuda_target_done(c, to, LANES, add));
    to->masked_by = gated ? x->relu : NULL;
done:
    return result;
}

static void close_convolution(struct cuda *c, backend_op *op)
{
    struct cuda_convolution *v = (struct cuda_convolution *)op;
    if (v->taps != NULL)
        c->kind->memory_free(c->device, v->taps);
    if (v->classes != NULL)
        c->kind->memory_free(c->device, v->classes);
    cuda_room_close(c, &v->weight);
    cuda_room_close(c, &v->weight_gradient);
    cuda_room_close(c, &v->images);
    c->keep_left += v->kept;
    memory_free(v);
}

/* The limits were measured on an H200 (docs/gpu.md). GRADLAG_CUDA_SPREAD=all or none in the
 * environment replaces the choice, for measurements and tests. */
static bool is_spread(const struct cuda *c, const struct cuda_convolution *v)
{
    const struct op_description *d = &v->op.d;
    const char *wanted = getenv("GRADLAG_CUDA_SPREAD");
    if (wanted != NULL && *wanted != '\0')
        return strcmp(wanted, "none") != 0;
    if (c->arithmetic != CUDA_FP32)
        return v->direct || v->weights >= MANY_WEIGHTS;
    return (d->input.channels >= MANY_CHANNELS && d->output.channels >= MANY_CHANNELS) ||
           (v->weights >= MANY_WEIGHTS && v->columns <= FEW_COLUMNS);
}

status cuda_convolution_open(struct cuda *c, const struct op_description *d,
                             backend_buffer *const in[2] UNUSED, backend_op **out,
                             backend_buffer **output)
{
    status result = OK;
    struct cuda_convolution *v = NULL;
    TRY(memory_new(&v, 1, sizeof *v, "a layer"));
    v->op = (backend_op){*d, forward, backward, close_convolution};
    v->weights = d->input.channels * d->kernel_height * d->kernel_width;
    v->direct = d->kernel_height == 1 && d->kernel_width == 1 && d->stride == 1 && d->padding == 0;
    if (v->weights > CUDA_GRID_YZ || d->output.channels > CUDA_GRID_YZ) {
        FAIL(ERROR_USAGE,
             "device=cuda: a convolution of %u channels %u×%u has more weights than "
             "its kernels can address",
             d->input.channels, d->kernel_height, d->kernel_width);
    }
    TRY(cuda_buffer_new(c, d->batch, d->output, LANES, output));
    v->columns = d->output.height * d->output.width * d->batch;
    v->spread = is_spread(c, v);
    (*output)->relu = d->activation == ACTIVATION_RELU ? &v->op : NULL;
    if (v->spread && !v->direct && (d->flags & OP_TRAINING) && spread_bytes(c, v) <= c->keep_left) {
        v->kept = spread_bytes(c, v);
        c->keep_left -= v->kept;
    }
    TRY(open_tables(c, v));
    *out = &v->op;
    v = NULL;
done:
    if (v != NULL) {
        close_convolution(c, &v->op);
        cuda_buffer_free(c, *output);
        *output = NULL;
    }
    return result;
}
