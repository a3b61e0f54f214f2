/* test_pace.c — the durations of steps. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "experiments/config/config.h"
#include "tests/rigs/scratch.h"
#include "worker/pace/pace.h"

static pace *opened(const char *kind, const char *seed, const char *const *set, unsigned worker)
{
    options *o = NULL;
    pace *p = NULL;
    char chosen[2][64];
    snprintf(chosen[0], sizeof chosen[0], "pace=%s", kind);
    snprintf(chosen[1], sizeof chosen[1], "seed=%s", seed);
    assert_int_equal(
        config_compose_texts(&o, (const char *const[]){chosen[0], chosen[1], NULL}, set, "test"),
        OK);
    assert_int_equal(pace_open(&p, o, worker), OK);
    options_close(&o);
    return p;
}
#define SET(...) ((const char *const[]){__VA_ARGS__})

static void none_does_not_change_durations(void **state)
{
    (void)state;
    pace *p = opened("none", "1", SET(NULL), 0);
    assert_int_equal(pace_duration(p, 5, 12345), 12345);
    pace_close(&p);
}

static void slow_affects_only_the_selected_worker(void **state)
{
    (void)state;
    const char *const *set = SET("pace.worker=2", "pace.factor=2.5", NULL);
    pace *chosen = opened("slow", "1", set, 2), *other = opened("slow", "1", set, 1);
    pace *each = opened("slow", "1", SET("pace.worker=-1", "pace.factor=2", NULL), 7);
    assert_int_equal(pace_duration(chosen, 0, 1000), 2500);
    assert_int_equal(pace_duration(other, 0, 1000), 1000);
    assert_int_equal(pace_duration(each, 0, 1000), 2000);
    pace_close(&chosen);
    pace_close(&other);
    pace_close(&each);
}

/* With n = 40 000 the standard error of the mean is 0.005·cv of the mean, that of the cv about
 * 0.004·cv to 0.01·cv (more for skewed distributions). The bands are at least five standard errors
 * wide. */
static void gamma_has_the_requested_mean_and_variation(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        double cv;
    } asked[] = {{"pace.cv=0.2", 0.2}, {"pace.cv=0.5", 0.5}, {"pace.cv=1", 1}};
    for (size_t i = 0; i < COUNT_OF(asked); i++) {
        enum { N = 40000 };
        pace *p = opened("gamma", "1", SET("pace.mean_ms=10", asked[i].text, NULL), 3);
        double sum = 0, squares = 0;
        for (uint64_t step = 0; step < N; step++) {
            double ms = 1e-6 * (double)pace_duration(p, step, 0);
            sum += ms;
            squares += ms * ms;
        }
        double mean = sum / N, cv = sqrt(squares / N - mean * mean) / mean;
        assert_true(fabs(mean / 10 - 1) < 0.03 * asked[i].cv);
        assert_true(fabs(cv / asked[i].cv - 1) < 0.06);
        pace_close(&p);
    }
    pace *p = opened("gamma", "1", SET("pace.mean_ms=10", "pace.cv=0", NULL), 3);
    assert_int_equal(pace_duration(p, 9, 0), 10000000);
    pace_close(&p);
}

static void all_distributions_have_the_requested_mean(void **state)
{
    (void)state;
    static const struct {
        const char *kind, *set;
        double cv; /* cv of the draws; 0: not checked */
    } asked[] = {{"constant", NULL, 0},
                 {"lognormal", "pace.cv=0.5", 0.5},
                 {"lognormal", "pace.cv=0", 1e-9},
                 {"pareto", "pace.shape=4", 0.35355}}; /* cv² = 1 / (α (α − 2)) */
    for (size_t i = 0; i < COUNT_OF(asked); i++) {
        enum { N = 40000 };
        pace *p = opened(asked[i].kind, "1", SET("pace.mean_ms=10", asked[i].set, NULL), 3);
        double sum = 0, squares = 0, least = 1e9;
        for (uint64_t step = 0; step < N; step++) {
            double ms = 1e-6 * (double)pace_duration(p, step, 0);
            sum += ms;
            squares += ms * ms;
            least = ms < least ? ms : least;
        }
        double mean = sum / N, cv = sqrt(fabs(squares / N - mean * mean)) / mean;
        assert_true(fabs(mean / 10 - 1) < 1e-6 + 0.03 * asked[i].cv);
        assert_true(fabs(cv - asked[i].cv) < 1e-3 + 0.1 * asked[i].cv);
        if (strcmp(asked[i].kind, "pareto") == 0)
            assert_true(least >= 7.4999999 && least < 7.51); /* x₀ = mean (α − 1)/α */
        pace_close(&p);
    }
}

static void a_table_gives_each_worker_its_steps_in_order(void **state)
{
    (void)state;
    struct pace_table t = {0};
    size_t count = 0;
    assert_int_equal(pace_table_add(&t, 7, 1, 30), OK);
    assert_int_equal(pace_table_add(&t, 2, 5, 99), OK);
    assert_int_equal(pace_table_add(&t, 7, 0, 10), OK);
    assert_int_equal(pace_table_add(&t, 7, 1, 31), OK);
    assert_int_equal(pace_table_finish(&t), OK);
    const struct pace_row *first = pace_table_of(&t, 0, &count);
    assert_int_equal(count, 1);
    assert_int_equal((int)first[0].ns, 99000);
    const struct pace_row *rows = pace_table_of(&t, 1, &count);
    assert_ptr_equal(rows, pace_table_of(&t, 3, &count)); /* two workers in turn */
    assert_int_equal(count, 3);
    assert_int_equal((int)rows[0].ns, 10000);
    assert_int_equal((int)rows[1].ns, 30000);
    assert_int_equal((int)rows[2].ns, 31000);
    pace_table_free(&t);
    assert_int_equal(pace_table_finish(&t), ERROR_DATA);
}

/* Sequence numbers restart in each life of a worker, so they do not give this order. */
static void lines_of_a_trace_are_in_the_order_of_batches(void **state)
{
    (void)state;
    char path[SCRATCH_BYTES + 32];
    struct pace_table t = {0};
    size_t count = 0;
    snprintf(path, sizeof path, "%s/trace-%d.csv", scratch_folder(), (int)getpid());
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs("worker,sequence,batch,compute_us\n0,0,0,10\n0,1,1,11\n0,0,2,12\n0,1,3,13\n", file);
    assert_int_equal(fclose(file), 0);
    assert_int_equal(pace_table_read(&t, path), OK);
    const struct pace_row *rows = pace_table_of(&t, 0, &count);
    assert_int_equal(count, 4);
    for (size_t i = 0; i < count; i++)
        assert_int_equal((int)rows[i].ns, 10000 + 1000 * (int)i);
    pace_table_free(&t);
    unlink(path);
}

/* The trace has workers 0 and 2. Workers 1 and 3 take the lines of the second recorded worker. */
static void a_worker_takes_its_own_lines_of_a_trace_with_gaps(void **state)
{
    (void)state;
    static const double us[] = {10, 30, 30, 30, 10};
    struct pace_table t = {0};
    size_t count = 0;
    assert_int_equal(pace_table_add(&t, 2, 0, 30), OK);
    assert_int_equal(pace_table_add(&t, 0, 0, 10), OK);
    assert_int_equal(pace_table_finish(&t), OK);
    for (unsigned w = 0; w < COUNT_OF(us); w++) {
        assert_true(pace_table_of(&t, w, &count)[0].ns == 1000 * us[w]);
        assert_true(pace_table_moments(&t, w).mean_ns == 1000 * us[w]);
    }
    pace_table_free(&t);
}

static void an_unreadable_trace_is_named(void **state)
{
    (void)state;
    char path[SCRATCH_BYTES + 32];
    struct pace_table t = {0};
    assert_int_equal(pace_table_read(&t, scratch_folder()), ERROR_DATA); /* a folder */
    assert_non_null(strstr(error_message(), scratch_folder()));
    snprintf(path, sizeof path, "%s/bad-%d.csv", scratch_folder(), (int)getpid());
    static const char *const texts[] = {"", "worker,compute_us\n0,100\n -1,100\n"};
    for (size_t i = 0; i < COUNT_OF(texts); i++) {
        FILE *file = fopen(path, "w");
        assert_non_null(file);
        fputs(texts[i], file);
        assert_int_equal(fclose(file), 0);
        assert_int_equal(pace_table_read(&t, path), ERROR_DATA);
        assert_non_null(strstr(error_message(), path));
        pace_table_free(&t);
    }
    unlink(path);
}

/* Without a limit the shape of the gamma distribution is infinite, and the draw does not end. */
static void the_smallest_variation_is_no_variation(void **state)
{
    (void)state;
    pace *steps = opened("gamma", "1", SET("pace.mean_ms=10", "pace.cv=1e-200", NULL), 0);
    pace *workers =
        opened("constant", "1", SET("pace.mean_ms=10", "pace.worker_cv=1e-200", NULL), 0);
    assert_int_equal(pace_duration(steps, 0, 0), 10000000);
    assert_int_equal(pace_duration(workers, 0, 0), 10000000);
    pace_close(&steps);
    pace_close(&workers);
}

static void a_fitted_pace_has_the_moments_of_each_workers_times(void **state)
{
    (void)state;
    struct pace_table t = {0};
    static const double us[] = {2, 4, 4, 4, 5, 5, 7, 9}; /* mean 5, Σ (x − 5)² = 32 */
    for (size_t i = 0; i < COUNT_OF(us); i++)
        assert_int_equal(pace_table_add(&t, 1, i, us[i]), OK);
    assert_int_equal(pace_table_add(&t, 3, 0, 6), OK);
    assert_int_equal(pace_table_finish(&t), OK);
    assert_true(fabs(pace_table_moments(&t, 0).mean_ns - 5000) < 1e-9);
    assert_true(fabs(pace_table_moments(&t, 0).cv - sqrt(32.0 / 7) / 5) < 1e-12);
    assert_true(pace_table_moments(&t, 3).mean_ns == 6000 && pace_table_moments(&t, 3).cv == 0);
    pace_table_free(&t);
}

static void durations_are_limited_to_the_range_of_the_clock(void **state)
{
    (void)state;
    const char *const *set =
        SET("pace.mean_ms=1000000", "pace.cv=0", "pace.worker=0", "pace.factor=1000", NULL);
    pace *longest = opened("gamma", "1", set, 0);
    assert_int_equal(pace_duration(longest, 0, 0), 1000000000000000);
    assert_int_equal(pace_whole_ns(1e300), 1000000000000000000);
    assert_int_equal(pace_whole_ns(2.75), 2);
    pace_close(&longest);
}

static void gamma_draws_depend_only_on_seed_worker_and_step(void **state)
{
    (void)state;
    const char *const *set = SET("pace.mean_ms=10", NULL);
    pace *a = opened("gamma", "1", set, 3), *again = opened("gamma", "1", set, 3);
    pace *worker = opened("gamma", "1", set, 4), *seed = opened("gamma", "2", set, 3);
    uint64_t drawn = pace_duration(a, 5, 0);
    assert_true(pace_duration(a, 6, 0) != drawn);
    assert_int_equal(pace_duration(a, 5, 0), drawn);
    assert_int_equal(pace_duration(again, 5, 0), drawn);
    assert_true(pace_duration(worker, 5, 0) != drawn);
    assert_true(pace_duration(seed, 5, 0) != drawn);
    pace *all[] = {a, again, worker, seed};
    for (size_t i = 0; i < COUNT_OF(all); i++)
        pace_close(&all[i]);
}

static void gamma_is_a_lower_bound_and_can_slow_one_worker(void **state)
{
    (void)state;
    const char *const *set =
        SET("pace.mean_ms=10", "pace.cv=0", "pace.worker=1", "pace.factor=3", NULL);
    pace *slow = opened("gamma", "1", set, 1), *other = opened("gamma", "1", set, 0);
    assert_int_equal(pace_duration(slow, 0, 0), 30000000);
    assert_int_equal(pace_duration(other, 0, 0), 10000000);
    assert_int_equal(pace_duration(other, 0, 77000000), 77000000);
    pace_close(&slow);
    pace_close(&other);
}

static void several_workers_can_be_slow(void **state)
{
    (void)state;
    pace *drawn = opened("gamma", "1",
                         SET("pace.mean_ms=10", "pace.cv=0", "pace.worker=1", "pace.slow_workers=2",
                             "pace.factor=3", NULL),
                         0);
    pace *measured = opened("slow", "1", SET("pace.worker=1", "pace.slow_workers=2", NULL), 0);
    static const unsigned times[] = {1, 3, 3, 1};
    for (unsigned w = 0; w < COUNT_OF(times); w++) {
        assert_int_equal(pace_duration_of(drawn, w, 0, 0), 10000000 * times[w]);
        assert_int_equal(pace_duration_of(measured, w, 0, 1000), 1000 * times[w]);
    }
    pace_close(&drawn);
    pace_close(&measured);
}

/* Five standard errors are 0.018 of the mean and about 0.02 of the cv. */
static void workers_may_have_different_means(void **state)
{
    (void)state;
    enum { WORKERS = 20000, STEPS = 4000 };
    const char *const *set = SET("pace.mean_ms=10", "pace.worker_cv=0.5", NULL);
    pace *constant = opened("constant", "1", set, 0), *other = opened("constant", "2", set, 0);
    pace *spread = opened("lognormal", "1", set, 0); /* steps have a cv of 0.2 too */
    double sum = 0, squares = 0, steps = 0;
    for (unsigned w = 0; w < WORKERS; w++) {
        double own = (double)pace_duration_of(constant, w, 0, 0) / 1e7;
        assert_int_equal(pace_duration_of(constant, w, 7, 0), pace_duration_of(constant, w, 0, 0));
        sum += own;
        squares += own * own;
    }
    double mean = sum / WORKERS;
    assert_true(fabs(mean - 1) < 0.018);
    assert_true(fabs(sqrt(squares / WORKERS - mean * mean) / mean - 0.5) < 0.02);
    assert_int_not_equal(pace_duration_of(constant, 3, 0, 0), pace_duration_of(other, 3, 0, 0));
    for (unsigned i = 0; i < STEPS; i++)
        steps += (double)pace_duration_of(spread, 3, i, 0);
    double share = steps / STEPS / (double)pace_duration_of(constant, 3, 0, 0);
    assert_true(fabs(share - 1) < 0.02);
    pace_close(&constant);
    pace_close(&other);
    pace_close(&spread);
}

/* Else a virtual clock may stand still. */
static void no_worker_takes_no_time(void **state)
{
    (void)state;
    enum { WORKERS = 20000 };
    pace *p = opened("constant", "1", SET("pace.mean_ms=10", "pace.worker_cv=2", NULL), 0);
    struct pace_table t = {0};
    unsigned least = 0;
    for (unsigned w = 0; w < WORKERS; w++) {
        const uint64_t ns = pace_duration_of(p, w, 0, 0);
        assert_true(ns >= 10000);
        least += ns == 10000;
    }
    assert_true(least > 0 && least < WORKERS / 4);
    pace_close(&p);
    assert_int_equal(pace_table_add(&t, 0, 0, 0), OK);
    assert_int_equal(pace_table_add(&t, 0, 1, 5), OK);
    assert_int_equal(pace_table_add(&t, 3, 0, 0), OK);
    assert_int_equal(pace_table_finish(&t), ERROR_DATA);
    assert_non_null(strstr(error_message(), "worker 3"));
    pace_table_free(&t);
}

static void waiting_lasts_until_the_step_has_its_duration(void **state)
{
    (void)state;
    pace *p = opened("gamma", "1", SET("pace.mean_ms=30", "pace.cv=0", NULL), 0);
    uint64_t began = clock_ns();
    pace_wait(p, 0, began, NULL);
    assert_true(clock_ns() - began >= 30000000);
    pace_close(&p);
}

static void a_request_to_stop_ends_the_wait(void **state)
{
    (void)state;
    const volatile sig_atomic_t stop = 1, go_on = 0;
    pace *p = opened("constant", "1", SET("pace.mean_ms=250", NULL), 0);
    uint64_t began = clock_ns();
    pace_wait(p, 0, began, &stop);
    assert_true(clock_ns() - began < 250000000);
    began = clock_ns();
    pace_wait(p, 0, began, &go_on); /* longer than two slices */
    assert_true(clock_ns() - began >= 250000000);
    pace_close(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(none_does_not_change_durations),
        cmocka_unit_test(slow_affects_only_the_selected_worker),
        cmocka_unit_test(gamma_has_the_requested_mean_and_variation),
        cmocka_unit_test(all_distributions_have_the_requested_mean),
        cmocka_unit_test(a_table_gives_each_worker_its_steps_in_order),
        cmocka_unit_test(lines_of_a_trace_are_in_the_order_of_batches),
        cmocka_unit_test(a_worker_takes_its_own_lines_of_a_trace_with_gaps),
        cmocka_unit_test(an_unreadable_trace_is_named),
        cmocka_unit_test(the_smallest_variation_is_no_variation),
        cmocka_unit_test(a_fitted_pace_has_the_moments_of_each_workers_times),
        cmocka_unit_test(durations_are_limited_to_the_range_of_the_clock),
        cmocka_unit_test(gamma_draws_depend_only_on_seed_worker_and_step),
        cmocka_unit_test(gamma_is_a_lower_bound_and_can_slow_one_worker),
        cmocka_unit_test(several_workers_can_be_slow),
        cmocka_unit_test(workers_may_have_different_means),
        cmocka_unit_test(no_worker_takes_no_time),
        cmocka_unit_test(waiting_lasts_until_the_step_has_its_duration),
        cmocka_unit_test(a_request_to_stop_ends_the_wait),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
