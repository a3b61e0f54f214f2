/*
 * backend_cpu_batch16_tiles.h — the kernels of backend_cpu_batch16.h, for one width of vectors.
 *
 * A file that includes this header defines a form of the kernels: WIDTH lanes in a vector, the
 * types, the instructions, and the tiles that fit the registers. If WIDTH is below 16, a kernel
 * computes one part of the 16 lanes after the other.
 *
 * Invariant: all forms give the same bits. Each lane is computed alone until add_lanes(). Each
 * element receives its products in an order that does not depend on the form, and a fused
 * multiply-add is rounded exactly. DATA_PLACES affects that order, so a form cannot change it.
 */
#ifndef GRADLAG_WORKER_CPU_BACKEND_CPU_BATCH16_TILES_H
#define GRADLAG_WORKER_CPU_BACKEND_CPU_BATCH16_TILES_H

#include "worker/cpu/backend_cpu_batch16.h"

#include <string.h>

/* Kernel size and tile are constants in each copy, so that sums stay in registers. */
#define UNROLLED static inline __attribute__((always_inline)) TARGET

enum {
    DATA_PLACES = 4, /* positions of a gradient that are added together */
    CHUNK = 96,      /* positions of a gradient that fit the L1 cache */
};

/* ---- forward ---- */

/* Computes `channels` outputs at `places` neighbouring positions of one row. */
UNROLLED void forward_tile(const struct batch16_convolution *s, uint32_t k, uint32_t channels,
                           uint32_t places, const float *in, const float *weight, const float *bias,
                           bool relu, float *out)
{
    size_t in_row = (size_t)s->input_width * LANES, in_plane = in_row * s->input_height;
    size_t out_plane = (size_t)s->output_height * s->output_width * LANES;
    size_t per_output = (size_t)s->inputs * k * k;
    vector sum[FORWARD_CHANNELS][FORWARD_PLACES];
    for (uint32_t o = 0; o < channels; ++o)
        for (uint32_t x = 0; x < places; ++x)
            sum[o][x] = ALL(bias != NULL ? bias[o] : 0);
    for (uint32_t i = 0; i < s->inputs; ++i) {
        for (uint32_t ky = 0; ky < k; ++ky) {
            const float *row = in + i * in_plane + ky * in_row;
            const float *w = weight + (i * k + ky) * k;
            vector v[FORWARD_PLACES + 4];
            for (uint32_t x = 0; x < places + k - 1; ++x)
                v[x] = LOAD(row + x * LANES);
            for (uint32_t kx = 0; kx < k; ++kx) {
                for (uint32_t o = 0; o < channels; ++o) {
                    vector f = ALL(w[o * per_output + kx]);
                    for (uint32_t x = 0; x < places; ++x)
                        sum[o][x] = MULTIPLY_ADD(v[x + kx], f, sum[o][x]);
                }
            }
        }
    }
    for (uint32_t o = 0; o < channels; ++o) {
        for (uint32_t x = 0; x < places; ++x) {
            vector y = relu ? RECTIFIED(sum[o][x]) : sum[o][x];
            STORE(out + o * out_plane + x * LANES, y);
        }
    }
}

UNROLLED void forward_row(const struct batch16_convolution *s, uint32_t k, uint32_t channels,
                          const float *in, const float *weight, const float *bias, bool relu,
                          float *out)
{
    const uint32_t width = s->output_width;
    for (uint32_t l = 0; l < LANES; l += WIDTH, in += WIDTH, out += WIDTH) {
        uint32_t x = 0;
        for (; x + FORWARD_PLACES <= width; x += FORWARD_PLACES)
            forward_tile(s, k, channels, FORWARD_PLACES, in + x * LANES, weight, bias, relu,
                         out + x * LANES);
        if (FORWARD_REST > 1 && x + FORWARD_REST <= width) {
            forward_tile(s, k, channels, FORWARD_REST, in + x * LANES, weight, bias, relu,
                         out + x * LANES);
            x += FORWARD_REST;
        }
        for (; x < width; ++x)
            forward_tile(s, k, channels, 1, in + x * LANES, weight, bias, relu, out + x * LANES);
    }
}

UNROLLED void forward_all(const struct batch16_convolution *s, uint32_t k, const float *in,
                          const float *weight, const float *bias, bool relu, float *out)
{
    size_t in_row = (size_t)s->input_width * LANES, out_row = (size_t)s->output_width * LANES;
    size_t in_block = in_row * s->input_height * s->inputs, out_plane = out_row * s->output_height;
    size_t per_output = (size_t)s->inputs * k * k;
    for (uint32_t b = 0; b < s->blocks; ++b) {
        for (uint32_t y = 0; y < s->output_height; ++y) {
            const float *from = in + b * in_block + y * in_row;
            float *to = out + b * out_plane * s->outputs + y * out_row;
            uint32_t o = 0;
            for (; o + FORWARD_CHANNELS <= s->outputs; o += FORWARD_CHANNELS) {
                forward_row(s, k, FORWARD_CHANNELS, from, weight + o * per_output,
                            bias != NULL ? bias + o : NULL, relu, to + o * out_plane);
            }
            for (; o < s->outputs; ++o) {
                forward_row(s, k, 1, from, weight + o * per_output, bias != NULL ? bias + o : NULL,
                            relu, to + o * out_plane);
            }
        }
    }
}

TARGET static void forward(const struct batch16_convolution *s, const float *in,
                           const float *weight, const float *bias, bool relu, float *out)
{
    if (s->kernel == 3)
        forward_all(s, 3, in, weight, bias, relu, out);
    else
        forward_all(s, 5, in, weight, bias, relu, out);
}

/* ---- gradient of the input ---- */

/* Adds the contributions of `places` positions in the gradient's rows, over all outputs, to one row
 * of `inputs` inputs. */
UNROLLED void data_tile(const struct batch16_convolution *s, uint32_t k, uint32_t inputs,
                        uint32_t places, uint32_t y, const float *gradient, const float *weight,
                        float *to)
{
    size_t row = (size_t)s->output_width * LANES, plane = row * s->output_height;
    size_t in_plane = (size_t)s->input_height * s->input_width * LANES;
    size_t per_output = (size_t)s->inputs * k * k;
    uint32_t first = y + 1 > s->output_height ? y + 1 - s->output_height : 0;
    uint32_t last = y < k - 1 ? y : k - 1;
    vector sum[DATA_INPUTS][DATA_PLACES + 4];
    for (uint32_t i = 0; i < inputs; ++i)
        for (uint32_t x = 0; x < places + k - 1; ++x)
            sum[i][x] = LOAD(to + i * in_plane + x * LANES);
    for (uint32_t ky = first; ky <= last; ++ky) {
        for (uint32_t o = 0; o < s->outputs; ++o) {
            const float *g = gradient + o * plane + (y - ky) * row;
            const float *w = weight + o * per_output + ky * k;
            vector v[DATA_PLACES];
            for (uint32_t x = 0; x < places; ++x)
                v[x] = LOAD(g + x * LANES);
/* gcc 12 otherwise keeps some sums in memory if there is one input. */
#pragma GCC unroll 5
            for (uint32_t kx = 0; kx < k; ++kx) {
                for (uint32_t i = 0; i < inputs; ++i) {
                    vector f = ALL(w[i * k * k + kx]);
                    for (uint32_t x = 0; x < places; ++x)
                        sum[i][x + kx] = MULTIPLY_ADD(v[x], f, sum[i][x + kx]);
                }
            }
        }
    }
    for (uint32_t i = 0; i < inputs; ++i)
        for (uint32_t x = 0; x < places + k - 1; ++x)
            STORE(to + i * in_plane + x * LANES, sum[i][x]);
}

UNROLLED void data_row(const struct batch16_convolution *s, uint32_t k, uint32_t inputs, uint32_t y,
                       const float *gradient, const float *weight, bool accumulate, float *to)
{
    size_t in_plane = (size_t)s->input_height * s->input_width * LANES;
    for (uint32_t i = 0; !accumulate && i < inputs; ++i)
        memset(to + i * in_plane, 0, (size_t)s->input_width * LANES * sizeof(float));
    for (uint32_t l = 0; l < LANES; l += WIDTH, gradient += WIDTH, to += WIDTH) {
        uint32_t x = 0;
        for (; x + DATA_PLACES <= s->output_width; x += DATA_PLACES)
            data_tile(s, k, inputs, DATA_PLACES, y, gradient + x * LANES, weight, to + x * LANES);
        for (; x < s->output_width; ++x)
            data_tile(s, k, inputs, 1, y, gradient + x * LANES, weight, to + x * LANES);
    }
}

UNROLLED void data_all(const struct batch16_convolution *s, uint32_t k, const float *gradient,
                       const float *weight, bool accumulate, float *to)
{
    size_t in_row = (size_t)s->input_width * LANES, in_plane = in_row * s->input_height;
    size_t block = (size_t)s->output_height * s->output_width * LANES * s->outputs;
    for (uint32_t b = 0; b < s->blocks; ++b) {
        for (uint32_t y = 0; y < s->input_height; ++y) {
            float *row = to + b * in_plane * s->inputs + y * in_row;
            uint32_t i = 0;
            for (; i + DATA_INPUTS <= s->inputs; i += DATA_INPUTS) {
                data_row(s, k, DATA_INPUTS, y, gradient + b * block, weight + i * k * k, accumulate,
                         row + i * in_plane);
            }
            for (; i < s->inputs; ++i) {
                data_row(s, k, 1, y, gradient + b * block, weight + i * k * k, accumulate,
                         row + i * in_plane);
            }
        }
    }
}

TARGET static void backward_data(const struct batch16_convolution *s, const float *gradient,
                                 const float *weight, bool accumulate, float *input_gradient)
{
    if (s->kernel == 3)
        data_all(s, 3, gradient, weight, accumulate, input_gradient);
    else
        data_all(s, 5, gradient, weight, accumulate, input_gradient);
}

/* ---- gradient of the weights ---- */

/* Adds rows [y, end) of one block to the sums of one kernel row, for `channels` outputs, and to the
 * bias's sums unless bias_sums is NULL. */
UNROLLED void weights_tile(const struct batch16_convolution *s, uint32_t k, uint32_t channels,
                           uint32_t y, uint32_t end, const float *in, const float *gradient,
                           float *sums, float *bias_sums)
{
    size_t plane = (size_t)s->output_height * s->output_width * LANES;
    size_t per_output = (size_t)s->inputs * k * k * LANES;
    vector sum[WEIGHT_CHANNELS][5], bias[WEIGHT_CHANNELS];
    for (uint32_t o = 0; o < channels; ++o) {
        for (uint32_t kx = 0; kx < k; ++kx)
            sum[o][kx] = LOAD(sums + o * per_output + kx * LANES);
        bias[o] = bias_sums != NULL ? LOAD(bias_sums + o * LANES) : ALL(0);
    }
    for (; y < end; ++y) {
        const float *v = in + (size_t)y * s->input_width * LANES;
        const float *g = gradient + (size_t)y * s->output_width * LANES;
        for (uint32_t x = 0; x < s->output_width; ++x, v += LANES, g += LANES) {
            vector h[WEIGHT_CHANNELS];
            for (uint32_t o = 0; o < channels; ++o) {
                h[o] = LOAD(g + o * plane);
                if (bias_sums != NULL)
                    bias[o] = ADD(bias[o], h[o]);
            }
            for (uint32_t kx = 0; kx < k; ++kx) {
                vector u = LOAD(v + kx * LANES);
                for (uint32_t o = 0; o < channels; ++o)
                    sum[o][kx] = MULTIPLY_ADD(h[o], u, sum[o][kx]);
            }
        }
    }
    for (uint32_t o = 0; o < channels; ++o) {
        for (uint32_t kx = 0; kx < k; ++kx)
            STORE(sums + o * per_output + kx * LANES, sum[o][kx]);
        if (bias_sums != NULL)
            STORE(bias_sums + o * LANES, bias[o]);
    }
}

UNROLLED void weights_chunk(const struct batch16_convolution *s, uint32_t k, uint32_t channels,
                            uint32_t y, uint32_t end, const float *in, const float *gradient,
                            float *sums, float *bias_sums)
{
    size_t in_row = (size_t)s->input_width * LANES;
    for (uint32_t i = 0; i < s->inputs; ++i) {
        for (uint32_t ky = 0; ky < k; ++ky) {
            const float *v = in + (i * s->input_height + ky) * in_row;
            float *at = sums + (size_t)(i * k + ky) * k * LANES;
            for (uint32_t l = 0; l < LANES; l += WIDTH)
                if (i == 0 && ky == 0)
                    weights_tile(s, k, channels, y, end, v + l, gradient + l, at + l,
                                 bias_sums + l);
                else
                    weights_tile(s, k, channels, y, end, v + l, gradient + l, at + l, NULL);
        }
    }
}

UNROLLED void weights_all(const struct batch16_convolution *s, uint32_t k, const float *in,
                          const float *gradient, float *sums, float *bias_sums)
{
    size_t plane = (size_t)s->output_height * s->output_width * LANES;
    size_t in_block = (size_t)s->input_height * s->input_width * LANES * s->inputs;
    size_t per_output = (size_t)s->inputs * k * k * LANES;
    uint32_t rows = s->output_width < CHUNK ? CHUNK / s->output_width : 1;
    for (uint32_t b = 0; b < s->blocks; ++b) {
        const float *v = in + b * in_block, *g = gradient + b * plane * s->outputs;
        for (uint32_t y = 0; y < s->output_height; y += rows) {
            uint32_t end = y + rows < s->output_height ? y + rows : s->output_height;
            uint32_t o = 0;
            for (; o + WEIGHT_CHANNELS <= s->outputs; o += WEIGHT_CHANNELS) {
                weights_chunk(s, k, WEIGHT_CHANNELS, y, end, v, g + o * plane,
                              sums + o * per_output, bias_sums + o * LANES);
            }
            for (; o < s->outputs; ++o) {
                weights_chunk(s, k, 1, y, end, v, g + o * plane, sums + o * per_output,
                              bias_sums + o * LANES);
            }
        }
    }
}

/* Adds the 16 lanes of each sum by halves: lanes 8 apart, then 4, 2 and 1. */
UNROLLED void add_lanes(const float *sums, size_t count, float *out, bool accumulate)
{
    for (size_t i = 0; i < count; ++i, sums += LANES) {
        __m256 eight = _mm256_add_ps(_mm256_loadu_ps(sums), _mm256_loadu_ps(sums + 8));
        __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
        __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
        float sum = _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
        out[i] = accumulate ? out[i] + sum : sum;
    }
}

TARGET static void backward_weights(const struct batch16_convolution *s, const float *in,
                                    const float *gradient, float *sums, float *weight_gradient,
                                    bool accumulate_weight, float *bias_gradient,
                                    bool accumulate_bias)
{
    size_t count = (size_t)s->outputs * s->inputs * s->kernel * s->kernel;
    float *bias_sums = sums + count * LANES;
    memset(sums, 0, (count + s->outputs) * LANES * sizeof(float));
    if (s->kernel == 3)
        weights_all(s, 3, in, gradient, sums, bias_sums);
    else
        weights_all(s, 5, in, gradient, sums, bias_sums);
    add_lanes(sums, count, weight_gradient, accumulate_weight);
    if (bias_gradient != NULL)
        add_lanes(bias_sums, s->outputs, bias_gradient, accumulate_bias);
}

/* ---- max pool ---- */

UNROLLED void max_pool_row(const struct batch16_pool *s, uint32_t height, uint32_t width,
                           const float *in, float *out, uint8_t *which)
{
    size_t row = (size_t)s->input_width * LANES;
    for (uint32_t x = 0; x < s->output_width; ++x) {
        vector best = LOAD(in);
        integers at = ALL_INTEGERS(0);
        for (uint32_t j = 0, ky = 0; ky < height; ++ky) {
            for (uint32_t kx = 0; kx < width; ++kx, ++j) {
                vector u = LOAD(in + ky * row + kx * LANES);
                mask larger = ABOVE(u, best);
                best = SELECT(larger, u, best);
                at = SELECT_INTEGERS(larger, ALL_INTEGERS((int)j), at);
            }
        }
        STORE(out, best);
        STORE_BYTES(which, at);
        in += s->stride * LANES;
        out += LANES;
        which += LANES;
    }
}

UNROLLED void max_pool_all(const struct batch16_pool *s, uint32_t height, uint32_t width,
                           const float *in, float *out, uint8_t *which)
{
    size_t row = (size_t)s->input_width * LANES, out_row = (size_t)s->output_width * LANES;
    for (uint32_t p = 0; p < s->planes; ++p) {
        for (uint32_t y = 0; y < s->output_height; ++y, out += out_row, which += out_row) {
            const float *from = in + (p * s->input_height + y * s->stride) * row;
            for (uint32_t l = 0; l < LANES; l += WIDTH)
                max_pool_row(s, height, width, from + l, out + l, which + l);
        }
    }
}

TARGET static void max_pool(const struct batch16_pool *s, const float *in, float *out,
                            uint8_t *which)
{
    if (s->kernel_height == 2 && s->kernel_width == 2)
        max_pool_all(s, 2, 2, in, out, which);
    else
        max_pool_all(s, s->kernel_height, s->kernel_width, in, out, which);
}

UNROLLED void pool_gradient_row(const struct batch16_pool *s, uint32_t height, uint32_t width,
                                bool add, const float *gradient, const uint8_t *which, float *to)
{
    size_t row = (size_t)s->input_width * LANES;
    for (uint32_t x = 0; x < s->output_width; ++x) {
        vector g = LOAD(gradient);
        integers at = LOAD_BYTES(which);
        for (uint32_t j = 0, ky = 0; ky < height; ++ky) {
            for (uint32_t kx = 0; kx < width; ++kx, ++j) {
                float *place = to + ky * row + kx * LANES;
                vector part = SELECT(EQUAL(at, ALL_INTEGERS((int)j)), g, ALL(0));
                if (add)
                    part = ADD(part, LOAD(place));
                STORE(place, part);
            }
        }
        to += s->stride * LANES;
        gradient += LANES;
        which += LANES;
    }
}

UNROLLED void pool_gradient_all(const struct batch16_pool *s, uint32_t height, uint32_t width,
                                bool add, const float *gradient, const uint8_t *which, float *to)
{
    size_t row = (size_t)s->input_width * LANES, out_row = (size_t)s->output_width * LANES;
    for (uint32_t p = 0; p < s->planes; ++p) {
        for (uint32_t y = 0; y < s->output_height; ++y, gradient += out_row, which += out_row) {
            float *at = to + (p * s->input_height + y * s->stride) * row;
            for (uint32_t l = 0; l < LANES; l += WIDTH)
                pool_gradient_row(s, height, width, add, gradient + l, which + l, at + l);
        }
    }
}

TARGET static void max_pool_backward(const struct batch16_pool *s, const float *gradient,
                                     const uint8_t *which, bool accumulate, float *to)
{
    uint32_t height = s->kernel_height, width = s->kernel_width;
    /* Windows that tile the plane write each position once. */
    bool tiles = s->stride == height && s->stride == width &&
                 s->output_height * s->stride == s->input_height &&
                 s->output_width * s->stride == s->input_width;
    if (!accumulate && !tiles)
        memset(to, 0, (size_t)s->planes * s->input_height * s->input_width * LANES * sizeof *to);
    if (height == 2 && width == 2 && tiles && !accumulate)
        pool_gradient_all(s, 2, 2, false, gradient, which, to);
    else
        pool_gradient_all(s, height, width, accumulate || !tiles, gradient, which, to);
}

#endif
