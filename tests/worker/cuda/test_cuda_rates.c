/* test_cuda_rates.c — every rate of a GPU is measured; its value is not tested. */
#include "tests/worker/cuda/cuda_rig.h"
#include "worker/cuda/cuda_rates.h"

#include <math.h>

static const struct cuda_kind *kind;
static const struct cuda_rates_size small = {.product = 64, .bytes = 65536, .seconds = 1e-4};

static void every_rate_is_a_positive_number(void **state)
{
    (void)state;
    struct cuda_rates r;
    assert_int_equal(cuda_rates_measure(kind, 0, &small, &r), OK);
    const double all[] = {
        r.product[CUDA_FP32], r.product[CUDA_TF32], r.product[CUDA_BF16], r.memory, r.up, r.down};
    for (size_t i = 0; i < COUNT_OF(all); i++)
        assert_true(isfinite(all[i]) && all[i] > 0);
}

static void a_device_that_is_not_there_is_a_usage_error(void **state)
{
    (void)state;
    struct cuda_rates r;
    unsigned count = 0;
    assert_int_equal(kind->count(&count), OK);
    assert_int_equal(cuda_rates_measure(kind, count, &small, &r), ERROR_USAGE);
}

static void products_with_every_epilogue_are_measured(void **state)
{
    (void)state;
    static const enum cuda_epilogue epilogues[] = {CUDA_PLAIN, CUDA_BIAS_RELU_MASK, CUDA_MASKED,
                                                   CUDA_COLUMN_SUMS};
    cuda_device *d = NULL;
    const struct cuda_options o = {0};
    assert_int_equal(kind->open(&d, &o), OK);
    for (size_t i = 0; i < COUNT_OF(epilogues); i++) {
        const struct cuda_product_shape shape = {.rows = 8,
                                                 .columns = 24,
                                                 .inner = 40,
                                                 .arithmetic = CUDA_BF16,
                                                 .epilogue = epilogues[i]};
        double series[2] = {0};
        assert_int_equal(cuda_rates_product(kind, d, &shape, 1e-4, series, 2), OK);
        assert_true(series[0] > 0 && series[1] > 0);
    }
    kind->close(&d);
}

static const struct {
    double rates[5];
    unsigned count, who;
    bool slower;
} cases[] = {
    {{100}, 1, 0, false},
    {{100, 100}, 2, 0, false},
    {{100, 70}, 2, 1, true}, /* the median is 85 */
    {{100, 70}, 2, 0, false},
    {{100, 95, 100, 101}, 4, 1, false},
    {{100, 89, 100, 101}, 4, 1, true},
    {{100, 89, 100, 101, 50}, 5, 1, true},
    {{50, 51, 50, 100}, 4, 0, false}, /* one fast GPU does not make the others slow */
};

static void slower_is_more_than_a_tenth_below_the_median(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT_OF(cases); i++)
        if (cuda_rates_slower(cases[i].rates, cases[i].count, cases[i].who) != cases[i].slower)
            fail_msg("case %zu", i);
}

int main(void)
{
    if (cuda_kind_get(&kind) != OK) {
        print_error("%s\n", error_message());
        return 1;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_rate_is_a_positive_number),
        cmocka_unit_test(a_device_that_is_not_there_is_a_usage_error),
        cmocka_unit_test(products_with_every_epilogue_are_measured),
        cmocka_unit_test(slower_is_more_than_a_tenth_below_the_median),
    };
    return cuda_rig_run("cuda_rates", tests, COUNT_OF(tests), NULL, NULL);
}
