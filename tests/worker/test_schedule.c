/* test_schedule.c — the learning rate during training, and the length of training. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <string.h>

#include "experiments/config/config.h"
#include "worker/optimizer/schedule.h"
#include "worker/training.h"

/* Settings from "key=value" texts, ended by NULL. */
static options *settings(const char *shape, const char *const *set)
{
    options *o = NULL;
    char chosen[64];
    snprintf(chosen, sizeof chosen, "schedule=%s", shape);
    assert_int_equal(
        config_compose_texts(&o, (const char *const[]){"lr=0.5", "warmup_epochs=0", chosen, NULL},
                             set, "test"),
        OK);
    return o;
}

/* 1000 samples in epochs of 200, on 4 workers. */
static struct schedule opened(const char *shape, const char *const *set)
{
    struct schedule s;
    options *o = settings(shape, set);
    assert_int_equal(schedule_open(&s, o, 4, 1000, 200), OK);
    options_close(&o);
    return s;
}
#define SET(...) ((const char *const[]){__VA_ARGS__})

static void assert_near(double a, double b)
{
    assert_true(fabs(a - b) <= 1e-12 * (1 + fabs(b)));
}

static void shapes_take_values_computed_by_hand(void **state)
{
    (void)state;
    struct schedule s = opened("constant", SET(NULL));
    assert_near(schedule_rate(&s, 0, 0), 0.5);
    assert_near(schedule_rate(&s, 999, 1000), 0.5);
    s = opened("linear", SET(NULL));
    assert_near(schedule_rate(&s, 0, 0), 0.5);
    assert_near(schedule_rate(&s, 200, 300), 0.5 * 0.75);
    assert_true(schedule_rate(&s, 1000, 1000) == 0);
    s = opened("cosine", SET(NULL));
    assert_near(schedule_rate(&s, 0, 0), 0.5);
    assert_near(schedule_rate(&s, 500, 500), 0.25);
    assert_near(schedule_rate(&s, 250, 250), 0.5 * 0.5 * (1 + sqrt(0.5)));
    assert_true(schedule_rate(&s, 1000, 1000) == 0);
    s = opened("cosine", SET("schedule.end=0.1", NULL));
    assert_near(schedule_rate(&s, 0, 0), 0.5);
    assert_near(schedule_rate(&s, 500, 500), 0.5 * 0.55);
    assert_near(schedule_rate(&s, 1000, 1000), 0.05);
    s = opened("step", SET("schedule.factor=0.5", "schedule.at=0.25,0.5,0.9", NULL));
    assert_near(schedule_rate(&s, 248, 250), 0.5);
    assert_near(schedule_rate(&s, 250, 250), 0.25);
    assert_near(schedule_rate(&s, 600, 601), 0.125);
    assert_near(schedule_rate(&s, 950, 951), 0.0625);
}

static void the_rate_is_scaled_by_the_workers(void **state)
{
    (void)state;
    struct schedule s = opened("constant", SET("lr_scaling=linear", NULL));
    assert_near(schedule_rate(&s, 0, 10), 2);
    s = opened("constant", SET("lr_scaling=sqrt", NULL));
    assert_near(schedule_rate(&s, 0, 10), 1);
}

static void the_warm_up_ramps_from_zero_and_multiplies_the_shape(void **state)
{
    (void)state;
    struct schedule s = opened("linear", SET("warmup_epochs=1", NULL));
    assert_near(schedule_rate(&s, 0, 20), 0.5 * 0.05 * 0.99);
    assert_near(schedule_rate(&s, 90, 110), 0.5 * 0.5 * 0.9);
    assert_near(schedule_rate(&s, 200, 200), 0.5 * 0.8);
    assert_near(schedule_rate(&s, 500, 500), 0.5 * 0.5);
}

/* 10 updates of 100 samples. */
static void a_warm_up_may_be_given_in_updates(void **state)
{
    (void)state;
    struct schedule s =
        opened("linear", SET("warmup_epochs=1", "warmup_updates=2", "updates=10", NULL));
    assert_near(schedule_rate(&s, 90, 110), 0.5 * 0.5 * 0.9);
    assert_near(schedule_rate(&s, 200, 200), 0.5 * 0.8);
    options *o = settings("linear", SET("warmup_epochs=1", "warmup_updates=2", NULL));
    assert_int_equal(schedule_open(&s, o, 4, 1000, 200), ERROR_USAGE);
    options_close(&o);
}

static void the_first_and_the_last_update_have_a_positive_rate(void **state)
{
    (void)state;
    struct schedule s = opened("linear", SET("warmup_epochs=1", NULL));
    assert_true(schedule_rate(&s, 0, 1) > 0);
    assert_true(schedule_rate(&s, 999, 1000) > 0);
    assert_true(schedule_rate(&s, 990, 1010) ==
                0); /* an update of which half lies beyond the end */
    assert_true(schedule_rate(&s, 1200, 1300) == 0);
}

/* Where the rate is linear, Σ rate × samples is the integral, for any size of the updates. */
static void updates_of_any_size_move_equally_far(void **state)
{
    (void)state;
    static const uint64_t sizes[] = {1, 4, 50, 200};
    for (size_t i = 0; i < COUNT_OF(sizes); i++) {
        struct schedule s = opened("linear", SET(NULL));
        double sum = 0;
        for (uint64_t at = 0; at < 1000; at += sizes[i])
            sum += schedule_rate(&s, at, at + sizes[i]) * (double)sizes[i];
        assert_near(sum, 0.5 * 500);
    }
    struct schedule s = opened("constant", SET("warmup_epochs=2", NULL));
    double sum = 0;
    for (uint64_t at = 0; at < 1000; at += 100)
        sum += schedule_rate(&s, at, at + 100) * 100;
    assert_near(sum, 0.5 * (200 + 600));
}

static void steps_that_are_not_ascending_fractions_are_usage_errors(void **state)
{
    (void)state;
    static const char *const bad[] = {
        "schedule.at=0.5,0.4",
        "schedule.at=0.5,0.5",
        "schedule.at=0.5,",
        "schedule.at=1.5",
        "schedule.at=0",
        "schedule.at=0.1;0.2",
        "schedule.at=a",
        "schedule.at=nan",
        "schedule.at=,0.5",
        "schedule.at=0.01,0.02,0.03,0.04,0.05,0.06,0.07,0.08,0.09,0.10,0.11,0.12,0.13,0.14,0.15"};
    for (size_t i = 0; i < COUNT_OF(bad); i++) {
        struct schedule s;
        options *o = settings("step", SET(bad[i], NULL));
        assert_int_equal(schedule_open(&s, o, 1, 1000, 200), ERROR_USAGE);
        assert_non_null(strstr(error_message(), "schedule.at"));
        options_close(&o);
    }
}

static void the_length_of_training_follows_the_set_key(void **state)
{
    (void)state;
    static const struct {
        const char *set[4];
        status expected;
        uint64_t total, every;
    } cases[] = {
        {{NULL}, OK, 1000, 200},
        {{"epochs=2.5", NULL}, OK, 500, 200},
        {{"samples=777", NULL}, OK, 777, 200},
        {{"updates=3", "evaluate_every=0.25", NULL}, OK, 192, 50},
        {{"updates=3", "evaluate_every=0", NULL}, OK, 192, 0},
        {{"evaluate_every=1e-9", NULL}, OK, 1000, 1},
        {{"updates=3", "samples=9", NULL}, ERROR_USAGE, 0, 0},
        {{"epochs=1", "samples=9", NULL}, ERROR_USAGE, 0, 0},
        {{"epochs=1", "updates=9", NULL}, ERROR_USAGE, 0, 0},
        {{"epochs=0", NULL}, ERROR_USAGE, 0, 0},
        {{"updates=1000000000000000", NULL}, OK, 64000000000000000, 200},
        {{"seconds=2.5", NULL}, OK, TRAINING_ENDLESS, 200},
        {{"seconds=2.5", "epochs=1", NULL}, ERROR_USAGE, 0, 0},
        {{"seconds=2.5", "samples=9", NULL}, ERROR_USAGE, 0, 0},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct training_length length;
        options *o = settings("constant", cases[i].set);
        assert_int_equal(training_length_of(o, 200, 64, &length), cases[i].expected);
        if (cases[i].expected == OK) {
            assert_int_equal(length.total_samples, cases[i].total);
            assert_int_equal(length.evaluate_every, cases[i].every);
        }
        options_close(&o);
    }
}

static void the_schedule_and_the_warm_up_go_by_seconds(void **state)
{
    (void)state;
    static const char *const set[] = {
        "seconds=10", "warmup_seconds=4", "warmup_epochs=0", "schedule=linear", "lr=1", NULL};
    static const double seconds[] = {0, 1, 4, 5, 10, 11}, rate[] = {0, 0.25 * 0.9, 0.6, 0.5, 0, 0};
    struct schedule s;
    options *o = settings("linear", set);
    assert_int_equal(schedule_open(&s, o, 1, TRAINING_ENDLESS, 1000), OK);
    for (size_t i = 0; i < COUNT_OF(seconds); i++) {
        schedule_at(&s, seconds[i]);
        assert_true(fabs(schedule_rate(&s, 100 * i, 100 * i + 100) - rate[i]) < 1e-12);
        assert_int_equal(schedule_has_fallen(&s, 0), i > 0);
    }
    options_close(&o);
    o = settings("linear", (const char *const[]){"warmup_seconds=4", NULL});
    assert_int_equal(schedule_open(&s, o, 1, 1000, 1000), ERROR_USAGE);
    options_close(&o);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shapes_take_values_computed_by_hand),
        cmocka_unit_test(the_rate_is_scaled_by_the_workers),
        cmocka_unit_test(the_warm_up_ramps_from_zero_and_multiplies_the_shape),
        cmocka_unit_test(a_warm_up_may_be_given_in_updates),
        cmocka_unit_test(the_first_and_the_last_update_have_a_positive_rate),
        cmocka_unit_test(updates_of_any_size_move_equally_far),
        cmocka_unit_test(steps_that_are_not_ascending_fractions_are_usage_errors),
        cmocka_unit_test(the_length_of_training_follows_the_set_key),
        cmocka_unit_test(the_schedule_and_the_warm_up_go_by_seconds),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
