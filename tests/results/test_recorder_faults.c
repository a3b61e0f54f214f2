/* A results file that cannot be written for a while, or any more: what was committed stays whole,
 * what can still be written is, and somebody is told. */
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

static atomic_uint told;

static void note_error(void *context)
{
    (void)context;
    told++;
}

static recorder *begin(bool tells, int64_t *id)
{
    recorder *r = NULL;
    told = 0;
    assert_int_equal(recorder_open(&r, rig_path), OK);
    if (tells)
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

/* Files may grow to `bytes` and no further, as on a disk that is full: RLIM_INFINITY, and there is
 * room again.
 */
static void allow(rlim_t bytes)
{
    struct rlimit limit;
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &limit), 0);
    limit.rlim_cur = bytes < limit.rlim_max ? bytes : limit.rlim_max;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
}

/* Also where a test failed meanwhile. */
static int remove_folder(void **state)
{
    allow(RLIM_INFINITY);
    return rig_remove_folder(state);
}
#define FAULT_TEST(name) cmocka_unit_test_setup_teardown(name, rig_make_folder, remove_folder)

static void await(unsigned wanted)
{
    for (int i = 0; i < 200 && told < wanted; i++)
        clock_sleep_until_ns(clock_ns() + 50000000);
    assert_int_equal(told, wanted);
}

static void assert_whole_rows_from_the_first_on(void)
{
    assert_string_equal(rig_in_the_file("PRAGMA integrity_check"), "ok");
    assert_string_equal(rig_in_the_file("SELECT count(*) = coalesce(max(number) + 1, 0) AND "
                                        "count(*) = sum(update_version = number + 1) FROM push"),
                        "1");
}

static void rows_wait_for_room_on_a_full_disk_and_none_is_lost(void **state)
{
    (void)state;
    int64_t id;
    char count[16];
    recorder *r = begin(true, &id);
    allow(ROOM);
    push(r, 0, ROWS);
    await(1);
    push(r, ROWS, ROWS + 100);
    allow(RLIM_INFINITY);
    assert_int_equal(recorder_finish(r, &rig_outcome), OK);
    recorder_close(&r);
    snprintf(count, sizeof count, "%d", ROWS + 100);
    assert_string_equal(rig_in_the_file("SELECT count(*) FROM push"), count);
    assert_whole_rows_from_the_first_on();
    assert_string_equal(rig_ask("SELECT status FROM run"), "finished");
    assert_int_equal(told, 1);
}

static void a_disk_that_stays_full_costs_what_was_not_committed_and_no_more(void **state)
{
    (void)state;
    int64_t id;
    bool changed;
    recorder *r = begin(true, &id);
    push(r, 0, 1000);
    for (int i = 0; i < 100 && atoi(rig_ask("SELECT count(*) FROM push")) < 1000; i++)
        clock_sleep_until_ns(clock_ns() + 50000000);
    allow(ROOM);
    push(r, 1000, ROWS);
    await(1);
    assert_int_equal(recorder_finish(r, &rig_outcome), ERROR_RESULTS);
    rig_assert_error_names(rig_path);
    recorder_close(&r);
    allow(RLIM_INFINITY);
    assert_true(atoi(rig_ask("SELECT count(*) FROM push")) >= 1000);
    assert_whole_rows_from_the_first_on();
    assert_int_equal(recorder_settle(rig_path, id, "failed", "the disk was full", &changed), OK);
    assert_string_equal(rig_ask("SELECT status FROM run"), "failed");
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

/* GRADLAG_LOCKED_S: for how long; make nightly: 60 s. */
static void a_file_that_somebody_keeps_locked_gets_its_rows_later(void **state)
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
    assert_true((double)(clock_ns() - before) < 1e9 * h.seconds); /* nobody waited for the lock */
    assert_int_equal(recorder_finish(r, &rig_outcome), OK);
    recorder_close(&r);
    assert_int_equal(pthread_join(h.thread, &went_well), 0);
    assert_ptr_equal(went_well, &h);
    snprintf(count, sizeof count, "%d", ROWS);
    assert_string_equal(rig_ask("SELECT count(*) FROM push"), count);
    assert_whole_rows_from_the_first_on();
    assert_int_equal(told, 0);
}

/* While the writer waits with some rows in its hands, others come; then it finds no room. */
static void rows_that_could_not_be_written_stay_before_those_that_came_meanwhile(void **state)
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
    allow(ROOM);
    await(1);
    assert_int_equal(pthread_join(h.thread, NULL), 0);
    allow(RLIM_INFINITY);
    assert_int_equal(recorder_finish(r, &rig_outcome), OK);
    recorder_close(&r);
    snprintf(count, sizeof count, "%d", ROWS);
    assert_string_equal(rig_in_the_file("SELECT count(*) FROM push"), count);
    assert_whole_rows_from_the_first_on();
}

/* ---- a file that goes away ----------------------------------------------------------------------
 */

static void a_file_that_is_deleted_meanwhile_is_noticed(void **state)
{
    (void)state;
    int64_t id;
    recorder *r = begin(true, &id);
    push(r, 0, 10);
    assert_int_equal(unlink(rig_path), 0);
    push(r, 10, ROWS);
    await(1);
    assert_int_equal(recorder_finish(r, &rig_outcome), ERROR_RESULTS);
    rig_assert_error_names(rig_path);
    recorder_close(&r);
    assert_int_equal(recorder_settle(rig_path, id, "failed", NULL, NULL), ERROR_RESULTS);
    rig_assert_error_names(rig_path);
    assert_false(rig_exists(""));
}

static void a_file_that_is_replaced_after_the_last_row_is_noticed(void **state)
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

static void a_file_that_may_not_be_written_is_refused_before_the_run(void **state)
{
    (void)state;
    recorder *r = NULL;
    int64_t id;
    rig_finish(begin(false, &id), &rig_outcome);
    assert_int_equal(chmod(rig_path, 0444), 0);
    if (access(rig_path, W_OK) == 0)
        skip(); /* as root everything may be written */
    assert_int_equal(recorder_open(&r, rig_path), ERROR_RESULTS);
    rig_assert_error_names(rig_path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        FAULT_TEST(rows_wait_for_room_on_a_full_disk_and_none_is_lost),
        FAULT_TEST(a_disk_that_stays_full_costs_what_was_not_committed_and_no_more),
        FAULT_TEST(a_file_that_somebody_keeps_locked_gets_its_rows_later),
        FAULT_TEST(rows_that_could_not_be_written_stay_before_those_that_came_meanwhile),
        FAULT_TEST(a_file_that_is_deleted_meanwhile_is_noticed),
        FAULT_TEST(a_file_that_is_replaced_after_the_last_row_is_noticed),
        FAULT_TEST(a_file_that_may_not_be_written_is_refused_before_the_run),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
