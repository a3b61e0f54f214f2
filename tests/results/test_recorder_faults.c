/* The results file cannot be written, for a while or for ever: committed rows stay, waiting rows
 * are written as soon as possible, and the error callback is called once. */
#include "base/clock.h"
#include "tests/results/results_rig.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

enum { ROWS = 20000, ROOM = 400 * 1024 };

static atomic_uint errors; /* calls of the error callback */

static void note_error(void *context)
{
    (void)context;
    errors++;
}

static recorder *begin(bool with_callback, int64_t *id)
{
    recorder *r = NULL;
    errors = 0;
    assert_int_equal(recorder_open(&r, rig_path), OK);
    if (with_callback)
        recorder_on_error(r, note_error, NULL);
    assert_int_equal(recorder_begin(r, &rig_run, "running", id), OK);
    return r;
}

static void push(recorder *r, uint64_t from, uint64_t to)
{
    for (uint64_t i = from; i < to; i++) {
        struct push_record p = rig_push(i);
        recorder_push(r, &p);
    }
}

/* Limits the size of files, to simulate a full disk. RLIM_INFINITY removes the limit. */
static void limit_files(rlim_t bytes)
{
    struct rlimit limit;
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &limit), 0);
    limit.rlim_cur = bytes < limit.rlim_max ? bytes : limit.rlim_max;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
}

/* Removes the limit first, for the case that a test failed. */
static int remove_folder(void **state)
{
    limit_files(RLIM_INFINITY);
    return rig_remove_folder(state);
}
#define FAULT_TEST(name) cmocka_unit_test_setup_teardown(name, rig_make_folder, remove_folder)

static void await_errors(unsigned wanted)
{
    for (int i = 0; i < 200 && errors < wanted; i++)
        clock_sleep_until_ns(clock_ns() + 50000000);
    assert_int_equal(errors, wanted);
}

static void assert_no_row_is_missing(void)
{
    assert_string_equal(rig_in_the_file("PRAGMA integrity_check"), "ok");
    assert_string_equal(rig_in_the_file("SELECT count(*) = coalesce(max(number) + 1, 0) AND "
                                        "count(*) = sum(update_version = number + 1) FROM push"),
                        "1");
}

static void rows_wait_while_the_disk_is_full_and_none_is_lost(void **state)
{
    (void)state;
    int64_t id;
    char count[16];
    recorder *r = begin(true, &id);
    limit_files(ROOM);
    push(r, 0, ROWS);
    await_errors(1);
    push(r, ROWS, ROWS + 100);
    limit_files(RLIM_INFINITY);
    assert_int_equal(recorder_finish(r, &rig_outcome), OK);
    recorder_close(&r);
    snprintf(count, sizeof count, "%d", ROWS + 100);
    assert_string_equal(rig_in_the_file("SELECT count(*) FROM push"), count);
    assert_no_row_is_missing();
    assert_string_equal(rig_ask("SELECT status FROM run"), "finished");
    assert_int_equal(errors, 1);
}

static void if_the_disk_stays_full_only_uncommitted_rows_are_lost(void **state)
{
    (void)state;
    int64_t id;
    bool changed;
    recorder *r = begin(true, &id);
    push(r, 0, 1000);
    for (int i = 0; i < 100 && atoi(rig_ask("SELECT count(*) FROM push")) < 1000; i++)
        clock_sleep_until_ns(clock_ns() + 50000000);
    limit_files(ROOM);
    push(r, 1000, ROWS);
    await_errors(1);
    assert_int_equal(recorder_finish(r, &rig_outcome), ERROR_RESULTS);
    rig_assert_error_names(rig_path);
    recorder_close(&r);
    limit_files(RLIM_INFINITY);
    assert_true(atoi(rig_ask("SELECT count(*) FROM push")) >= 1000);
    assert_no_row_is_missing();
    assert_int_equal(recorder_settle(rig_path, id, "failed", "the disk was full", &changed), OK);
    assert_string_equal(rig_ask("SELECT status FROM run"), "failed");
}

static void *make_room_after_half_a_second(void *unused UNUSED)
{
    clock_sleep_until_ns(clock_ns() + 500000000);
    limit_files(RLIM_INFINITY);
    return NULL;
}

/* All rows are in the file already. */
static void the_end_of_a_run_waits_for_disk_space_too(void **state)
{
    (void)state;
    int64_t id;
    pthread_t thread;
    recorder *r = begin(true, &id);
    push(r, 0, 10);
    for (int i = 0; i < 100 && atoi(rig_ask("SELECT count(*) FROM push")) < 10; i++)
        clock_sleep_until_ns(clock_ns() + 50000000);
    limit_files(1);
    assert_int_equal(pthread_create(&thread, NULL, make_room_after_half_a_second, NULL), 0);
    assert_int_equal(recorder_finish(r, &rig_outcome), OK);
    assert_int_equal(pthread_join(thread, NULL), 0);
    recorder_close(&r);
    assert_string_equal(rig_ask("SELECT status FROM run"), "finished");
}

/* The number of lines on stderr while so many rows are recorded. */
static unsigned lines_logged(recorder *r, uint64_t rows)
{
    char path[128];
    unsigned lines = 0;
    snprintf(path, sizeof path, "%s/log", rig_folder);
    fflush(stderr);
    const int kept = dup(STDERR_FILENO);
    FILE *log = fopen(path, "w+");
    assert_non_null(log);
    dup2(fileno(log), STDERR_FILENO);
    push(r, 0, rows);
    dup2(kept, STDERR_FILENO);
    close(kept);
    rewind(log);
    for (int c; (c = fgetc(log)) != EOF;)
        lines += c == '\n';
    fclose(log);
    return lines;
}

static void a_full_memory_after_a_full_disk_is_logged_before_rows_are_lost(void **state)
{
    (void)state;
    int64_t id;
    recorder *r = begin(false, &id);
    limit_files(ROOM);
    /* More rows than 256 MiB. One line: the disk is full. One line: rows are lost. */
    assert_int_equal(lines_logged(r, 1400000), 2);
    limit_files(RLIM_INFINITY);
    assert_int_equal(recorder_finish(r, &rig_outcome), ERROR_RESULTS);
    rig_assert_error_names(rig_path);
    recorder_close(&r);
}

/* ---- a lock -------------------------------------------------------------------------------------
 */

struct holder {
    pthread_t thread;
    double seconds;
    atomic_bool holds;
};

static void *hold(void *context)
{
    struct holder *h = context;
    sqlite3 *db = NULL;
    bool held =
        sqlite3_open(rig_path, &db) == SQLITE_OK && sqlite3_busy_timeout(db, 10000) == SQLITE_OK &&
        sqlite3_exec(db, "BEGIN EXCLUSIVE; DELETE FROM event", NULL, NULL, NULL) == SQLITE_OK;
    h->holds = held;
    clock_sleep_until_ns(clock_ns() + (uint64_t)(h->seconds * 1e9));
    held = held && sqlite3_exec(db, "COMMIT", NULL, NULL, NULL) == SQLITE_OK;
    sqlite3_close(db);
    return held ? h : NULL;
}

/* GRADLAG_LOCKED_S: how long the lock is held; 60 s in make nightly. */
static void rows_are_written_after_another_process_releases_its_lock(void **state)
{
    (void)state;
    int64_t id;
    char count[16];
    void *went_well = NULL;
    const char *set = getenv("GRADLAG_LOCKED_S");
    struct holder h = {.seconds = set != NULL ? atof(set) : 1.5};
    recorder *r = begin(true, &id);
    assert_int_equal(pthread_create(&h.thread, NULL, hold, &h), 0);
    while (!h.holds)
        clock_sleep_until_ns(clock_ns() + 5000000);
    uint64_t before = clock_ns();
    push(r, 0, ROWS);
    assert_true((double)(clock_ns() - before) <
                1e9 * h.seconds); /* recording did not wait for the lock */
    assert_int_equal(recorder_finish(r, &rig_outcome), OK);
    recorder_close(&r);
    assert_int_equal(pthread_join(h.thread, &went_well), 0);
    assert_ptr_equal(went_well, &h);
    snprintf(count, sizeof count, "%d", ROWS);
    assert_string_equal(rig_ask("SELECT count(*) FROM push"), count);
    assert_no_row_is_missing();
    assert_int_equal(errors, 0);
}

/* Rows arrive while the writer thread waits for a lock with earlier rows; then the disk is full. */
static void rows_keep_their_order_when_a_write_fails(void **state)
{
    (void)state;
    int64_t id;
    char count[16];
    struct holder h = {.seconds = 1};
    recorder *r = begin(true, &id);
    assert_int_equal(pthread_create(&h.thread, NULL, hold, &h), 0);
    while (!h.holds)
        clock_sleep_until_ns(clock_ns() + 5000000);
    push(r, 0, ROWS / 2);
    clock_sleep_until_ns(clock_ns() + 200000000);
    push(r, ROWS / 2, ROWS);
    limit_files(ROOM);
    await_errors(1);
    assert_int_equal(pthread_join(h.thread, NULL), 0);
    limit_files(RLIM_INFINITY);
    assert_int_equal(recorder_finish(r, &rig_outcome), OK);
    recorder_close(&r);
    snprintf(count, sizeof count, "%d", ROWS);
    assert_string_equal(rig_in_the_file("SELECT count(*) FROM push"), count);
    assert_no_row_is_missing();
}

/* ---- a deleted file ----------------------------------------------------------------------------
 */

static void a_deleted_file_is_an_error(void **state)
{
    (void)state;
    int64_t id;
    recorder *r = begin(true, &id);
    push(r, 0, 10);
    assert_int_equal(unlink(rig_path), 0);
    push(r, 10, ROWS);
    await_errors(1);
    assert_int_equal(recorder_finish(r, &rig_outcome), ERROR_RESULTS);
    rig_assert_error_names(rig_path);
    recorder_close(&r);
    assert_int_equal(recorder_settle(rig_path, id, "failed", NULL, NULL), ERROR_RESULTS);
    rig_assert_error_names(rig_path);
    assert_false(rig_exists(""));
}

static void a_file_that_was_renamed_after_the_last_row_is_an_error(void **state)
{
    (void)state;
    int64_t id;
    char elsewhere[128];
    recorder *r = begin(false, &id);
    snprintf(elsewhere, sizeof elsewhere, "%s/kept.db", rig_folder);
    assert_int_equal(rename(rig_path, elsewhere), 0);
    assert_int_equal(recorder_finish(r, &rig_outcome), ERROR_RESULTS);
    rig_assert_error_names(rig_path);
    recorder_close(&r);
}

static void a_read_only_file_is_refused_before_the_run(void **state)
{
    (void)state;
    recorder *r = NULL;
    int64_t id;
    rig_finish(begin(false, &id), &rig_outcome);
    assert_int_equal(chmod(rig_path, 0444), 0);
    if (access(rig_path, W_OK) == 0)
        skip(); /* root may write every file */
    assert_int_equal(recorder_open(&r, rig_path), ERROR_RESULTS);
    rig_assert_error_names(rig_path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        FAULT_TEST(rows_wait_while_the_disk_is_full_and_none_is_lost),
        FAULT_TEST(the_end_of_a_run_waits_for_disk_space_too),
        FAULT_TEST(if_the_disk_stays_full_only_uncommitted_rows_are_lost),
        FAULT_TEST(a_full_memory_after_a_full_disk_is_logged_before_rows_are_lost),
        FAULT_TEST(rows_are_written_after_another_process_releases_its_lock),
        FAULT_TEST(rows_keep_their_order_when_a_write_fails),
        FAULT_TEST(a_deleted_file_is_an_error),
        FAULT_TEST(a_file_that_was_renamed_after_the_last_row_is_an_error),
        FAULT_TEST(a_read_only_file_is_refused_before_the_run),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
