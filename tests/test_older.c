/* Results files of older versions, and what strangers may have put into one. */
#include "tests/results_rig.h"

#include "results/recorded.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

static void write_file_of(const char *version)
{
    static char sql[65536];
    FILE *file = fopen(version, "r");
    assert_non_null(file);
    size_t length = fread(sql, 1, sizeof sql - 1, file);
    assert_true(length < sizeof sql - 1);
    sql[length] = '\0';
    fclose(file);
    rig_change(sql);
    rig_change("PRAGMA journal_mode = WAL");
}

static void write_version_1(void)
{
    write_file_of("tests/results-version-1.sql");
}

/* The settings of both runs, without the seed, are alike; the hashes are those of such runs now. */
static void assert_reads_as_present(void)
{
    assert_string_equal(rig_ask("SELECT count(*) || ' ' || count(DISTINCT settings) FROM run"),
                        "2 1");
    assert_string_equal(rig_ask("SELECT seeds || ' ' || round(mean_accuracy, 3) || ' ' || "
                                "(others IS NULL) FROM accuracy_by_workers"),
                        "2 0.992 1");
    assert_string_equal(rig_ask("SELECT settings ->> '$.lr' || coalesce(settings ->> '$.seed', '')"
                                " || coalesce(settings ->> '$.payload', '') FROM run"),
                        "0.03");
    assert_string_equal(rig_ask("SELECT config ->> '$.payload' FROM run"), "auto");
    assert_string_equal(rig_ask("SELECT config_hash FROM run WHERE seed = 1"),
                        "613ae30c69b63dd3a4ed88049d7d5ce221774250d39097bec5b0824dd329a310");
}

static void a_file_of_version_1_reads_as_the_present_one_and_is_not_changed(void **state)
{
    (void)state;
    char before[65];
    write_version_1();
    snprintf(before, sizeof before, "%s", rig_hash());
    assert_reads_as_present();
    assert_string_equal(rig_hash(), before);
}

/* The same of a file that is made now. */
static const char *in_a_new_file(const char *sql)
{
    static char found[512];
    sqlite3 *db = NULL;
    sqlite3_stmt *s = NULL;
    char path[128];
    snprintf(path, sizeof path, "%s/new.db", rig_folder);
    assert_int_equal(database_open(&db, path), OK);
    assert_int_equal(database_prepare(db, &s, sql), OK);
    assert_int_equal(sqlite3_step(s), SQLITE_ROW);
    snprintf(found, sizeof found, "%s", (const char *)sqlite3_column_text(s, 0));
    sqlite3_finalize(s);
    database_close(&db);
    return found;
}

static void a_file_of_version_1_is_brought_up_to_date_by_the_first_writer(void **state)
{
    (void)state;
    int64_t id;
    write_version_1();
    rig_finish(rig_begin(&rig_run, &id), &rig_outcome);
    assert_int_equal(id, 4);
    assert_string_equal(rig_in_the_file("PRAGMA user_version"), "6");
    assert_string_equal(rig_in_the_file("PRAGMA integrity_check"), "ok");
    rig_change("DELETE FROM run WHERE id = 4");
    assert_reads_as_present();
    assert_string_equal(
        rig_in_the_file("SELECT group_concat(name, ' ') FROM pragma_table_info('run')"),
        in_a_new_file("SELECT group_concat(name, ' ') FROM pragma_table_info('run')"));
    assert_string_equal(
        rig_in_the_file("SELECT group_concat(name, ' ') FROM (SELECT name FROM sqlite_master "
                        "WHERE type IN ('view', 'index') ORDER BY name)"),
        in_a_new_file("SELECT group_concat(name, ' ') FROM (SELECT name FROM sqlite_master "
                      "WHERE type IN ('view', 'index') ORDER BY name)"));
}

/* What version 3 brought is there, and is not known. */
static void assert_reads_as_version_3(void)
{
    assert_string_equal(
        rig_ask("SELECT count(*) || ' ' || count(arrival) || count(batch) || count(waited_for) || "
                "count(rate) || count(reason) FROM push"),
        "3 00000");
    assert_string_equal(rig_ask("SELECT group_concat(outcome, ' ') FROM push"),
                        "applied dropped_stale dropped_late");
    assert_string_equal(rig_ask("SELECT code || coalesce(push_number, ' ?') FROM event"),
                        "worker_joined ?");
    assert_string_equal(rig_ask("SELECT pushes FROM staleness_histogram"), "1");
}

static void a_file_of_version_2_reads_as_the_present_one_and_is_not_changed(void **state)
{
    (void)state;
    char before[65];
    write_file_of("tests/results-version-2.sql");
    snprintf(before, sizeof before, "%s", rig_hash());
    assert_reads_as_version_3();
    assert_string_equal(rig_hash(), before);
}

static void a_file_of_version_2_is_brought_up_to_date_by_the_first_writer(void **state)
{
    (void)state;
    static const char *const columns =
        "SELECT group_concat(m.name || '.' || c.name || ' ' || c.hidden, ',') FROM "
        "(SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name) m, "
        "pragma_table_xinfo(m.name) c WHERE m.name IN ('push_packed', 'event', 'step')";
    int64_t id;
    write_file_of("tests/results-version-2.sql");
    recorder *r = rig_begin(&rig_run, &id);
    for (uint64_t i = 0; i <= PUSH_BAD_UPDATE; i++) {
        struct push_record p = rig_push(i);
        p.reason = (enum push_reason)i;
        recorder_push(r, &p);
    }
    rig_finish(r, &rig_outcome);
    assert_string_equal(rig_in_the_file("PRAGMA user_version"), "6");
    assert_string_equal(rig_in_the_file("PRAGMA integrity_check"), "ok");
    assert_string_equal(rig_in_the_file(columns), in_a_new_file(columns));
    assert_string_equal(
        rig_in_the_file("SELECT group_concat(reason, ' ') FROM push WHERE run_id = 2"),
        "damping consistency after_end worker_lost run_ended run_diverged gradient "
        "loss update");
    rig_change("PRAGMA foreign_keys = ON; DELETE FROM run WHERE id = 2");
    assert_reads_as_version_3();
}

/* The steps are there, and where their time went in later versions' parts is not known. */
static void assert_reads_as_version_4(void)
{
    assert_string_equal(
        rig_ask("SELECT count(*) || ' ' || count(compute_us) || ' ' || count(data_us) || "
                "count(forward_us) || count(backward_us) || count(hidden_us) || count(staleness) "
                "FROM step"),
        "6 6 00000");
    assert_string_equal(rig_ask("SELECT group_concat(steps || ' ' || (step_us > 0) || ' ' || "
                                "coalesce(hidden_us, '?')) FROM where_time_goes"),
                        "3 1 ?,3 1 ?");
    assert_string_equal(rig_ask("SELECT mean_staleness FROM run_summary WHERE id = 1"), "0.0");
}

static void a_file_of_version_3_reads_as_the_present_one_and_is_not_changed(void **state)
{
    (void)state;
    char before[65];
    write_file_of("tests/results-version-3.sql");
    snprintf(before, sizeof before, "%s", rig_hash());
    assert_reads_as_version_4();
    assert_string_equal(rig_hash(), before);
}

static void a_file_of_version_3_is_brought_up_to_date_by_the_first_writer(void **state)
{
    (void)state;
    static const char *const columns =
        "SELECT group_concat(name || ' ' || type, ',') FROM pragma_table_xinfo('step')";
    static const char *const step =
        "SELECT data_us || ' ' || forward_us || ' ' || backward_us || "
        "' ' || hidden_us || ' ' || staleness FROM step WHERE run_id = 2";
    int64_t id;
    write_file_of("tests/results-version-3.sql");
    recorder *r = rig_begin(&rig_run, &id);
    recorder_step(r, &(struct step_record){.update_version = 1,
                                           .data_us = 1,
                                           .forward_us = 2,
                                           .backward_us = 3,
                                           .hidden_us = 4,
                                           .staleness = 5});
    rig_finish(r, &rig_outcome);
    assert_string_equal(rig_in_the_file("PRAGMA user_version"), "6");
    assert_string_equal(rig_in_the_file("PRAGMA integrity_check"), "ok");
    assert_string_equal(rig_in_the_file(columns), in_a_new_file(columns));
    assert_string_equal(rig_in_the_file(step), "1.0 2.0 3.0 4.0 5");
    rig_change("PRAGMA foreign_keys = ON; DELETE FROM run WHERE id = 2");
    assert_reads_as_version_4();
}

/* Every column of a row of push, to the last bit. */
static const char *push_row(const char *(*ask)(const char *), int number)
{
    char sql[1024];
    snprintf(sql, sizeof sql,
             "SELECT quote(update_version) || quote(worker) || quote(sequence) || "
             "quote(read_version) || quote(staleness) || quote(scale) || quote(gap) || "
             "quote(gradient_norm) || quote(loss) || quote(outcome_code) || quote(pull_us) || "
             "quote(compute_us) || quote(queue_us) || quote(apply_us) || quote(at_seconds) || "
             "quote(not_a_number) || quote(outcome) || quote(arrival) || quote(batch) || "
             "quote(waited_for) || quote(rate) || quote(reason_code) || quote(reason) || "
             "quote(cosine) || quote(momentum) || quote(total_momentum) || quote(server) "
             "FROM push WHERE run_id = 1 AND number = %d",
             number);
    return ask(sql);
}

static void a_file_of_version_4_keeps_every_bit_of_its_pushes(void **state)
{
    (void)state;
    enum { ROWS = 6 };
    char before[ROWS][512], views[512];
    int64_t id;
    static const char *const asked =
        "SELECT (SELECT group_concat(run_id || ':' || staleness || ':' || pushes || ':' || "
        "mean_scale, ' ') FROM (SELECT * FROM staleness_histogram ORDER BY run_id, staleness)) || "
        "(SELECT group_concat(run_id || ':' || worker || ':' || steps || ':' || step_us, ' ') FROM "
        "(SELECT * FROM where_time_goes ORDER BY run_id, worker, step_us))";
    static const char *const unknown =
        "SELECT count(*) || ' ' || count(data_us) || ' ' || (SELECT count(*) FROM pass) || ' ' || "
        "(SELECT count(took_seconds) FROM evaluation) FROM push";
    write_file_of("tests/results-version-4.sql");
    for (int i = 0; i < ROWS; i++) {
        snprintf(before[i], sizeof before[i], "%s", push_row(rig_in_the_file, i));
        assert_string_equal(push_row(rig_ask, i), before[i]);
    }
    snprintf(views, sizeof views, "%s", rig_in_the_file(asked));
    assert_string_equal(rig_ask(asked), views);
    assert_string_equal(rig_ask(unknown), "7 0 0 0");
    rig_finish(rig_begin(&rig_run, &id), &rig_outcome);
    assert_string_equal(rig_in_the_file("PRAGMA user_version"), "6");
    assert_string_equal(rig_in_the_file("PRAGMA integrity_check"), "ok");
    for (int i = 0; i < ROWS; i++) {
        assert_string_equal(push_row(rig_in_the_file, i), before[i]);
    }
    assert_string_equal(rig_in_the_file(asked), views);
    assert_string_equal(rig_in_the_file(unknown), "7 0 0 0");
    assert_string_equal(rig_ask("SELECT group_concat(id || ':' || coalesce(summarized, '-'), ' ') "
                                "FROM run"),
                        "1:1 2:- 3:1");
    assert_string_equal(rig_ask("SELECT count(*) FROM push WHERE run_id = 2"), "1");
}

/* Version 5 is the present one without two columns. */
static void write_version_5(void)
{
    int64_t id;
    recorder *r = rig_begin(&rig_run, &id);
    recorder_evaluation(
        r, &(struct evaluation_record){.updates = 1, .test_accuracy = 0.25, .top_class_share = 1});
    rig_finish(r, &rig_outcome);
    rig_change("DROP VIEW accuracy_by_workers; DROP VIEW run_summary; DROP VIEW run_with_settings;"
               "ALTER TABLE run DROP COLUMN collapsed;"
               "ALTER TABLE evaluation DROP COLUMN top_class_share;"
               "PRAGMA user_version = 5");
}

static void a_file_of_version_5_is_read_and_brought_up_to_date(void **state)
{
    (void)state;
    static const char *const asked =
        "SELECT coalesce(collapsed, '-') || (SELECT coalesce(top_class_share, '-') || took_seconds "
        "FROM evaluation WHERE run_id = 1) || (SELECT seeds FROM accuracy_by_workers) FROM run "
        "WHERE id = 1";
    int64_t id;
    char before[65];
    write_version_5();
    snprintf(before, sizeof before, "%s", rig_hash());
    assert_string_equal(rig_ask(asked), "--0.01");
    assert_string_equal(rig_hash(), before);
    rig_finish(rig_begin(&rig_run, &id), &rig_outcome);
    assert_string_equal(rig_in_the_file("PRAGMA user_version"), "6");
    assert_string_equal(rig_ask(asked), "--0.02");
    assert_string_equal(
        rig_in_the_file("SELECT group_concat(name, ' ') FROM pragma_table_info('run')"),
        in_a_new_file("SELECT group_concat(name, ' ') FROM pragma_table_info('run')"));
}

/* ---- files from elsewhere -----------------------------------------------------------------------
 */

static void a_columns_name_is_never_run_as_sql(void **state)
{
    (void)state;
    char sql[512], evil[128];
    struct stat about;
    snprintf(evil, sizeof evil, "%s/evil.db", rig_folder);
    write_file_of("tests/results-version-1.sql");
    snprintf(
        sql, sizeof sql,
        "ALTER TABLE run ADD COLUMN \"id FROM main.run; ATTACH '%s' AS e; CREATE TABLE e.t (a);"
        " SELECT id\" TEXT",
        evil);
    rig_change(sql);
    assert_string_equal(rig_ask("SELECT count(*) FROM run"), "2");
    assert_int_not_equal(stat(evil, &about), 0);
}

static void a_gradient_with_an_outcome_that_does_not_exist_is_refused(void **state)
{
    (void)state;
    static const char *const changes[] = {"UPDATE push_packed SET worker = 1000",
                                          "UPDATE push_packed SET worker = 0, fate = 77"};
    struct recorded_run run;
    recorder *r = NULL;
    for (size_t i = 0; i < COUNT_OF(changes); i++) {
        int64_t id;
        char name[24];
        r = rig_begin(&rig_run, &id);
        struct push_record push = rig_push(0);
        recorder_push(r, &push);
        rig_finish(r, &rig_outcome);
        snprintf(name, sizeof name, "%lld", (long long)id);
        assert_int_equal(recorded_run_read(&run, rig_path, name), OK);
        assert_int_equal(run.push_count, 1);
        recorded_run_free(&run);
        rig_change(changes[i]);
        assert_int_equal(recorded_run_read(&run, rig_path, name), ERROR_RESULTS);
        rig_assert_error_says("the file is damaged");
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        RIG_TEST(a_file_of_version_1_reads_as_the_present_one_and_is_not_changed),
        RIG_TEST(a_file_of_version_1_is_brought_up_to_date_by_the_first_writer),
        RIG_TEST(a_file_of_version_2_reads_as_the_present_one_and_is_not_changed),
        RIG_TEST(a_file_of_version_2_is_brought_up_to_date_by_the_first_writer),
        RIG_TEST(a_file_of_version_3_reads_as_the_present_one_and_is_not_changed),
        RIG_TEST(a_file_of_version_3_is_brought_up_to_date_by_the_first_writer),
        RIG_TEST(a_file_of_version_4_keeps_every_bit_of_its_pushes),
        RIG_TEST(a_file_of_version_5_is_read_and_brought_up_to_date),
        RIG_TEST(a_columns_name_is_never_run_as_sql),
        RIG_TEST(a_gradient_with_an_outcome_that_does_not_exist_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
