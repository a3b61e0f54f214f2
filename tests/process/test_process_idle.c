/* Processes that wait do not use a processor if there are more of them than processors. */
#include "base/clock.h"
#include "tests/rigs/process_rig.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <signal.h>
#include <stdio.h>
#include <unistd.h>

enum { WORKERS = 6 };

/* Processor time of all threads, in seconds. */
static double processor_seconds(pid_t pid)
{
    char path[64];
    unsigned long user = 0, kernel = 0;
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    /* The name is in parentheses and has no blank. */
    assert_int_equal(
        fscanf(file, "%*d %*s %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu", &user, &kernel),
        2);
    fclose(file);
    return (double)(user + kernel) / (double)sysconf(_SC_CLK_TCK);
}

/* The workers sleep 50 ms for each gradient, so a gradient arrives every 8 ms. A process that
 * polled meanwhile would use all that the machine gives it. */
static void a_crowded_asynchronous_run_leaves_the_processors_to_others(void **state)
{
    struct process_rig *r = *state;
    pid_t pids[1 + WORKERS];
    process_start(r, (const char *const[]){"run", RIG_DATA, "workers=6", "epochs=10000", "batch=10",
                                           "evaluate_every=0", "pace=constant", "pace.mean_ms=50",
                                           NULL});
    process_await_row(r, "SELECT count(*) > 30 FROM push");
    process_await(r, "server", pids, 1);
    process_await(r, "worker", pids + 1, WORKERS);
    double used = 0;
    for (int i = 0; i <= WORKERS; i++)
        used -= processor_seconds(pids[i]);
    const double begun = clock_seconds();
    sleep(3);
    for (int i = 0; i <= WORKERS; i++)
        used += processor_seconds(pids[i]);
    const double share = used / (clock_seconds() - begun);
    if (share > 0.3)
        fail_msg("server and %d workers use %.2f of a processor", WORKERS, share);
    kill(r->pid, SIGTERM);
    assert_int_equal(process_wait(r), STOPPED);
}

#define PROCESS_TEST(f) cmocka_unit_test_setup_teardown(f, process_set_up, process_tear_down)
int main(void)
{
    const struct CMUnitTest tests[] = {
        PROCESS_TEST(a_crowded_asynchronous_run_leaves_the_processors_to_others),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
