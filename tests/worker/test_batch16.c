/* test_batch16.c — each form of the batch16 kernels that this processor supports gives the bits of
 * plain loops. The loops state the order of the operations, and fmaf() rounds once, like the
 * instruction: all forms therefore give the same bits. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <string.h>

#include "base/memory.h"
#include "base/random.h"
#include "worker/cpu/backend_cpu_batch16.h"

static const struct batch16_convolution convolutions[] = {
    {2, 1, 28, 28, 8, 24, 24, 5},                             /* those of lenet */
    {2, 8, 12, 12, 16, 8, 8, 5},  {1, 3, 9, 14, 7, 7, 12, 3}, /* odd numbers of channels, and every
                                                                 width of a tile */
    {3, 5, 7, 8, 3, 5, 6, 3},     {1, 2, 5, 9, 5, 1, 5, 5},   {1, 1, 3, 3, 1, 1, 1, 3},
    {1, 2, 6, 125, 2, 4, 123, 3}, /* a row longer than CHUNK */
};

static void need_kernels(void)
{
    if (batch16_form(0) != NULL)
        return;
    print_message("skipped: the processor has neither AVX-512 nor AVX2 with FMA\n");
    skip();
}

static float *random_floats(size_t count)
{
    static uint64_t step;
    struct random_stream r;
    float *out;
    random_open(&r, RANDOM_TEST, 16, 0, step++);
    assert_int_equal(memory_new(&out, count, sizeof *out, "numbers"), OK);
    for (size_t i = 0; i < count; ++i)
        out[i] = (float)random_normal(&r);
    return out;
}

static float *copy_of(const float *a, size_t count)
{
    float *out;
    assert_int_equal(memory_new(&out, count, sizeof *out, "numbers"), OK);
    memcpy(out, a, count * sizeof *out);
    return out;
}

static void check_bits(const char *form, const char *what, const float *a, const float *wanted,
                       size_t count)
{
    for (size_t i = 0; i < count; ++i)
        if (memcmp(&a[i], &wanted[i], sizeof a[i]) != 0)
            fail_msg("%s: %s: element %zu is %a instead of %a", form, what, i, (double)a[i],
                     (double)wanted[i]);
}

static size_t in_count(const struct batch16_convolution *s)
{
    return (size_t)s->blocks * s->inputs * s->input_height * s->input_width * LANES;
}

static size_t out_count(const struct batch16_convolution *s)
{
    return (size_t)s->blocks * s->outputs * s->output_height * s->output_width * LANES;
}

static size_t weight_count(const struct batch16_convolution *s)
{
    return (size_t)s->outputs * s->inputs * s->kernel * s->kernel;
}

/* Lane 0 of an input, of an output, and a weight. */
static size_t in_at(const struct batch16_convolution *s, uint32_t b, uint32_t i, uint32_t y,
                    uint32_t x)
{
    return (((b * s->inputs + i) * s->input_height + y) * s->input_width + x) * LANES;
}

static size_t out_at(const struct batch16_convolution *s, uint32_t b, uint32_t o, uint32_t y,
                     uint32_t x)
{
    return (((b * s->outputs + o) * s->output_height + y) * s->output_width + x) * LANES;
}

static size_t weight_at(const struct batch16_convolution *s, uint32_t o, uint32_t i, uint32_t ky,
                        uint32_t kx)
{
    return ((o * s->inputs + i) * s->kernel + ky) * s->kernel + kx;
}

/* ---- plain loops ---- */

static float forward_element(const struct batch16_convolution *s, const float *in,
                             const float *weight, uint32_t b, uint32_t o, uint32_t y, uint32_t x,
                             float sum)
{
    for (uint32_t i = 0; i < s->inputs; ++i)
        for (uint32_t ky = 0; ky < s->kernel; ++ky)
            for (uint32_t kx = 0; kx < s->kernel; ++kx)
                sum = fmaf(in[in_at(s, b, i, y + ky, x + kx)], weight[weight_at(s, o, i, ky, kx)],
                           sum);
    return sum;
}

static void plain_forward(const struct batch16_convolution *s, const float *in, const float *weight,
                          const float *bias, bool relu, float *out)
{
    for (uint32_t b = 0; b < s->blocks; ++b)
        for (uint32_t o = 0; o < s->outputs; ++o)
            for (uint32_t y = 0; y < s->output_height; ++y)
                for (uint32_t x = 0; x < s->output_width; ++x)
                    for (uint32_t l = 0; l < LANES; ++l) {
                        float sum = forward_element(s, in + l, weight, b, o, y, x,
                                                    bias != NULL ? bias[o] : 0);
                        out[out_at(s, b, o, y, x) + l] = relu && !(sum > 0) ? 0 : sum;
                    }
}

/* Adds positions [x, end) of the gradient's rows to one element of the input's gradient. */
static float data_element(const struct batch16_convolution *s, const float *gradient,
                          const float *weight, uint32_t b, uint32_t i, uint32_t row,
                          uint32_t column, uint32_t x, uint32_t end, float sum)
{
    for (uint32_t ky = 0; ky < s->kernel; ++ky)
        for (uint32_t o = 0; o < s->outputs; ++o)
            for (uint32_t kx = 0; kx < s->kernel; ++kx)
                if (row >= ky && row - ky < s->output_height && column >= x + kx &&
                    column < end + kx)
                    sum = fmaf(gradient[out_at(s, b, o, row - ky, column - kx)],
                               weight[weight_at(s, o, i, ky, kx)], sum);
    return sum;
}

/* Four positions of a row together, then the next four; at the end one by one. */
static void plain_backward_data(const struct batch16_convolution *s, const float *gradient,
                                const float *weight, bool accumulate, float *to)
{
    for (uint32_t b = 0; b < s->blocks; ++b)
        for (uint32_t i = 0; i < s->inputs; ++i)
            for (uint32_t y = 0; y < s->input_height; ++y)
                for (uint32_t x = 0; x < s->input_width; ++x)
                    for (uint32_t l = 0; l < LANES; ++l) {
                        float *at = &to[in_at(s, b, i, y, x) + l], sum = accumulate ? *at : 0;
                        for (uint32_t first = 0, end; first < s->output_width; first = end) {
                            end = first + (first + 4 <= s->output_width ? 4 : 1);
                            sum =
                                data_element(s, gradient + l, weight, b, i, y, x, first, end, sum);
                        }
                        *at = sum;
                    }
}

static float sum_of_lanes(const float *lanes)
{
    float a[LANES];
    memcpy(a, lanes, sizeof a);
    for (uint32_t half = LANES / 2; half > 0; half /= 2)
        for (uint32_t l = 0; l < half; ++l)
            a[l] += a[l + half];
    return a[0];
}

static float plain_bias_gradient(const struct batch16_convolution *s, const float *gradient,
                                 uint32_t o)
{
    float lanes[LANES] = {0};
    for (uint32_t b = 0; b < s->blocks; ++b)
        for (uint32_t y = 0; y < s->output_height; ++y)
            for (uint32_t x = 0; x < s->output_width; ++x)
                for (uint32_t l = 0; l < LANES; ++l)
                    lanes[l] += gradient[out_at(s, b, o, y, x) + l];
    return sum_of_lanes(lanes);
}

static float plain_weight_gradient(const struct batch16_convolution *s, const float *in,
                                   const float *gradient, uint32_t o, uint32_t i, uint32_t ky,
                                   uint32_t kx)
{
    float lanes[LANES] = {0};
    for (uint32_t b = 0; b < s->blocks; ++b)
        for (uint32_t y = 0; y < s->output_height; ++y)
            for (uint32_t x = 0; x < s->output_width; ++x)
                for (uint32_t l = 0; l < LANES; ++l)
                    lanes[l] = fmaf(gradient[out_at(s, b, o, y, x) + l],
                                    in[in_at(s, b, i, y + ky, x + kx) + l], lanes[l]);
    return sum_of_lanes(lanes);
}

/* ---- convolutions ---- */

static void check_forward(const struct batch16_convolution *s, bool biased, bool relu)
{
    float *in = random_floats(in_count(s)), *weight = random_floats(weight_count(s));
    float *bias = random_floats(s->outputs), *out = random_floats(out_count(s));
    float *wanted = copy_of(out, out_count(s));
    plain_forward(s, in, weight, biased ? bias : NULL, relu, wanted);
    const struct batch16_kernels *k;
    for (size_t form = 0; (k = batch16_form(form)) != NULL; ++form) {
        memset(out, 0x7f, out_count(s) * sizeof *out);
        k->forward(s, in, weight, biased ? bias : NULL, relu, out);
        check_bits(k->name, "output", out, wanted, out_count(s));
    }
    memory_free(in);
    memory_free(weight);
    memory_free(bias);
    memory_free(out);
    memory_free(wanted);
}

static void forward_gives_the_bits_of_plain_loops(void **state)
{
    (void)state;
    need_kernels();
    for (size_t i = 0; i < COUNT_OF(convolutions); ++i) {
        check_forward(&convolutions[i], true, false);
        check_forward(&convolutions[i], i % 2 != 0, true);
    }
}

static void check_data(const struct batch16_convolution *s, bool accumulate)
{
    float *gradient = random_floats(out_count(s)), *weight = random_floats(weight_count(s));
    float *before = random_floats(in_count(s)), *wanted = copy_of(before, in_count(s));
    plain_backward_data(s, gradient, weight, accumulate, wanted);
    const struct batch16_kernels *k;
    for (size_t form = 0; (k = batch16_form(form)) != NULL; ++form) {
        float *to = copy_of(before, in_count(s));
        k->backward_data(s, gradient, weight, accumulate, to);
        check_bits(k->name, "gradient of the input", to, wanted, in_count(s));
        memory_free(to);
    }
    memory_free(gradient);
    memory_free(weight);
    memory_free(before);
    memory_free(wanted);
}

static void gradients_of_inputs_have_the_bits_of_plain_loops(void **state)
{
    (void)state;
    need_kernels();
    for (size_t i = 0; i < COUNT_OF(convolutions); ++i) {
        check_data(&convolutions[i], false);
        check_data(&convolutions[i], true);
    }
}

static void check_weights(const struct batch16_convolution *s, bool accumulate)
{
    size_t count = weight_count(s);
    float *in = random_floats(in_count(s)), *gradient = random_floats(out_count(s));
    float *sums = random_floats((count + s->outputs) * LANES);
    float *before = random_floats(count + s->outputs); /* weights, then biases */
    float *wanted = copy_of(before, count + s->outputs);
    for (uint32_t o = 0; o < s->outputs; ++o) {
        for (uint32_t i = 0; i < s->inputs; ++i)
            for (uint32_t ky = 0; ky < s->kernel; ++ky)
                for (uint32_t kx = 0; kx < s->kernel; ++kx) {
                    float sum = plain_weight_gradient(s, in, gradient, o, i, ky, kx);
                    float *at = &wanted[weight_at(s, o, i, ky, kx)];
                    *at = accumulate ? *at + sum : sum;
                }
        float sum = plain_bias_gradient(s, gradient, o);
        wanted[count + o] = accumulate ? wanted[count + o] + sum : sum;
    }
    const struct batch16_kernels *k;
    for (size_t form = 0; (k = batch16_form(form)) != NULL; ++form) {
        float *to = copy_of(before, count + s->outputs);
        k->backward_weights(s, in, gradient, sums, to, accumulate, to + count, accumulate);
        check_bits(k->name, "gradient of weights and biases", to, wanted, count + s->outputs);
        memcpy(to, before, count * sizeof *to);
        k->backward_weights(s, in, gradient, sums, to, accumulate, NULL, accumulate);
        check_bits(k->name, "gradient of weights", to, wanted, count);
        memory_free(to);
    }
    memory_free(in);
    memory_free(gradient);
    memory_free(sums);
    memory_free(before);
    memory_free(wanted);
}

static void gradients_of_weights_have_the_bits_of_plain_loops(void **state)
{
    (void)state;
    need_kernels();
    for (size_t i = 0; i < COUNT_OF(convolutions); ++i)
        check_weights(&convolutions[i], i % 2 != 0);
}

/* ---- max pool ---- */

static const struct batch16_pool pools[] = {
    {4, 24, 24, 12, 12, 2, 2, 2}, /* that of lenet */
    {3, 7, 5, 3, 2, 2, 2, 2},     /* windows that leave a row and a column */
    {2, 7, 9, 3, 4, 3, 3, 2},     /* windows that overlap */
    {1, 20, 17, 6, 2, 15, 16, 1}, /* positions up to 239 */
};

static void check_pool(const struct batch16_pool *s, bool accumulate)
{
    size_t inputs = (size_t)s->planes * s->input_height * s->input_width * LANES;
    size_t outputs = (size_t)s->planes * s->output_height * s->output_width * LANES;
    float *in = random_floats(inputs), *out = random_floats(outputs);
    float *wanted = copy_of(out, outputs), *gradient = random_floats(outputs);
    float *before = random_floats(inputs), *wanted_gradient = copy_of(before, inputs);
    uint8_t *which, *wanted_which;
    assert_int_equal(memory_new(&which, outputs, 1, "positions"), OK);
    assert_int_equal(memory_new(&wanted_which, outputs, 1, "positions"), OK);
    for (size_t i = 0; i < inputs; ++i) {
        in[i] = roundf(4 * in[i]); /* equal numbers, and both zeros: the first is taken */
        wanted_gradient[i] = accumulate ? before[i] : 0;
    }
    for (size_t i = 0; i < outputs; ++i) {
        size_t lane = i % LANES, x = i / LANES % s->output_width;
        size_t y = i / LANES / s->output_width % s->output_height;
        size_t plane = i / LANES / s->output_width / s->output_height;
        size_t row = (size_t)s->input_width * LANES;
        size_t at = (plane * s->input_height + y * s->stride) * row + x * s->stride * LANES + lane;
        size_t best = at;
        for (uint32_t j = 0; j < s->kernel_height * s->kernel_width; ++j) {
            size_t other = at + j / s->kernel_width * row + j % s->kernel_width * LANES;
            if (in[other] > in[best]) {
                best = other;
                wanted_which[i] = (uint8_t)j;
            }
        }
        wanted[i] = in[best];
        wanted_gradient[best] += gradient[i];
    }
    const struct batch16_kernels *k;
    for (size_t form = 0; (k = batch16_form(form)) != NULL; ++form) {
        float *to = copy_of(before, inputs);
        memset(out, 0x7f, outputs * sizeof *out);
        memset(which, 0x7f, outputs);
        k->max_pool(s, in, out, which);
        check_bits(k->name, "largest values", out, wanted, outputs);
        assert_memory_equal(which, wanted_which, outputs);
        k->max_pool_backward(s, gradient, which, accumulate, to);
        check_bits(k->name, "gradient of a pool", to, wanted_gradient, inputs);
        memory_free(to);
    }
    float *const all[] = {in, out, wanted, gradient, before, wanted_gradient};
    for (size_t i = 0; i < COUNT_OF(all); ++i)
        memory_free(all[i]);
    memory_free(which);
    memory_free(wanted_which);
}

static void max_pools_give_the_bits_of_plain_loops(void **state)
{
    (void)state;
    need_kernels();
    for (size_t i = 0; i < COUNT_OF(pools); ++i) {
        check_pool(&pools[i], false);
        check_pool(&pools[i], true);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(forward_gives_the_bits_of_plain_loops),
        cmocka_unit_test(gradients_of_inputs_have_the_bits_of_plain_loops),
        cmocka_unit_test(gradients_of_weights_have_the_bits_of_plain_loops),
        cmocka_unit_test(max_pools_give_the_bits_of_plain_loops),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
