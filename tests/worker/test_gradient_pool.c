/* test_gradient_pool.c — what the workers of a pool share. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <malloc.h>
#include <string.h>

#include "experiments/config/config.h"
#include "worker/data/dataset.h"
#include "worker/gradient_pool.h"

static size_t held(void)
{
    const struct mallinfo2 now = mallinfo2();
    return now.uordblks + now.hblkhd;
}

/* Bytes that an open pool holds. */
static size_t held_by_pool(const options *settings, unsigned threads)
{
    gradient_pool *pool = NULL;
    const size_t before = held();
    assert_int_equal(gradient_pool_open(&pool, settings, 4, 0, threads, NULL), OK);
    const size_t during = held();
    assert_int_equal(gradient_pool_threads(pool), threads);
    gradient_pool_close(&pool);
    return during - before;
}

/* No other process of a run shares this dataset, so it is in private memory. */
static void the_workers_of_a_pool_share_one_dataset(void **state)
{
    (void)state;
    static const char *const set[] = {"dataset=gaussian", "dataset.samples=8000", "dataset.size=28",
                                      "batch=8",          "model=softmax",        NULL};
    options *settings = NULL;
    struct dataset d;
    assert_int_equal(config_compose_texts(&settings, set, NULL, "test"), OK);
    assert_int_equal(dataset_open(&d, settings, false), OK);
    const size_t bytes = dataset_split_bytes(&d, SPLIT_TRAIN);
    dataset_close(&d);
    const size_t of_one = held_by_pool(settings, 1), of_four = held_by_pool(settings, 4);
    assert_true(of_four < of_one + bytes);
    options_close(&settings);
}

/* The error comes before any worker computes. */
static void a_pool_with_too_many_workers_does_not_open(void **state)
{
    (void)state;
    static const char *const set[] = {"dataset=gaussian", "dataset.samples=3", "dataset.size=2",
                                      "model=softmax", NULL};
    options *settings = NULL;
    gradient_pool *pool = NULL;
    assert_int_equal(config_compose_texts(&settings, set, NULL, "test"), OK);
    assert_int_equal(gradient_pool_open(&pool, settings, 4, 0, 1, NULL), ERROR_USAGE);
    assert_null(pool);
    assert_non_null(strstr(error_message(), "sampler=whole"));
    assert_int_equal(gradient_pool_open(&pool, settings, 3, 4, 1, NULL), OK);
    gradient_pool_close(&pool);
    options_close(&settings);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_workers_of_a_pool_share_one_dataset),
        cmocka_unit_test(a_pool_with_too_many_workers_does_not_open),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
