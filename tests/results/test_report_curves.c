/* Which evaluations the curves of the report average. */
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
                                                           .validation_loss = NAN,
                                                           .validation_accuracy = NAN});
    rig_finish(r, &outcome);
}

/* Of the only cell, at each of three points: the mean accuracy in %, and of how many runs. */
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
    char resumed[256];
    record(1, "finished", 1, 3, 0, NULL);
    record(2, "stopped", 1, 3, 0.25, NULL);
    snprintf(resumed, sizeof resumed, "{\"version\":2,\"run\":\"%s\"}",
             rig_ask("SELECT uuid FROM run WHERE id = 2"));
    record(2, "finished", 3, 3, 0.25, resumed);
    rig_change("UPDATE evaluation SET test_accuracy = 1 WHERE run_id = 2 AND updates = 3");
    expect_curve(25, 2);
    rig_change("DELETE FROM run WHERE id = 2"); /* where run 3 began is not known now */
    expect_curve(12.5, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        RIG_TEST(a_resumed_run_has_the_curve_of_the_whole_training),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
