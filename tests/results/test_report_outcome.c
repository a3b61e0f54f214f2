/* The outcome that the report shows of runs without test split: their loss on the validation split.
 */
#include "base/text.h"
#include "tests/results/query_rig.h"

#include "results/report/report.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NUMBER(n) "<td class=\"number\">" n "</td>"

static char *page; /* of the last report; free() */

static void write_report(const struct report_experiment *about)
{
    struct report_request request = {
        .path = rig_path, .experiments = about, .experiment_count = about != NULL};
    free(page);
    page = rig_report(&request);
}

/* How often the drawings with this title have `part`. A drawing may contain others. */
static size_t count_in_drawings(const char *title, const char *part)
{
    char begin[128];
    size_t count = 0, drawings = 0;
    snprintf(begin, sizeof begin, "role=\"img\"><title>%s</title>", title);
    for (const char *at = page; (at = strstr(at, begin)) != NULL; drawings++) {
        const char *end = strstr(++at, "role=\"img\"");
        for (const char *c = at; (c = strstr(c, part)) != NULL && (end == NULL || c < end); c++)
            count++;
    }
    if (drawings == 0)
        fail_msg("no drawing is named %s", title);
    return count;
}

/* Makes the sample runs look like text with dataset.test=no. The loss falls from 2 + id / 8 by 1/4
 * at each of the last 4 evaluations. */
static void remove_test_split(void)
{
    rig_change("UPDATE run SET final_accuracy = NULL, best_accuracy = NULL, final_loss = NULL, "
               "validation_accuracy = 0.5; "
               "UPDATE evaluation SET test_accuracy = NULL, test_loss = NULL, "
               "validation_accuracy = 0.5, validation_loss = 2 + run_id / 8.0 - updates / 100.0");
}

static void runs_without_test_split_are_shown_with_their_validation_loss(void **state UNUSED)
{
    remove_test_split();
    write_report(NULL);
    assert_null(strstr(page, "est loss"));
    assert_null(strstr(page, "est accuracy"));
    /* One mark for each of three arms, in a wide and a narrow drawing. */
    assert_int_equal(count_in_drawings("Validation loss with 4 workers", "class=\"mark\""), 6);
    assert_int_equal(
        count_in_drawings("Validation loss with 4 workers", ">validation loss, nats</text>"), 2);
    assert_int_equal(
        count_in_drawings("Validation loss against updates per second", "class=\"mark\""), 3);
    assert_true(
        count_in_drawings("Validation loss against samples with 4 workers", "class=\"mark\"") >= 3);
    /* Runs 1 and 2 end at 1.125 and 1.25. */
    assert_contains(page, "1.18750 (95 %: 0.39338 to 1.98162) nats validation loss (n 2)");
    assert_contains(page, "Validation loss in nats by arm and workers");
    assert_contains(page, "undamped</td>" NUMBER("4") NUMBER("2") NUMBER("1.18750"));
    assert_contains(page, "sync</td>" NUMBER("4") NUMBER("1") NUMBER("1.75000"));
    assert_contains(page, "Validation loss in nats during training");
    assert_contains(page, "undamped</td>" NUMBER("4") NUMBER("2") NUMBER("0") NUMBER("0.00")
                              NUMBER("2.18750"));
    assert_contains(page, "<dt>validation loss</dt><dd>1.1250</dd>");
}

static void the_loss_of_data_without_classes_is_not_in_nats(void **state UNUSED)
{
    remove_test_split();
    rig_change("UPDATE run SET validation_accuracy = NULL; "
               "UPDATE evaluation SET validation_accuracy = NULL");
    write_report(NULL);
    assert_int_equal(count_in_drawings("Validation loss with 4 workers", "class=\"mark\""), 6);
    assert_contains(page, "Validation loss by arm and workers");
    assert_null(strstr(page, "nats"));
}

static void a_loss_on_the_test_split_comes_first(void **state UNUSED)
{
    remove_test_split();
    rig_change("UPDATE run SET final_loss = 3; UPDATE evaluation SET test_loss = 3");
    write_report(NULL);
    assert_int_equal(count_in_drawings("Test loss with 4 workers", "class=\"mark\""), 6);
    assert_contains(page, "3.00000 (95 %: 3.00000 to 3.00000) test loss (n 2)");
    assert_null(strstr(page, "Validation loss"));
}

static void a_loss_that_is_not_finite_is_counted_as_diverged(void **state UNUSED)
{
    static const char *const losses[] = {
        "UPDATE run SET final_loss = iif(id = 1, 9e999, 3); "
        "UPDATE evaluation SET test_loss = 3",
        "UPDATE run SET final_loss = iif(id = 1, NULL, 3), not_a_number = iif(id = 1, "
        "'final_loss', NULL)",
        "UPDATE run SET final_loss = NULL, not_a_number = NULL; UPDATE evaluation SET test_loss = "
        "NULL, validation_loss = iif(run_id = 1, NULL, 3), not_a_number = iif(run_id = 1, "
        "'validation_loss', NULL)",
    };
    remove_test_split();
    rig_change("DELETE FROM run WHERE status = 'diverged'");
    for (size_t i = 0; i < COUNT_OF(losses); i++) {
        rig_change(losses[i]);
        write_report(NULL);
        /* n, mean, no interval, deviation; least, most; collapsed, diverged */
        assert_contains(page, "undamped</td>" NUMBER("4") NUMBER("1") NUMBER("3.00000") NUMBER("–")
                                  NUMBER("–") NUMBER("–") NUMBER("3.00000") NUMBER("3.00000")
                                      NUMBER("0") NUMBER("1"));
        assert_contains(page, NUMBER("3.00000") NUMBER("–") NUMBER("–") NUMBER("1") NUMBER("2.0"));
        assert_contains(page, "two runs diverged and are not in the mean");
    }
}

/* An external model may have such a loss (ELBO). */
static void negative_losses_have_marks_and_complete_intervals(void **state UNUSED)
{
    remove_test_split();
    rig_change("UPDATE evaluation SET validation_loss = validation_loss - 4");
    write_report(NULL);
    assert_int_equal(count_in_drawings("Validation loss with 4 workers", "class=\"mark\""), 6);
    assert_contains(page, "−2.81250 (95 %: −3.60663 to −2.01837) nats validation loss (n 2)");
}

/* Losses of 0.125 and 8: the interval of their mean reaches below 0. */
static void an_interval_of_losses_that_reaches_zero_ends_in_an_arrow(void **state UNUSED)
{
    remove_test_split();
    rig_change("UPDATE run SET workers = 2 WHERE arm <> 'undamped'; "
               "UPDATE evaluation SET validation_loss = CASE run_id WHEN 1 THEN 0.125 ELSE 8 END");
    write_report(NULL);
    /* The wide and the narrow drawing: an arrow at each end of the interval of arm undamped. */
    assert_int_equal(
        count_in_drawings("Validation loss against the number of workers", "class=\"beyond\""), 4);
    rig_change("UPDATE run SET workers = 4");
    write_report(NULL);
    assert_int_equal(count_in_drawings("Validation loss with 4 workers", "class=\"beyond\""), 4);
}

static void trials_are_listed_with_what_chose_between_them(void **state UNUSED)
{
    static const char row[] =
        "undamped</td>" NUMBER("4") NUMBER("2") NUMBER("1.18750") NUMBER("0.39338");
    remove_test_split();
    rig_change("UPDATE run SET experiment = 'stale-gradients/tuning'");
    write_report(NULL);
    assert_contains(page, "Final loss on the validation split, in nats");
    assert_contains(strstr(page, "The trials"), strstr(row, NUMBER("4")));
    /* Also if there is a test split. */
    rig_change("UPDATE run SET final_loss = 3; UPDATE evaluation SET test_loss = 3");
    write_report(NULL);
    assert_contains(strstr(page, "The trials"), strstr(row, NUMBER("4")));
}

static void a_map_names_the_unit_of_its_margins(void **state UNUSED)
{
    static const struct report_map_cell cells[] = {
        {"", "", "4", 0, 0, 0.125, 0.0625, 3, 2, 0, "plain", "stale"}};
    const struct report_experiment about = {.name = "stale-gradients",
                                            .question = "What is lost?",
                                            .map = {.sides = {"sync", "async"},
                                                    .side_count = 2,
                                                    .by_loss = true,
                                                    .unit = "nats of validation loss",
                                                    .column_axis = "workers",
                                                    .cells = cells,
                                                    .cell_count = 1}};
    write_report(&about); /* the runs have accuracies */
    assert_contains(page, "nats of validation loss");
    assert_contains(page, ">S 0.125</text>");
    assert_null(strstr(page, "test split"));
}

/* The runs have accuracies, too. */
static void the_metric_of_an_experiment_is_shown(void **state UNUSED)
{
    struct report_experiment about = {
        .name = "stale-gradients", .question = "What is lost?", .by_loss = true};
    rig_change("UPDATE evaluation SET test_loss = 3, validation_loss = 2; "
               "UPDATE run SET final_loss = 3");
    write_report(&about);
    assert_int_equal(count_in_drawings("Test loss with 4 workers", "class=\"mark\""), 6);
    about.of_validation = true;
    write_report(&about);
    assert_int_equal(count_in_drawings("Validation loss with 4 workers", "class=\"mark\""), 6);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        SAMPLE_TEST(runs_without_test_split_are_shown_with_their_validation_loss),
        SAMPLE_TEST(a_loss_that_is_not_finite_is_counted_as_diverged),
        SAMPLE_TEST(the_loss_of_data_without_classes_is_not_in_nats),
        SAMPLE_TEST(a_loss_on_the_test_split_comes_first),
        SAMPLE_TEST(negative_losses_have_marks_and_complete_intervals),
        SAMPLE_TEST(an_interval_of_losses_that_reaches_zero_ends_in_an_arrow),
        SAMPLE_TEST(trials_are_listed_with_what_chose_between_them),
        SAMPLE_TEST(a_map_names_the_unit_of_its_margins),
        SAMPLE_TEST(the_metric_of_an_experiment_is_shown),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    free(page);
    return failed;
}
