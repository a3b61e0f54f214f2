/* The figures of a verdict, from cells filled in by hand. */
#include "experiments/claims/cells.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct arm arms[] = {
    {.name = (char[]){"one"}, .label = (char[]){"one worker"}},
    {.name = (char[]){"async"}, .label = (char[]){"asynchronous"}},
    {.name = (char[]){"inverse"}, .label = (char[]){"asynchronous, inverse"}},
    {.name = (char[]){"sync"}, .label = (char[]){"synchronous"}},
    {.name = (char[]){"tuned"}, .label = (char[]){"asynchronous, tuned"}},
};
enum { ONE, ASYNC, INVERSE, SYNC, TUNED, ARMS };

static struct cell cell_of(int arm, int64_t workers, double score, double died)
{
    struct cell cell = {.arm = &arms[arm],
                        .column = workers,
                        .finished = 3,
                        .score = score,
                        .updates_per_second = 100.0 / (double)(1 + arm),
                        .died = died};
    snprintf(cell.title, sizeof cell.title, "%d workers", (int)workers);
    return cell;
}

static char *print_verdict(const struct cells *cells)
{
    char *text = NULL;
    size_t size = 0;
    FILE *to = open_memstream(&text, &size);
    assert_non_null(to);
    verdict_print(cells, to);
    fclose(to);
    return text;
}

/* The verdict on these cells as text; the caller frees it. */
static char *verdict_on(struct cell *cells, size_t count)
{
    static char alone[] = "one", undamped[] = "async", synchronous[] = "sync",
                inverse[] = "inverse", tuned[] = "tuned", not_run[] = "not-run";
    static char *damped[] = {not_run, inverse};
    struct experiment e = {.arms = arms,
                           .arm_count = ARMS,
                           .verdict = {.alone = alone,
                                       .undamped = undamped,
                                       .synchronous = synchronous,
                                       .tuned = tuned,
                                       .damped = damped,
                                       .damped_count = 2,
                                       .column = 16}};
    struct cells all = {.at = cells, .count = count, .experiment = &e};
    return print_verdict(&all);
}

static void expect_has(const char *text, const char *figure)
{
    if (strstr(text, figure) == NULL)
        fail_msg("'%s' is not in: %s", figure, text);
}

static unsigned times_in(const char *text, const char *figure)
{
    unsigned count = 0;
    for (const char *at = text; (at = strstr(at, figure)) != NULL; at++)
        count++;
    return count;
}

static void it_has_what_asynchrony_cost_and_damping_recovered(void **state)
{
    (void)state;
    struct cell cells[] = {cell_of(ONE, 1, 90, 0), cell_of(ASYNC, 16, 75, 0),
                           cell_of(INVERSE, 16, 85.5, 0), cell_of(SYNC, 16, 89, 0)};
    char *text = verdict_on(cells, COUNT_OF(cells));
    expect_has(text, "15.0");
    expect_has(text, "10.5");
    expect_has(text, "asynchronous, inverse");
    expect_has(text, "85.5 %");
    expect_has(text, "89.0 %");
    assert_null(strstr(text, "of 3"));
    free(text);
}

static void a_mean_over_living_and_dead_runs_is_not_compared(void **state)
{
    (void)state;
    struct cell cells[] = {cell_of(ONE, 1, 90, 0), cell_of(ASYNC, 16, 10, 1),
                           cell_of(INVERSE, 16, 86, 0), cell_of(SYNC, 16, 62, 1.0 / 3)};
    char *text = verdict_on(cells, COUNT_OF(cells));
    assert_null(strstr(text, "62.0"));
    expect_has(text, "3 of 3");
    expect_has(strstr(text, "3 of 3"), "1 of 3"); /* in the order of the cells */
    free(text);
}

/* 75 to 87 of 90: 12 of 15 points. */
static void it_has_what_tuning_alone_recovers(void **state)
{
    (void)state;
    struct cell cells[] = {cell_of(ONE, 1, 90, 0), cell_of(ASYNC, 16, 75, 0),
                           cell_of(INVERSE, 16, 85.5, 0), cell_of(SYNC, 16, 89, 0),
                           cell_of(TUNED, 16, 87, 0)};
    static const char *const figures[] = {
        "12.0",   "asynchronous, tuned",
        "87.0 %", "80 %",
        "3.0",           /* left */
        "89.0 %", "1.0", /* below one worker */
        "2.0",           /* above the tuned arm */
    };
    char *text = verdict_on(cells, COUNT_OF(cells));
    for (size_t i = 0; i < COUNT_OF(figures); i++)
        expect_has(text, figures[i]);
    free(text);
}

static void tuning_that_does_not_help_recovers_nothing(void **state)
{
    (void)state;
    struct cell cells[] = {cell_of(ONE, 1, 90, 0), cell_of(ASYNC, 16, 75, 0),
                           cell_of(TUNED, 16, 74, 0)};
    char *text = verdict_on(cells, COUNT_OF(cells));
    expect_has(text, "asynchronous, tuned");
    expect_has(text, "74.0 %");
    assert_null(strstr(text, "16.0")); /* points left */
    free(text);
}

static void without_a_loss_tuning_is_not_compared(void **state)
{
    (void)state;
    struct cell cells[] = {cell_of(ONE, 1, 90, 0), cell_of(ASYNC, 16, 89.8, 0),
                           cell_of(TUNED, 16, 90.3, 0)};
    char *text = verdict_on(cells, COUNT_OF(cells));
    expect_has(text, "0.2");
    assert_null(strstr(text, "90.3"));
    free(text);
}

/* 50, 33 and 25 updates per second. */
static void it_has_the_fastest_arm_and_the_most_accurate_one(void **state)
{
    (void)state;
    struct cell cells[] = {cell_of(ASYNC, 16, 75, 0), cell_of(INVERSE, 16, 85.5, 0),
                           cell_of(SYNC, 16, 89, 0)};
    char *text = verdict_on(cells, COUNT_OF(cells));
    expect_has(text, "50/s");
    expect_has(text, "25/s");
    assert_int_equal(times_in(text, "75.0 %"), 2); /* as an arm, and as the fastest one */
    assert_int_equal(times_in(text, "85.5 %"), 1);
    free(text);
    cells[1].updates_per_second = 46; /* within 10 % of the fastest */
    text = verdict_on(cells, COUNT_OF(cells));
    assert_int_equal(times_in(text, "75.0 %"), 2);
    assert_int_equal(times_in(text, "85.5 %"), 2);
    free(text);
}

static void the_best_asynchronous_arm_may_be_the_undamped_one(void **state)
{
    (void)state;
    struct cell cells[] = {cell_of(ASYNC, 16, 80, 0), cell_of(INVERSE, 16, 70, 0),
                           cell_of(SYNC, 16, 77.5, 0)};
    char *text = verdict_on(cells, COUNT_OF(cells));
    expect_has(text, "2.5 points worse than the best asynchronous arm (asynchronous)");
    free(text);
}

static void figures_of_one_seed_bring_a_remark(void **state)
{
    (void)state;
    struct cell cells[] = {cell_of(ONE, 1, 90, 0), cell_of(ASYNC, 16, 75, 0)};
    char *of_three = verdict_on(cells, COUNT_OF(cells));
    cells[0].finished = 1;
    char *of_one = verdict_on(cells, COUNT_OF(cells));
    assert_true(strlen(of_one) > strlen(of_three));
    assert_memory_equal(of_one, of_three, strlen(of_three));
    free(of_one);
    free(of_three);
}

static void a_mean_of_survivors_is_not_compared(void **state)
{
    (void)state;
    struct cell cells[] = {cell_of(ONE, 1, 90, 0), cell_of(ASYNC, 16, 88, 2.0 / 3),
                           cell_of(INVERSE, 16, 86, 0), cell_of(SYNC, 16, 89, 0)};
    cells[1].finished = 1;
    cells[1].diverged = 2;
    char *text = verdict_on(cells, COUNT_OF(cells));
    assert_null(strstr(text, "2.0"));    /* points that asynchrony cost */
    assert_null(strstr(text, "86.0 %")); /* what damping gave */
    expect_has(text, "89.0 %");
    expect_has(text, "2 of 3");
    free(text);
}

/* A loss is better if it is lower, and a column need not be a number of workers. */
static void losses_are_compared_over_the_columns(void **state)
{
    (void)state;
    char *compared[] = {arms[ONE].name, arms[SYNC].name};
    static char axis[] = "delay";
    int64_t columns[] = {0, 1};
    struct experiment e = {.arms = arms,
                           .arm_count = ARMS,
                           .axis = axis,
                           .verdict = {.compared = compared, .compared_count = 2}};
    struct cell cells[] = {cell_of(ONE, 0, 1.5, 0), cell_of(ONE, 1, 1.75, 0),
                           cell_of(SYNC, 0, 1.625, 0), cell_of(SYNC, 1, 1.6875, 0)};
    struct cells all = {.at = cells,
                        .count = COUNT_OF(cells),
                        .experiment = &e,
                        .metric = METRIC_VALIDATION_LOSS,
                        .columns = columns,
                        .column_count = COUNT_OF(columns)};
    char *text = print_verdict(&all);
    assert_int_equal(times_in(text, "0.250"), 2); /* as a cost, and as the largest */
    assert_int_equal(times_in(text, "0.062"), 2); /* the smallest */
    assert_int_equal(times_in(text, "1.688"), 1); /* the best loss at delay 1 */
    assert_int_equal(times_in(text, "%"), 0);
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(it_has_what_asynchrony_cost_and_damping_recovered),
        cmocka_unit_test(a_mean_over_living_and_dead_runs_is_not_compared),
        cmocka_unit_test(a_mean_of_survivors_is_not_compared),
        cmocka_unit_test(it_has_what_tuning_alone_recovers),
        cmocka_unit_test(tuning_that_does_not_help_recovers_nothing),
        cmocka_unit_test(without_a_loss_tuning_is_not_compared),
        cmocka_unit_test(it_has_the_fastest_arm_and_the_most_accurate_one),
        cmocka_unit_test(the_best_asynchronous_arm_may_be_the_undamped_one),
        cmocka_unit_test(figures_of_one_seed_bring_a_remark),
        cmocka_unit_test(losses_are_compared_over_the_columns),
    };
    return cmocka_run_group_tests_name("verdict", tests, NULL, NULL);
}
