/* test_cuda_product.c — matrix products of cuda_device.h: every transposition, epilogue and
 * arithmetic, at sizes that are multiples of nothing. Operands are small whole numbers, so every
 * arithmetic gives exactly the same sums in any order. A separate test covers rounding. */
#include "tests/worker/cuda/cuda_rig.h"
#include "worker/cuda/cuda_real.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct cuda_product_problem {
    struct cuda_product_shape shape;
    size_t offset; /* distance of operands from their alignment, in elements */
    float *a, *b, *d, *bias;
    uint8_t *mask;
};

static const char *const epilogues[] = {"plain",  "bias",       "bias, relu", "bias, relu, mask",
                                        "masked", "column sums"};

static bool has_bias(enum cuda_epilogue e)
{
    return e == CUDA_BIAS || e == CUDA_BIAS_RELU || e == CUDA_BIAS_RELU_MASK;
}

static size_t mask_bytes(const struct cuda_product_shape *s)
{
    return cuda_mask_bytes(s->rows, s->columns);
}

/* op(A)[i][k], op(B)[k][j] */
static double a_of(const struct cuda_product_problem *p, uint32_t i, uint32_t k)
{
    const struct cuda_product_shape *s = &p->shape;
    return (double)p->a[s->a_transposed ? (size_t)k * s->rows + i : (size_t)i * s->inner + k];
}

static double b_of(const struct cuda_product_problem *p, uint32_t k, uint32_t j)
{
    const struct cuda_product_shape *s = &p->shape;
    return (double)p->b[s->b_transposed ? (size_t)j * s->inner + k : (size_t)k * s->columns + j];
}

static struct cuda_product_problem make(const struct cuda_product_shape *s, size_t offset)
{
    struct cuda_product_problem p = {.shape = *s, .offset = offset};
    const size_t a = (size_t)s->rows * s->inner, b = (size_t)s->inner * s->columns;
    const size_t d = (size_t)s->rows * s->columns, widest = s->rows + s->columns;
    p.a = calloc(a, sizeof *p.a);
    p.b = calloc(b, sizeof *p.b);
    p.d = calloc(d, sizeof *p.d);
    p.bias = calloc(widest, sizeof *p.bias);
    p.mask = malloc(mask_bytes(s));
    cuda_rig_fill(p.a, a, 11);
    cuda_rig_fill(p.b, b, 12);
    cuda_rig_fill(p.d, d, 13);
    cuda_rig_fill(p.bias, widest, 14);
    for (size_t i = 0; i < mask_bytes(s); i++)
        p.mask[i] = (uint8_t)(i * 37 + 5);
    for (uint32_t j = 0; j < s->columns; j++)
        p.bias[j] += 0.5f; /* no sum is 0, where the mask is undefined */
    return p;
}

static void drop(struct cuda_product_problem *p)
{
    free(p->a);
    free(p->b);
    free(p->d);
    free(p->bias);
    free(p->mask);
}

static uint16_t to_bf16(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

/* Copies the operand to the device, `offset` elements after the aligned address that it returns. */
static void *operand_up(struct cuda_rig *r, const struct cuda_product_problem *p, const float *x,
                        size_t count)
{
    const size_t size = p->shape.arithmetic == CUDA_BF16 ? sizeof(uint16_t) : sizeof(float);
    uint8_t *bytes = calloc(count + p->offset, size);
    for (size_t i = 0; i < count; i++) {
        if (size == sizeof(float)) {
            memcpy(bytes + (p->offset + i) * size, &x[i], size);
        } else {
            const uint16_t rounded = to_bf16(x[i]);
            memcpy(bytes + (p->offset + i) * size, &rounded, size);
        }
    }
    void *at = cuda_rig_up(r, bytes, (count + p->offset) * size);
    free(bytes);
    return at;
}

/* Computes the problem on the device: into d, bias and mask. */
static void compute(struct cuda_rig *r, struct cuda_product_problem *p)
{
    const struct cuda_product_shape *s = &p->shape;
    const size_t size = s->arithmetic == CUDA_BF16 ? sizeof(uint16_t) : sizeof(float);
    const size_t d_bytes = (size_t)s->rows * s->columns * sizeof(float);
    const size_t bias_bytes = (size_t)(s->rows + s->columns) * sizeof(float);
    uint8_t *a = operand_up(r, p, p->a, (size_t)s->rows * s->inner);
    uint8_t *b = operand_up(r, p, p->b, (size_t)s->inner * s->columns);
    struct cuda_product_call call = {
        a + p->offset * size, b + p->offset * size, cuda_rig_up(r, p->d, d_bytes),
        cuda_rig_up(r, p->bias, bias_bytes), cuda_rig_up(r, p->mask, mask_bytes(s))};
    cuda_product *product;
    assert_ok(r->kind->product_open(r->device, s, &product));
    assert_ok(r->kind->product_run(r->device, product, &call));
    cuda_rig_down(r, p->d, call.d, d_bytes);
    cuda_rig_down(r, p->bias, call.bias, bias_bytes);
    cuda_rig_down(r, p->mask, call.mask, mask_bytes(s));
    r->kind->product_close(r->device, product);
    const void *const all[] = {a, b, call.d, call.bias, call.mask};
    for (size_t i = 0; i < COUNT_OF(all); i++)
        cuda_rig_free(r, all[i]);
}

static bool bit_of(const struct cuda_product_problem *p, uint32_t i, uint32_t j)
{
    return p->mask[i * cuda_mask_bytes(1, p->shape.columns) + j / 8] >> j % 8 & 1;
}

/* The expected element i, j. `before`: the problem before it was computed. */
static double expected(const struct cuda_product_problem *before, uint32_t i, uint32_t j)
{
    const struct cuda_product_shape *s = &before->shape;
    double sum = s->accumulate ? (double)before->d[(size_t)i * s->columns + j] : 0;
    for (uint32_t k = 0; k < s->inner; k++)
        sum += a_of(before, i, k) * b_of(before, k, j);
    if (has_bias(s->epilogue))
        sum += (double)before->bias[j];
    if (s->epilogue == CUDA_BIAS_RELU || s->epilogue == CUDA_BIAS_RELU_MASK)
        sum = sum > 0 ? sum : 0;
    return s->epilogue == CUDA_MASKED && !bit_of(before, i, j) ? 0 : sum;
}

static void check(struct cuda_rig *r, const struct cuda_product_shape *s, size_t offset)
{
    struct cuda_product_problem before = make(s, offset), p = make(s, offset);
    compute(r, &p);
    for (uint32_t i = 0; i < s->rows; i++) {
        for (uint32_t j = 0; j < s->columns; j++) {
            const double want = expected(&before, i, j);
            const double got = (double)p.d[(size_t)i * s->columns + j];
            if (got != want) {
                fail_msg("%u×%u×%u, %s, arithmetic %d, transposed %d %d, accumulate %d: element "
                         "%u,%u is %g and should be %g",
                         s->rows, s->columns, s->inner, epilogues[s->epilogue], (int)s->arithmetic,
                         s->a_transposed, s->b_transposed, s->accumulate, i, j, got, want);
            }
            if (s->epilogue == CUDA_BIAS_RELU_MASK)
                assert_int_equal(bit_of(&p, i, j), want > 0);
        }
        if (s->epilogue == CUDA_COLUMN_SUMS) {
            double sum = 0;
            for (uint32_t k = 0; k < s->inner; k++)
                sum += a_of(&before, i, k);
            assert_true((double)p.bias[i] == sum);
        }
    }
    drop(&before);
    drop(&p);
}

static const struct {
    uint32_t rows, columns, inner;
} sizes[] = {{1, 1, 1}, {3, 5, 7}, {33, 65, 17}, {64, 10, 300}, {16, 128, 32}, {70, 129, 40}};

static void check_everywhere(struct cuda_rig *r, enum cuda_arithmetic arithmetic, size_t offset)
{
    for (size_t i = 0; i < COUNT_OF(sizes); i++) {
        for (unsigned e = 0; e < COUNT_OF(epilogues); e++) {
            for (unsigned t = 0; t < 4; t++) {
                struct cuda_product_shape s = {.rows = sizes[i].rows,
                                               .columns = sizes[i].columns,
                                               .inner = sizes[i].inner,
                                               .a_transposed = (t & 1) != 0,
                                               .b_transposed = (t & 2) != 0,
                                               .arithmetic = arithmetic,
                                               .epilogue = (enum cuda_epilogue)e};
                check(r, &s, offset);
                if (s.epilogue == CUDA_PLAIN) {
                    s.accumulate = true;
                    check(r, &s, offset);
                }
            }
        }
    }
}

/* With the epilogues that cublasLt fuses, and with kernels for all of them. */
static void check_both_ways(struct cuda_rig *r, enum cuda_arithmetic arithmetic)
{
    static const char name[] = "GRADLAG_CUDA_EPILOGUES";
    check_everywhere(r, arithmetic, 0);
    if (getenv(name) == NULL) {
        setenv(name, "kernels", 1);
        check_everywhere(r, arithmetic, 0);
        unsetenv(name);
    }
}

static void products_in_fp32_are_right(void **state)
{
    check_both_ways(*state, CUDA_FP32);
}

static void products_in_tf32_are_right(void **state)
{
    check_everywhere(*state, CUDA_TF32, 0);
}

static void products_in_bf16_are_right(void **state)
{
    check_both_ways(*state, CUDA_BF16);
}

static void operands_need_no_alignment(void **state)
{
    check_everywhere(*state, CUDA_FP32, 1);
    check_everywhere(*state, CUDA_BF16, 4);
}

/* ‖got − want‖ / ‖want‖ of a product of numbers with 24 bits, against double precision. */
static double error_of(struct cuda_rig *r, enum cuda_arithmetic arithmetic)
{
    const struct cuda_product_shape s = {
        .rows = 40, .columns = 50, .inner = 200, .b_transposed = true, .arithmetic = arithmetic};
    struct cuda_product_problem before = make(&s, 0), p = make(&s, 0);
    double off = 0, all = 0;
    for (size_t i = 0; i < 40 * 200; i++)
        before.a[i] = p.a[i] *= 0.7654321f; /* no longer whole numbers */
    for (size_t i = 0; i < 50 * 200; i++)
        before.b[i] = p.b[i] *= 1.2345678f;
    compute(r, &p);
    for (uint32_t i = 0; i < s.rows; i++) {
        for (uint32_t j = 0; j < s.columns; j++) {
            const double want = expected(&before, i, j);
            const double got = (double)p.d[(size_t)i * s.columns + j];
            off += (got - want) * (got - want);
            all += want * want;
        }
    }
    drop(&before);
    drop(&p);
    return sqrt(off / all);
}

/* fp32 has 24 significant bits, tf32 11 and bf16 8. */
static void each_arithmetic_has_its_rounding_error(void **state)
{
    struct cuda_rig *r = *state;
    const double fp32 = error_of(r, CUDA_FP32), tf32 = error_of(r, CUDA_TF32);
    const double bf16 = error_of(r, CUDA_BF16);
    print_message("off by %.2g, %.2g and %.2g\n", fp32, tf32, bf16);
    assert_true(fp32 < 1e-6);
    assert_true(tf32 < 1e-3 &&
                (tf32 > 1e-5 || !cuda_rig_on_stand_in())); /* a GPU may round exactly */
    assert_true(bf16 < 1e-2 && bf16 > 1e-3);
}

static void impossible_products_are_errors(void **state)
{
    struct cuda_rig *r = *state;
    cuda_product *p;
    const struct {
        struct cuda_product_shape shape;
        status code;
    } cases[] = {{{4, 4, 4, .epilogue = CUDA_BIAS}, OK},
                 {{4, 4, 4, .accumulate = true}, OK},
                 {{4, 0, 4, .epilogue = CUDA_BIAS}, ERROR_OTHER},
                 {{4, 4, 4, .epilogue = CUDA_BIAS, .accumulate = true}, ERROR_OTHER}};
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        assert_int_equal(r->kind->product_open(r->device, &cases[i].shape, &p), cases[i].code);
        if (cases[i].code == OK)
            r->kind->product_close(r->device, p);
    }
}

/* The kernels for epilogues that cublasLt does not fuse. */
static void masks_of_kernels_equal_those_of_products(void **state)
{
    struct cuda_rig *r = *state;
    enum { ROWS = 37, COLUMNS = 133 };
    const struct cuda_product_shape s = {ROWS, COLUMNS, 9, .epilogue = CUDA_BIAS_RELU_MASK};
    const uint32_t words = (uint32_t)(cuda_mask_bytes(1, COLUMNS) / 4);
    struct cuda_product_problem p = make(&s, 0);
    compute(r, &p);
    float *d = cuda_rig_up(r, p.d, ROWS * COLUMNS * sizeof *d);
    uint32_t *mask = cuda_rig_memory(r, mask_bytes(&s));
    const struct product_mask_write_call write = {d, mask, ROWS, COLUMNS, words, 0};
    assert_ok(r->kind->launch(r->device, CUDA_COMPUTE, CUDA_product_mask_write,
                              cuda_grid_over((size_t)ROWS * words, 64), &write));
    struct cuda_product_problem by_kernel = make(&s, 0);
    cuda_rig_down(r, by_kernel.mask, mask, mask_bytes(&s));
    float ones[ROWS * COLUMNS], kept[ROWS * COLUMNS];
    for (size_t i = 0; i < ROWS * COLUMNS; i++)
        ones[i] = 1;
    float *x = cuda_rig_up(r, ones, sizeof ones);
    const struct product_mask_apply_call apply = {x, mask, ROWS, COLUMNS, words, 0};
    assert_ok(r->kind->launch(r->device, CUDA_COMPUTE, CUDA_product_mask_apply,
                              cuda_grid_over(ROWS * COLUMNS, 64), &apply));
    cuda_rig_down(r, kept, x, sizeof kept);
    for (uint32_t i = 0; i < ROWS; i++) {
        for (uint32_t j = 0; j < COLUMNS; j++) {
            assert_int_equal(bit_of(&by_kernel, i, j), bit_of(&p, i, j));
            assert_true(kept[i * COLUMNS + j] == (p.d[i * COLUMNS + j] > 0 ? 1 : 0));
        }
    }
    drop(&p);
    drop(&by_kernel);
    cuda_rig_free(r, d);
    cuda_rig_free(r, mask);
    cuda_rig_free(r, x);
}

static void sums_of_kernels_equal_those_of_products(void **state)
{
    struct cuda_rig *r = *state;
    enum { ROWS = 45, INNER = 77 };
    for (unsigned t = 0; t < 4; t++) {
        const struct cuda_product_shape s = {ROWS, 3, INNER, .a_transposed = (t & 1) != 0,
                                             .arithmetic = (t & 2) != 0 ? CUDA_BF16 : CUDA_FP32};
        struct cuda_product_problem p = make(&s, 0);
        void *a = operand_up(r, &p, p.a, (size_t)ROWS * INNER);
        float *out = cuda_rig_memory(r, ROWS * sizeof *out), sums[ROWS];
        const struct product_sums_call call = {.a = a,
                                               .out = out,
                                               .row_step = s.a_transposed ? 1 : INNER,
                                               .inner_step = s.a_transposed ? ROWS : 1,
                                               .rows = ROWS,
                                               .inner = INNER,
                                               .bf16 = s.arithmetic == CUDA_BF16};
        assert_ok(r->kind->launch(r->device, CUDA_COMPUTE, CUDA_product_sums,
                                  (struct cuda_grid){(ROWS + 31) / 32, 1, 1, 256}, &call));
        cuda_rig_down(r, sums, out, sizeof sums);
        for (uint32_t i = 0; i < ROWS; i++) {
            double want = 0;
            for (uint32_t k = 0; k < INNER; k++)
                want += a_of(&p, i, k);
            assert_true((double)sums[i] == want);
        }
        drop(&p);
        cuda_rig_free(r, a);
        cuda_rig_free(r, out);
    }
}

static void kernels_compute_epilogues_of_single_terms_and_rows(void **state)
{
    (void)state;
    static const struct {
        enum cuda_epilogue epilogue;
        uint32_t rows, inner;
        bool fused;
    } cases[] = {
        {CUDA_PLAIN, 8, 8, false},       {CUDA_BIAS, 8, 1, true},
        {CUDA_BIAS_RELU, 1, 1, true},    {CUDA_BIAS_RELU_MASK, 8, 1, true},
        {CUDA_MASKED, 8, 2, true},       {CUDA_MASKED, 8, 1, false},
        {CUDA_MASKED, 1, 2, true},       {CUDA_COLUMN_SUMS, 2, 2, true},
        {CUDA_COLUMN_SUMS, 2, 1, false}, {CUDA_COLUMN_SUMS, 1, 2, false},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        const struct cuda_product_shape s = {cases[i].rows, 3, cases[i].inner,
                                             .epilogue = cases[i].epilogue};
        if (cuda_product_may_fuse(&s) != cases[i].fused)
            fail_msg("case %zu: %s", i, epilogues[s.epilogue]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(kernels_compute_epilogues_of_single_terms_and_rows),
        CUDA_TEST(products_in_fp32_are_right),
        CUDA_TEST(products_in_tf32_are_right),
        CUDA_TEST(products_in_bf16_are_right),
        CUDA_TEST(operands_need_no_alignment),
        CUDA_TEST(each_arithmetic_has_its_rounding_error),
        CUDA_TEST(impossible_products_are_errors),
        CUDA_TEST(masks_of_kernels_equal_those_of_products),
        CUDA_TEST(sums_of_kernels_equal_those_of_products),
    };
    return cuda_rig_run("cuda_product", tests, COUNT_OF(tests), NULL, NULL);
}
