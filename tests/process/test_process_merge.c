/* `gradlag merge` after an error, Ctrl-C or with a full disk: files and exit codes. */
#include "base/status.h"
#include "tests/rigs/process_rig.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <signal.h>
#include <sqlite3.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define VIRTUAL "engine=virtual", "pace=constant", "virtual.threads=1"

/* Writes a.db and b.db with one run each. */
static void make_files(struct process_rig *r)
{
    assert_int_equal(RIG_RUN(r, "run", RIG_SMALL, VIRTUAL, "seed=1", "results=a.db"), OK);
    assert_int_equal(RIG_RUN(r, "run", RIG_SMALL, VIRTUAL, "seed=2", "results=b.db"), OK);
}

/* Checks the list of .db files in the folder. */
static void expect_files(struct process_rig *r, const char *files)
{
    char found[512];
    assert_int_equal(process_shell(r, "ls | grep '[.]db' | paste -sd ' '"), OK);
    snprintf(found, sizeof found, "%s", process_output(r));
    found[strcspn(found, "\n")] = '\0';
    assert_string_equal(found, files);
}

static void an_error_during_a_merge_leaves_no_new_file(void **state)
{
    struct process_rig *r = *state;
    make_files(r);
    process_write(r, "c.db", "no database at all");
    assert_int_equal(RIG_RUN(r, "merge", "a.db", "b.db", "c.db", "-o", "all.db"), ERROR_RESULTS);
    process_expect_error(r, "c.db");
    process_expect_error(r, "all.db");
    assert_int_equal(RIG_RUN(r, "merge", "a.db", "-o", ""), ERROR_USAGE);
    expect_files(r, "a.db b.db c.db");
}

static void an_error_during_a_merge_leaves_complete_files_in_the_target(void **state)
{
    struct process_rig *r = *state;
    make_files(r);
    process_write(r, "c.db", "no database at all");
    assert_int_equal(RIG_RUN(r, "merge", "c.db", "a.db", "-o", "b.db"), ERROR_RESULTS);
    process_expect_error(r, "b.db");
    assert_int_equal(RIG_RUN(r, "merge", "a.db", "c.db", "-o", "b.db"), ERROR_RESULTS);
    process_expect_error(r, "b.db");
    assert_int_equal(RIG_RUN(r, "query", "SELECT count(*) AS n FROM run", "results=b.db", "--csv"),
                     OK);
    assert_string_equal(process_output(r), "n\n2\n");
    expect_files(r, "a.db b.db c.db");
}

static void ctrl_c_during_a_merge_leaves_no_new_file(void **state)
{
    struct process_rig *r = *state;
    sqlite3 *db = NULL;
    make_files(r);
    /* The merge waits while another connection locks b.db. */
    assert_int_equal(sqlite3_open(process_path(r, "b.db"), &db), SQLITE_OK);
    assert_int_equal(sqlite3_exec(db,
                                  "PRAGMA locking_mode = EXCLUSIVE; BEGIN IMMEDIATE; "
                                  "UPDATE run SET tag = 'kept'; COMMIT",
                                  NULL, NULL, NULL),
                     SQLITE_OK);
    process_start(r, (const char *const[]){"merge", "a.db", "b.db", "-o", "all.db", NULL});
    for (unsigned tries = 0; strstr(process_output(r), "a.db: 1 ") == NULL; tries++) {
        assert_true(tries < RIG_LIMIT_S * 100);
        usleep(10000);
    }
    kill(r->pid, SIGINT);
    assert_int_equal(process_wait(r), STOPPED);
    process_expect_errors_contain(r, "all.db");
    sqlite3_close(db);
    expect_files(r, "a.db b.db");
    assert_int_equal(RIG_RUN(r, "merge", "a.db", "b.db", "-o", "all.db"), OK);
    expect_files(r, "a.db all.db b.db");
}

/* A limit of the file size, in KiB, acts like a full disk. */
static void a_full_disk_leaves_no_new_file(void **state)
{
    struct process_rig *r = *state;
    make_files(r);
    assert_int_equal(process_shell(r, "ulimit -f 90; gradlag merge a.db b.db -o all.db"),
                     ERROR_RESULTS);
    process_expect_error(r, "-o");
    process_expect_error(r, "all.db");
    expect_files(r, "a.db b.db");
    assert_int_equal(process_shell(r, "ulimit -f 400; gradlag merge a.db b.db -o all.db"), OK);
}

static void the_file_of_a_killed_merge_is_named(void **state)
{
    struct process_rig *r = *state;
    make_files(r);
    process_write(r, "all.db.merging-0123abcd", "");
    assert_int_equal(RIG_RUN(r, "merge", "a.db", "b.db", "-o", "all.db"), OK);
    process_expect_errors_contain(r, "all.db.merging-0123abcd");
    expect_files(r, "a.db all.db all.db.merging-0123abcd b.db");
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, process_set_up, process_tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(an_error_during_a_merge_leaves_no_new_file),
        TEST(an_error_during_a_merge_leaves_complete_files_in_the_target),
        TEST(ctrl_c_during_a_merge_leaves_no_new_file),
        TEST(a_full_disk_leaves_no_new_file),
        TEST(the_file_of_a_killed_merge_is_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
