/* test_sampler.c — the samples of each batch. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <string.h>

#include "base/random.h"
#include "worker/data/sampler.h"

static const struct option keys[] = {
    {"dataset", OPTION_TEXT, "text", 0, 0, NULL, NULL, "dataset"},
    {"sampler", OPTION_NAME, "partition", 0, 0, "partition|reshuffled|whole", NULL, "sampler"},
    {"seed", OPTION_INTEGER, "1", 0, 1e15, NULL, NULL, "seed"},
    {0},
};

static sampler *opened_on(const struct dataset *d, const char *kind, const char *seed,
                          unsigned worker, unsigned workers)
{
    options *o = NULL;
    sampler *s = NULL;
    assert_int_equal(options_open(&o), OK);
    assert_int_equal(options_declare(o, keys), OK);
    assert_int_equal(options_set(o, "sampler", kind, "test"), OK);
    assert_int_equal(options_set(o, "seed", seed, "test"), OK);
    assert_int_equal(sampler_open(&s, o, d, worker, workers), OK);
    options_close(&o);
    return s;
}

static sampler *opened(const char *kind, const char *seed, uint32_t samples, unsigned worker,
                       unsigned workers)
{
    const struct dataset d = {.count = {samples}};
    return opened_on(&d, kind, seed, worker, workers);
}

static uint32_t shard_size(uint32_t samples, unsigned worker, unsigned workers)
{
    return samples / workers + (worker < samples % workers);
}

static void the_shards_of_all_workers_form_the_training_split(void **state)
{
    (void)state;
    enum { SAMPLES = 103, WORKERS = 7 };
    unsigned seen[SAMPLES] = {0};
    for (unsigned w = 0; w < WORKERS; w++) {
        sampler *s = opened("partition", "1", SAMPLES, w, WORKERS);
        uint32_t size = shard_size(SAMPLES, w, WORKERS), indices[SAMPLES];
        sampler_batch(s, 0, size, indices);
        for (uint32_t i = 0; i < size; i++) {
            assert_true(indices[i] < SAMPLES);
            seen[indices[i]]++;
        }
        sampler_close(&s);
    }
    for (int i = 0; i < SAMPLES; i++)
        assert_int_equal(seen[i], 1);
}

static void every_pass_has_each_sample_once_in_another_order(void **state)
{
    (void)state;
    enum { SHARD = 50, BATCH = 10, PASSES = 4 };
    sampler *s = opened("whole", "3", SHARD, 2, 8);
    uint32_t order[PASSES][SHARD];
    for (unsigned pass = 0; pass < PASSES; pass++) {
        unsigned seen[SHARD] = {0};
        for (unsigned b = 0; b < SHARD / BATCH; b++)
            sampler_batch(s, pass * (SHARD / BATCH) + b, BATCH, order[pass] + (size_t)b * BATCH);
        for (int i = 0; i < SHARD; i++)
            assert_int_equal(seen[order[pass][i]]++, 0);
        for (unsigned before = 0; before < pass; before++)
            assert_memory_not_equal(order[pass], order[before], sizeof order[pass]);
    }
    sampler_close(&s);
}

static void batch_k_does_not_depend_on_the_order_of_calls(void **state)
{
    (void)state;
    enum { SHARD = 37, BATCH = 8, BATCHES = 60 };
    static uint32_t in_order[BATCHES][BATCH];
    sampler *s = opened("partition", "9", 3 * SHARD, 1, 3);
    for (unsigned k = 0; k < BATCHES; k++)
        sampler_batch(s, k, BATCH, in_order[k]);
    sampler_close(&s);
    s = opened("partition", "9", 3 * SHARD, 1, 3);
    for (unsigned n = 0; n < 5 * BATCHES; n++) {
        unsigned k = n * 7919 % BATCHES;
        uint32_t batch[BATCH];
        sampler_batch(s, k, BATCH, batch);
        assert_memory_equal(batch, in_order[k], sizeof batch);
    }
    sampler_close(&s);
}

/* Batches are cut from one endless sequence of permutations, so the batch size only moves the cuts.
 */
static void batches_continue_across_the_end_of_a_pass(void **state)
{
    (void)state;
    enum { SHARD = 10, TOTAL = 105 };
    uint32_t row[TOTAL], cut[TOTAL], all[TOTAL];
    sampler *s = opened("partition", "4", SHARD, 0, 1);
    for (unsigned k = 0; k < TOTAL; k++)
        sampler_batch(s, k, 1, &row[k]);
    for (unsigned k = 0; k < TOTAL / 7; k++)
        sampler_batch(s, k, 7, cut + (size_t)7 * k);
    sampler_batch(s, 0, TOTAL, all); /* more than ten passes in one batch */
    assert_memory_equal(cut, row, sizeof row);
    assert_memory_equal(all, row, sizeof row);
    sampler_close(&s);
}

static void seed_and_worker_change_the_order(void **state)
{
    (void)state;
    enum { SAMPLES = 100 };
    uint32_t order[3][SAMPLES];
    sampler *s[3] = {opened("whole", "1", SAMPLES, 0, 2), opened("whole", "2", SAMPLES, 0, 2),
                     opened("whole", "1", SAMPLES, 1, 2)};
    for (int i = 0; i < 3; i++) {
        sampler_batch(s[i], 0, SAMPLES, order[i]);
        sampler_close(&s[i]);
    }
    assert_memory_not_equal(order[0], order[1], sizeof order[0]);
    assert_memory_not_equal(order[0], order[2], sizeof order[0]);
}

/* The parts of the first workers stay what they are. */
static void a_late_worker_draws_from_the_whole_split(void **state)
{
    (void)state;
    enum { SAMPLES = 100 };
    uint32_t order[2][SAMPLES];
    sampler *s[2] = {opened("partition", "1", SAMPLES, 3, 2), opened("whole", "1", SAMPLES, 3, 4)};
    for (int i = 0; i < 2; i++) {
        sampler_batch(s[i], 0, SAMPLES, order[i]);
        sampler_close(&s[i]);
    }
    assert_memory_equal(order[0], order[1], sizeof order[0]);
}

static void an_empty_shard_is_a_usage_error(void **state)
{
    (void)state;
    options *o = NULL;
    sampler *s = NULL;
    assert_int_equal(options_open(&o), OK);
    assert_int_equal(options_declare(o, keys), OK);
    assert_int_equal(sampler_open(&s, o, &(struct dataset){.count = {3}}, 3, 4), ERROR_USAGE);
    assert_null(s);
    assert_non_null(strstr(error_message(), "sampler"));
    sampler_close(&s);
    options_close(&o);
}

static void a_reshuffled_split_has_new_shards_on_each_pass(void **state)
{
    (void)state;
    enum { SAMPLES = 103, WORKERS = 7, PASSES = 3 };
    uint32_t shares[PASSES][SAMPLES / WORKERS + 1];
    for (unsigned pass = 0; pass < PASSES; pass++) {
        unsigned seen[SAMPLES] = {0};
        for (unsigned w = 0; w < WORKERS; w++) {
            sampler *s = opened("reshuffled", "1", SAMPLES, w, WORKERS);
            uint32_t size = shard_size(SAMPLES, w, WORKERS), indices[SAMPLES];
            sampler_batch(s, pass, size, indices);
            for (uint32_t i = 0; i < size; i++) {
                assert_true(indices[i] < SAMPLES);
                seen[indices[i]]++;
            }
            if (w == 2)
                memcpy(shares[pass], indices, size * sizeof *indices);
            sampler_close(&s);
        }
        for (int i = 0; i < SAMPLES; i++)
            assert_int_equal(seen[i], 1);
    }
    /* Other samples, not only another order: a partition would have the same samples on each pass.
     */
    unsigned again = 0;
    for (unsigned i = 0; i < SAMPLES / WORKERS; i++)
        for (unsigned k = 0; k < SAMPLES / WORKERS; k++)
            again += shares[0][i] == shares[1][k];
    assert_in_range(again, 0, SAMPLES / WORKERS / 2);
}

/* ---- windows of a text ---- */

enum { WINDOW = 8 };

/* A split of `length` bytes, which has length − WINDOW starts. */
static struct dataset text_of(uint32_t length)
{
    return (struct dataset){.tokens = true,
                            .channels = 1,
                            .height = WINDOW,
                            .width = 1,
                            .count = {(length - 1) / WINDOW},
                            .length = {length}};
}

static void every_start_of_a_text_belongs_to_one_worker(void **state)
{
    (void)state;
    enum { LENGTH = 20 * WINDOW + 3, STARTS = LENGTH - WINDOW, WORKERS = 3, DRAWS = 20000 };
    const struct dataset d = text_of(LENGTH);
    unsigned seen[STARTS] = {0};
    static uint32_t starts[DRAWS];
    for (unsigned w = 0; w < WORKERS; w++) {
        sampler *s = opened_on(&d, "partition", "5", w, WORKERS);
        sampler_batch(s, 0, DRAWS, starts);
        for (int i = 0; i < DRAWS; i++) {
            assert_in_range(starts[i], 0, STARTS - 1);
            assert_int_equal(starts[i] / WINDOW % WORKERS, w);
            seen[starts[i]]++;
        }
        sampler_close(&s);
    }
    for (int i = 0; i < STARTS; i++) /* about 390 each; the deviation is below 20 */
        assert_in_range(seen[i], 250, 550);
}

static void windows_are_drawn_from_the_stream_of_seed_worker_and_batch(void **state)
{
    (void)state;
    enum { STARTS = 1000, BATCH = 16 };
    const struct dataset d = text_of(STARTS + WINDOW);
    sampler *s = opened_on(&d, "whole", "7", 2, 4);
    uint32_t starts[BATCH];
    for (uint64_t batch = 5; batch-- > 0;) {
        struct random_stream r;
        random_open(&r, RANDOM_WINDOWS, 7, 2, batch);
        sampler_batch(s, batch, BATCH, starts);
        for (int i = 0; i < BATCH; i++)
            assert_int_equal(starts[i], random_below(&r, STARTS));
    }
    sampler_close(&s);
}

static void one_worker_draws_the_same_windows_with_both_samplers(void **state)
{
    (void)state;
    enum { BATCH = 64 };
    const struct dataset d = text_of(12345);
    uint32_t starts[2][BATCH];
    for (int i = 0; i < 2; i++) {
        sampler *s = opened_on(&d, i == 0 ? "partition" : "whole", "1", 0, 1);
        sampler_batch(s, 9, BATCH, starts[i]);
        sampler_close(&s);
    }
    assert_memory_equal(starts[0], starts[1], sizeof starts[0]);
}

static void a_text_refuses_reshuffled_shards_and_too_many_workers(void **state)
{
    (void)state;
    const struct dataset d = text_of(3 * WINDOW); /* two blocks of starts */
    options *o = NULL;
    sampler *s = NULL;
    assert_int_equal(options_open(&o), OK);
    assert_int_equal(options_declare(o, keys), OK);
    assert_int_equal(sampler_open(&s, o, &d, 2, 3), ERROR_USAGE);
    assert_non_null(strstr(error_message(), "only 2 blocks of dataset.context=8 starts"));
    assert_int_equal(options_set(o, "sampler", "reshuffled", "test"), OK);
    assert_int_equal(sampler_open(&s, o, &d, 0, 1), ERROR_USAGE);
    assert_non_null(strstr(error_message(), "sampler=whole"));
    assert_null(s);
    options_close(&o);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_shards_of_all_workers_form_the_training_split),
        cmocka_unit_test(every_pass_has_each_sample_once_in_another_order),
        cmocka_unit_test(batch_k_does_not_depend_on_the_order_of_calls),
        cmocka_unit_test(batches_continue_across_the_end_of_a_pass),
        cmocka_unit_test(seed_and_worker_change_the_order),
        cmocka_unit_test(a_late_worker_draws_from_the_whole_split),
        cmocka_unit_test(an_empty_shard_is_a_usage_error),
        cmocka_unit_test(a_reshuffled_split_has_new_shards_on_each_pass),
        cmocka_unit_test(every_start_of_a_text_belongs_to_one_worker),
        cmocka_unit_test(windows_are_drawn_from_the_stream_of_seed_worker_and_batch),
        cmocka_unit_test(one_worker_draws_the_same_windows_with_both_samplers),
        cmocka_unit_test(a_text_refuses_reshuffled_shards_and_too_many_workers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
