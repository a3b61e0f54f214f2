/* Opening files: refused files, locks, permissions, killed writers, owners of runs. */
#include "base/log.h"
#include "tests/results/results_rig.h"

#include "results/query/live_runs.h"
#include "results/query/query.h"
#include "results/run_queue.h"
#include "results/query/push_reader.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static void write_bytes(const char *bytes)
{
    FILE *file = fopen(rig_path, "wb");
    assert_non_null(file);
    fputs(bytes, file);
    assert_int_equal(fclose(file), 0);
}

/* A recorder and a query refuse the file, name it and `value`, and do not change it. */
static void assert_refused(const char *value)
{
    recorder *r = NULL;
    double count;
    bool known;
    char before[65];
    snprintf(before, sizeof before, "%s", rig_hash());
    assert_int_equal(recorder_open(&r, rig_path), ERROR_RESULTS);
    assert_null(r);
    rig_assert_error_names(rig_path);
    rig_assert_error_names(value);
    assert_int_equal(query_number(rig_path, "SELECT 1", NULL, 0, &count, &known), ERROR_RESULTS);
    rig_assert_error_names(rig_path);
    rig_assert_error_names(value);
    assert_string_equal(rig_hash(), before);
    assert_false(rig_exists("-wal"));
}

static void a_file_that_is_not_sqlite_is_refused_and_not_changed(void **state)
{
    (void)state;
    char text[4096];
    memset(text, 'x', sizeof text - 1);
    text[sizeof text - 1] = '\0';
    write_bytes(text);
    assert_refused(rig_path);
    write_bytes("short");
    assert_refused(rig_path);
}

static void another_programs_database_is_refused_and_not_changed(void **state)
{
    (void)state;
    rig_change("CREATE TABLE run (id)");
    assert_refused(rig_path);
    rig_change("PRAGMA application_id = 77");
    assert_refused("0x0000004d");
}

static void a_file_of_another_version_is_refused_and_not_changed(void **state)
{
    (void)state;
    static const char *const versions[] = {"0", "2", "4711", "-1"};
    recorder *r = NULL;
    assert_int_equal(recorder_open(&r, rig_path), OK);
    recorder_close(&r);
    for (size_t i = 0; i < COUNT_OF(versions); i++) {
        char sql[64];
        snprintf(sql, sizeof sql, "PRAGMA user_version = %s", versions[i]);
        rig_change(sql);
        assert_refused(versions[i]);
    }
}

static void an_empty_file_becomes_a_results_file(void **state)
{
    (void)state;
    recorder *r = NULL;
    write_bytes("");
    assert_int_equal(recorder_open(&r, rig_path), OK);
    recorder_close(&r);
    assert_string_equal(rig_ask("SELECT application_id || ' ' || user_version FROM "
                                "pragma_application_id, pragma_user_version"),
                        "1196188007 1");
    assert_string_equal(rig_ask("PRAGMA journal_mode"), "wal");
}

static void every_table_is_strict_and_has_rowids(void **state)
{
    (void)state;
    recorder *r = NULL;
    assert_int_equal(recorder_open(&r, rig_path), OK);
    recorder_close(&r);
    assert_string_equal(rig_ask("SELECT count(*) || ' ' || sum(strict) || ' ' || sum(wr) FROM "
                                "pragma_table_list WHERE schema = 'main' AND type = 'table' "
                                "AND name NOT LIKE 'sqlite%'"),
                        "9 9 0");
}

static void a_row_without_its_run_is_refused(void **state)
{
    (void)state;
    static const char sql[] = "INSERT INTO checkpoint (run_id, version, path) VALUES (7, 1, 'a')";
    sqlite3 *db = NULL;
    assert_int_equal(database_open(&db, rig_path), OK);
    assert_int_equal(database_execute(db, sql, "add a row"), ERROR_RESULTS);
    rig_change("INSERT INTO run (id, uuid, mode, workers, status) "
               "VALUES (7, 'a', 'async', 1, 'finished')");
    assert_int_equal(database_execute(db, sql, "add a row"), OK);
    database_close(&db);
}

static void an_error_names_a_missing_folder(void **state)
{
    (void)state;
    recorder *r = NULL;
    double count;
    bool known;
    assert_int_equal(recorder_open(&r, "/nowhere/at/all/results.db"), ERROR_RESULTS);
    rig_assert_error_names("/nowhere/at/all/");
    assert_int_equal(query_number(rig_path, "SELECT 1", NULL, 0, &count, &known), ERROR_RESULTS);
    rig_assert_error_names(rig_path);
    assert_false(rig_exists(""));
}

static void a_folder_is_not_a_results_file(void **state)
{
    (void)state;
    recorder *r = NULL;
    assert_int_equal(recorder_open(&r, rig_folder), ERROR_RESULTS);
    rig_assert_error_names(rig_folder);
}

static void an_error_names_a_file_that_stays_locked(void **state)
{
    (void)state;
    sqlite3 *holder = NULL, *waiter = NULL;
    assert_int_equal(database_open(&holder, rig_path), OK);
    assert_int_equal(database_open(&waiter, rig_path), OK);
    assert_int_equal(database_execute(holder, "BEGIN IMMEDIATE", "hold"), OK);
    sqlite3_busy_timeout(waiter, 20);
    assert_int_equal(database_execute(waiter, "BEGIN IMMEDIATE", "record rows"), ERROR_RESULTS);
    rig_assert_error_names(rig_path);
    database_rollback(holder);
    assert_int_equal(database_execute(waiter, "BEGIN IMMEDIATE", "record rows"), OK);
    database_rollback(waiter);
    database_close(&holder);
    database_close(&waiter);
}

static void a_full_disk_is_recognised(void **state)
{
    (void)state;
    sqlite3 *db = NULL;
    assert_int_equal(database_open(&db, rig_path), OK);
    assert_int_equal(database_execute(db, "PRAGMA max_page_count = 1", "limit"), OK);
    assert_int_equal(database_execute(db, "CREATE TABLE t (a); INSERT INTO t VALUES (1)", "fill"),
                     ERROR_RESULTS);
    assert_true(database_is_full(db));
    database_close(&db);
}

/* ---- in a child: permissions and limits --------------------------------------------------------
 */

enum { NOBODY = 65534, NO_OTHER_USER = 99 };
static bool folder_is_public;

/* Runs `body` in a child that is not root; 0 means success. Skips the test in a container whose
 * only user is root. */
static void assert_child_succeeds(int (*body)(void))
{
    int how;
    assert_int_equal(chmod(rig_folder, folder_is_public ? 0777 : 0755), 0);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        if (geteuid() == 0 && setuid(NOBODY) != 0)
            _exit(NO_OTHER_USER);
        _exit(body());
    }
    assert_int_equal(waitpid(child, &how, 0), child);
    assert_true(WIFEXITED(how));
    if (WEXITSTATUS(how) == NO_OTHER_USER) {
        print_message("skipped: this container has no user but root\n");
        skip();
    }
    assert_int_equal(WEXITSTATUS(how), 0);
}

static int open_read_only(void)
{
    recorder *r = NULL;
    if (recorder_open(&r, rig_path) != ERROR_RESULTS)
        return 1;
    return strstr(error_message(), rig_path) == NULL;
}

static int open_in_a_read_only_folder(void)
{
    recorder *r = NULL;
    if (recorder_open(&r, rig_path) != ERROR_RESULTS)
        return 1;
    if (strstr(error_message(), rig_path) == NULL)
        return 2;
    return recorder_open(&r, "/no/such/folder/results.db") != ERROR_RESULTS ||
           strstr(error_message(), "/no/such/folder/") == NULL;
}

static void an_error_names_a_folder_without_write_permission(void **state)
{
    (void)state;
    assert_child_succeeds(open_in_a_read_only_folder);
}

static int read_read_only(void)
{
    double value;
    bool known;
    if (query_number(rig_path, "SELECT count(*) FROM run", NULL, 0, &value, &known) != OK) {
        log_error("%s", error_message());
        return 1;
    }
    return known && value == 1 ? 0 : 2;
}

static void a_read_only_file_can_be_read_but_not_recorded_into(void **state)
{
    (void)state;
    int64_t id;
    rig_finish(rig_begin(&rig_run, &id), &rig_outcome);
    assert_int_equal(chmod(rig_path, 0444), 0);
    assert_child_succeeds(open_read_only);
    assert_int_equal(chmod(rig_folder, 0555), 0);
    assert_child_succeeds(read_read_only);
    assert_int_equal(chmod(rig_folder, 0755), 0);
}

static int read_and_fail_to_record(void)
{
    return read_read_only() != 0 ? 1 : open_read_only() != 0 ? 2 : 0;
}

static int record_again(void)
{
    int64_t id;
    recorder *r = NULL;
    if (recorder_open(&r, rig_path) != OK || recorder_begin(r, &rig_run, "running", &id) != OK ||
        recorder_finish(r, &rig_outcome) != OK) {
        log_error("%s", error_message());
        return 1;
    }
    recorder_close(&r);
    return 0;
}

/* A file beside it would have the permissions of the results file, and block it after a chmod. */
static void no_file_is_left_beside_a_read_only_file(void **state)
{
    (void)state;
    int64_t id;
    char odd[128], kept[sizeof rig_path];
    memcpy(kept, rig_path, sizeof kept);
    rig_finish(rig_begin(&rig_run, &id), &rig_outcome);
    snprintf(odd, sizeof odd, "%s/a?b#c%%41.db", rig_folder);
    assert_int_equal(rename(rig_path, odd), 0);
    snprintf(rig_path, sizeof rig_path, "%s", odd);
    assert_int_equal(chmod(rig_path, 0444), 0);
    folder_is_public = true;
    assert_child_succeeds(read_and_fail_to_record);
    assert_false(rig_exists("-shm"));
    assert_false(rig_exists("-wal"));
    assert_int_equal(chmod(rig_path, 0666), 0);
    assert_child_succeeds(record_again);
    folder_is_public = false;
    memcpy(rig_path, kept, sizeof kept);
}

/* No byte can be written, as on a full disk: a reader cannot make its -shm file. */
static int read_on_a_full_disk(void)
{
    const struct rlimit none = {0};
    signal(SIGXFSZ, SIG_IGN);
    return setrlimit(RLIMIT_FSIZE, &none) != 0 ? 3 : read_read_only();
}

static void a_closed_file_can_be_read_on_a_full_disk(void **state)
{
    (void)state;
    int64_t id;
    rig_finish(rig_begin(&rig_run, &id), &rig_outcome);
    assert_int_equal(chmod(rig_path, 0666), 0);
    folder_is_public = true;
    assert_child_succeeds(read_on_a_full_disk);
    folder_is_public = false;
}

/* Limits files of this process to 200 KiB, to simulate a full disk. */
static int record_more_than_fits(void)
{
    int64_t id;
    recorder *r = NULL;
    struct rlimit limit = {.rlim_cur = 200 << 10, .rlim_max = 200 << 10};
    assert_non_null(freopen("/dev/null", "w", stderr)); /* without warnings of a full disk */
    signal(SIGXFSZ, SIG_IGN);
    if (recorder_open(&r, rig_path) != OK || recorder_begin(r, &rig_run, "running", &id) != OK ||
        setrlimit(RLIMIT_FSIZE, &limit) != 0)
        return 1;
    for (uint64_t i = 0; i < 20000; i++) {
        struct push_record p = rig_push(i);
        recorder_push(r, &p);
    }
    recorder_event(r, 1, SEVERITY_INFO, "after", -1, "recorded after the error");
    if (recorder_finish(r, &rig_outcome) != ERROR_RESULTS)
        return 3;
    if (strstr(error_message(), rig_path) == NULL)
        return 4;
    recorder_close(&r);
    return 0;
}

static void a_run_with_a_failed_write_is_not_finished(void **state)
{
    (void)state;
    assert_int_equal(chmod(rig_folder, 0777), 0);
    int how;
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0)
        _exit(record_more_than_fits());
    assert_int_equal(waitpid(child, &how, 0), child);
    assert_true(WIFEXITED(how));
    assert_int_equal(WEXITSTATUS(how), 0);
    assert_string_equal(rig_ask("SELECT status <> 'finished' FROM run"), "1");
    assert_string_equal(rig_ask("PRAGMA integrity_check"), "ok");
}

/* Runs `body` in a child, which then kills itself, and waits for the child. */
static void kill_after(void (*body)(void))
{
    int how;
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        body();
        kill(getpid(), SIGKILL);
    }
    assert_int_equal(waitpid(child, &how, 0), child);
    assert_true(WIFSIGNALED(how));
}

static void begin_a_run(void)
{
    int64_t id;
    (void)rig_begin(&rig_run, &id);
}

static void begin_a_run_in_a_file_of_version_9(void)
{
    begin_a_run();
    rig_change("PRAGMA user_version = 9");
}

/* When the last connection closes, SQLite would move the rows into the file. */
static void a_refused_file_keeps_the_wal_file_of_a_killed_writer(void **state)
{
    (void)state;
    recorder *r = NULL;
    double count;
    bool known;
    char before[65];
    kill_after(begin_a_run_in_a_file_of_version_9);
    assert_true(rig_exists("-wal"));
    snprintf(before, sizeof before, "%s", rig_hash());
    assert_int_equal(recorder_open(&r, rig_path), ERROR_RESULTS);
    assert_int_equal(query_number(rig_path, "SELECT 1", NULL, 0, &count, &known), ERROR_RESULTS);
    assert_string_equal(rig_hash(), before);
    assert_string_equal(rig_in_the_file("SELECT count(*) FROM run"), "1");
}

/* A reader builds a view from the column names of table run. */
static void a_column_name_is_never_run_as_sql(void **state)
{
    (void)state;
    char sql[512], evil[128];
    struct stat about;
    kill_after(begin_a_run);
    snprintf(evil, sizeof evil, "%s/evil.db", rig_folder);
    snprintf(
        sql, sizeof sql,
        "ALTER TABLE run ADD COLUMN \"id FROM main.run; ATTACH '%s' AS e; CREATE TABLE e.t (a);"
        " SELECT id\" TEXT",
        evil);
    rig_change(sql);
    assert_string_equal(rig_ask("SELECT count(*) || status FROM run"), "1failed");
    assert_int_not_equal(stat(evil, &about), 0);
}

static void a_queued_run_is_taken_once(void **state)
{
    (void)state;
    queue *q = NULL;
    struct queue_entry entry;
    const struct queue_request request = {
        .key = {.config_hash = rig_run.config_hash}, .run = &rig_run, .attempt = 1};
    bool taken = false;
    assert_int_equal(queue_open(&q, rig_path), OK);
    assert_int_equal(queue_add(q, &request, &entry), OK);
    assert_int_equal(queue_commit(q), OK);
    queue_close(&q);
    assert_int_equal(queue_take(rig_path, entry.id, "{\"cpu\": \"first\"}", &taken), OK);
    assert_true(taken);
    assert_int_equal(queue_take(rig_path, entry.id, "{\"cpu\": \"second\"}", &taken), OK);
    assert_false(taken);
    assert_string_equal(rig_ask("SELECT host ->> '$.cpu' FROM run"), "first");
}

/* A reader may open the file before its tables are created. */
static void a_file_that_is_being_created_has_no_runs(void **state)
{
    (void)state;
    struct live_runs seen;
    assert_int_equal(live_runs_read(&seen, rig_path, 5), OK);
    assert_false(seen.there);
    rig_change("PRAGMA journal_mode = WAL");
    assert_int_equal(live_runs_read(&seen, rig_path, 5), OK);
    assert_false(seen.there);
    int64_t id;
    recorder *r = rig_begin(&rig_run, &id);
    assert_int_equal(live_runs_read(&seen, rig_path, 5), OK);
    assert_true(seen.there && seen.running_count == 1);
    live_runs_free(&seen);
    rig_finish(r, &rig_outcome);
}

static void a_reader_moves_the_rows_of_a_killed_writer_into_the_file(void **state)
{
    (void)state;
    kill_after(begin_a_run);
    assert_true(rig_exists("-wal"));
    assert_string_equal(rig_ask("SELECT count(*) FROM run"), "1");
    assert_false(rig_exists("-wal"));
}

static int read_without_the_last_rows(void)
{
    char log[1024] = "", wal[128];
    FILE *errors = tmpfile();
    double value;
    bool known;
    (void)!chmod(
        rig_folder,
        0555); /* fails if this process is not the owner; then it has no write permission */
    if (errors == NULL || dup2(fileno(errors), STDERR_FILENO) < 0 ||
        query_number(rig_path, "SELECT count(*) FROM sqlite_master", NULL, 0, &value, &known) != OK)
        return 1;
    rewind(errors);
    (void)!fread(log, 1, sizeof log - 1, errors);
    snprintf(wal, sizeof wal, "%s-wal", rig_path);
    return strstr(log, wal) == NULL ? 2 : 0;
}

/* In a read-only folder the reader cannot create -shm, so it cannot read -wal. */
static void a_reader_warns_of_rows_that_it_cannot_read(void **state)
{
    (void)state;
    int64_t id;
    char shm[128];
    rig_finish(rig_begin(&rig_run, &id), &rig_outcome);
    kill_after(begin_a_run);
    assert_true(rig_exists("-wal"));
    snprintf(shm, sizeof shm, "%s-shm", rig_path);
    assert_int_equal(unlink(shm), 0);
    assert_child_succeeds(read_without_the_last_rows);
    assert_int_equal(chmod(rig_folder, 0755), 0);
}

static const char names_process[] =
    "SELECT instr(error, 'process ' || (runner ->> '$.pid')) > 0 FROM run";

static void a_killed_run_reads_as_failed_and_the_next_writer_stores_that(void **state)
{
    (void)state;
    recorder *r = NULL;
    kill_after(begin_a_run);
    assert_string_equal(rig_ask("SELECT status FROM run"), "failed");
    assert_string_equal(rig_ask("SELECT status FROM run_summary"), "failed");
    assert_string_equal(rig_ask(names_process), "1");
    assert_string_equal(rig_in_the_file("SELECT status FROM run"), "running");
    assert_int_equal(recorder_open(&r, rig_path), OK);
    recorder_close(&r);
    assert_string_equal(rig_in_the_file("SELECT status FROM run"), "failed");
    assert_string_equal(rig_in_the_file("SELECT finished_at IS NOT NULL FROM run"), "1");
    assert_string_equal(rig_in_the_file(names_process), "1");
}

static void a_run_of_another_host_or_container_is_not_changed(void **state)
{
    (void)state;
    int64_t id;
    recorder *mine = rig_begin(&rig_run, &id); /* its owner, this process, lives */
    assert_string_equal(rig_ask("SELECT status FROM run"), "running");
    rig_finish(mine, &rig_outcome);
    kill_after(begin_a_run);
    static const char *const elsewhere[] = {
        "UPDATE run SET runner = json_set(runner, '$.host', 'another') WHERE id = 2",
        "UPDATE run SET runner = json_set(runner, '$.namespace', 'pid:[1]') WHERE id = 2",
        "UPDATE run SET runner = NULL WHERE id = 2",
    };
    for (size_t i = 0; i < COUNT_OF(elsewhere); i++) {
        char before[256];
        snprintf(before, sizeof before, "%s",
                 rig_in_the_file("SELECT runner FROM run WHERE id = 2"));
        rig_change(elsewhere[i]);
        assert_string_equal(rig_ask("SELECT status FROM run WHERE id = 2"), "running");
        char back[512];
        snprintf(back, sizeof back, "UPDATE run SET runner = '%s' WHERE id = 2", before);
        rig_change(back);
    }
    rig_change("UPDATE run SET runner = json_set(runner, '$.boot', 'before') WHERE id = 2");
    assert_string_equal(
        rig_ask("SELECT status || (instr(error, runner ->> '$.host') > 0) FROM run WHERE id = 2"),
        "failed1");
}

static void a_run_of_another_host_without_progress_for_an_hour_is_lost(void **state)
{
    (void)state;
    recorder *r = NULL;
    kill_after(begin_a_run);
    rig_change(
        "UPDATE run SET runner = json_set(runner, '$.host', 'another'),"
        " progress = json_object('at', strftime('%Y-%m-%dT%H:%M:%fZ', 'now', '-50 minutes'))");
    assert_string_equal(rig_ask("SELECT status FROM run"), "running");
    rig_change("UPDATE run SET progress = NULL,"
               " started_at = strftime('%Y-%m-%dT%H:%M:%fZ', 'now', '-180 minutes')");
    assert_string_equal(rig_ask("SELECT status FROM run"), "failed");
    assert_string_equal(rig_ask("SELECT instr(error, started_at) > 0 FROM run"), "1");
    assert_int_equal(recorder_open(&r, rig_path), OK);
    recorder_close(&r);
    assert_string_equal(rig_in_the_file("SELECT status FROM run"), "failed");
}

static void a_later_process_with_the_same_number_is_not_the_owner(void **state)
{
    (void)state;
    int64_t id;
    recorder *r = rig_begin(&rig_run, &id);
    recorder_close(&r);
    assert_string_equal(rig_ask("SELECT status FROM run"), "running");
    rig_change("UPDATE run SET runner = json_set(runner, '$.started', 12345)");
    assert_string_equal(rig_ask("SELECT status FROM run"), "failed");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        RIG_TEST(a_file_that_is_not_sqlite_is_refused_and_not_changed),
        RIG_TEST(another_programs_database_is_refused_and_not_changed),
        RIG_TEST(a_file_of_another_version_is_refused_and_not_changed),
        RIG_TEST(an_empty_file_becomes_a_results_file),
        RIG_TEST(every_table_is_strict_and_has_rowids),
        RIG_TEST(a_row_without_its_run_is_refused),
        RIG_TEST(an_error_names_a_missing_folder),
        RIG_TEST(a_folder_is_not_a_results_file),
        RIG_TEST(an_error_names_a_file_that_stays_locked),
        RIG_TEST(a_full_disk_is_recognised),
        RIG_TEST(an_error_names_a_folder_without_write_permission),
        RIG_TEST(a_read_only_file_can_be_read_but_not_recorded_into),
        RIG_TEST(no_file_is_left_beside_a_read_only_file),
        RIG_TEST(a_closed_file_can_be_read_on_a_full_disk),
        RIG_TEST(a_run_with_a_failed_write_is_not_finished),
        RIG_TEST(a_refused_file_keeps_the_wal_file_of_a_killed_writer),
        RIG_TEST(a_column_name_is_never_run_as_sql),
        RIG_TEST(a_queued_run_is_taken_once),
        RIG_TEST(a_file_that_is_being_created_has_no_runs),
        RIG_TEST(a_reader_moves_the_rows_of_a_killed_writer_into_the_file),
        RIG_TEST(a_reader_warns_of_rows_that_it_cannot_read),
        RIG_TEST(a_killed_run_reads_as_failed_and_the_next_writer_stores_that),
        RIG_TEST(a_run_of_another_host_or_container_is_not_changed),
        RIG_TEST(a_run_of_another_host_without_progress_for_an_hour_is_lost),
        RIG_TEST(a_later_process_with_the_same_number_is_not_the_owner),
    };
    umask(022); /* other users must be able to read the files of these tests */
    return cmocka_run_group_tests(tests, NULL, NULL);
}
