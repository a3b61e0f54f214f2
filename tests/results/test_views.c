/* Views and queries in an SQLite without optional functions, and a file with changed views. */
#include "tests/results/query_rig.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- without optional functions of SQLite -------------------------------------------------------
 */

static int refuse_mathematics(void *context, int action, const char *first, const char *function,
                              const char *database, const char *trigger)
{
    static const char *const optional[] = {
        "acos", "acosh",   "asin",    "asinh", "atan", "atan2", "atanh", "ceil", "ceiling", "cos",
        "cosh", "degrees", "exp",     "floor", "ln",   "log",   "log10", "log2", "mod",     "pi",
        "pow",  "power",   "radians", "sin",   "sinh", "sqrt",  "tan",   "tanh", "trunc"};
    (void)context;
    (void)first;
    (void)database;
    (void)trigger;
    for (size_t i = 0; action == SQLITE_FUNCTION && i < COUNT_OF(optional); i++)
        if (strcmp(function, optional[i]) == 0)
            return SQLITE_DENY;
    return SQLITE_OK;
}

static sqlite3 *open_plain(void)
{
    sqlite3 *db = NULL;
    assert_int_equal(database_open_reader(&db, rig_path), OK);
    assert_int_equal(sqlite3_set_authorizer(db, refuse_mathematics, NULL), SQLITE_OK);
    return db;
}

static void expect_prepared(sqlite3 *db, const char *sql)
{
    sqlite3_stmt *s = NULL;
    if (sqlite3_prepare_v2(db, sql, -1, &s, NULL) != SQLITE_OK)
        fail_msg("%s: %s", sqlite3_errmsg(db), sql);
    sqlite3_finalize(s);
}

static void views_and_queries_need_no_optional_functions_of_sqlite(void **state)
{
    (void)state;
    sqlite3 *db = open_plain();
    sqlite3_stmt *s = NULL;
    struct query_description q;
    int views = 0;
    assert_int_not_equal(sqlite3_prepare_v2(db, "SELECT sqrt(2)", -1, &s, NULL), SQLITE_OK);
    assert_int_equal(sqlite3_prepare_v2(db,
                                        "SELECT 'SELECT * FROM ' || name FROM sqlite_master "
                                        "WHERE type = 'view'",
                                        -1, &s, NULL),
                     SQLITE_OK);
    for (; sqlite3_step(s) == SQLITE_ROW; views++)
        expect_prepared(db, (const char *)sqlite3_column_text(s, 0));
    sqlite3_finalize(s);
    assert_true(views >= 7);
    for (size_t i = 0; query_at(i, &q); i++)
        expect_prepared(db, query_text(q.name));
    database_close(&db);
}

/* ---- roots --------------------------------------------------------------------------------------
 */

static double read_number(const char *sql)
{
    double value = NAN;
    bool known;
    if (query_number(rig_path, sql, NULL, 0, &value, &known) != OK || !known)
        fail_msg("%s: %s", sql, error_message());
    return value;
}

static void expect_near(double observed, double wanted)
{
    if (!(fabs(observed - wanted) <= 1e-12 * fabs(wanted)))
        fail_msg("%.17g, expected %.17g", observed, wanted);
}

/* For two runs with distance `apart`, the deviation is apart / √2, and the interval is the mean
 * ± 12.706 times half the distance, cut to 0 and 1. */
static void deviations_and_intervals_are_exact_at_all_scales(void **state)
{
    (void)state;
    for (double apart = 1; apart > 1e-7; apart *= 0.37) {
        char sql[256];
        snprintf(sql, sizeof sql,
                 "UPDATE run SET final_accuracy = CASE seed WHEN 1 THEN 0 ELSE %.17g END "
                 "WHERE arm = 'undamped'",
                 apart);
        rig_change(sql);
        expect_near(
            read_number("SELECT sd_accuracy FROM accuracy_by_workers WHERE arm = 'undamped'"),
            apart / sqrt(2));
        expect_near(
            read_number("SELECT interval_low FROM accuracy_by_workers WHERE arm = 'undamped'"), 0);
        expect_near(
            read_number("SELECT interval_high FROM accuracy_by_workers WHERE arm = 'undamped'"),
            fmin(1, (1 + 12.706) * apart / 2));
    }
}

static void equal_runs_have_deviation_0(void **state)
{
    (void)state;
    rig_change("UPDATE run SET final_accuracy = 0.25 WHERE arm = 'undamped'");
    assert_string_equal(rig_ask("SELECT sd_accuracy || ' ' || interval_low || ' ' || "
                                "interval_high FROM accuracy_by_workers WHERE arm = 'undamped'"),
                        "0.0 0.25 0.25");
    assert_string_equal(rig_ask("SELECT coalesce(sd_accuracy, '-') || coalesce(interval_low, '-') "
                                "|| coalesce(interval_high, '-') FROM accuracy_by_workers WHERE "
                                "arm = 'sync'"),
                        "---");
}

/* ---- changed views ----------------------------------------------------------------------------
 */

static void change_views(void)
{
    rig_change("DROP VIEW accuracy_by_workers; DROP VIEW run_summary;"
               "CREATE VIEW accuracy_by_workers AS SELECT 1 AS arm, sqrt(2) AS sd_accuracy");
}

static void changed_views_of_a_file_are_not_used(void **state)
{
    (void)state;
    char before[65];
    change_views();
    snprintf(before, sizeof before, "%s", rig_hash());
    assert_string_equal(
        rig_ask("SELECT group_concat(arm, ' ') FROM (SELECT arm FROM accuracy_by_workers "
                "ORDER BY arm)"),
        "damped sync undamped");
    assert_string_equal(rig_ask("SELECT count(*) FROM run_summary"), "6");
    assert_string_equal(rig_hash(), before);
}

/* The writer computes the totals of a run with a view. */
static void a_writer_does_not_use_changed_views_of_a_file(void **state)
{
    (void)state;
    int64_t id;
    change_views();
    rig_change("DROP VIEW where_time_goes; CREATE VIEW where_time_goes AS SELECT 3 AS three");
    recorder *r = rig_begin(&rig_run, &id);
    struct push_record p = rig_push(0);
    recorder_push(r, &p);
    rig_finish(r, &rig_outcome);
    assert_string_equal(rig_ask("SELECT sum(steps) FROM where_time_goes WHERE run_id = 7"), "1");
    assert_string_equal(rig_in_the_file("SELECT three FROM where_time_goes"), "3");
    assert_string_equal(rig_in_the_file("PRAGMA integrity_check"), "ok");
}

static void record_of(const char *experiment, const char *settings)
{
    int64_t id;
    struct run_description run = rig_run;
    run.experiment = experiment;
    run.settings = settings;
    rig_finish(rig_begin(&run, &id), &rig_outcome);
}

static void settings_that_differ_are_those_of_one_experiment(void **state)
{
    (void)state;
    record_of("a", "{\"epochs\":1,\"servers\":1}");
    record_of("a", "{\"epochs\":1,\"servers\":2}");
    record_of("b", "{\"epochs\":2,\"servers\":1}");
    record_of(NULL, "{\"epochs\":3,\"servers\":1}");
    record_of(NULL, "{\"epochs\":4,\"servers\":1}");
    assert_string_equal(
        rig_ask("SELECT group_concat(coalesce(experiment, '-') || ':' || "
                "coalesce(differing, 'none') || ':' || coalesce(others, 'none'), ' ') "
                "FROM (SELECT * FROM run_with_settings WHERE settings LIKE "
                "'%servers%' ORDER BY id)"),
        "a:servers=1:servers=1 a:servers=2:servers=2 b:none:none "
        "-:epochs=3:epochs=3 -:epochs=4:epochs=4");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        SAMPLE_TEST(views_and_queries_need_no_optional_functions_of_sqlite),
        SAMPLE_TEST(deviations_and_intervals_are_exact_at_all_scales),
        SAMPLE_TEST(equal_runs_have_deviation_0),
        SAMPLE_TEST(settings_that_differ_are_those_of_one_experiment),
        SAMPLE_TEST(changed_views_of_a_file_are_not_used),
        SAMPLE_TEST(a_writer_does_not_use_changed_views_of_a_file),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
