/* The real program's benchmarks: each says line by line what it measured. */
#include "base/status.h"
#include "tests/rigs/process_rig.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <stdio.h>
#include <string.h>

/* A line of `gradlag bench … --json`. */
static void expect_case(struct process_rig *r, const char *benchmark, const char *name)
{
    char line[128];
    snprintf(line, sizeof line, "{\"benchmark\":\"%s\",\"case\":\"%s\"", benchmark, name);
    if (strstr(process_output(r), line) == NULL)
        fail_msg("there is no line %s in\n%s", line, process_output(r));
}

static void the_cost_of_recording_is_measured_line_by_line(void **state)
{
    struct process_rig *r = *state;
    assert_int_equal(RIG_RUN(r, "bench", "recorder", "rates=1000,0", "seconds=0.1", "rows=20000",
                             "repeats=1", "--json"),
                     OK);
    static const char *const cases[] = {"push, 1000 rows/s", "writer thread, 1000 rows/s",
                                        "memory of the process, 1000 rows/s", "push, full speed"};
    for (size_t i = 0; i < COUNT_OF(cases); i++)
        expect_case(r, "recorder", cases[i]);
    process_expect_nothing_left(r);
    assert_int_equal(RIG_RUN(r, "bench", "recorder", "rates=many"), ERROR_USAGE);
    process_expect_error(r, "many");
    process_expect_error(r, "rates");
}

static void updates_and_messages_are_measured_beside_what_is_done_by_default(void **state)
{
    struct process_rig *r = *state;
    assert_int_equal(RIG_RUN(r, "bench", "apply", "counts=1000", "repeats=1", "--json"), OK);
    expect_case(r, "apply", "momentum 1000 floats");
    expect_case(r, "apply", "momentum in three passes 1000 floats");
    assert_int_equal(RIG_RUN(r, "bench", "push-pull", "cases=small,one-way,one-way-default",
                             "one_way_size=100000", "window_s=0.3", "repeats=1", "--json"),
                     OK);
    expect_case(r, "push-pull", "round trip, ipc 1 worker");
    expect_case(r, "push-pull", "one way, tcp 0.4 MB 1 worker");
    expect_case(r, "push-pull", "one way, tcp, by default 0.4 MB 1 worker");
    process_expect_nothing_left(r);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, process_set_up, process_tear_down)
    const struct CMUnitTest tests[] = {
        TEST(the_cost_of_recording_is_measured_line_by_line),
        TEST(updates_and_messages_are_measured_beside_what_is_done_by_default),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
