/* Queries: refused statements, formats, numbers, finding and showing runs, live runs. */
#include "tests/results/query_rig.h"

#include "results/query/live_runs.h"
#include "results/query/query_bind.h"
#include "results/query/show_run.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- errors ------------------------------------------------------------------------------------
 */

static void an_error_suggests_the_most_similar_query(void **state)
{
    (void)state;
    assert_int_equal(run_query("slowest-workr", QUERY_TABLE, NULL, 0), ERROR_USAGE);
    rig_assert_error_names("slowest-workr");
    rig_assert_error_names("'slowest-worker'");
    rig_assert_error_names("accuracy-by-mode-and-workers");
}

static void an_error_lists_the_parameters_of_a_query(void **state)
{
    (void)state;
    const char *const wrong[] = {"acuracy=0.5"};
    assert_int_equal(run_query("time-to-accuracy", QUERY_TABLE, wrong, 1), ERROR_USAGE);
    rig_assert_error_names("acuracy=0.5");
    rig_assert_error_names("accuracy=0.85");
    assert_int_equal(run_query("SELECT :threshold", QUERY_TABLE, NULL, 0), ERROR_USAGE);
    rig_assert_error_names("threshold=");
    const char *const run[] = {"run=99"};
    assert_int_equal(run_query("staleness-histogram", QUERY_TABLE, run, 1), ERROR_USAGE);
    rig_assert_error_names("'99'");
    const char *const many[] = {"limit=many"};
    assert_int_equal(run_query("runs", QUERY_TABLE, many, 1), ERROR_USAGE);
    rig_assert_error_names("limit=many");
    const char *const counts[][1] = {{"limit=1.5"}, {"limit=-3"}, {"limit=1e99"}};
    for (size_t i = 0; i < COUNT_OF(counts); i++) {
        assert_int_equal(run_query("runs", QUERY_TABLE, counts[i], 1), ERROR_USAGE);
        rig_assert_error_names(counts[i][0]);
    }
    const char *const two[] = {"limit=2e0"};
    assert_int_equal(run_query("runs", QUERY_TABLE, two, 1), OK);
    const char *const part[] = {"n=1.5"};
    assert_int_equal(run_query("SELECT 1 LIMIT :n", QUERY_TABLE, part, 1), ERROR_USAGE);
    const char *const infinite[][1] = {{"accuracy=inf"}, {"accuracy=nan"}, {"accuracy=1e999"}};
    for (size_t i = 0; i < COUNT_OF(infinite); i++)
        assert_int_equal(run_query("time-to-accuracy", QUERY_TABLE, infinite[i], 1), ERROR_USAGE);
}

static void a_query_that_fails_at_a_row_is_an_error_of_usage(void **state)
{
    (void)state;
    static const enum query_format formats[] = {QUERY_TABLE, QUERY_CSV, QUERY_JSON};
    for (size_t i = 0; i < COUNT_OF(formats); i++) {
        assert_int_equal(run_query("SELECT abs(-9223372036854775807 - 1)", formats[i], NULL, 0),
                         ERROR_USAGE);
        assert_int_equal(run_query("SELECT json(arm) FROM run", formats[i], NULL, 0), ERROR_USAGE);
    }
}

static void statements_that_change_something_are_refused(void **state)
{
    (void)state;
    static const char *const attempts[] = {
        "DELETE FROM run",
        "UPDATE run SET arm = 'x'",
        "DROP TABLE step",
        "DROP VIEW run_summary",
        "CREATE TEMP TABLE t (a)",
        "WITH a AS (SELECT 1) INSERT INTO event (run_id, severity, code) SELECT 1, 'info', 'x'",
        "PRAGMA user_version = 7",
        "PRAGMA journal_mode = DELETE",
        "PRAGMA query_only = OFF",
        "ATTACH '/tmp/gradlag-never.db' AS other",
        "VACUUM INTO '/tmp/gradlag-never.db'",
        "BEGIN EXCLUSIVE",
    };
    char before[65];
    snprintf(before, sizeof before, "%s", rig_hash());
    for (size_t i = 0; i < COUNT_OF(attempts); i++)
        assert_int_equal(run_query(attempts[i], QUERY_TABLE, NULL, 0), ERROR_USAGE);
    assert_string_equal(rig_hash(), before);
}

static void wrong_sql_is_a_usage_error(void **state)
{
    (void)state;
    assert_int_equal(run_query("SELECT nope FROM run", QUERY_TABLE, NULL, 0), ERROR_USAGE);
    rig_assert_error_names("nope");
    assert_int_equal(run_query("SELECT 1; SELECT 2", QUERY_TABLE, NULL, 0), ERROR_USAGE);
    assert_int_equal(run_query(" ; ", QUERY_TABLE, NULL, 0), ERROR_USAGE);
}
/* ---- formats -----------------------------------------------------------------------------------
 */

static void columns_of_a_table_are_aligned_and_rounded(void **state)
{
    (void)state;
    assert_answer("SELECT 'é' AS name, 0.123456 AS x, 7 AS n UNION ALL SELECT 'long', 0.5, NULL",
                  QUERY_TABLE,
                  "name       x  n\n"
                  "----  ------  -\n"
                  "é     0.1235  7\n"
                  "long  0.5000  -\n");
    assert_answer("SELECT 12345.678 AS a, 3.0 AS b, 1e-9 AS c, 9e999 AS d", QUERY_TABLE,
                  "    a  b          c    d\n"
                  "-----  -  ---------  ---\n"
                  "12346  3  1.000e-09  inf\n");
}

static void a_small_number_beside_large_ones_is_not_0(void **state)
{
    (void)state;
    assert_answer(
        "SELECT 1000.0 AS lr, 12.3456 AS s UNION ALL SELECT 0.03, 0.00123 UNION ALL SELECT "
        "0.0, 3.0",
        QUERY_TABLE,
        "  lr       s\n"
        "----  ------\n"
        "1000   12.35\n"
        "0.03  0.0012\n"
        "   0    3.00\n");
}

static void csv_quotes_and_keeps_numbers_in_full(void **state)
{
    (void)state;
    assert_answer("SELECT 'a,\"b' AS t, 0.1 AS x, 1.0 / 3 AS y, NULL AS n, -9e999 AS i", QUERY_CSV,
                  "t,x,y,n,i\n\"a,\"\"b\",0.1,0.333333333333333"
                  "3,,-inf\n");
    assert_answer("SELECT 'a' || char(13) || 'b' AS t, 'c' || char(10) AS u", QUERY_CSV,
                  "t,u\n\"a\rb\",\"c\n\"\n");
    assert_answer("SELECT 1 AS a WHERE 0", QUERY_CSV, "a\n");
    /* Readers skip empty lines, so a row with one empty field is quoted. */
    assert_answer("SELECT NULL AS a UNION ALL SELECT '' UNION ALL SELECT 1", QUERY_CSV,
                  "a\n\"\"\n\"\"\n1\n");
}

static void json_escapes_and_keeps_infinities(void **state)
{
    (void)state;
    assert_answer(
        "SELECT 'a\"\\' AS t, 9e999 AS i, NULL AS n, 7 AS k UNION ALL SELECT '', 0.5, 1, 2",
        QUERY_JSON,
        "[\n{\"t\": \"a\\\"\\\\\", \"i\": 1e999, \"n\": null, \"k\": 7},\n"
        "{\"t\": \"\", \"i\": 0.5, \"n\": 1, \"k\": 2}\n]\n");
    assert_answer("SELECT 1 AS a WHERE 0", QUERY_JSON, "[]\n");
}

static void markdown_is_a_table_with_numbers_to_the_right(void **state)
{
    (void)state;
    assert_answer("SELECT 'x' AS name, 12 AS n", QUERY_MARKDOWN,
                  "| name |  n |\n|------|---:|\n| x    | 12 |\n");
    /* A bar would end the cell. */
    assert_answer("SELECT 'x|y' AS name, 12 AS n UNION ALL SELECT 'long one', 3", QUERY_MARKDOWN,
                  "| name     |  n |\n|----------|---:|\n| x\\|y     | 12 |\n| long one |  3 |\n");
    assert_answer("SELECT 'x|y' AS name", QUERY_TABLE, "name\n----\nx|y\n");
}
/* ---- for experiments ---------------------------------------------------------------------------
 */

static void a_number_may_be_unknown(void **state)
{
    (void)state;
    double value;
    bool known;
    const char *const settings[] = {"arm=undamped", "run=last"};
    assert_int_equal(query_number(rig_path,
                                  "SELECT max(final_accuracy) FROM run WHERE arm = :arm "
                                  "AND id < :run",
                                  settings, 2, &value, &known),
                     OK);
    assert_true(known && value == 0.7);
    assert_int_equal(query_number(rig_path, "SELECT NULL", NULL, 0, &value, &known), OK);
    assert_true(!known && isnan(value));
    assert_int_equal(query_number(rig_path, "SELECT 1 WHERE 0", NULL, 0, &value, &known), OK);
    assert_false(known);
    assert_int_equal(query_number(rig_path, "SELECT 'text'", NULL, 0, &value, &known), ERROR_USAGE);
    static const char *const several[] = {"SELECT 1, 2", "SELECT 1 UNION ALL SELECT 2",
                                          "SELECT NULL UNION ALL SELECT 2"};
    for (size_t i = 0; i < COUNT_OF(several); i++) {
        assert_int_equal(query_number(rig_path, several[i], NULL, 0, &value, &known), OK);
        assert_int_equal(query_single_number(rig_path, several[i], &value, &known), ERROR_USAGE);
    }
    assert_int_equal(query_single_number(rig_path, "SELECT 3", &value, &known), OK);
    assert_true(known && value == 3);
    assert_int_equal(query_single_number(rig_path, "SELECT 1 WHERE 0", &value, &known), OK);
    assert_false(known);
    double values[] = {7, 7};
    assert_int_equal(query_numbers(rig_path, "SELECT 0.5, NULL", values, 2), OK);
    assert_true(values[0] == 0.5 && isnan(values[1]));
    assert_int_equal(query_numbers(rig_path, "SELECT 1, 2 WHERE 0", values, 2), OK);
    assert_true(isnan(values[0]) && isnan(values[1]));
}

static void finished_runs_are_found_first(void **state)
{
    (void)state;
    struct found_run run;
    bool found;
    struct run_key key = {.config_hash = "cafe", .arm = "undamped"};
    assert_int_equal(query_find_run(rig_path, &key, &run, &found), OK);
    assert_true(found);
    assert_int_equal(run.id, 2); /* run 5 is newer, but diverged */
    assert_string_equal(run.status, "finished");
    key = (struct run_key){.experiment = "stale-gradients"};
    assert_int_equal(query_find_run(rig_path, &key, &run, &found), OK);
    assert_int_equal(run.id, 6);
    key.config = "{\"damping\":\"none\",\"seed\":1}";
    assert_int_equal(query_find_run(rig_path, &key, &run, &found), OK);
    assert_true(found);
    assert_int_equal(run.id, 1);
    key.config = "{\"damping\":\"none\",\"lr\":1}";
    assert_int_equal(query_find_run(rig_path, &key, &run, &found), OK);
    assert_false(found);
    key = (struct run_key){.config_hash = "beef"};
    assert_int_equal(query_find_run(rig_path, &key, &run, &found), OK);
    assert_false(found);
    assert_int_equal(query_find_run("/tmp/gradlag-no-such.db", &key, &run, &found), OK);
    assert_false(found);
}

static status find(const char *name, int64_t *id)
{
    sqlite3 *db = NULL;
    assert_int_equal(database_open_reader(&db, rig_path), OK);
    status result = query_run_id(db, name, id);
    database_close(&db);
    return result;
}

/* Also rows of other processes. A missing file has no runs. */
static void a_shared_connection_sees_new_rows(void **state)
{
    (void)state;
    struct run_key key = {.arm = "later"};
    struct found_run run;
    bool found, known;
    double count;
    assert_int_equal(query_begin(rig_path), OK);
    assert_int_equal(query_find_run(rig_path, &key, &run, &found), OK);
    assert_false(found);
    rig_change("UPDATE run SET arm = 'later' WHERE id = 6");
    assert_int_equal(query_find_run(rig_path, &key, &run, &found), OK);
    assert_true(found && run.id == 6);
    assert_int_equal(query_number(rig_path, "SELECT count(*) FROM run", NULL, 0, &count, &known),
                     OK);
    assert_true(count == 6);
    query_end();
    assert_int_equal(query_begin("/tmp/gradlag-no-such.db"), OK);
    assert_int_equal(query_find_run(rig_path, &key, &run, &found), OK);
    assert_true(found);
    query_end();
}

static void a_run_is_found_by_id_by_uuid_or_as_the_last(void **state)
{
    (void)state;
    int64_t id;
    char uuid[16];
    snprintf(uuid, sizeof uuid, "%s", rig_ask("SELECT substr(uuid, 1, 9) FROM run WHERE id = 3"));
    assert_int_equal(find(uuid, &id), OK);
    assert_int_equal(id, 3);
    assert_int_equal(find("4", &id), OK);
    assert_int_equal(id, 4);
    assert_int_equal(find("last", &id), OK);
    assert_int_equal(id, 6);
    assert_int_equal(find("unknown", &id), ERROR_USAGE);
    rig_assert_error_names("'unknown'");
}

/* ---- show --------------------------------------------------------------------------------------
 */

static void show(const char *run)
{
    FILE *out = fmemopen(answer, sizeof answer, "w");
    assert_non_null(out);
    assert_int_equal(show_run(rig_path, run, out), OK);
    fclose(out);
}

static void a_run_is_shown_with_all_its_parts(void **state)
{
    (void)state;
    show("3");
    assert_contains(answer, "run 3: finished, async, 4 workers, seed 1\n");
    assert_contains(answer, "test accuracy  0.7900 at the end, 0.7900 at best");
    assert_contains(answer, "\nconfiguration\n  damping        polynomial\n  damping.power  0.5\n");
    /* Results come before the long list of settings. */
    assert_contains(answer, "\nwhere a worker's time goes");
    assert_true(strstr(answer, "\nconfiguration\n") >
                strstr(answer, "\nwhere a worker's time goes"));
    assert_contains(answer, "\ncurve\n");
    assert_contains(answer, "0.7900  ################################\n");
    assert_contains(answer, "\nstaleness of the 100 gradients that were used: mean 2.94, most 3\n");
    assert_contains(answer, "\n          3  97.0 %  1.000  ####");
    assert_contains(answer, "computing                      1750 us  77.8 %");
    assert_contains(answer, "waiting for parameters          500 us  22.2 %");
    show("last");
    assert_contains(answer, "exchanging gradients");
    assert_null(strstr(answer, "staleness of"));
}

/* Each server has a row for its slice of a gradient; all rows are counted. */
static void gradients_of_several_servers_are_shown(void **state)
{
    (void)state;
    int64_t id;
    struct run_description run = rig_run;
    run.config = "{\"mode\": \"async\", \"servers\": 2, \"seed\": 1}";
    recorder *r = rig_begin(&run, &id);
    for (uint64_t i = 0; i < 4; i++) {
        struct push_record p = rig_push(i);
        p.server = (uint32_t)i % 2;
        p.outcome = i < 3 ? PUSH_APPLIED : PUSH_DROPPED_LATE;
        recorder_push(r, &p);
    }
    recorder_event_at(r, 1, 0, 0, SEVERITY_INFO, "worker_joined", 2, "here");
    rig_finish(r, &rig_outcome);
    show("last");
    assert_contains(answer, "\nstaleness of the 3 parts of gradients, one at each server, that");
    assert_contains(answer, "  not used: 1 dropped_late\n");
    assert_contains(answer, "worker_joined, worker 2, server 1: here\n");
    /* Without rows, the totals give only the number of dropped gradients. */
    rig_change("DELETE FROM push WHERE run_id = (SELECT max(id) FROM run)");
    show("last");
    assert_contains(answer, "\nstaleness of the 3 parts of gradients, one at each server, that");
    assert_contains(answer, "  not used: 1 dropped\n");
}

/* At most 24 bins of equal width. */
static void a_wide_histogram_is_shown_in_wider_bins(void **state)
{
    (void)state;
    rig_change("UPDATE run_staleness SET staleness = 23 WHERE run_id = 3 AND staleness = 3");
    show("3");
    assert_contains(answer, "\n         23  97.0 %");
    assert_contains(answer, "\n          1   1.0 %");
    rig_change("UPDATE run_staleness SET staleness = 24 WHERE run_id = 3 AND staleness = 23");
    show("3");
    assert_contains(answer, "\n      24-25  97.0 %");
    assert_contains(answer, "\n        0-1   2.0 %");
}

static void a_running_run_is_shown_with_its_staleness(void **state)
{
    (void)state;
    int64_t id;
    recorder *r = rig_begin(&rig_run, &id);
    for (uint64_t i = 0; i < 5; i++) {
        struct push_record p = rig_push(i);
        recorder_push(r, &p);
    }
    recorder_close(&r);
    show("last");
    assert_contains(answer, ": running, async");
    assert_contains(answer, "staleness of the 5 gradients that were used: mean 1.80, most 3\n");
}

static void a_diverged_run_shows_its_error_nan_and_events(void **state)
{
    (void)state;
    int64_t id;
    recorder *r = rig_begin(&rig_run, &id);
    struct run_outcome outcome = {.status = "diverged", .error = "loss of worker 1"};
    recorder_evaluation(
        r, &(struct evaluation_record){.validation_accuracy = NAN, .test_loss = 8.209e33});
    recorder_evaluation(r, &(struct evaluation_record){.updates = 1,
                                                       .train_loss = NAN,
                                                       .validation_accuracy = NAN,
                                                       .test_loss = NAN,
                                                       .test_accuracy = 0.1});
    recorder_event(r, 1.25, SEVERITY_ERROR, "not_finite", 1, "its loss");
    rig_finish(r, &outcome);
    show("last");
    assert_contains(answer, "error          loss of worker 1\n");
    assert_contains(answer, "(validation -, test loss NaN)");
    assert_contains(answer, "       NaN      0.0000          -       NaN   0.1000  ####\n");
    assert_contains(answer, " 8.209e+33 ");
    assert_contains(answer, "1.25 s  error    not_finite, worker 1: its loss\n");
}

static void text_of_a_file_cannot_control_the_terminal(void **state)
{
    (void)state;
    int64_t id;
    recorder *r = rig_begin(&rig_run, &id);
    struct run_outcome outcome = {.status = "failed", .error = "clear \033[2J\302\2332J\a\nit é"};
    rig_finish(r, &outcome);
    show("last");
    assert_contains(answer, "error          clear  [2J 2J \nit é\n");
    assert_int_equal(
        run_query("SELECT error FROM run ORDER BY id DESC LIMIT 1", QUERY_TABLE, NULL, 0), OK);
    assert_contains(answer, "clear  [2J 2J  it é\n");
}

/* ---- runs in progress ---------------------------------------------------------------------------
 */

/* A quarter of the samples took ten seconds of wall-clock time, five of them training. */
static void the_remaining_time_is_wall_clock_time(void **state)
{
    (void)state;
    struct live_runs seen;
    int64_t id;
    recorder *r = rig_begin(&rig_run, &id);
    recorder_close(&r);
    rig_change("UPDATE run SET started_at = '2026-01-01T00:00:00.000Z', progress = json_object("
               "'samples', 250, 'total_samples', 1000, 'seconds', 5, 'updates', 10, 'loss', 0.5, "
               "'at', '2026-01-01T00:00:10.000Z')");
    assert_int_equal(live_runs_read(&seen, rig_path, 5), OK);
    const struct live_run *run = &seen.running[0];
    assert_true(run->part == 0.25 && run->loss == 0.5);
    assert_true(run->samples_per_second == 50 && run->updates_per_second == 2);
    assert_true(fabs(run->seconds_left - 30) < 0.01);
    live_runs_free(&seen);
}

static void a_pipeline_without_flushes_has_a_curve_of_gradients(void **state)
{
    (void)state;
    struct live_runs seen;
    struct run_description run = rig_run;
    int64_t id;
    run.mode = "pipeline";
    recorder *r = rig_begin(&run, &id);
    for (uint64_t i = 0; i < 40; i++) {
        struct push_record p = rig_push(i);
        recorder_push(r, &p);
    }
    recorder_close(&r);
    assert_int_equal(live_runs_read(&seen, rig_path, 5), OK);
    assert_true(seen.running_count == 1 && seen.running[0].loss_curve.count > 10);
    assert_true(seen.running[0].slowest >= 0);
    live_runs_free(&seen);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        SAMPLE_TEST(an_error_suggests_the_most_similar_query),
        SAMPLE_TEST(an_error_lists_the_parameters_of_a_query),
        SAMPLE_TEST(a_query_that_fails_at_a_row_is_an_error_of_usage),
        SAMPLE_TEST(statements_that_change_something_are_refused),
        SAMPLE_TEST(wrong_sql_is_a_usage_error),
        SAMPLE_TEST(columns_of_a_table_are_aligned_and_rounded),
        SAMPLE_TEST(a_small_number_beside_large_ones_is_not_0),
        SAMPLE_TEST(csv_quotes_and_keeps_numbers_in_full),
        SAMPLE_TEST(json_escapes_and_keeps_infinities),
        SAMPLE_TEST(markdown_is_a_table_with_numbers_to_the_right),
        SAMPLE_TEST(a_number_may_be_unknown),
        SAMPLE_TEST(finished_runs_are_found_first),
        SAMPLE_TEST(a_shared_connection_sees_new_rows),
        SAMPLE_TEST(a_run_is_found_by_id_by_uuid_or_as_the_last),
        SAMPLE_TEST(a_run_is_shown_with_all_its_parts),
        RIG_TEST(gradients_of_several_servers_are_shown),
        SAMPLE_TEST(a_wide_histogram_is_shown_in_wider_bins),
        RIG_TEST(a_running_run_is_shown_with_its_staleness),
        RIG_TEST(a_diverged_run_shows_its_error_nan_and_events),
        RIG_TEST(text_of_a_file_cannot_control_the_terminal),
        RIG_TEST(the_remaining_time_is_wall_clock_time),
        RIG_TEST(a_pipeline_without_flushes_has_a_curve_of_gradients),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
