/* The benchmarks of the real program: each prints one line per case. */
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

static void bench_recorder_prints_one_line_per_case(void **state)
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

static void bench_apply_and_push_pull_compare_with_the_defaults(void **state)
{
    struct process_rig *r = *state;
    assert_int_equal(RIG_RUN(r, "bench", "apply", "counts=1000", "repeats=1", "--json"), OK);
    expect_case(r, "apply", "momentum 1000 floats");
    expect_case(r, "apply", "momentum in three passes 1000 floats");
    assert_int_equal(RIG_RUN(r, "bench", "push-pull",
                             "cases=small,one-way,one-way-default,one-way-raw",
                             "one_way_size=100000", "window_s=0.3", "repeats=1", "--json"),
                     OK);
    expect_case(r, "push-pull", "round trip, ipc 1 worker");
    expect_case(r, "push-pull", "one way, tcp 0.4 MB 1 worker");
    expect_case(r, "push-pull", "one way, tcp, by default 0.4 MB 1 worker");
    expect_case(r, "push-pull", "one way, tcp, raw 0.4 MB 1 worker");
    process_expect_nothing_left(r);
}

static void bench_start_compares_with_mpi_alone(void **state)
{
    struct process_rig *r = *state;
    assert_int_equal(RIG_RUN(r, "bench", "start", "size=4", "runs=2", "repeats=1", "--json"), OK);
    expect_case(r, "start", "asynchronous run");
    expect_case(r, "start", "synchronous run");
    expect_case(r, "start", "MPI_Init and MPI_Finalize alone");
    expect_case(r, "start", "synchronous run / MPI alone");
    expect_case(r, "start", "asynchronous runs of a sweep");
    process_expect_nothing_left(r);
    assert_int_equal(RIG_RUN(r, "bench", "start", "cases=async,slow", "size=4", "repeats=1"),
                     ERROR_USAGE);
    process_expect_error(r, "slow");
    process_expect_error(r, "cases");
}

static void bench_training_compares_modes_and_evaluations(void **state)
{
    struct process_rig *r = *state;
    assert_int_equal(RIG_RUN(r, "bench", "training", "samples=64", "epochs=2", "batch=8",
                             "models=softmax", "evaluated=softmax", "workers=2", "repeats=1",
                             "--json"),
                     OK);
    expect_case(r, "training", "softmax workers=2 mode=async");
    expect_case(r, "training", "softmax workers=2 mode=sync");
    expect_case(r, "training", "softmax workers=2 asynchronous / synchronous");
    expect_case(r, "training", "evaluations with a pause");
    expect_case(r, "training", "evaluations with a pause / on one core");
    expect_case(r, "training", "training, evaluations without a pause / without evaluations");
    process_expect_nothing_left(r);
    assert_int_equal(RIG_RUN(r, "bench", "training", "cases=slow"), ERROR_USAGE);
    process_expect_error(r, "slow");
}

static void bench_refuses_what_it_cannot_measure(void **state)
{
    struct process_rig *r = *state;
    const char *const numbers[] = {"sizes=1e6", "sizes=400k", "counts=0", "servers=17"};
    for (size_t i = 0; i < COUNT_OF(numbers); i++) {
        assert_int_equal(RIG_RUN(r, "bench", "push-pull", "cases=shm", numbers[i], "repeats=1"),
                         ERROR_USAGE);
        assert_null(strstr(process_output(r), "exchange"));
    }
    assert_int_equal(RIG_RUN(r, "bench", "overlap", "compute=slept", "clock=cpu"), ERROR_USAGE);
    process_expect_nothing_left(r);
}

/* The benchmark writes invented runs. */
static void bench_results_adds_no_runs_to_a_file_with_others(void **state)
{
    struct process_rig *r = *state;
    const char *const small[] = {"file=made.db", "pushes=10", "repeats=1"};
    assert_int_equal(RIG_RUN(r, "run", RIG_SMALL), OK);
    assert_int_equal(RIG_RUN(r, "bench", "results", "file=results.db", "runs=3", small[1]),
                     ERROR_USAGE);
    process_expect_answer(r, "SELECT count(*) FROM run", "1");
    assert_int_equal(RIG_RUN(r, "bench", "results", "file=results.db", "runs=1", small[2]), OK);
    for (unsigned i = 2; i < 4; i++) { /* adds to the file that it made */
        char runs[16];
        snprintf(runs, sizeof runs, "runs=%u", i);
        assert_int_equal(RIG_RUN(r, "bench", "results", small[0], runs, small[1], small[2]), OK);
    }
    assert_int_equal(process_shell(r, "test $(sqlite3 made.db 'SELECT count(*) FROM run') = 3"),
                     OK);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, process_set_up, process_tear_down)
    const struct CMUnitTest tests[] = {
        TEST(bench_recorder_prints_one_line_per_case),
        TEST(bench_apply_and_push_pull_compare_with_the_defaults),
        TEST(bench_start_compares_with_mpi_alone),
        TEST(bench_training_compares_modes_and_evaluations),
        TEST(bench_refuses_what_it_cannot_measure),
        TEST(bench_results_adds_no_runs_to_a_file_with_others),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
