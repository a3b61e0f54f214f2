/* test_summary.c — what is left of a run that records no gradients: its row and its summary. */
#include "tests/process_rig.h"

#include "worker/checkpoint.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <string.h>

/* Each kind of run ends in the same figures whether its gradients were recorded or only counted. */
static void staleness_is_known_without_the_rows_of_gradients(void **state)
{
    struct rig *r = *state;
    static const char *const kinds[][3] = {
        {"engine=virtual", "pace=gamma", "workers=3"},
        {"mode=sync", "double_buffering=yes", "workers=2"},
        {"consistency=softsync", "pace=constant", "workers=1"},
    };
    for (size_t i = 0; i < COUNT_OF(kinds); i++) {
        assert_int_equal(RIG_RUN(r, "run", RIG_SMALL, kinds[i][0], kinds[i][1], kinds[i][2]), OK);
        assert_int_equal(RIG_RUN(r, "run", RIG_SMALL, kinds[i][0], kinds[i][1], kinds[i][2],
                                 "record=evaluations"),
                         OK);
        process_expect_answer(r,
                              "SELECT count(*) || ' ' || count(DISTINCT mean_staleness || ' ' || "
                              "max_staleness) FROM (SELECT * FROM run ORDER BY id DESC LIMIT 2)",
                              "2 1");
    }
    process_expect_answer(r, "SELECT count(*) FROM push WHERE run_id IN (2, 4, 6)", "0");
    process_expect_answer(
        r, "SELECT mean_staleness > 1 AND max_staleness > 1 FROM run WHERE id = 2", "1");
    process_expect_answer(r,
                          "SELECT mean_staleness > 0.9 AND max_staleness = 1 FROM run WHERE id = "
                          "4",
                          "1");
    process_expect_answer(
        r, "SELECT mean_staleness = 0 AND max_staleness = 0 FROM run WHERE id = 6", "1");
}

static void a_summary_says_what_is_known_and_leaves_no_line_empty(void **state)
{
    struct rig *r = *state;
    assert_int_equal(RIG_RUN(r, "run", RIG_SMALL, "engine=virtual", "pace=constant", "workers=3"),
                     OK);
    assert_non_null(strstr(process_output(r), "staleness 1."));
    assert_non_null(strstr(process_output(r), " (cv "));
    assert_int_equal(RIG_RUN(r, "run", RIG_SMALL, "engine=virtual", "pace=constant", "workers=3",
                             "record=evaluations"),
                     OK);
    assert_non_null(strstr(process_output(r), "staleness 1."));
    assert_non_null(strstr(process_output(r), " (max 2)"));
    assert_null(strstr(process_output(r), " \n"));
}

/* A header alone leaves one wondering. */
static void a_question_without_an_answer_says_why(void **state)
{
    struct rig *r = *state;
    assert_int_equal(RIG_RUN(r, "run", RIG_SMALL), OK);
    assert_int_equal(RIG_RUN(r, "query", "cosine-by-staleness"), OK);
    assert_non_null(strstr(process_output(r), "mean_cosine"));
    assert_non_null(strstr(process_errors(r), "no rows: "));
    assert_non_null(strstr(process_errors(r), "probe_every"));
    assert_int_equal(RIG_RUN(r, "query", "SELECT id FROM run WHERE id = 7"), OK);
    assert_non_null(strstr(process_errors(r), "no rows\n"));
    assert_int_equal(RIG_RUN(r, "query", "cosine-by-staleness", "--csv"), OK);
    assert_string_equal(process_errors(r), "");
    assert_int_equal(RIG_RUN(r, "query", "runs"), OK);
    assert_string_equal(process_errors(r), "");
}

/* Parameters of the small run's model that answer class 7 to everything. */
static void write_collapsed_parameters(struct rig *r)
{
    static float weight[10][64], bias[10];
    bias[7] = 1e6f;
    const struct checkpoint_tensor tensors[] = {
        {.name = "fc.weight", .rank = 2, .shape = {10, 64}, .data = &weight[0][0]},
        {.name = "fc.bias", .rank = 1, .shape = {10}, .data = bias}};
    assert_int_equal(checkpoint_write(process_path(r, "one-class.safetensors"), tensors,
                                      COUNT_OF(tensors), NULL, 0),
                     OK);
}

static void a_collapsed_run_says_so_in_every_mode(void **state)
{
    struct rig *r = *state;
    static const char *const kinds[][3] = {
        {"mode=sync", "workers=2", "pace=none"},
        {"mode=async", "workers=2", "pace=none"},
        {"engine=virtual", "workers=2", "pace=constant"},
        {"mode=sync", "engine=virtual", "pace=constant"},
    };
    write_collapsed_parameters(r);
    for (size_t i = 0; i < COUNT_OF(kinds); i++) {
        assert_int_equal(RIG_RUN(r, "sweep", RIG_SMALL, kinds[i][0], kinds[i][1], kinds[i][2],
                                 "lr=0", "initial=one-class.safetensors", "seed=1,2"),
                         OK);
        assert_non_null(
            strstr(process_output(r), "2 finished (2 collapsed to one class), 0 diverged"));
    }
    process_expect_answer(r,
                          "SELECT count(*) || ' ' || sum(collapsed) || ' ' || min(status) FROM run",
                          "8 8 finished");
    process_expect_answer(r, "SELECT min(top_class_share) FROM evaluation", "1");
    assert_int_equal(RIG_RUN(r, "run", RIG_SMALL, "lr=0", "initial=one-class.safetensors"), OK);
    assert_non_null(strstr(process_output(r), "(collapsed to one class)"));
    assert_int_equal(RIG_RUN(r, "show", "last"), OK);
    assert_non_null(strstr(process_output(r), "  collapsed "));
    assert_int_equal(RIG_RUN(r, "sweep", RIG_SMALL, "workers=1", "seed=1,2"), OK);
    assert_non_null(strstr(process_output(r), "2 finished, 0 diverged"));
}

int main(void)
{
#define PROCESS_TEST(f) cmocka_unit_test_setup_teardown(f, process_set_up, process_tear_down)
    const struct CMUnitTest tests[] = {
        PROCESS_TEST(staleness_is_known_without_the_rows_of_gradients),
        PROCESS_TEST(a_summary_says_what_is_known_and_leaves_no_line_empty),
        PROCESS_TEST(a_question_without_an_answer_says_why),
        PROCESS_TEST(a_collapsed_run_says_so_in_every_mode),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
