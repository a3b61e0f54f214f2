/*
 * `gradlag check`: what it says, and when what it did not find is an error.
 */
#include "base/status.h"
#include "tests/rigs/process_rig.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#define ANY_DATA "dataset=gaussian", "dataset.size=8", "dataset.samples=1000"

static void expect_said(struct process_rig *r, const char *part)
{
    const char *all = process_output(r);
    if (strstr(all, part) == NULL)
        fail_msg("'%s' is not in:\n%s", part, all);
}

static void expect_not_said(struct process_rig *r, const char *part)
{
    const char *all = process_output(r);
    if (strstr(all, part) != NULL)
        fail_msg("'%s' is in:\n%s", part, all);
}

/* As on a machine whose GPUs are all hidden, or that has none. */
static void without_gpu(void)
{
    setenv("CUDA_VISIBLE_DEVICES", "", 1);
}

static void versions_processor_memory_dataset_and_results_are_shown(void **state)
{
    struct process_rig *r = *state;
    without_gpu();
    assert_int_equal(RIG_RUN(r, "check", ANY_DATA), OK);
    static const char *const parts[] = {"oneDNN",     "ZeroMQ",  "SQLite", "vector instructions",
                                        "GFLOP/s",    "copy",    "1×8×8",  "can be made",
                                        "results.db", "compiler"};
    for (size_t i = 0; i < COUNT_OF(parts); i++)
        expect_said(r, parts[i]);
}

static void looking_alone_measures_nothing(void **state)
{
    struct process_rig *r = *state;
    without_gpu();
    assert_int_equal(RIG_RUN(r, "check", "--quick", ANY_DATA), OK);
    expect_said(r, "oneDNN");
    expect_not_said(r, "FLOP/s");
    expect_not_said(r, "GB/s");
}

static void each_line_of_json_is_an_object(void **state)
{
    struct process_rig *r = *state;
    without_gpu();
    assert_int_equal(RIG_RUN(r, "check", "--quick", "--json", ANY_DATA), OK);
    unsigned lines = 0;
    for (const char *line = process_output(r); *line != '\0'; lines++) {
        const char *end = strchr(line, '\n');
        assert_non_null(end);
        assert_int_equal(strncmp(line, "{\"check\":\"", 10), 0);
        assert_int_equal(end[-1], '}');
        line = end + 1;
    }
    assert_true(lines > 10);
}

static void no_gpu_is_said_with_its_reason_and_is_an_error_only_if_one_was_asked_for(void **state)
{
    struct process_rig *r = *state;
    without_gpu();
    assert_int_equal(RIG_RUN(r, "check", "--quick", ANY_DATA), OK);
    expect_said(r, "gpu           not there");
    assert_int_equal(RIG_RUN(r, "check", "--quick", "device=cuda", ANY_DATA), ERROR_USAGE);
    process_expect_error(r, "cuda");
}

static void a_dataset_that_was_named_and_is_not_there_is_a_data_error(void **state)
{
    struct process_rig *r = *state;
    without_gpu();
    assert_int_equal(RIG_RUN(r, "check", "--quick", "dataset.path=nowhere"), ERROR_DATA);
    process_expect_error(r, "nowhere");
    expect_said(r, "MISSING");
}

static void a_results_file_that_cannot_be_written_is_an_error(void **state)
{
    struct process_rig *r = *state;
    without_gpu();
    assert_int_equal(RIG_RUN(r, "check", "--quick", ANY_DATA, "results=nowhere/results.db"),
                     ERROR_RESULTS);
    process_expect_error(r, "nowhere");
    process_write(r, "diary.db", "dear diary\n");
    assert_int_equal(RIG_RUN(r, "check", "--quick", ANY_DATA, "results=diary.db"), ERROR_RESULTS);
    process_expect_error(r, "diary.db");
    expect_said(r, "oneDNN"); /* the rest is shown all the same */
}

static void checking_leaves_no_file_behind(void **state)
{
    struct process_rig *r = *state;
    without_gpu();
    assert_int_equal(RIG_RUN(r, "check", "--quick", ANY_DATA), OK);
    expect_said(r, "can be made");
    assert_int_equal(RIG_RUN(r, "check", "--quick", ANY_DATA), OK);
    expect_said(r, "can be made");
    process_expect_nothing_left(r);
}

static void links_are_measured_between_processes_that_are_gone_afterwards(void **state)
{
    struct process_rig *r = *state;
    without_gpu();
    assert_int_equal(RIG_RUN(r, "check", "--links", "--quick", ANY_DATA), OK);
    expect_said(r, "allreduce");
    expect_said(r, "busbw");
    expect_said(r, "push-pull");
    process_expect_nothing_left(r);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, process_set_up, process_tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(versions_processor_memory_dataset_and_results_are_shown),
        TEST(looking_alone_measures_nothing),
        TEST(each_line_of_json_is_an_object),
        TEST(no_gpu_is_said_with_its_reason_and_is_an_error_only_if_one_was_asked_for),
        TEST(a_dataset_that_was_named_and_is_not_there_is_a_data_error),
        TEST(a_results_file_that_cannot_be_written_is_an_error),
        TEST(checking_leaves_no_file_behind),
        TEST(links_are_measured_between_processes_that_are_gone_afterwards),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
