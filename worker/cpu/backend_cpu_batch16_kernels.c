#include "worker/cpu/backend_cpu_batch16.h"

#include <string.h>

#if defined(__x86_64__) && defined(__GNUC__)

#include <immintrin.h>

#define AVX512 __attribute__((target("avx512f")))
/* Kernel size and tile are constants in each copy, so that sums stay in registers. */
#define UNROLLED static inline __attribute__((always_inline, target("avx512f")))

enum {
    X_TILE = 4,       /* positions computed together */
    CHANNEL_TILE = 4, /* outputs computed together */
    INPUT_TILE = 2,   /* inputs whose gradient is computed together */
    CHUNK = 96,       /* positions of a gradient that fit the L1 cache */
};

bool batch16_available(void)
{
    return __builtin_cpu_supports("avx512f");
}

bool batch16_kernel_size(uint32_t kernel)
{
    return kernel == 3 || kernel == 5;
}

/* ---- forward ---- */

/* Computes `channels` outputs at `places` neighbouring positions of one row. */
UNROLLED void forward_tile(const struct batch16_convolution *s, uint32_t k, uint32_t channels,
                           uint32_t places, const float *in, const float *weight, const float *bias,
                           bool relu, float *out)
{
    size_t in_row = (size_t)s->input_width * LANES, in_plane = in_row * s->input_height;
    size_t out_plane = (size_t)s->output_height * s->output_width * LANES;
    size_t per_output = (size_t)s->inputs * k * k;
    __m512 sum[CHANNEL_TILE][X_TILE];
    for (uint32_t o = 0; o < channels; ++o)
        for (uint32_t x = 0; x < places; ++x)
            sum[o][x] = _mm512_set1_ps(bias != NULL ? bias[o] : 0);
    for (uint32_t i = 0; i < s->inputs; ++i) {
        for (uint32_t ky = 0; ky < k; ++ky) {
            const float *row = in + i * in_plane + ky * in_row;
            const float *w = weight + (i * k + ky) * k;
            __m512 v[X_TILE + 4];
            for (uint32_t x = 0; x < places + k - 1; ++x)
                v[x] = _mm512_loadu_ps(row + x * LANES);
            for (uint32_t kx = 0; kx < k; ++kx) {
                for (uint32_t o = 0; o < channels; ++o) {
                    __m512 f = _mm512_set1_ps(w[o * per_output + kx]);
                    for (uint32_t x = 0; x < places; ++x)
                        sum[o][x] = _mm512_fmadd_ps(v[x + kx], f, sum[o][x]);
                }
            }
        }
    }
    for (uint32_t o = 0; o < channels; ++o) {
        for (uint32_t x = 0; x < places; ++x) {
            __m512 y = relu ? _mm512_max_ps(sum[o][x], _mm512_setzero_ps()) : sum[o][x];
            _mm512_storeu_ps(out + o * out_plane + x * LANES, y);
        }
    }
}

UNROLLED void forward_row(const struct batch16_convolution *s, uint32_t k, uint32_t channels,
                          const float *in, const float *weight, const float *bias, bool relu,
                          float *out)
{
    uint32_t x = 0;
    for (; x + X_TILE <= s->output_width; x += X_TILE)
        forward_tile(s, k, channels, X_TILE, in + x * LANES, weight, bias, relu, out + x * LANES);
    for (; x < s->output_width; ++x)
        forward_tile(s, k, channels, 1, in + x * LANES, weight, bias, relu, out + x * LANES);
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
            for (; o + CHANNEL_TILE <= s->outputs; o += CHANNEL_TILE) {
                forward_row(s, k, CHANNEL_TILE, from, weight + o * per_output,
                            bias != NULL ? bias + o : NULL, relu, to + o * out_plane);
            }
            for (; o < s->outputs; ++o) {
                forward_row(s, k, 1, from, weight + o * per_output, bias != NULL ? bias + o : NULL,
                            relu, to + o * out_plane);
            }
        }
    }
}

AVX512 void batch16_forward(const struct batch16_convolution *s, const float *in,
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
    __m512 sum[INPUT_TILE][X_TILE + 4];
    for (uint32_t i = 0; i < inputs; ++i)
        for (uint32_t x = 0; x < places + k - 1; ++x)
            sum[i][x] = _mm512_loadu_ps(to + i * in_plane + x * LANES);
    for (uint32_t ky = first; ky <= last; ++ky) {
        for (uint32_t o = 0; o < s->outputs; ++o) {
            const float *g = gradient + o * plane + (y - ky) * row;
            const float *w = weight + o * per_output + ky * k;
            __m512 v[X_TILE];
            for (uint32_t x = 0; x < places; ++x)
                v[x] = _mm512_loadu_ps(g + x * LANES);
            for (uint32_t kx = 0; kx < k; ++kx) {
                for (uint32_t i = 0; i < inputs; ++i) {
                    __m512 f = _mm512_set1_ps(w[i * k * k + kx]);
                    for (uint32_t x = 0; x < places; ++x)
                        sum[i][x + kx] = _mm512_fmadd_ps(v[x], f, sum[i][x + kx]);
                }
            }
        }
    }
    for (uint32_t i = 0; i < inputs; ++i)
        for (uint32_t x = 0; x < places + k - 1; ++x)
            _mm512_storeu_ps(to + i * in_plane + x * LANES, sum[i][x]);
}

UNROLLED void data_row(const struct batch16_convolution *s, uint32_t k, uint32_t inputs, uint32_t y,
                       const float *gradient, const float *weight, bool accumulate, float *to)
{
    size_t in_plane = (size_t)s->input_height * s->input_width * LANES;
    for (uint32_t i = 0; !accumulate && i < inputs; ++i)
        memset(to + i * in_plane, 0, (size_t)s->input_width * LANES * sizeof(float));
    uint32_t x = 0;
    for (; x + X_TILE <= s->output_width; x += X_TILE)
        data_tile(s, k, inputs, X_TILE, y, gradient + x * LANES, weight, to + x * LANES);
    for (; x < s->output_width; ++x)
        data_tile(s, k, inputs, 1, y, gradient + x * LANES, weight, to + x * LANES);
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
            for (; i + INPUT_TILE <= s->inputs; i += INPUT_TILE) {
                data_row(s, k, INPUT_TILE, y, gradient + b * block, weight + i * k * k, accumulate,
                         row + i * in_plane);
            }
            for (; i < s->inputs; ++i) {
                data_row(s, k, 1, y, gradient + b * block, weight + i * k * k, accumulate,
                         row + i * in_plane);
            }
        }
    }
}

AVX512 void batch16_backward_data(const struct batch16_convolution *s, const float *gradient,
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
    __m512 sum[CHANNEL_TILE][5], bias[CHANNEL_TILE];
    for (uint32_t o = 0; o < channels; ++o) {
        for (uint32_t kx = 0; kx < k; ++kx)
            sum[o][kx] = _mm512_loadu_ps(sums + o * per_output + kx * LANES);
        bias[o] = bias_sums != NULL ? _mm512_loadu_ps(bias_sums + o * LANES) : _mm512_setzero_ps();
    }
    for (; y < end; ++y) {
        const float *v = in + (size_t)y * s->input_width * LANES;
        const float *g = gradient + (size_t)y * s->output_width * LANES;
        for (uint32_t x = 0; x < s->output_width; ++x, v += LANES, g += LANES) {
            __m512 h[CHANNEL_TILE];
            for (uint32_t o = 0; o < channels; ++o) {
                h[o] = _mm512_loadu_ps(g + o * plane);
                if (bias_sums != NULL)
                    bias[o] = _mm512_add_ps(bias[o], h[o]);
            }
            for (uint32_t kx = 0; kx < k; ++kx) {
                __m512 u = _mm512_loadu_ps(v + kx * LANES);
                for (uint32_t o = 0; o < channels; ++o)
                    sum[o][kx] = _mm512_fmadd_ps(h[o], u, sum[o][kx]);
            }
        }
    }
    for (uint32_t o = 0; o < channels; ++o) {
        for (uint32_t kx = 0; kx < k; ++kx)
            _mm512_storeu_ps(sums + o * per_output + kx * LANES, sum[o][kx]);
        if (bias_sums != NULL)
            _mm512_storeu_ps(bias_sums + o * LANES, bias[o]);
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
            if (i == 0 && ky == 0)
                weights_tile(s, k, channels, y, end, v, gradient, at, bias_sums);
            else
                weights_tile(s, k, channels, y, end, v, gradient, at, NULL);
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
            for (; o + CHANNEL_TILE <= s->outputs; o += CHANNEL_TILE) {
                weights_chunk(s, k, CHANNEL_TILE, y, end, v, g + o * plane, sums + o * per_output,
                              bias_sums + o * LANES);
            }
            for (; o < s->outputs; ++o) {
                weights_chunk(s, k, 1, y, end, v, g + o * plane, sums + o * per_output,
                              bias_sums + o * LANES);
            }
        }
    }
}

/* Adds the lanes of each vector. */
UNROLLED void add_lanes(const float *sums, size_t count, float *out, bool accumulate)
{
    for (size_t i = 0; i < count; ++i) {
        float sum = _mm512_reduce_add_ps(_mm512_loadu_ps(sums + i * LANES));
        out[i] = accumulate ? out[i] + sum : sum;
    }
}

AVX512 void batch16_backward_weights(const struct batch16_convolution *s, const float *in,
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

UNROLLED void max_pool(const struct batch16_pool *s, uint32_t height, uint32_t width,
                       const float *in, float *out, uint8_t *which)
{
    size_t row = (size_t)s->input_width * LANES;
    for (uint32_t p = 0; p < s->planes; ++p) {
        for (uint32_t y = 0; y < s->output_height; ++y) {
            const float *v = in + (p * s->input_height + y * s->stride) * row;
            for (uint32_t x = 0; x < s->output_width; ++x) {
                __m512 best = _mm512_loadu_ps(v);
                __m512i at = _mm512_setzero_si512();
                for (uint32_t j = 0, ky = 0; ky < height; ++ky) {
                    for (uint32_t kx = 0; kx < width; ++kx, ++j) {
                        __m512 u = _mm512_loadu_ps(v + ky * row + kx * LANES);
                        __mmask16 larger = _mm512_cmp_ps_mask(u, best, _CMP_GT_OQ);
                        best = _mm512_mask_mov_ps(best, larger, u);
                        at = _mm512_mask_mov_epi32(at, larger, _mm512_set1_epi32((int)j));
                    }
                }
                _mm512_storeu_ps(out, best);
                _mm_storeu_si128((__m128i *)(void *)which, _mm512_cvtepi32_epi8(at));
                v += s->stride * LANES;
                out += LANES;
                which += LANES;
            }
        }
    }
}

AVX512 void batch16_max_pool(const struct batch16_pool *s, const float *in, float *out,
                             uint8_t *which)
{
    if (s->kernel_height == 2 && s->kernel_width == 2)
        max_pool(s, 2, 2, in, out, which);
    else
        max_pool(s, s->kernel_height, s->kernel_width, in, out, which);
}

UNROLLED void max_pool_backward(const struct batch16_pool *s, uint32_t height, uint32_t width,
                                bool add, const float *gradient, const uint8_t *which, float *to)
{
    size_t row = (size_t)s->input_width * LANES;
    for (uint32_t p = 0; p < s->planes; ++p) {
        for (uint32_t y = 0; y < s->output_height; ++y) {
            float *v = to + (p * s->input_height + y * s->stride) * row;
            for (uint32_t x = 0; x < s->output_width; ++x) {
                __m512 g = _mm512_loadu_ps(gradient);
                __m512i at =
                    _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(const void *)which));
                for (uint32_t j = 0, ky = 0; ky < height; ++ky) {
                    for (uint32_t kx = 0; kx < width; ++kx, ++j) {
                        float *place = v + ky * row + kx * LANES;
                        __mmask16 here = _mm512_cmpeq_epi32_mask(at, _mm512_set1_epi32((int)j));
                        __m512 part = _mm512_maskz_mov_ps(here, g);
                        if (add)
                            part = _mm512_add_ps(part, _mm512_loadu_ps(place));
                        _mm512_storeu_ps(place, part);
                    }
                }
                v += s->stride * LANES;
                gradient += LANES;
                which += LANES;
            }
        }
    }
}

AVX512 void batch16_max_pool_backward(const struct batch16_pool *s, const float *gradient,
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
        max_pool_backward(s, 2, 2, false, gradient, which, to);
    else
        max_pool_backward(s, height, width, accumulate || !tiles, gradient, which, to);
}

#else

bool batch16_available(void)
{
    return false;
}

bool batch16_kernel_size(uint32_t kernel UNUSED)
{
    return false;
}

void batch16_forward(const struct batch16_convolution *s UNUSED, const float *in UNUSED,
                     const float *weight UNUSED, const float *bias UNUSED, bool relu UNUSED,
                     float *out UNUSED)
{
    REQUIRE(batch16_available());
}

void batch16_backward_data(const struct batch16_convolution *s UNUSED, const float *gradient UNUSED,
                           const float *weight UNUSED, bool accumulate UNUSED,
                           float *input_gradient UNUSED)
{
    REQUIRE(batch16_available());
}

void batch16_backward_weights(const struct batch16_convolution *s UNUSED, const float *in UNUSED,
                              const float *gradient UNUSED, float *sums UNUSED,
                              float *weight_gradient UNUSED, bool accumulate_weight UNUSED,
                              float *bias_gradient UNUSED, bool accumulate_bias UNUSED)
{
    REQUIRE(batch16_available());
}

void batch16_max_pool(const struct batch16_pool *s UNUSED, const float *in UNUSED,
                      float *out UNUSED, uint8_t *which UNUSED)
{
    REQUIRE(batch16_available());
}

void batch16_max_pool_backward(const struct batch16_pool *s UNUSED, const float *gradient UNUSED,
                               const uint8_t *which UNUSED, bool accumulate UNUSED,
                               float *input_gradient UNUSED)
{
    REQUIRE(batch16_available());
}

#endif
