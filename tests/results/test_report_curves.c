/* Which evaluations belong to a resumed run: in the curves of the report, in the time to an
 * accuracy. */
#include "tests/results/query_rig.h"

#include "results/report/report.h"
#include "results/report/report_data.h"
#include "results/store/database.h"

#include <math.h>
#include <stdio.h>

/* A run with evaluations at updates `from` to `to`; its accuracy is `base` + updates / 8. */
static void record(unsigned seed, const char *ended, unsigned from, unsigned to, double base,
                   const char *resumed)
{
    int64_t id;
    struct run_description run = rig_run;
    struct run_outcome outcome = rig_outcome;
    run.seed = seed;
    outcome.status = ended;
    recorder *r = rig_begin(&run, &id);
    if (resumed != NULL)
        recorder_origin(r, resumed);
    for (unsigned u = from; u <= to; u++)
        recorder_evaluation(r, &(struct evaluation_record){.updates = u,
                                                           .samples = 10 * u,
                                                           .seconds = u,
                                                           .test_loss = 1,
                                                           .test_accuracy = base + u / 8.0,
                                                           .validation_loss = NOT_MEASURED,
                                                           .validation_accuracy = NAN});
    rig_finish(r, &outcome);
}

/* The JSON of a run that resumed from `run` at this version. */
static const char *resumed_from(int64_t run, unsigned version)
{
    static char resumed[256];
    char sql[64];
    snprintf(sql, sizeof sql, "SELECT uuid FROM run WHERE id = %lld", (long long)run);
    snprintf(resumed, sizeof resumed, "{\"version\":%u,\"run\":\"%s\"}", version, rig_ask(sql));
    return resumed;
}

/* There is one cell. Its three points have these mean accuracies in % (12.5 more at each), over
 * `runs` runs. */
static void expect_curve(double first, size_t runs)
{
    struct report_data d = {0};
    sqlite3 *db = NULL;
    const struct report_request request = {.path = rig_path};
    assert_int_equal(database_open_reader(&db, rig_path), OK);
    assert_int_equal(report_data_read(&d, db, &request), OK);
    assert_int_equal(d.cell_count, 1);
    assert_int_equal(d.cells[0].points, 3);
    for (unsigned i = 0; i < 3; i++) {
        const struct curve_point *p = &d.cells[0].curve[i];
        assert_int_equal(p->accuracy.n, runs);
        assert_true(sample_mean(&p->samples) == 10 * (i + 1));
        assert_true(fabs(sample_mean(&p->accuracy) - first - 12.5 * i) < 1e-9);
    }
    report_data_close(&d);
    database_close(&db);
}

/* The evaluations of the stopped run after the checkpoint, which were rolled back, do not count. */
static void a_resumed_run_has_the_curve_of_the_whole_training(void **state UNUSED)
{
    record(1, "finished", 1, 3, 0, NULL);
    record(2, "stopped", 1, 3, 0.25, NULL);
    record(2, "finished", 3, 3, 0.25, resumed_from(2, 2));
    rig_change("UPDATE evaluation SET test_accuracy = 1 WHERE run_id = 2 AND updates = 3");
    expect_curve(25, 2);
    rig_change("DELETE FROM run WHERE id = 2"); /* where run 3 began is not known now */
    expect_curve(12.5, 1);
}

static void expect_times(int64_t run, const char *wanted)
{
    char sql[192];
    snprintf(sql, sizeof sql,
             "SELECT group_concat(accuracy || ' at ' || seconds, ', ') FROM (SELECT * FROM "
             "time_to_accuracy WHERE run_id = %lld ORDER BY updates)",
             (long long)run);
    assert_string_equal(rig_ask(sql), wanted);
}

/* Run 1 reaches update 3, run 2 goes on at update 2 and reaches 4, run 3 goes on at update 3. */
static void an_accuracy_counts_from_the_start_of_a_resumed_training(void **state UNUSED)
{
    record(1, "stopped", 1, 3, 0, NULL);
    record(1, "stopped", 3, 4, 0.0625, resumed_from(1, 2));
    record(1, "finished", 4, 4, 0.25, resumed_from(2, 3));
    expect_times(1, "0.125 at 1.0, 0.25 at 2.0, 0.375 at 3.0");
    expect_times(2, "0.125 at 1.0, 0.25 at 2.0, 0.4375 at 3.0, 0.5625 at 4.0");
    expect_times(3, "0.125 at 1.0, 0.25 at 2.0, 0.4375 at 3.0, 0.75 at 4.0");
    assert_string_equal(rig_ask("SELECT group_concat(best_accuracy, ' ') FROM run"),
                        "0.375 0.5625 0.75");
    const char *const settings[] = {"accuracy=0.25"};
    assert_int_equal(run_query("time-to-accuracy", QUERY_CSV, settings, 1), OK);
    assert_contains(answer, ",1,1,2,,,20,2\n"); /* runs, reached, seconds, samples, updates */
    /* What was rolled back does not count. */
    rig_change("UPDATE evaluation SET test_accuracy = 1 WHERE run_id = 1 AND updates = 3");
    expect_times(3, "0.125 at 1.0, 0.25 at 2.0, 0.4375 at 3.0, 0.75 at 4.0");
    rig_change("DELETE FROM run WHERE id = 1"); /* the beginning is not known */
    expect_times(3, "0.4375 at 3.0, 0.75 at 4.0");
}

static void the_best_accuracy_may_be_before_the_checkpoint(void **state UNUSED)
{
    record(1, "stopped", 1, 4, 0.25, NULL); /* 0.625 at update 3, and 0.75 later */
    record(1, "finished", 4, 4, 0, resumed_from(1, 3));
    assert_string_equal(rig_ask("SELECT final_accuracy || ' ' || best_accuracy FROM run "
                                "WHERE id = 2"),
                        "0.5 0.625");
}

/* A results file from elsewhere may contain this. */
static void runs_that_resumed_from_each_other_end_the_search(void **state UNUSED)
{
    record(1, "finished", 1, 2, 0, NULL);
    record(1, "finished", 3, 3, 0, resumed_from(1, 2));
    rig_change("UPDATE run SET host = json_set(host, '$.resumed', json_object('version', 9, 'run', "
               "(SELECT uuid FROM run WHERE id = 2))) WHERE id = 1");
    assert_string_equal(rig_ask("SELECT count(DISTINCT part_id) FROM run_part WHERE run_id = 2"),
                        "2");
    expect_times(2, "0.125 at 1.0, 0.25 at 2.0, 0.375 at 3.0");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        RIG_TEST(a_resumed_run_has_the_curve_of_the_whole_training),
        RIG_TEST(an_accuracy_counts_from_the_start_of_a_resumed_training),
        RIG_TEST(the_best_accuracy_may_be_before_the_checkpoint),
        RIG_TEST(runs_that_resumed_from_each_other_end_the_search),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
