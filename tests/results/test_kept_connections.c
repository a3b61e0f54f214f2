/* test_kept_connections.c — a process that opens a results file once and keeps the connection. */
#include "tests/results/results_rig.h"

#include "results/query/query.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

static void open_and_close(void)
{
    recorder *r = NULL;
    assert_int_equal(recorder_open(&r, rig_path), OK);
    recorder_close(&r);
}

static void a_kept_file_is_closed_by_the_end_of_the_process(void **state)
{
    (void)state;
    recorder_keep_open(true);
    open_and_close();
    assert_true(rig_exists("-wal"));
    recorder_keep_open(false);
    assert_false(rig_exists("-wal"));
    const pid_t child = fork();
    if (child == 0) {
        recorder_keep_open(true);
        open_and_close();
        exit(!rig_exists("-wal"));
    }
    int how = 0;
    assert_int_equal(waitpid(child, &how, 0), child);
    assert_int_equal(how, 0);
    assert_false(rig_exists("-wal"));
}

static void a_kept_file_that_was_replaced_is_opened_again(void **state)
{
    (void)state;
    char moved[4200];
    double before, after;
    bool known;
    static const char count[] = "SELECT count(*) FROM run";
    snprintf(moved, sizeof moved, "%s-moved", rig_path);
    recorder_keep_open(true);
    open_and_close();
    rig_change("INSERT INTO run (id, uuid, mode, workers, status) "
               "VALUES (7, 'a', 'async', 1, 'finished')");
    assert_int_equal(query_number(rig_path, count, NULL, 0, &before, &known), OK);
    assert_true(before == 1);
    assert_int_equal(rename(rig_path, moved), 0);
    open_and_close();
    assert_int_equal(query_number(rig_path, count, NULL, 0, &after, &known), OK);
    assert_true(after == 0);
    recorder_keep_open(false);
    unlink(moved);
}

/* A child that begins a run when `go` is readable, and dies. It must not inherit a connection. */
static pid_t fork_a_run(int go)
{
    const pid_t child = fork();
    if (child == 0) {
        char byte;
        int64_t id;
        if (read(go, &byte, 1) == 1)
            (void)rig_begin(&rig_run, &id);
        _exit(0);
    }
    return child;
}

static void a_kept_reader_sees_runs_whose_process_has_died_since(void **state)
{
    (void)state;
    double failed;
    bool known;
    int go[2], how = 0;
    static const char count[] = "SELECT count(*) FROM run WHERE status = 'failed'";
    assert_int_equal(pipe(go), 0);
    const pid_t child = fork_a_run(go[0]);
    recorder_keep_open(true);
    open_and_close();
    assert_int_equal(query_number(rig_path, count, NULL, 0, &failed, &known), OK);
    assert_true(failed == 0);
    assert_int_equal(write(go[1], "x", 1), 1);
    assert_int_equal(waitpid(child, &how, 0), child);
    assert_int_equal(how, 0);
    assert_int_equal(query_number(rig_path, count, NULL, 0, &failed, &known), OK);
    assert_true(failed == 1);
    recorder_keep_open(false);
    close(go[0]);
    close(go[1]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        RIG_TEST(a_kept_file_is_closed_by_the_end_of_the_process),
        RIG_TEST(a_kept_file_that_was_replaced_is_opened_again),
        RIG_TEST(a_kept_reader_sees_runs_whose_process_has_died_since),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
