/* The end of a run: exit code and row agree, whenever a request to stop comes. A run whose last
 * checkpoint is of the end of training can still be finished. */
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

/* ---- a request to stop ----------------------------------------------------------------------- */

static void expect_code_of_row(struct process_rig *r, int code)
{
    process_expect_answer(r, "SELECT status FROM run ORDER BY id DESC LIMIT 1",
                          code == OK        ? "finished"
                          : code == STOPPED ? "stopped"
                                            : "neither");
}

/* The test suspends the starter during training, until the row says finished. The starter then sees
 * the request to stop first. All modes run at the same time. */
static void a_request_after_the_end_does_not_change_it(void **state)
{
    static const char *const modes[][2] = {
        {"mode=async", NULL},
        {"mode=async", "servers=2"},
        {"mode=sync", NULL},
        {"mode=pipeline", "stages=1"},
    };
    struct process_rig *at[COUNT_OF(modes)] = {*state};
    for (size_t i = 0; i < COUNT_OF(modes); i++) {
        const struct process_arguments c = process_run_arguments(
            RIG_WITH(RIG_DATA, "batch=10", "epochs=12", "evaluate_every=0", "pace=gamma",
                     "pace.mean_ms=3", "workers=2", modes[i][0]),
            modes[i][1]);
        if (i > 0)
            process_set_up((void **)&at[i]);
        process_start(at[i], c.at);
        process_await_row(at[i],
                          "SELECT (SELECT count(*) FROM push) + (SELECT count(*) FROM step)");
        assert_int_equal(kill(at[i]->pid, SIGSTOP), 0);
    }
    for (size_t i = 0; i < COUNT_OF(modes); i++) {
        process_await_row(at[i], "SELECT count(*) FROM run WHERE status = 'finished'");
        assert_int_equal(kill(at[i]->pid, SIGTERM), 0);
        assert_int_equal(kill(at[i]->pid, SIGCONT), 0);
        assert_int_equal(process_wait(at[i]), OK);
        expect_code_of_row(at[i], OK);
        if (i > 0)
            process_tear_down((void **)&at[i]);
    }
}

/* The moments range from well before the end to after it. */
static void after_sigterm_at_any_moment_exit_code_and_row_agree(void **state)
{
    struct process_rig *r = *state;
    static const char *const modes[] = {"mode=async", "mode=sync", "engine=virtual"};
    enum { MOMENTS = 3 };
    for (size_t i = 0; i < MOMENTS * COUNT_OF(modes); i++) {
        const struct process_arguments c =
            process_run_arguments(RIG_WITH(RIG_DATA, "batch=10", "samples=5000", "evaluate_every=1",
                                           "pace.mean_ms=1", "workers=2", modes[i % 3]),
                                  i % 3 < 2 ? "pace=gamma" : "pace=constant");
        process_start(r, c.at);
        process_await_row(r, "SELECT count(*) FROM run");
        usleep((useconds_t)(i / 3 * 200000));
        kill(r->pid, SIGTERM);
        expect_code_of_row(r, process_wait(r));
        unlink(process_path(r, "results.db"));
    }
}

/* For each of two ranks 20 steps of 100 ms, then one of ten minutes. */
static void write_trace_with_a_long_step(struct process_rig *r)
{
    char text[1024] = "worker,compute_us\n";
    size_t length = strlen(text);
    for (int line = 0; line < 42; line++)
        length += (size_t)snprintf(text + length, sizeof text - length, "%d,%s\n", line % 2,
                                   line < 40 ? "100000" : "600000000");
    process_write(r, "steps.csv", text);
}

/* The ranks would write the checkpoint only after a step of ten minutes. */
static void a_request_to_stop_ends_a_long_step(void **state)
{
    struct process_rig *r = *state;
    static const char *const modes[] = {"mode=sync", "mode=pipeline"};
    write_trace_with_a_long_step(r);
    for (size_t i = 0; i < COUNT_OF(modes); i++) {
        const struct process_arguments c = process_run_arguments(
            RIG_WITH(RIG_DATA, "model=mlp", "batch=10", "epochs=10", "evaluate_every=0",
                     "workers=2", "pace=trace", "pace.path=steps.csv", "checkpoint=at.safetensors"),
            modes[i]);
        process_start(r, c.at);
        process_await_row(r, "SELECT json_extract(progress, '$.updates') FROM run");
        sleep(4); /* the long step has begun */
        kill(r->pid, SIGTERM);
        assert_int_equal(process_wait(r), STOPPED);
        expect_code_of_row(r, STOPPED);
        process_expect_answer(r, "SELECT max(version) = updates FROM checkpoint, run", "1");
        unlink(process_path(r, "results.db"));
        unlink(process_path(r, "at.safetensors"));
    }
}

/* A probe, and the checkpoint's statistics of batch norm, use the same buffers of the server. */
static void a_worker_told_to_stop_during_a_probe_ends_the_run_with_a_checkpoint(void **state)
{
    struct process_rig *r = *state;
    for (unsigned i = 0; i < 4; i++) {
        pid_t trainer;
        process_start(r,
                      RIG_WITH("run", "dataset=gaussian", "dataset.size=16", "dataset.samples=2000",
                               "model=resnet8", "batch=64", "epochs=10000", "evaluate_every=0",
                               "workers=1", "probe_every=1", "checkpoint=at.safetensors"));
        process_await_row(r, "SELECT count(*) > 5 FROM push");
        process_await(r, "worker", &trainer, 1);
        kill(trainer, SIGTERM);
        assert_int_equal(process_wait(r), STOPPED);
        expect_code_of_row(r, STOPPED);
        process_expect_answer(r, "SELECT max(version) = updates FROM checkpoint, run", "1");
        unlink(process_path(r, "results.db"));
        unlink(process_path(r, "at.safetensors"));
    }
}

/* A suspended server stands for a slow disk. In a run without a checkpoint, the starter would kill
 * the server after 15 s. */
static void the_starter_waits_for_the_checkpoint_of_a_stopped_run(void **state)
{
    struct process_rig *r = *state;
    pid_t server;
    process_start(r, RIG_WITH("run", RIG_LONG, "checkpoint=at.safetensors"));
    process_await_row(r, "SELECT count(*) FROM push");
    process_await(r, "server", &server, 1);
    kill(server, SIGSTOP);
    kill(r->pid, SIGTERM);
    sleep(17);
    kill(server, SIGCONT);
    assert_int_equal(process_wait(r), STOPPED);
    expect_code_of_row(r, STOPPED);
    process_expect_answer(r, "SELECT max(version) = updates FROM checkpoint, run", "1");
}

/* ---- a run that died after its last checkpoint ------------------------------------------------
 */

static void forget_the_end(struct process_rig *r)
{
    sqlite3 *db = NULL;
    assert_int_equal(sqlite3_open(process_path(r, "results.db"), &db), SQLITE_OK);
    assert_int_equal(sqlite3_exec(db,
                                  "UPDATE run SET status = 'failed', final_accuracy = NULL; "
                                  "DELETE FROM evaluation",
                                  NULL, NULL, NULL),
                     SQLITE_OK);
    assert_int_equal(sqlite3_close(db), SQLITE_OK);
}

static void a_run_lost_after_its_last_checkpoint_resumes_to_its_end(void **state)
{
    struct process_rig *r = *state;
    static const char *const kinds[][4] = {
        {"mode=async", "workers=1", "consistency=asp", "servers=1"},
        {"mode=async", "workers=2", "consistency=bsp", "servers=3"},
        {"mode=sync", "workers=2", "optimizer=adamw", "local_steps=1"},
        {"mode=sync", "workers=2", "delay=3", "local_steps=1"},
    };
    for (size_t i = 0; i < COUNT_OF(kinds); i++) {
        const char *const *settings = RIG_WITH(RIG_SMALL, "checkpoint=at.safetensors", kinds[i][0],
                                               kinds[i][1], kinds[i][2], kinds[i][3]);
        const struct process_arguments first = process_run_arguments(settings, NULL),
                                       again = process_run_arguments(settings, "--resume");
        unlink(process_path(r, "results.db"));
        unlink(process_path(r, "at.safetensors"));
        assert_int_equal(process_run(r, first.at), OK);
        forget_the_end(r);
        assert_int_equal(process_run(r, again.at), OK);
        process_expect_answer(
            r,
            "SELECT b.status || ' ' || (b.final_accuracy > 0) || ' ' || (a.parameters_sha256 = "
            "b.parameters_sha256 AND a.updates = b.updates AND a.samples_used = b.samples_used AND "
            "a.samples_computed = b.samples_computed) || ' ' || (SELECT count(*) FROM evaluation "
            "WHERE run_id = 2 AND samples = b.samples_used) FROM run a, run b WHERE a.id = 1 AND "
            "b.id = 2",
            "finished 1 1 1");
        process_expect_nothing_left(r);
    }
}

/* ---- a checkpoint that cannot be written -------------------------------------------------------
 */

static const char *const with_checkpoints[][2] = {
    {"mode=async", "workers=1"}, {"mode=async", "servers=2"}, {"mode=sync", "workers=2"}};

/* Starts a run and waits for its first checkpoint in the folder "disk". */
static void start_with_checkpoints(struct process_rig *r, const char *const settings[2])
{
    const struct process_arguments c = process_run_arguments(
        RIG_WITH(RIG_LONG, "checkpoint=disk/at.safetensors", "checkpoint_every=0.5",
                 "record=evaluations", settings[0], settings[1]),
        NULL);
    unlink(process_path(r, "results.db"));
    assert_int_equal(process_shell(r, "rm -rf disk away; mkdir disk"), OK);
    process_start(r, c.at);
    process_await_row(r, "SELECT count(*) FROM checkpoint");
}

static void move(struct process_rig *r, const char *from, const char *to)
{
    char old[256];
    snprintf(old, sizeof old, "%s", process_path(r, from));
    assert_int_equal(rename(old, process_path(r, to)), 0);
}

static void a_failed_checkpoint_is_retried_when_the_next_is_due(void **state)
{
    struct process_rig *r = *state;
    char sql[96];
    for (size_t i = 0; i < COUNT_OF(with_checkpoints); i++) {
        start_with_checkpoints(r, with_checkpoints[i]);
        move(r, "disk", "away");
        process_await_row(r, "SELECT count(*) FROM event WHERE code = 'checkpoint_failed' AND "
                             "severity = 'warning' AND detail LIKE '%disk/at.safetensors%'");
        snprintf(sql, sizeof sql, "SELECT max(version) > %s FROM checkpoint",
                 process_ask(r, "SELECT max(version) FROM checkpoint"));
        move(r, "away", "disk");
        process_await_row(r, sql);
        kill(r->pid, SIGINT);
        assert_int_equal(process_wait(r), STOPPED);
        expect_code_of_row(r, STOPPED);
        process_expect_answer(r, "SELECT max(version) = updates FROM checkpoint, run", "1");
    }
}

static void a_run_fails_if_its_last_checkpoint_fails(void **state)
{
    struct process_rig *r = *state;
    for (size_t i = 0; i < COUNT_OF(with_checkpoints); i++) {
        start_with_checkpoints(r, with_checkpoints[i]);
        move(r, "disk", "away");
        kill(r->pid, SIGINT);
        assert_int_equal(process_wait(r), ERROR_OTHER);
        process_expect_error(r, "disk/at.safetensors");
        process_expect_answer(r,
                              "SELECT status || ' ' || (SELECT max(severity) = 'error' FROM event "
                              "WHERE code = 'checkpoint_failed' AND severity = 'error') || ' ' || "
                              "(error LIKE '%disk/at.safetensors%') FROM run",
                              "failed 1 1");
        process_expect_nothing_left(r);
    }
}

/* ---- a full disk ----------------------------------------------------------------------------- */

/* The limit of a file's size leaves room for the -wal file of a short run, but the results file
 * cannot grow. */
static void rows_that_do_not_fit_into_the_file_are_reported_and_moved_later(void **state)
{
    struct process_rig *r = *state;
    char script[512];
    assert_int_equal(
        RIG_RUN(r, "run", RIG_DATA, "batch=10", "samples=30000", "evaluate_every=0", "workers=1"),
        OK);
    snprintf(script, sizeof script,
             "ulimit -f $(($(stat -c %%s results.db) / 1024)); "
             "gradlag run %s %s %s %s batch=10 samples=3000 evaluate_every=0 workers=1",
             RIG_DATA);
    assert_int_equal(process_shell(r, script), OK);
    process_expect_errors_contain(r, "results.db-wal");
    assert_int_equal(access(process_path(r, "results.db-wal"), F_OK), 0);
    assert_int_equal(RIG_RUN(r, "query", "runs"), OK);
    assert_int_equal(access(process_path(r, "results.db-wal"), F_OK), -1);
    process_expect_answer(r, "SELECT count(*) FROM push WHERE run_id = 2", "300");
}

int main(void)
{
#define RIG_TEST(test) cmocka_unit_test_setup_teardown(test, process_set_up, process_tear_down)
    const struct CMUnitTest tests[] = {
        RIG_TEST(a_request_after_the_end_does_not_change_it),
        RIG_TEST(after_sigterm_at_any_moment_exit_code_and_row_agree),
        RIG_TEST(a_request_to_stop_ends_a_long_step),
        RIG_TEST(a_worker_told_to_stop_during_a_probe_ends_the_run_with_a_checkpoint),
        RIG_TEST(the_starter_waits_for_the_checkpoint_of_a_stopped_run),
        RIG_TEST(a_run_lost_after_its_last_checkpoint_resumes_to_its_end),
        RIG_TEST(a_failed_checkpoint_is_retried_when_the_next_is_due),
        RIG_TEST(a_run_fails_if_its_last_checkpoint_fails),
        RIG_TEST(rows_that_do_not_fit_into_the_file_are_reported_and_moved_later),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
