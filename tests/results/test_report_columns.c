/* The columns of the report's plots: numbers of workers, or values of another key of whole numbers.
 */
#include "tests/results/query_rig.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NUMBER(n) "<td class=\"number\">" n "</td>"

static const struct report_expected expected[] = {{0, 62.5}, {4, 81.25}};
static const struct report_arm arms[] = {
    {.name = "one", .label = "the arm", .expected = expected, .expected_count = 2}};

static char *page; /* of the last report; free() */

static void write_report(const char *axis)
{
    const struct report_experiment about = {.name = "stale-gradients",
                                            .question = "What is lost?",
                                            .axis = axis,
                                            .arms = arms,
                                            .arm_count = 1};
    free(page);
    page = rig_report(
        &(struct report_request){.path = rig_path, .experiments = &about, .experiment_count = 1});
}

/* One arm: two runs with delay 0 (mean accuracy 0.6), two with delay 4 (0.8). */
static void set_delays(void)
{
    rig_change("DELETE FROM run WHERE id > 4; UPDATE run SET arm = 'one', damping = 'none', "
               "settings = CASE WHEN id < 3 THEN '{\"delay\": 0}' ELSE '{\"delay\": 4}' END");
}

static void the_key_of_the_columns_is_the_axis(void **state UNUSED)
{
    set_delays();
    write_report("delay");
    assert_contains(page, "<h3>Accuracy against delay</h3>");
    assert_contains(page, "<title>Test accuracy against delay</title>");
    assert_contains(page, "test accuracy, % over delay 0 to 4, one line for each of 1 arms");
    assert_contains(page, "class=\"label\">delay</text>");
    assert_contains(page, "the arm, delay=0: 60.00 (");
    assert_contains(page, "the arm, delay=4: 80.00 (");
    assert_contains(page, "Test accuracy in % by arm and delay, over finished seeds");
    assert_contains(page, "the arm</td>" NUMBER("0") NUMBER("2") NUMBER("60.00"));
    assert_contains(page, "the arm</td>" NUMBER("4") NUMBER("2") NUMBER("80.00"));
    assert_contains(page, ">expected</th>");
    assert_contains(page, NUMBER("62.50") "</tr>");
    assert_contains(page, NUMBER("81.25") "</tr>");
    assert_contains(page, "<h4>delay=4</h4>");
    assert_contains(page, "Staleness with delay=4, the arm");
    assert_contains(page, "from small to large delay; the numbers are the values at its ends");
    assert_contains(page, "One mark per arm and delay.");
    assert_null(strstr(page, "<h4>4 workers</h4>"));
}

/* The expected values are those of delays, not of numbers of workers. */
static void without_a_whole_number_in_every_run_the_axis_is_workers(void **state UNUSED)
{
    static const char *const others[] = {"{\"delay\": 0.5}", "{\"delay\": \"no\"}", "{}"};
    for (size_t i = 0; i < COUNT_OF(others); i++) {
        char change[128];
        set_delays();
        snprintf(change, sizeof change, "UPDATE run SET settings = '%s' WHERE id = 4", others[i]);
        rig_change(change);
        write_report("delay");
        assert_contains(page, "<h3>Accuracy with 4 workers</h3>");
        assert_contains(page, "the arm, delay=0</td>" NUMBER("4") NUMBER("2") NUMBER("60.00"));
        assert_null(strstr(page, ">expected</th>"));
    }
}

static void workers_of_one_column_separate_series(void **state UNUSED)
{
    set_delays();
    rig_change("UPDATE run SET workers = 8 WHERE id = 2");
    write_report("delay");
    assert_contains(page, "the arm, workers=4</td>" NUMBER("0") NUMBER("1") NUMBER("50.00"));
    assert_contains(page, "the arm, workers=8</td>" NUMBER("0") NUMBER("1") NUMBER("70.00"));
    /* If the number of workers differs only between columns, it separates no series. */
    rig_change("UPDATE run SET workers = 8 WHERE id = 1");
    write_report("delay");
    assert_contains(page, "the arm</td>" NUMBER("0") NUMBER("2") NUMBER("60.00"));
    assert_contains(page, "the arm</td>" NUMBER("4") NUMBER("2") NUMBER("80.00"));
}

static void runs_without_arm_are_one_series_over_the_columns(void **state UNUSED)
{
    set_delays();
    rig_change("UPDATE run SET arm = NULL");
    write_report("delay");
    assert_contains(page, "</svg>async</td>" NUMBER("0") NUMBER("2") NUMBER("60.00"));
    assert_contains(page, "</svg>async</td>" NUMBER("4") NUMBER("2") NUMBER("80.00"));
}

/* A logarithmic axis has no place for 0. */
static void the_axis_is_logarithmic_without_a_column_of_zero(void **state UNUSED)
{
    static const char tick[] = "<path class=\"tick\" d=\"M%lf";
    for (int zero = 0; zero <= 1; zero++) {
        double x[3];
        const char *at;
        set_delays();
        rig_change("UPDATE run SET settings = '{\"delay\": 16}' WHERE id = 4");
        if (!zero)
            rig_change("UPDATE run SET settings = '{\"delay\": 1}' WHERE id < 3");
        write_report("delay");
        at = strstr(page, "<title>Test accuracy against delay</title>");
        assert_non_null(at);
        for (size_t i = 0; i < COUNT_OF(x); i++) {
            at = strstr(at + 1, "<path class=\"tick\"");
            assert_non_null(at);
            assert_int_equal(sscanf(at, tick, &x[i]), 1);
        }
        /* 1, 4, 16 have equal distances; 0, 4, 16 have those of the numbers. */
        const double ratio = (x[2] - x[1]) / (x[1] - x[0]);
        assert_true(fabs(ratio - (zero ? 3 : 1)) < 0.01);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        SAMPLE_TEST(the_key_of_the_columns_is_the_axis),
        SAMPLE_TEST(without_a_whole_number_in_every_run_the_axis_is_workers),
        SAMPLE_TEST(workers_of_one_column_separate_series),
        SAMPLE_TEST(runs_without_arm_are_one_series_over_the_columns),
        SAMPLE_TEST(the_axis_is_logarithmic_without_a_column_of_zero),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    free(page);
    return failed;
}
