/* Query crossover: which runs represent a side, and by what sides are compared. */
#include "tests/results/query_rig.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

struct compared_run {
    const char *experiment, *mode, *settings, *status;
    unsigned seed;
    double loss, accuracy, validation; /* validation loss, test and validation accuracy */
};

static void record(const struct compared_run *c)
{
    int64_t id;
    struct run_description run = rig_run;
    struct run_outcome outcome = rig_outcome;
    run.experiment = c->experiment;
    run.arm = run.mode = c->mode;
    run.settings = c->settings;
    run.seed = c->seed;
    outcome.status = c->status;
    recorder *r = rig_begin(&run, &id);
    for (unsigned u = 1; u <= 2; u++)
        recorder_evaluation(r,
                            &(struct evaluation_record){.updates = u,
                                                        .test_loss = NAN,
                                                        .test_accuracy = c->accuracy,
                                                        .validation_loss = u == 1 ? 0.1 : c->loss,
                                                        .validation_accuracy = c->validation});
    rig_finish(r, &outcome);
}

/* For text, and without a test accuracy, sides are compared by loss: a lower loss is better. The
 * best rate of a side has the lowest validation loss at its last evaluation, not at its best
 * one. */
static void text_and_runs_without_accuracy_are_compared_by_loss(void **state UNUSED)
{
    static const struct compared_run runs[] = {
        {"by-loss", "sync", "{\"lr\":1}", "finished", 1, 2.0, NAN, 0.5},
        {"by-loss", "sync", "{\"lr\":1}", "finished", 2, 2.5, NAN, 0.5},
        {"by-loss", "sync", "{\"lr\":2}", "finished", 1, 3.0, NAN, 0.5},
        {"by-loss", "sync", "{\"lr\":2}", "finished", 2, 3.0, NAN, 0.5},
        {"by-loss", "async", "{\"lr\":1}", "finished", 1, 1.5, NAN, 0.5},
        {"by-loss", "async", "{\"lr\":1}", "finished", 2, 1.75, NAN, 0.5},
    };
    const char *const of[] = {"experiment=by-loss"};
    for (size_t i = 0; i < COUNT_OF(runs); i++)
        record(&runs[i]);
    assert_int_equal(run_query("crossover", QUERY_CSV, of, 1), OK);
    /* 2.0 - 1.5 and 2.5 - 1.75; 12.706 of Student's t */
    double margin, interval;
    const char *line = strstr(answer, "undecided,0.625,");
    assert_non_null(line);
    assert_int_equal(sscanf(strchr(line, ','), ",%lf,%lf", &margin, &interval), 2);
    assert_true(fabs(interval - 12.706 * 0.125) < 1e-9);
    assert_contains(line, ",2,loss,sync,2.25,async,1.625,");
    rig_change(
        "UPDATE run SET final_accuracy = 0.5 WHERE experiment = 'by-loss' AND mode = 'sync'");
    rig_change(
        "UPDATE run SET final_accuracy = 0.75 WHERE experiment = 'by-loss' AND mode = 'async'");
    assert_int_equal(run_query("crossover", QUERY_CSV, of, 1), OK);
    assert_contains(answer, ",asynchronous,0.25,0,2,accuracy,sync,0.5,async,0.75,");
    rig_change("UPDATE run SET dataset = 'text' WHERE experiment = 'by-loss'");
    assert_int_equal(run_query("crossover", QUERY_CSV, of, 1), OK);
    assert_contains(answer, ",text,");
    assert_contains(answer, ",undecided,0.625,");
    assert_contains(answer, ",2,loss,sync,2.25,async,1.625,");
}

/* The synchronous rate 2 is better on the validation split, but one of its seeds diverged. */
static void a_mean_of_survivors_does_not_represent_its_side(void **state UNUSED)
{
    static const struct compared_run runs[] = {
        {"alive", "sync", "{\"lr\":1}", "finished", 1, 1, 0.5, 0.5},
        {"alive", "sync", "{\"lr\":1}", "finished", 2, 1, 0.5, 0.5},
        {"alive", "sync", "{\"lr\":2}", "finished", 1, 1, 0.875, 0.875},
        {"alive", "sync", "{\"lr\":2}", "diverged", 2, 1, 0.125, 0.125},
        {"alive", "async", "{\"lr\":1}", "finished", 1, 1, 0.75, 0.75},
        {"alive", "async", "{\"lr\":1}", "finished", 2, 1, 0.75, 0.75},
    };
    const char *const of[] = {"experiment=alive"};
    for (size_t i = 0; i < COUNT_OF(runs); i++)
        record(&runs[i]);
    assert_int_equal(run_query("crossover", QUERY_CSV, of, 1), OK);
    assert_contains(answer, ",asynchronous,0.25,0,2,accuracy,sync,0.5,async,0.75,");
    rig_change("UPDATE run SET status = 'diverged' WHERE settings = '{\"lr\":1}' AND seed = 1 AND "
               "mode = 'sync'");
    assert_int_equal(run_query("crossover", QUERY_CSV, of, 1), OK);
    assert_contains(answer, ",sync,0.875,async,0.75,"); /* now both rates lost a seed */
    /* With three seeds of the synchronous side and one diverged, the other two have a margin
     * without variance. The side is not ahead. */
    rig_change("UPDATE run SET final_accuracy = 0.25 WHERE mode = 'async'");
    rig_change("DELETE FROM run WHERE settings = '{\"lr\":1}' AND mode = 'sync'");
    record(&(struct compared_run){"alive", "sync", "{\"lr\":2}", "finished", 3, 1, 0.875, 0.875});
    record(&(struct compared_run){"alive", "async", "{\"lr\":1}", "finished", 3, 1, 0.25, 0.75});
    assert_int_equal(run_query("crossover", QUERY_CSV, of, 1), OK);
    assert_contains(answer, ",undecided,0.625,0,2,accuracy,sync,0.875,async,0.25,");
    rig_change("DELETE FROM run WHERE status = 'diverged'");
    assert_int_equal(run_query("crossover", QUERY_CSV, of, 1), OK);
    assert_contains(answer, ",synchronous,0.625,0,2,accuracy,sync,0.875,async,0.25,");
}

/* For the synchronous rate 1, the mean over seeds is 0.5 and the mean over runs is 0.65. */
static void a_repeated_seed_counts_once(void **state UNUSED)
{
    static const struct compared_run runs[] = {
        {"again", "sync", "{\"lr\":1}", "finished", 1, 1, 0.5, 0.2},
        {"again", "sync", "{\"lr\":1}", "finished", 2, 1, 0.5, 0.8},
        {"again", "sync", "{\"lr\":1}", "finished", 2, 1, 0.5, 0.8},
        {"again", "sync", "{\"lr\":1}", "finished", 2, 1, 0.5, 0.8},
        {"again", "sync", "{\"lr\":2}", "finished", 1, 1, 0.25, 0.6},
        {"again", "sync", "{\"lr\":2}", "finished", 2, 1, 0.25, 0.6},
        {"again", "async", "{\"lr\":1}", "finished", 1, 1, 0.75, 0.75},
        {"again", "async", "{\"lr\":1}", "finished", 2, 1, 0.75, 0.75},
    };
    const char *const of[] = {"experiment=again"};
    for (size_t i = 0; i < COUNT_OF(runs); i++)
        record(&runs[i]);
    assert_int_equal(run_query("crossover", QUERY_CSV, of, 1), OK);
    assert_contains(answer, ",asynchronous,0.5,0,2,accuracy,sync,0.25,async,0.75,");
}

/* Names that look like numbers keep their spelling. */
static void runs_without_an_experiment_are_compared_too(void **state UNUSED)
{
    static const struct compared_run runs[] = {
        {NULL, "sync", "{\"lr\":1}", "finished", 1, 1, 0.5, 0.5},
        {NULL, "async", "{\"lr\":1}", "finished", 1, 1, 0.75, 0.75},
        {"007", "sync", "{\"lr\":1}", "finished", 1, 1, 0.5, 0.5},
        {"007", "async", "{\"lr\":1}", "finished", 1, 1, 0.625, 0.625},
    };
    const char *const of[] = {"experiment=007"};
    for (size_t i = 0; i < COUNT_OF(runs); i++)
        record(&runs[i]);
    assert_int_equal(run_query("crossover", QUERY_CSV, NULL, 0), OK);
    assert_contains(answer, ",sync,0.5,async,0.75,");
    assert_contains(answer, ",sync,0.5,async,0.625,");
    assert_int_equal(run_query("crossover", QUERY_CSV, of, 1), OK);
    assert_contains(answer, ",sync,0.5,async,0.625,");
    assert_null(strstr(answer, "0.75"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        RIG_TEST(text_and_runs_without_accuracy_are_compared_by_loss),
        RIG_TEST(a_mean_of_survivors_does_not_represent_its_side),
        RIG_TEST(a_repeated_seed_counts_once),
        RIG_TEST(runs_without_an_experiment_are_compared_too),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
