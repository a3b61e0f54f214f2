/* The verdict in words, from cells filled in by hand. */
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

static struct cell cell_of(int arm, int64_t workers, double accuracy, double died)
{
    return (struct cell){.arm = &arms[arm],
                         .workers = workers,
                         .finished = 3,
                         .accuracy = accuracy,
                         .updates_per_second = 100.0 / (double)(1 + arm),
                         .died = died};
}

/* The verdict on these cells; the caller frees it. */
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
                                       .workers = 16}};
    struct cells all = {.at = cells, .count = count, .experiment = &e};
    char *text = NULL;
    size_t size = 0;
    FILE *to = open_memstream(&text, &size);
    assert_non_null(to);
    verdict_print(&all, to);
    fclose(to);
    return text;
}

static void it_says_what_was_lost_and_given_back(void **state)
{
    (void)state;
    struct cell cells[] = {cell_of(ONE, 1, 90, 0), cell_of(ASYNC, 16, 75, 0),
                           cell_of(INVERSE, 16, 85.5, 0), cell_of(SYNC, 16, 89, 0)};
    char *text = verdict_on(cells, COUNT_OF(cells));
    assert_non_null(strstr(text, "asynchrony cost 15.0 points"));
    assert_non_null(
        strstr(text, "Damping gave back 10.5 points (asynchronous, inverse); inverse 85.5 %."));
    assert_non_null(strstr(text, "Synchrony kept 89.0 %"));
    assert_null(strstr(text, "died"));
    free(text);
}

static void a_mean_over_living_and_dead_runs_is_not_compared(void **state)
{
    (void)state;
    struct cell cells[] = {cell_of(ONE, 1, 90, 0), cell_of(ASYNC, 16, 10, 1),
                           cell_of(INVERSE, 16, 86, 0), cell_of(SYNC, 16, 62, 1.0 / 3)};
    char *text = verdict_on(cells, COUNT_OF(cells));
    assert_null(strstr(text, "Synchrony kept"));
    assert_non_null(strstr(text, "asynchronous with 16 workers: 3 of 3"));
    assert_non_null(strstr(text, "synchronous with 16 workers: 1 of 3"));
    free(text);
}

static void expect_says(const char *text, const char *sentence)
{
    if (strstr(text, sentence) == NULL)
        fail_msg("'%s' is not in: %s", sentence, text);
}

/* 75 to 87 of 90: 12 of 15 points. */
static void what_was_only_tuning_is_told_apart(void **state)
{
    (void)state;
    struct cell cells[] = {cell_of(ONE, 1, 90, 0), cell_of(ASYNC, 16, 75, 0),
                           cell_of(INVERSE, 16, 85.5, 0), cell_of(SYNC, 16, 89, 0),
                           cell_of(TUNED, 16, 87, 0)};
    char *text = verdict_on(cells, COUNT_OF(cells));
    expect_says(text, "Tuning alone, without any damping, gave back 12.0 points (asynchronous, "
                      "tuned, 87.0 %): 80 % of the loss was only tuning, 3.0 points are left.\n");
    expect_says(text, "Synchrony kept 89.0 % (synchronous), 1.0 points below one worker and 2.0 "
                      "above the best asynchronous arm (asynchronous, tuned).\n");
    free(text);
}

static void tuning_that_does_not_help_gave_nothing_back(void **state)
{
    (void)state;
    struct cell cells[] = {cell_of(ONE, 1, 90, 0), cell_of(ASYNC, 16, 75, 0),
                           cell_of(TUNED, 16, 74, 0)};
    char *text = verdict_on(cells, COUNT_OF(cells));
    expect_says(text, "Tuning alone, without any damping, gave nothing back (asynchronous, tuned, "
                      "74.0 %).\n");
    assert_null(strstr(text, "of the loss"));
    free(text);
}

static void without_a_loss_nothing_is_given_back(void **state)
{
    (void)state;
    struct cell cells[] = {cell_of(ONE, 1, 90, 0), cell_of(ASYNC, 16, 89.8, 0),
                           cell_of(TUNED, 16, 90, 0)};
    char *text = verdict_on(cells, COUNT_OF(cells));
    expect_says(text, "asynchrony cost nothing that can be seen here (0.2 points)");
    assert_null(strstr(text, "Tuning"));
    free(text);
}

/* 50, 33 and 25 updates per second. */
static void the_fastest_arm_stands_beside_the_most_accurate_one(void **state)
{
    (void)state;
    struct cell cells[] = {cell_of(ASYNC, 16, 75, 0), cell_of(INVERSE, 16, 85.5, 0),
                           cell_of(SYNC, 16, 89, 0)};
    char *text = verdict_on(cells, COUNT_OF(cells));
    expect_says(text, "Most updates per second at 16 workers: asynchronous, 50/s, 75.0 % accurate; "
                      "the most accurate arm (synchronous) made 25/s.\n");
    free(text);
    cells[1].updates_per_second = 46;
    text = verdict_on(cells, COUNT_OF(cells));
    expect_says(text, "50/s (2 arms are within 10 % of it, from 75.0 % to 85.5 % accurate)");
    free(text);
}

static void figures_of_one_seed_are_said_to_be_that(void **state)
{
    (void)state;
    struct cell cells[] = {cell_of(ONE, 1, 90, 0), cell_of(ASYNC, 16, 75, 0)};
    char *text = verdict_on(cells, COUNT_OF(cells));
    assert_null(strstr(text, "one seed"));
    free(text);
    cells[0].finished = 1;
    text = verdict_on(cells, COUNT_OF(cells));
    expect_says(text, "(Some figures are of one seed");
    free(text);
}

static void the_mean_of_survivors_is_not_what_asynchrony_cost(void **state)
{
    (void)state;
    struct cell cells[] = {cell_of(ONE, 1, 90, 0), cell_of(ASYNC, 16, 88, 2.0 / 3),
                           cell_of(INVERSE, 16, 86, 0), cell_of(SYNC, 16, 89, 0)};
    cells[1].finished = 1;
    cells[1].diverged = 2;
    char *text = verdict_on(cells, COUNT_OF(cells));
    assert_null(strstr(text, "asynchrony cost"));
    assert_null(strstr(text, "Damping gave"));
    assert_non_null(strstr(text, "Synchrony kept 89.0 %"));
    assert_non_null(strstr(text, "asynchronous with 16 workers: 2 of 3"));
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(it_says_what_was_lost_and_given_back),
        cmocka_unit_test(a_mean_over_living_and_dead_runs_is_not_compared),
        cmocka_unit_test(the_mean_of_survivors_is_not_what_asynchrony_cost),
        cmocka_unit_test(what_was_only_tuning_is_told_apart),
        cmocka_unit_test(tuning_that_does_not_help_gave_nothing_back),
        cmocka_unit_test(without_a_loss_nothing_is_given_back),
        cmocka_unit_test(the_fastest_arm_stands_beside_the_most_accurate_one),
        cmocka_unit_test(figures_of_one_seed_are_said_to_be_that),
    };
    return cmocka_run_group_tests_name("verdict", tests, NULL, NULL);
}
