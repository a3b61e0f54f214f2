/* The verdict in words, from cells filled in by hand. */
#include "experiments/cells.h"

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
};
enum { ONE, ASYNC, INVERSE, SYNC };

static struct cell cell_of(int arm, int64_t workers, double accuracy, double died)
{
    return (struct cell){.arm = &arms[arm],
                         .workers = workers,
                         .finished = 3,
                         .accuracy = accuracy,
                         .updates_per_second = 100.0 / (double)(1 + arm),
                         .died = died};
}

/* The verdict on these four cells; the caller frees it. */
static char *verdict_on(struct cell cells[4])
{
    static char alone[] = "one", undamped[] = "async", synchronous[] = "sync",
                inverse[] = "inverse";
    static char *damped[] = {inverse};
    struct experiment e = {.arms = arms,
                           .arm_count = 4,
                           .verdict = {.alone = alone,
                                       .undamped = undamped,
                                       .synchronous = synchronous,
                                       .damped = damped,
                                       .damped_count = 1,
                                       .workers = 16}};
    struct cells all = {.at = cells, .count = 4, .experiment = &e};
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
    char *text = verdict_on(cells);
    assert_non_null(strstr(text, "asynchrony cost 15.0 points"));
    assert_non_null(strstr(text, "Damping gave back 10.5 points"));
    assert_non_null(strstr(text, "Synchrony kept 89.0 %"));
    assert_null(strstr(text, "died"));
    free(text);
}

static void a_mean_over_living_and_dead_runs_is_not_compared(void **state)
{
    (void)state;
    struct cell cells[] = {cell_of(ONE, 1, 90, 0), cell_of(ASYNC, 16, 10, 1),
                           cell_of(INVERSE, 16, 86, 0), cell_of(SYNC, 16, 62, 1.0 / 3)};
    char *text = verdict_on(cells);
    assert_null(strstr(text, "Synchrony kept"));
    assert_non_null(strstr(text, "asynchronous with 16 workers: 3 of 3"));
    assert_non_null(strstr(text, "synchronous with 16 workers: 1 of 3"));
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(it_says_what_was_lost_and_given_back),
        cmocka_unit_test(a_mean_over_living_and_dead_runs_is_not_compared),
    };
    return cmocka_run_group_tests_name("verdict", tests, NULL, NULL);
}
