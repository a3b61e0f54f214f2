/* `gradlag show` with several runs. */
#include "tests/results/query_rig.h"

#include "results/query/show_comparison.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static status compare(const char *const *runs, size_t count)
{
    FILE *out = fmemopen(answer, sizeof answer, "w");
    assert_non_null(out);
    answer[0] = '\0';
    status result = show_comparison(rig_path, runs, count, 0, out);
    fclose(out);
    return result;
}
#define COMPARE(...)                                                                               \
    compare((const char *const[]){__VA_ARGS__},                                                    \
            sizeof((const char *const[]){__VA_ARGS__}) / sizeof(char *))

/* The cells of the line that starts with `label`, separated by single spaces. */
static const char *cells(const char *label)
{
    static char out[256];
    char start[64];
    size_t length = 0;
    snprintf(start, sizeof start, "\n%s ", label);
    const char *line = strstr(answer, start);
    if (line == NULL)
        fail_msg("no line '%s' in:\n%s", label, answer);
    for (line += strlen(start); *line != '\n' && length + 1 < sizeof out; line++)
        if (*line != ' ' || (length > 0 && out[length - 1] != ' '))
            out[length++] = *line;
    out[length] = '\0';
    return out;
}

static void settings_that_differ_stand_beside_each_other(void **state)
{
    (void)state;
    assert_int_equal(COMPARE("1", "4"), OK);
    assert_string_equal(cells("damping"), "none polynomial");
    assert_string_equal(cells("damping.power"), "- 0.5");
    assert_string_equal(cells("seed"), "1 2");
    rig_change("UPDATE run SET config = json_set(config, '$.batch', 32)");
    assert_int_equal(COMPARE("1", "3", "2"), OK);
    assert_null(strstr(answer, "\nbatch "));
    assert_string_equal(cells("seed"), "1 1 2");
    rig_change("UPDATE run SET config = (SELECT config FROM run WHERE id = 1) WHERE id = 3");
    assert_int_equal(COMPARE("1", "3"), OK);
    assert_null(strstr(answer, "\ndamping"));
    rig_change("UPDATE run SET host = json_object('cpu', 'cpu ' || id, 'version', '1.0')");
    assert_int_equal(COMPARE("1", "3"), OK);
    assert_string_equal(cells("cpu"), "cpu 1 cpu 3");
    assert_null(strstr(answer, "\nversion "));
}

static void results_stand_beside_each_other(void **state)
{
    (void)state;
    rig_change("UPDATE run SET final_loss = NULL, not_a_number = 'final_loss' WHERE id = 5");
    assert_int_equal(COMPARE("1", "5", "last"), OK);
    assert_string_equal(cells("result"), "run 1 run 5 run 6");
    assert_string_equal(cells("status"), "finished diverged finished");
    assert_string_equal(cells("test accuracy"), "0.5000 0.1000 0.9000");
    assert_string_equal(cells("test loss"), "1.0000 NaN 1.0000");
    assert_string_equal(cells("samples/s"), "1600 1600 400");
    assert_string_equal(cells("error"), "- the loss is not finite -");
}

/* 0.79 - 0.5 and 0.81 - 0.7; 12.706 of Student's t for two seeds. */
static void differences_are_over_all_seeds_of_both_configurations(void **state)
{
    (void)state;
    char wanted[64];
    snprintf(wanted, sizeof wanted, "2 seeds, accuracy %+.4f ± %.4f", 0.2, 12.706 * 0.09);
    assert_int_equal(COMPARE("1", "3"), OK);
    assert_contains(answer, "run 3 - run 1: ");
    assert_contains(answer, wanted);
    /* Also if the runs have different seeds; the diverged seed 3 does not count. */
    assert_int_equal(COMPARE("5", "4", "1"), OK);
    assert_contains(answer, wanted);
    assert_null(strstr(answer, "run 1 - run 5: ")); /* they differ in their seed only */
    /* A diverged run does not count, even if the other configuration has finished with its seed. */
    rig_change("UPDATE run SET seed = 3, arm = 'damped', "
               "config = (SELECT config FROM run WHERE id = 3) WHERE id = 6");
    assert_int_equal(COMPARE("1", "3"), OK);
    assert_contains(answer, wanted);
    rig_change("UPDATE run SET seed = 1, config = json_object('mode', 'sync') WHERE id = 6");
    assert_int_equal(COMPARE("3", "6"), OK);
    assert_contains(answer, "run 6 - run 3: 1 seed, accuracy +0.1100, loss");
}

/* Runs 1 to 4 get validation losses of 2, 3, 2.25 and 3.5, and 0.5 more at earlier evaluations. */
static void runs_without_test_split_are_compared_by_validation_loss(void **state)
{
    (void)state;
    char wanted[80];
    assert_int_equal(COMPARE("1", "3"), OK);
    assert_null(strstr(answer, "validation loss"));
    rig_change("UPDATE run SET final_accuracy = NULL, final_loss = NULL; "
               "UPDATE evaluation SET test_accuracy = NULL, test_loss = NULL, validation_loss = "
               "CASE run_id WHEN 1 THEN 2 WHEN 2 THEN 3 WHEN 3 THEN 2.25 ELSE 3.5 END "
               "+ 0.5 * (updates < 100)");
    assert_int_equal(COMPARE("1", "3"), OK);
    assert_string_equal(cells("validation loss"), "2.0000 2.2500");
    assert_string_equal(cells("   1600"), "2.5 2.75 0.25");
    snprintf(wanted, sizeof wanted, "2 seeds, validation loss %+.4f ± %.4f", 0.375, 12.706 * 0.125);
    assert_contains(answer, wanted);
    rig_change("UPDATE evaluation SET validation_loss = NULL, not_a_number = 'validation_loss' "
               "WHERE run_id = 3 AND updates = 100");
    assert_int_equal(COMPARE("1", "3"), OK);
    assert_string_equal(cells("validation loss"), "2.0000 NaN");
}

/* The runs with seed 2 are trials, by which the settings were chosen. */
static void trials_of_tuning_are_no_seeds_of_a_comparison(void **state)
{
    (void)state;
    rig_change("UPDATE run SET experiment = 'stale-gradients/tuning' WHERE id IN (2, 4)");
    assert_int_equal(COMPARE("1", "3"), OK);
    assert_contains(answer, "run 3 - run 1: 1 seed, accuracy +0.2900, ");
    /* Runs of another arm with equal settings do not count either. */
    rig_change("UPDATE run SET experiment = 'stale-gradients', arm = 'copy' WHERE id = 4");
    rig_change("UPDATE run SET experiment = 'stale-gradients' WHERE id = 2");
    assert_int_equal(COMPARE("1", "3"), OK);
    assert_contains(answer, "run 3 - run 1: 1 seed, accuracy +0.2900, ");
    /* Two trials are compared as trials. */
    rig_change("UPDATE run SET experiment = 'stale-gradients/tuning', arm = 'damped' "
               "WHERE id = 4");
    rig_change("UPDATE run SET experiment = 'stale-gradients/tuning' WHERE id = 2");
    assert_int_equal(COMPARE("2", "4"), OK);
    assert_contains(answer, "run 4 - run 2: 1 seed, accuracy +0.1100, ");
}

/* The accuracy of sample runs is proportional to the number of the evaluation. */
static void curves_are_joined_by_samples(void **state)
{
    (void)state;
    assert_int_equal(COMPARE("1", "3"), OK);
    assert_contains(answer, "\nsamples  run 1  run 3  run 3 - run 1\n");
    assert_string_equal(cells("   1600"), "0.3 0.474 0.174");
    assert_string_equal(cells("      0"), "0.1 0.158 0.058");
    /* 1630 is within 5 % of 1600; 3000 is not within 5 % of 3200. */
    rig_change("UPDATE evaluation SET samples = 1630 WHERE run_id = 3 AND updates = 50");
    rig_change("UPDATE evaluation SET samples = 3000 WHERE run_id = 3 AND updates = 100");
    assert_int_equal(COMPARE("1", "3"), OK);
    assert_string_equal(cells("   1600"), "0.3 0.474 0.174");
    assert_string_equal(cells("   3200"), "0.5 - -");
    /* With more than two runs there is no column of differences. */
    assert_int_equal(COMPARE("1", "3", "6"), OK);
    assert_string_equal(cells("   2400"), "0.4 0.632 0.72");
    /* A run without evaluations does not set the rows. */
    rig_change("DELETE FROM evaluation WHERE run_id = 1");
    assert_int_equal(COMPARE("1", "6"), OK);
    assert_string_equal(cells("   2400"), "- 0.72 -");
}

static void an_evaluation_stands_in_one_row_only(void **state)
{
    (void)state;
    rig_change("UPDATE evaluation SET samples = 1000 + updates WHERE run_id = 1");
    rig_change("DELETE FROM evaluation WHERE run_id = 3 AND updates > 0");
    rig_change("UPDATE evaluation SET samples = 1051 WHERE run_id = 3");
    assert_int_equal(COMPARE("1", "3"), OK);
    assert_string_equal(cells("   1050"), "0.3 0.158 -0.142");
    assert_string_equal(cells("   1025"), "0.2 - -");
    assert_string_equal(cells("   1075"), "0.4 - -");
}

static void a_long_curve_has_at_most_26_rows_with_the_last(void **state)
{
    (void)state;
    rig_change("WITH RECURSIVE n (i) AS (SELECT 5 UNION ALL SELECT i + 1 FROM n WHERE i < 999) "
               "INSERT INTO evaluation (run_id, updates, samples, test_accuracy) "
               "SELECT id, 25 * i, 800 * i, 0.5 FROM n, run WHERE id IN (1, 3)");
    assert_int_equal(COMPARE("1", "3"), OK);
    unsigned rows = 0;
    const char *at = strstr(answer, "run 3 - run 1\n");
    assert_non_null(at);
    for (at = strchr(at, '\n') + 1; *at != '\n' && *at != '\0'; at = strchr(at, '\n') + 1)
        rows++;
    assert_in_range(rows, 20, 27); /* with the rule below the names */
    assert_contains(answer, "\n 799200");
}

static void a_run_that_is_missing_or_named_twice_is_an_error(void **state)
{
    (void)state;
    assert_int_equal(COMPARE("1", "99"), ERROR_USAGE);
    rig_assert_error_names("'99'");
    assert_string_equal(answer, "");
    assert_int_equal(COMPARE("6", "1", "last"), ERROR_USAGE);
    rig_assert_error_names("'last'");
}

static void text_of_a_file_cannot_control_the_terminal(void **state)
{
    (void)state;
    rig_change("UPDATE run SET error = 'clear ' || char(27) || '[2J' WHERE id = 5");
    assert_int_equal(COMPARE("1", "5"), OK);
    assert_contains(answer, "clear  [2J");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        SAMPLE_TEST(settings_that_differ_stand_beside_each_other),
        SAMPLE_TEST(results_stand_beside_each_other),
        SAMPLE_TEST(differences_are_over_all_seeds_of_both_configurations),
        SAMPLE_TEST(runs_without_test_split_are_compared_by_validation_loss),
        SAMPLE_TEST(trials_of_tuning_are_no_seeds_of_a_comparison),
        SAMPLE_TEST(curves_are_joined_by_samples),
        SAMPLE_TEST(an_evaluation_stands_in_one_row_only),
        SAMPLE_TEST(a_long_curve_has_at_most_26_rows_with_the_last),
        SAMPLE_TEST(a_run_that_is_missing_or_named_twice_is_an_error),
        SAMPLE_TEST(text_of_a_file_cannot_control_the_terminal),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
