/* `gradlag check`: its rows, and which missing things are errors. */
#include "base/status.h"
#include "tests/rigs/process_rig.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#define ANY_DATA "dataset=gaussian", "dataset.size=8", "dataset.samples=1000"

/* Rows of `check --json` are named by "check" and "what"; the rows for people hold the same words.
 */
static void expect_output(struct process_rig *r, const char *part)
{
    const char *all = process_output(r);
    if (strstr(all, part) == NULL)
        fail_msg("'%s' is not in:\n%s", part, all);
}

static void expect_no_output(struct process_rig *r, const char *part)
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

static void versions_processor_memory_dataset_and_results_are_rows(void **state)
{
    struct process_rig *r = *state;
    without_gpu();
    assert_int_equal(RIG_RUN(r, "check", "--json", ANY_DATA), OK);
    static const char *const parts[] = {
        "{\"check\":\"version\",\"what\":\"oneDNN\"",
        "{\"check\":\"version\",\"what\":\"ZeroMQ\"",
        "{\"check\":\"version\",\"what\":\"SQLite\"",
        "{\"check\":\"version\",\"what\":\"compiler\"",
        "{\"check\":\"cpu\",\"what\":\"vector instructions\"",
        "\"unit\":\"GFLOP/s\"",
        "{\"check\":\"memory\",\"what\":\"copy, one thread\"",
        "1×8×8",
        "{\"check\":\"results\",\"what\":\"results.db\"",
    };
    for (size_t i = 0; i < COUNT_OF(parts); i++)
        expect_output(r, parts[i]);
}

static void quick_measures_nothing(void **state)
{
    struct process_rig *r = *state;
    without_gpu();
    assert_int_equal(RIG_RUN(r, "check", "--quick", ANY_DATA), OK);
    expect_output(r, "oneDNN");
    expect_no_output(r, "FLOP/s");
    expect_no_output(r, "GB/s");
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

/* Without device=cuda a machine without a GPU passes. Each other case fails only because of its
 * last setting. */
static void a_missing_thing_is_an_error_only_if_it_was_requested(void **state)
{
    struct process_rig *r = *state;
    static const struct {
        const char *setting, *row, *named;
        status code;
    } cases[] = {
        {"device=cuda", "{\"check\":\"gpu\",\"what\":\"MISSING\"", "cuda", ERROR_USAGE},
        {"dataset.path=nowhere", "{\"check\":\"dataset\",\"what\":\"MISSING\"", "nowhere",
         ERROR_DATA},
        {"results=nowhere/results.db", "{\"check\":\"results\",\"what\":\"MISSING\"", "nowhere",
         ERROR_RESULTS},
        {"results=diary.db", "{\"check\":\"results\",\"what\":\"MISSING\"", "diary.db",
         ERROR_RESULTS},
    };
    without_gpu();
    process_write(r, "diary.db", "dear diary\n");
    assert_int_equal(RIG_RUN(r, "check", "--quick", "--json", ANY_DATA), OK);
    expect_output(r, "{\"check\":\"gpu\"");
    expect_no_output(r, "MISSING");
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        const char *data = strncmp(cases[i].setting, "dataset", 7) == 0 ? "dataset=fashion-mnist"
                                                                        : "dataset=gaussian";
        int code = RIG_RUN(r, "check", "--quick", "--json", data, cases[i].setting);
        assert_int_equal(code, cases[i].code);
        process_expect_error(r, cases[i].named);
        expect_output(r, cases[i].row);
        expect_output(r, "oneDNN"); /* the other rows are printed, too */
    }
}

static void checking_creates_no_file(void **state)
{
    struct process_rig *r = *state;
    without_gpu();
    assert_int_equal(RIG_RUN(r, "check", "--quick", ANY_DATA), OK);
    assert_int_equal(process_shell(r, "test ! -e $TMPDIR/results.db"), OK);
    process_expect_nothing_left(r);
}

static void links_are_measured_between_processes_that_end(void **state)
{
    struct process_rig *r = *state;
    without_gpu();
    assert_int_equal(RIG_RUN(r, "check", "--links", "--quick", ANY_DATA), OK);
    expect_output(r, "allreduce");
    expect_output(r, "busbw");
    expect_output(r, "push-pull");
    process_expect_nothing_left(r);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, process_set_up, process_tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(versions_processor_memory_dataset_and_results_are_rows),
        TEST(quick_measures_nothing),
        TEST(each_line_of_json_is_an_object),
        TEST(a_missing_thing_is_an_error_only_if_it_was_requested),
        TEST(checking_creates_no_file),
        TEST(links_are_measured_between_processes_that_end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
