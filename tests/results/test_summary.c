/* test_summary.c — the summary that a run prints, and runs without recorded gradients. */
#include "tests/rigs/process_rig.h"

#include "experiments/config/config.h"
#include "experiments/run/staleness_spread.h"
#include "results/store/database.h"
#include "worker/checkpoint.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <math.h>
#include <signal.h>
#include <string.h>

/* The figures of a run do not depend on whether its gradients were recorded. */
static void staleness_is_known_without_recorded_gradients(void **state)
{
    struct process_rig *r = *state;
    static const char *const kinds[][3] = {
        {"engine=virtual", "pace=gamma", "workers=3"},
        {"mode=sync", "delay=2", "workers=2"},
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
                          "SELECT mean_staleness > 1.8 AND max_staleness = 2 FROM run WHERE id = "
                          "4",
                          "1");
    process_expect_answer(
        r, "SELECT mean_staleness = 0 AND max_staleness = 0 FROM run WHERE id = 6", "1");
}

/* With flushes staleness is 0. Without flushes, rows of push hold all times of a step. */
static void pipelines_have_a_staleness_and_complete_steps(void **state)
{
    struct process_rig *r = *state;
    static const char *const kinds[][2] = {{"pipeline=gpipe", "record=all"},
                                           {"pipeline=gpipe", "record=evaluations"},
                                           {"pipeline=pipedream", "record=all"},
                                           {"pipeline=pipedream", "record=evaluations"}};
    for (size_t i = 0; i < COUNT_OF(kinds); i++)
        assert_int_equal(RIG_RUN(r, "run", RIG_SMALL, "mode=pipeline", "model=mlp", "workers=2",
                                 kinds[i][0], kinds[i][1]),
                         OK);
    process_expect_answer(r,
                          "SELECT group_concat(coalesce(round(mean_staleness, 1), '-') || ' ' || "
                          "coalesce(max_staleness, '-'), ' ') FROM run",
                          "0.0 0 0.0 0 0.5 1 - -");
    process_expect_answer(
        r,
        "SELECT count(*) || ' ' || sum(queue_us IS NULL AND abs(step_us - pull_us - "
        "compute_us - exchange_us - apply_us) < 1) FROM where_time_goes WHERE "
        "run_id = 3",
        "2 2");
    assert_int_equal(RIG_RUN(r, "show", "3"), OK);
    assert_null(strstr(process_output(r), "queued"));
    assert_non_null(strstr(process_output(r), "exchanging gradients"));
}

static void a_summary_shows_known_values_and_no_empty_lines(void **state)
{
    struct process_rig *r = *state;
    assert_int_equal(RIG_RUN(r, "run", RIG_SMALL, "engine=virtual", "pace=constant", "workers=3"),
                     OK);
    assert_non_null(strstr(process_output(r), "staleness 1."));
    assert_non_null(strstr(process_output(r), " (cv "));
    assert_non_null(strstr(process_output(r), " (virtual)\n"));
    assert_int_equal(RIG_RUN(r, "show", "last"), OK);
    assert_non_null(strstr(process_output(r), " updates/s (virtual)\n"));
    assert_int_equal(RIG_RUN(r, "run", RIG_SMALL), OK);
    assert_null(strstr(process_output(r), "(virtual)"));
    assert_int_equal(RIG_RUN(r, "run", RIG_SMALL, "engine=virtual", "pace=constant", "workers=3",
                             "record=evaluations"),
                     OK);
    assert_non_null(strstr(process_output(r), "staleness 1."));
    assert_non_null(strstr(process_output(r), " (max 2)"));
    assert_null(strstr(process_output(r), " \n"));
}

static void an_empty_result_is_explained(void **state)
{
    struct process_rig *r = *state;
    assert_int_equal(RIG_RUN(r, "run", RIG_SMALL), OK);
    assert_int_equal(RIG_RUN(r, "query", "cosine-by-staleness"), OK);
    assert_non_null(strstr(process_output(r), "mean_cosine"));
    assert_non_null(strstr(process_errors(r), "probe_every"));
    assert_int_equal(RIG_RUN(r, "query", "SELECT id FROM run WHERE id = 7"), OK);
    assert_true(strlen(process_errors(r)) > 0);
    assert_int_equal(RIG_RUN(r, "query", "cosine-by-staleness", "--csv"), OK);
    assert_string_equal(process_errors(r), "");
    assert_int_equal(RIG_RUN(r, "query", "runs"), OK);
    assert_string_equal(process_errors(r), "");
}

/* Parameters with which the model of RIG_SMALL always predicts class 7. */
static void write_collapsed_parameters(struct process_rig *r)
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

static void collapsed_runs_are_reported_in_every_mode(void **state)
{
    struct process_rig *r = *state;
    static const char *const kinds[][3] = {
        {"mode=sync", "workers=2", "pace=none"},
        {"mode=async", "workers=2", "pace=none"},
        {"engine=virtual", "workers=2", "pace=constant"},
        {"mode=sync", "engine=virtual", "pace=constant"},
    };
    write_collapsed_parameters(r);
    for (size_t i = 0; i < COUNT_OF(kinds); i++) {
        assert_int_equal(RIG_RUN(r, "run", RIG_SMALL, kinds[i][0], kinds[i][1], kinds[i][2], "lr=0",
                                 "initial=one-class.safetensors"),
                         OK);
        assert_non_null(strstr(process_output(r), "(collapsed"));
    }
    assert_int_equal(RIG_RUN(r, "show", "last"), OK);
    assert_non_null(strstr(process_output(r), "  collapsed "));
    assert_int_equal(RIG_RUN(r, "sweep", RIG_SMALL, "engine=virtual", "pace=constant", "lr=0",
                             "initial=one-class.safetensors", "seed=1,2"),
                     OK);
    assert_non_null(strstr(process_output(r), "2 finished (2 collapsed"));
    process_expect_answer(r,
                          "SELECT count(*) || ' ' || sum(collapsed) || ' ' || min(status) FROM run",
                          "6 6 finished");
    process_expect_answer(r, "SELECT min(top_class_share) FROM evaluation", "1");
    assert_int_equal(RIG_RUN(r, "sweep", RIG_SMALL, "engine=virtual", "pace=constant", "seed=1,2"),
                     OK);
    assert_non_null(strstr(process_output(r), "2 finished,"));
}

/* ---- staleness with more spread than the pace explains ----------------------------------------
 */

static double too_wide(const char *key, const char *value, const struct staleness_spread *observed)
{
    static const char *const usual[][2] = {
        {"workers", "16"}, {"pace", "gamma"}, {"consistency", "asp"}, {"engine", "real"}};
    struct settings read = {0};
    options *o = NULL;
    for (size_t i = 0; i < COUNT_OF(usual); i++)
        if (strcmp(usual[i][0], key) != 0)
            settings_add(&read, usual[i][0], usual[i][1], "test");
    settings_add(&read, key, value, "test");
    assert_int_equal(config_compose(&o, &read), OK);
    double expected = staleness_spread_too_wide(o, observed);
    options_close(&o);
    settings_free(&read);
    return expected;
}

/* Values of experiment stale-gradients on an idle machine and with a load of 25 on two cores. */
static void a_spread_is_too_wide_beyond_what_the_pace_explains(void **state)
{
    (void)state;
    const struct staleness_spread idle = {.mean = 15.0, .cv = 0.23, .gradients = 8594};
    const struct staleness_spread busy = {.mean = 15.0, .cv = 0.38, .gradients = 8594};
    const struct staleness_spread few = {.mean = 15.0, .cv = 0.38, .gradients = 319};
    static const char *const unpredictable[][2] = {{"pace", "none"},
                                                   {"pace", "constant"},
                                                   {"consistency", "ssp"},
                                                   {"engine", "virtual"},
                                                   {"workers", "1"}};
    double expected = too_wide("seed", "1", &busy);
    assert_true(expected > 0.2 && expected < 0.25);
    assert_true(isnan(too_wide("seed", "1", &idle)));
    assert_true(isnan(too_wide("seed", "1", &few)));
    assert_true(isnan(too_wide("pace.cv", "0.6", &busy)));
    for (size_t i = 0; i < COUNT_OF(unpredictable); i++)
        assert_true(isnan(too_wide(unpredictable[i][0], unpredictable[i][1], &busy)));
}

/* While one worker is stopped, the other one makes hundreds of updates. */
static void a_run_with_delayed_steps_logs_a_warning(void **state)
{
    struct process_rig *r = *state;
    pid_t workers[2];
    char later[80];
    process_start(r, (const char *const[]){"run", RIG_DATA, "workers=2", "pace=gamma",
                                           "pace.mean_ms=2", "updates=6000", NULL});
    process_await(r, "worker", workers, 2);
    process_await_row(r, "SELECT count(*) > 100 FROM push");
    kill(workers[0], SIGSTOP);
    /* Rows are committed once a second. */
    snprintf(later, sizeof later, "SELECT count(*) > 1400 + %s FROM push",
             process_ask(r, "SELECT count(*) FROM push"));
    process_await_row(r, later);
    kill(workers[0], SIGCONT);
    assert_int_equal(process_wait(r), OK);
    assert_non_null(strstr(process_errors(r), "run 1: "));
    assert_non_null(strstr(process_errors(r), "(cv "));
}

static const char asynchronous[] =
    "name: paced\n"
    "question: does it keep its pace?\n"
    "settings: {dataset: gaussian, dataset.size: 8, dataset.samples: 1000, model: softmax, "
    "updates: 60, batch: 10, pace: gamma, pace.mean_ms: 5, lr: 0.01}\n"
    "seeds: [1]\n"
    "workers: [2]\n"
    "arms:\n"
    "  plain: {label: the plain arm}\n"
    "claims:\n"
    "  - {claim: It ends, value: 'accuracy(plain, 2)', band: [0, 100]}\n";

static void claims_report_runs_with_delayed_steps(void **state)
{
    static const char remark[] = "(plain with 2 workers: in 1 of 1 runs";
    struct process_rig *r = *state;
    sqlite3 *db = NULL;
    process_write(r, "paced.yaml", asynchronous);
    assert_int_equal(RIG_RUN(r, "reproduce", "paced.yaml", "--quiet"), OK);
    assert_int_equal(database_open(&db, process_path(r, "results.db")), OK);
    /* Values of an idle machine; then with a worker that was stopped for 30 updates. */
    assert_int_equal(database_execute(db,
                                      "DELETE FROM run_staleness;"
                                      "INSERT INTO run_staleness VALUES (1, 0, 6, 0, 1),"
                                      " (1, 1, 48, 0, 1), (1, 2, 6, 0, 1)",
                                      "test"),
                     OK);
    assert_int_equal(RIG_RUN(r, "reproduce", "paced.yaml", "--no-run"), OK);
    assert_null(strstr(process_output(r), remark));
    assert_int_equal(
        database_execute(db, "INSERT INTO run_staleness VALUES (1, 30, 1, 0, 1)", "test"), OK);
    database_close(&db);
    assert_int_equal(RIG_RUN(r, "reproduce", "paced.yaml", "--no-run"), OK);
    assert_non_null(strstr(process_output(r), remark));
    assert_int_equal(RIG_RUN(r, "reproduce", "paced.yaml", "--no-run", "--markdown"), OK);
    assert_non_null(strstr(process_output(r), remark));
    assert_int_equal(RIG_RUN(r, "report", "paced.yaml", "-o", "page.html"), OK);
    assert_int_equal(
        process_shell(r, "grep -q 'the plain arm with 2 workers: in 1 of 1 runs' page.html"), 0);
}

int main(void)
{
#define PROCESS_TEST(f) cmocka_unit_test_setup_teardown(f, process_set_up, process_tear_down)
    const struct CMUnitTest tests[] = {
        PROCESS_TEST(staleness_is_known_without_recorded_gradients),
        PROCESS_TEST(pipelines_have_a_staleness_and_complete_steps),
        PROCESS_TEST(a_summary_shows_known_values_and_no_empty_lines),
        PROCESS_TEST(an_empty_result_is_explained),
        PROCESS_TEST(collapsed_runs_are_reported_in_every_mode),
        cmocka_unit_test(a_spread_is_too_wide_beyond_what_the_pace_explains),
        PROCESS_TEST(a_run_with_delayed_steps_logs_a_warning),
        PROCESS_TEST(claims_report_runs_with_delayed_steps),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
