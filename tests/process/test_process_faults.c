/*
 * Killed, suspended and stopped processes of the real program: exit codes, the run's row, and no
 * processes or files left.
 */
#include "base/clock.h"
#include "tests/rigs/process_rig.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <fcntl.h>
#include <glob.h>
#include <signal.h>
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#define A_FEW_PUSHES "SELECT count(*) >= 10 FROM push"
#define A_FEW_STEPS  "SELECT count(*) >= 10 FROM step"

static void start_long(struct process_rig *r, const char *mode, const char *more)
{
    process_start(r, (const char *const[]){"run", RIG_LONG, "workers=2", mode, more, NULL});
    process_await_row(r, strcmp(mode, "mode=async") == 0 ? A_FEW_PUSHES : A_FEW_STEPS);
}

static void expect_lost(struct process_rig *r, const char *who)
{
    assert_int_equal(process_wait(r), ERROR_PEER);
    process_expect_error(r, who);
    process_expect_error(r, "signal 9");
    assert_string_equal(process_ask(r, "SELECT status FROM run"), "failed");
    assert_string_equal(process_ask(r, "SELECT error LIKE '%signal 9%' FROM run"), "1");
    process_expect_nothing_left(r);
}

static void a_killed_worker_fails_the_run_and_is_named(void **state)
{
    struct process_rig *r = *state;
    pid_t workers[2], server;
    start_long(r, "mode=async", NULL);
    process_await(r, "worker", workers, 2);
    process_await(r, "server", &server, 1);
    kill(server, SIGSTOP); /* else it may see the death before the starter, which has the signal */
    kill(workers[1], SIGKILL);
    process_await_verdict(r);
    kill(server, SIGCONT);
    expect_lost(r, "worker ");
    assert_string_equal(process_ask(r, "SELECT samples_used > 0 FROM run"), "1");
}

/* The second process is stopped later and delays the server's end. Meanwhile the first one, already
 * lost, continues and is refused. On a very slow machine the first one continues only after the
 * server's end, and the test then shows nothing. */
static void a_lost_workers_report_is_not_the_reason_of_the_failure(void **state)
{
    struct process_rig *r = *state;
    pid_t workers[2];
    start_long(r, "mode=async", "timeout_s=3");
    process_await(r, "worker", workers, 2);
    kill(workers[0], SIGSTOP);
    usleep(2300000);
    kill(workers[1], SIGSTOP);
    usleep(1100000);
    kill(workers[0], SIGCONT);
    assert_int_equal(process_wait(r), ERROR_PEER);
    process_expect_errors_contain(r, "error: worker ");
    process_expect_answer(r, "SELECT error LIKE '%timeout_s%' FROM run", "1");
    process_expect_nothing_left(r);
}

/* As `docker pause` does, or a queue that suspends jobs. */
static void a_run_whose_processes_are_all_suspended_continues(void **state)
{
    struct process_rig *r = *state;
    pid_t all[4];
    process_start(r, (const char *const[]){"run", RIG_LONG, "workers=2", "consistency=bsp",
                                           "timeout_s=2", NULL});
    process_await_row(r, "SELECT count(*) >= 10 FROM push");
    process_await(r, "worker", all, 2);
    process_await(r, "server", &all[2], 1);
    all[3] = r->pid;
    for (size_t k = 0; k < COUNT_OF(all); k++)
        kill(all[k], SIGSTOP);
    usleep(3000000);
    for (size_t k = 0; k < COUNT_OF(all); k++)
        kill(all[k], SIGCONT);
    usleep(2500000); /* longer than timeout_s */
    kill(r->pid, SIGINT);
    assert_int_equal(process_wait(r), STOPPED);
    /* A worker that gets no processor may be named as slow. */
    process_expect_answer(
        r, "SELECT group_concat(DISTINCT code) FROM event WHERE code <> 'worker_slow'",
        "worker_joined");
    process_expect_nothing_left(r);
}

static void a_killed_server_fails_the_run(void **state)
{
    struct process_rig *r = *state;
    pid_t server;
    start_long(r, "mode=async", NULL);
    process_await(r, "server", &server, 1);
    kill(server, SIGKILL);
    expect_lost(r, "the server");
    process_expect_answer(
        r,
        "SELECT samples_used = 10 * count(*) AND samples_computed >= samples_used AND updates = "
        "count(*) AND train_seconds = max(at_seconds) FROM run, push WHERE reason IS NULL",
        "1");
}

static void a_killed_rank_fails_the_run_and_is_named(void **state)
{
    struct process_rig *r = *state;
    pid_t ranks[2];
    start_long(r, "mode=sync", NULL);
    process_await(r, "rank", ranks, 2);
    kill(ranks[1], SIGKILL);
    expect_lost(r, "rank ");
    process_expect_answer(
        r, "SELECT updates > 0 AND samples_used = 20 * updates AND train_seconds > 0 FROM run",
        "1");
}

/* The line breaks of Open MPI 5, after another message. */
static void a_killed_rank_is_named_with_the_line_breaks_of_open_mpi_5(void **state)
{
    struct process_rig *r = *state;
    process_write(
        r, "mpirun",
        "#!/bin/sh\n"
        "echo 'vm: Unable to find reachable pairing between interfaces' >&2\n"
        "echo 'prterun noticed that process rank 1 with PID 29579 on node vm exited on' >&2\n"
        "echo 'signal 9 (Killed).' >&2\n"
        "exit 137\n");
    int code = process_shell(r, "chmod +x mpirun; PATH=$PWD:$PATH gradlag run mode=sync workers=2 "
                                "dataset=gaussian model=softmax samples=600");
    assert_int_equal(code, ERROR_PEER);
    process_expect_error(r, "rank 1");
    process_expect_error(r, "signal 9");
}

/* The stopped rank keeps its sockets and its memory. The runs wait side by side. */
static void a_rank_that_hangs_is_named_with_every_communicator(void **state)
{
    static const char *const communicators[] = {"communicator=shared", "communicator=mpi",
                                                "communicator=ring"};
    struct process_rig *at[COUNT_OF(communicators)] = {*state};
    unsigned hangs[COUNT_OF(communicators)];
    char host[65] = "", wanted[160];
    assert_int_equal(gethostname(host, sizeof host - 1), 0);
    for (size_t i = 0; i < COUNT_OF(communicators); i++) {
        pid_t ranks[3];
        if (i > 0)
            process_set_up((void **)&at[i]);
        process_start(at[i],
                      (const char *const[]){"run", RIG_LONG, "workers=3", "mode=sync",
                                            "timeout_s=3", communicators[i], "tag=hangs", NULL});
        process_await(at[i], "rank", ranks, 3);
        process_await_row(at[i], A_FEW_STEPS);
        hangs[i] = process_rank(ranks[1]);
        kill(ranks[1], SIGSTOP);
    }
    const double since = clock_seconds();
    for (size_t i = 0; i < COUNT_OF(communicators); i++) {
        assert_int_equal(process_wait(at[i]), ERROR_PEER);
        snprintf(wanted, sizeof wanted, "SELECT status || (error LIKE '%%rank %u %%%s%%') FROM run",
                 hangs[i], host);
        process_expect_answer(at[i], wanted, "failed1");
        process_expect_nothing_left(at[i]);
        if (i > 0)
            process_tear_down((void **)&at[i]);
    }
    assert_true(clock_seconds() - since < 3 + 10 * PATIENCE);
}

#define BY_HAND                                                                                    \
    "export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1; rank='gradlag rank "        \
    "mode=sync dataset=gaussian dataset.size=8 dataset.samples=1000 model=softmax samples=600 "    \
    "evaluate_every=0 timeout_s=3'; "
/* Rank 0 and rank 1 have different command lines. Two programs of one mpirun would crash Open
 * MPI 5.0.7 with a segmentation fault. */
#define TWO(first, second)                                                                         \
    "export first=\"" first "\" second=\"" second "\"; mpirun --oversubscribe -n 2 bash -c '"      \
    "[ $OMPI_COMM_WORLD_RANK = 0 ] && eval \"exec $first\"; eval \"exec $second\"'"

static void ranks_with_different_settings_are_an_error_before_training(void **state)
{
    struct process_rig *r = *state;
    assert_int_equal(process_shell(r, BY_HAND TWO("$rank batch=10 tag=a", "$rank batch=20")),
                     ERROR_USAGE);
    process_expect_errors_contain(r, "rank 1");
    process_expect_errors_contain(r, "batch=20");
    process_expect_errors_contain(r, "batch=10");
    assert_int_equal(process_shell(r, BY_HAND TWO("$rank batch=10 tag=a", "$rank batch=10")), OK);
    process_expect_answer(r, "SELECT group_concat(status || ' ' || tag) FROM run", "finished a");
    process_expect_none_running(r);
}

/* The other ranks have begun and wait for the failed one. */
static void the_error_of_a_stage_that_fails_alone_is_printed(void **state)
{
    struct process_rig *r = *state;
    assert_int_equal(
        process_shell(r, BY_HAND "mkdir has; rank=\"$rank mode=pipeline model=mlp "
                                 "results=$PWD/results.db timeout_s=1000\"; "
                                 "mpirun -n 1 $rank checkpoint=has/kept || exit; "
                                 "rank=\"$rank initial=kept\"; " TWO("env -C has $rank", "$rank")),
        ERROR_DATA);
    process_expect_errors_contain(r, "rank 1: error: ");
    process_expect_errors_contain(r, "kept");
    process_expect_none_running(r);
}

static void a_killed_mpirun_fails_the_run(void **state)
{
    struct process_rig *r = *state;
    pid_t mpirun;
    start_long(r, "mode=sync", NULL);
    process_await(r, "-n", &mpirun, 1);
    kill(mpirun, SIGKILL);
    expect_lost(r, "mpirun");
}

static void on_lost_continue_trains_on_without_a_lost_worker(void **state)
{
    struct process_rig *r = *state;
    pid_t workers[2];
    start_long(r, "mode=async", "on_lost=continue");
    process_await(r, "worker", workers, 2);
    kill(workers[0], SIGKILL);
    process_await_row(r, "SELECT count(*) FROM (SELECT worker FROM push GROUP BY worker "
                         "HAVING max(number) < (SELECT max(number) FROM push) - 30)");
    kill(r->pid, SIGINT);
    assert_int_equal(process_wait(r), STOPPED);
    assert_string_equal(process_ask(r, "SELECT status FROM run"), "stopped");
    process_expect_nothing_left(r);
}

static void ctrl_c_stops_a_run_and_keeps_its_rows(void **state)
{
    struct process_rig *r = *state;
    const char *const modes[] = {"mode=async", "mode=sync"};
    for (size_t i = 0; i < COUNT_OF(modes); i++) {
        unlink(process_path(r, "results.db"));
        start_long(r, modes[i], NULL);
        kill(r->pid, SIGINT);
        assert_int_equal(process_wait(r), STOPPED);
        assert_string_equal(process_ask(r, "SELECT status FROM run"), "stopped");
        assert_string_equal(process_ask(r, "SELECT samples_used >= 100 FROM run"), "1");
        assert_string_equal(process_ask(r, "SELECT length(parameters_sha256) FROM run"), "64");
        process_expect_nothing_left(r);
    }
}

/* timeout(1) sends a signal to the process and then to its group. The test delivers both while
 * the starter is stopped, so that no time passes between them. */
static void two_signals_at_once_are_one_request(void **state)
{
    struct process_rig *r = *state;
    start_long(r, "mode=async", "checkpoint=at.safetensors");
    kill(r->pid, SIGSTOP);
    kill(r->pid, SIGINT);
    kill(r->pid, SIGTERM);
    kill(r->pid, SIGCONT);
    assert_int_equal(process_wait(r), STOPPED);
    process_expect_answer(r, "SELECT status || ' ' || length(parameters_sha256) FROM run",
                          "stopped 64");
    assert_int_equal(access(process_path(r, "at.safetensors"), R_OK), 0);
    process_expect_nothing_left(r);
}

static void a_second_ctrl_c_ends_a_run_that_does_not_stop(void **state)
{
    struct process_rig *r = *state;
    pid_t server;
    start_long(r, "mode=async", NULL);
    process_await(r, "server", &server, 1);
    kill(server, SIGSTOP);
    kill(r->pid, SIGINT);
    usleep(1000000);
    kill(r->pid, SIGINT);
    assert_int_equal(process_wait(r), STOPPED);
    assert_string_equal(process_ask(r, "SELECT status FROM run"), "stopped");
    process_expect_nothing_left(r);
}

/* Reads a value as stored in the file, without the view that marks dead runs as failed. */
/* The private folder exists: the starter now handles signals and next writes its row. */
static void await_status_pipe(struct process_rig *r)
{
    double until = clock_seconds() + RIG_LIMIT_S;
    glob_t found = {0};
    while (glob(process_path(r, "gradlag-*/status-pipe"), 0, NULL, &found) != 0) {
        assert_true(clock_seconds() < until);
        clock_sleep_until_ns(clock_ns() + 5000000);
    }
    globfree(&found);
}

static void ctrl_c_ends_the_wait_for_a_locked_results_file(void **state)
{
    struct process_rig *r = *state;
    sqlite3 *db = NULL;
    assert_int_equal(RIG_RUN(r, "run", RIG_SMALL, "--quiet"), OK);
    assert_int_equal(sqlite3_open(process_path(r, "results.db"), &db), SQLITE_OK);
    assert_int_equal(sqlite3_exec(db, "BEGIN IMMEDIATE", NULL, NULL, NULL), SQLITE_OK);
    process_start(r, (const char *const[]){"run", RIG_SMALL, NULL});
    await_status_pipe(r);
    kill(r->pid, SIGINT);
    assert_int_equal(process_wait(r), STOPPED); /* before the two minutes that a lock may last */
    assert_int_equal(sqlite3_close(db), SQLITE_OK);
    process_expect_answer(r, "SELECT group_concat(status) FROM run", "finished");
    process_expect_nothing_left(r);
}

/* The ranks would train for ten seconds, which is shorter than the limit for ending. */
static void ctrl_c_stops_ranks_that_are_starting(void **state)
{
    struct process_rig *r = *state;
    process_start(r,
                  (const char *const[]){"run", RIG_DATA, "mode=sync", "workers=2", "batch=10",
                                        "updates=2000", "pace=constant", "pace.mean_ms=5", NULL});
    await_status_pipe(r);
    kill(r->pid, SIGINT);
    assert_int_equal(process_wait(r), STOPPED);
    process_expect_answer(r, "SELECT status FROM run", "stopped");
    process_expect_nothing_left(r);
}

static void read_file(struct process_rig *r, const char *sql, char out[256])
{
    sqlite3 *db = NULL;
    sqlite3_stmt *s = NULL;
    assert_int_equal(sqlite3_open(process_path(r, "results.db"), &db), SQLITE_OK);
    assert_int_equal(sqlite3_prepare_v2(db, sql, -1, &s, NULL), SQLITE_OK);
    assert_int_equal(sqlite3_step(s), SQLITE_ROW);
    snprintf(out, 256, "%s", (const char *)sqlite3_column_text(s, 0));
    sqlite3_finalize(s);
    sqlite3_close(db);
}

static void killing_the_starter_ends_all_processes_and_fails_the_run(void **state)
{
    struct process_rig *r = *state;
    char kept[256];
    const char *const modes[] = {"mode=async", "mode=sync"};
    for (size_t i = 0; i < COUNT_OF(modes); i++) {
        unlink(process_path(r, "results.db"));
        start_long(r, modes[i], NULL);
        assert_string_equal(process_ask(r, "SELECT status FROM run"), "running");
        kill(r->pid, SIGKILL);
        assert_int_equal(process_wait(r), 128 + SIGKILL);
        process_expect_none_running(r);
        /* Readers see the run as failed and do not change the file. */
        assert_int_equal(RIG_RUN(r, "show", "last"), OK);
        assert_non_null(strstr(process_output(r), "failed"));
        process_expect_answer(r, "SELECT status || (error IS NOT NULL) FROM run", "failed1");
        read_file(r, "SELECT status FROM run ORDER BY id DESC", kept);
        assert_string_equal(kept, "running");
        /* The next run updates the row and removes the files. */
        assert_int_equal(RIG_RUN(r, "run", "mode=sync", RIG_SMALL), OK);
        read_file(r,
                  "SELECT status || ' ' || (error IS NOT NULL) || ' ' || (updates > 0) "
                  "|| (samples_used >= 10 * updates) FROM run WHERE id = 1",
                  kept);
        assert_string_equal(kept, "failed 1 11");
        process_expect_nothing_left(r);
    }
}

/* The kill arrives while the processes start, before they request to die with their parent. */
static void a_starter_killed_at_any_moment_leaves_no_process(void **state)
{
    struct process_rig *r = *state;
    for (int ms = 5; ms <= 400; ms = ms * 8 / 5) {
        process_start(r, (const char *const[]){"run", "mode=sync", RIG_LONG, "workers=2", NULL});
        usleep((useconds_t)ms * 1000);
        kill(r->pid, SIGKILL);
        assert_int_equal(process_wait(r), 128 + SIGKILL);
        process_expect_none_running(r);
    }
    assert_int_equal(RIG_RUN(r, "run", "mode=sync", RIG_SMALL), OK);
    process_expect_nothing_left(r);
    assert_string_equal(process_ask(r, "SELECT count(*) FROM run WHERE status = 'running'"), "0");
}

/* ---- closed stdout ------------------------------------------------------------------
 */

static int run_unread(struct process_rig *r, const char *const *arguments)
{
    int ends[2];
    assert_int_equal(pipe(ends), 0);
    close(ends[0]);
    r->output_fd = ends[1];
    int code = process_run(r, arguments);
    close(ends[1]);
    r->output_fd = 0;
    return code;
}

static void a_run_with_a_closed_stdout_finishes(void **state)
{
    struct process_rig *r = *state;
    assert_int_equal(
        run_unread(r, (const char *const[]){"run", RIG_SMALL, "warmup_epochs=0", "--quiet", NULL}),
        OK);
    assert_string_equal(process_errors(r), "");
    assert_int_equal(
        run_unread(r, (const char *const[]){"sweep", RIG_SMALL, "seed=2,3", "--quiet", NULL}), OK);
    assert_string_equal(process_errors(r), "");
    assert_string_equal(process_ask(r, "SELECT group_concat(status, ' ') FROM run"),
                        "finished finished finished");
}

static void a_query_with_a_closed_stdout_ends_by_sigpipe(void **state)
{
    struct process_rig *r = *state;
    assert_int_equal(RIG_RUN(r, "run", RIG_SMALL, "--quiet"), OK);
    const char *const ask[] = {"query", "SELECT * FROM push", NULL};
    assert_int_equal(run_unread(r, ask), 128 + SIGPIPE);
    assert_string_equal(process_errors(r), "");
    const char *const list[] = {"list", "keys", NULL};
    assert_int_equal(run_unread(r, list), 128 + SIGPIPE);
    assert_string_equal(process_errors(r), "");
    const char *const look[] = {"sweep", "--status", NULL};
    assert_int_equal(run_unread(r, look), 128 + SIGPIPE);
    assert_string_equal(process_errors(r), "");
    const char *const page[] = {"report", "-o", "-", NULL};
    assert_int_equal(run_unread(r, page), 128 + SIGPIPE);
    assert_string_equal(process_errors(r), "");
}

static void a_full_disk_for_stdout_is_an_error(void **state)
{
    struct process_rig *r = *state;
    r->output_fd = open("/dev/full", O_WRONLY | O_CLOEXEC);
    assert_true(r->output_fd > 0);
    int code = RIG_RUN(r, "list", "keys");
    close(r->output_fd);
    r->output_fd = 0;
    assert_int_equal(code, ERROR_OTHER);
    process_expect_error(r, "");
}

/* Limits the size of every file that the processes write, in bytes. */
static void allow_files_of(rlim_t bytes)
{
    struct rlimit limit;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &limit), 0);
    limit.rlim_cur = bytes < limit.rlim_max ? bytes : limit.rlim_max;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
}

/* With on_results_error=stop the run would otherwise train for hours. */
static void on_results_error_decides_what_a_full_disk_does(void **state)
{
    struct process_rig *r = *state;
    static const char *const cases[][3] = {
        {"payload=frames", "on_results_error=stop", "epochs=1e6"},
        {"engine=virtual", "on_results_error=continue", "epochs=100"}};
    signal(SIGXFSZ, SIG_IGN);
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        allow_files_of(400 * 1024);
        int code = RIG_RUN(r, "run", RIG_DATA, "workers=2", "batch=10", "pace=constant",
                           "pace.mean_ms=0.01", "evaluate_every=0", cases[i][0], cases[i][1],
                           cases[i][2], "--quiet");
        allow_files_of(RLIM_INFINITY);
        assert_int_equal(code, ERROR_RESULTS);
        process_expect_error(r, "results.db");
        process_expect_error(r, i == 0 ? "on_results_error=stop" : "");
        process_expect_answer(r, "PRAGMA integrity_check", "ok");
        process_expect_answer(r, "SELECT status FROM run ORDER BY id DESC LIMIT 1", "failed");
        assert_int_equal(remove(process_path(r, "results.db")), 0);
        remove(process_path(r, "results.db-wal"));
        remove(process_path(r, "results.db-shm"));
    }
}

/* ---- sweeps
 * --------------------------------------------------------------------------------------
 */

static void a_sweep_skips_finished_runs(void **state)
{
    struct process_rig *r = *state;
    assert_int_equal(RIG_RUN(r, "sweep", RIG_SMALL, "workers=1,2", "seed=1,2", "--quiet"), OK);
    assert_string_equal(process_ask(r, "SELECT count(*) FROM run WHERE status = 'finished'"), "4");
    assert_int_equal(RIG_RUN(r, "sweep", RIG_SMALL, "workers=1,2", "seed=1,2,3", "--quiet"), OK);
    assert_string_equal(process_ask(r, "SELECT count(*) FROM run"), "6");
    assert_int_equal(RIG_RUN(r, "sweep", RIG_SMALL, "workers=1", "--again", "--quiet"), OK);
    assert_int_equal(RIG_RUN(r, "sweep", "--quiet"), ERROR_USAGE);
    process_expect_error(r, "sweep");
    static const char *const files[] = {"checkpoint=one", "trace=one"};
    for (size_t i = 0; i < COUNT_OF(files); i++) {
        assert_int_equal(RIG_RUN(r, "sweep", RIG_SMALL, "seed=8,9", files[i]), ERROR_USAGE);
        process_expect_error(r, files[i]);
        assert_int_equal(RIG_RUN(r, "sweep", RIG_SMALL, "seed=8,9", files[i], "--dry-run"),
                         ERROR_USAGE);
        assert_int_equal(
            RIG_RUN(r, "sweep", RIG_SMALL, "lr=0.1,0.2", "search=grid", files[i], "--dry-run"),
            ERROR_USAGE);
    }
    assert_string_equal(process_ask(r, "SELECT count(*) FROM run"), "7");
}

static void a_setting_without_influence_on_results_repeats_no_run(void **state)
{
    struct process_rig *r = *state;
    assert_int_equal(RIG_RUN(r, "sweep", RIG_SMALL, "seed=1,2", "--quiet"), OK);
    assert_int_equal(RIG_RUN(r, "sweep", RIG_SMALL, "seed=1,2", "payload=frames", "tag=again",
                             "record=evaluations", "on_lost=continue", "--quiet"),
                     OK);
    process_expect_answer(r, "SELECT count(*) FROM run", "2");
    assert_int_equal(RIG_RUN(r, "sweep", RIG_SMALL, "payload=auto,frames", "--quiet"), OK);
    process_expect_answer(r, "SELECT count(*) FROM run", "3");
    assert_int_equal(RIG_RUN(r, "sweep", RIG_SMALL, "payload=auto,frames", "--quiet"), OK);
    assert_string_equal(process_ask(r, "SELECT group_concat(json_extract(config, '$.payload'), "
                                       "' ') FROM run"),
                        "auto auto frames");
}

static void a_stopped_sweep_continues(void **state)
{
    struct process_rig *r = *state;
    process_start(r,
                  (const char *const[]){"sweep", RIG_DATA, "samples=100,8000", "batch=10",
                                        "pace=gamma", "pace.mean_ms=5", "evaluate_every=0", NULL});
    process_await_row(r, "SELECT count(*) FROM push WHERE run_id = 2");
    kill(r->pid, SIGINT);
    assert_int_equal(process_wait(r), STOPPED);
    assert_string_equal(process_ask(r, "SELECT group_concat(status, ' ') FROM run"),
                        "finished stopped");
    process_expect_nothing_left(r);
    assert_int_equal(RIG_RUN(r, "sweep", RIG_DATA, "samples=100,8000", "batch=10", "pace=gamma",
                             "pace.mean_ms=5", "evaluate_every=0", "--quiet"),
                     OK);
    assert_string_equal(process_ask(r, "SELECT group_concat(status, ' ') FROM run"),
                        "finished stopped finished");
    assert_string_equal(process_ask(r, "SELECT count(DISTINCT config_hash) FROM run WHERE "
                                       "status = 'finished'"),
                        "2");
}

static void a_sweep_continues_after_a_failed_run(void **state)
{
    struct process_rig *r = *state;
    /* The folder of the installed data is there, but empty. */
    assert_int_equal(process_shell(r, "mkdir -p installed/cifar10; GRADLAG_DATASETS=installed "
                                      "gradlag sweep model=softmax samples=600 evaluate_every=0 "
                                      "dataset=cifar10,gaussian --quiet"),
                     ERROR_OTHER);
    assert_string_equal(process_ask(r, "SELECT group_concat(status, ' ') FROM run"),
                        "failed finished");
    process_expect_nothing_left(r);
}

int main(void)
{
#define PROCESS_TEST(f) cmocka_unit_test_setup_teardown(f, process_set_up, process_tear_down)
    const struct CMUnitTest tests[] = {
        PROCESS_TEST(on_results_error_decides_what_a_full_disk_does),
        PROCESS_TEST(a_killed_worker_fails_the_run_and_is_named),
        PROCESS_TEST(a_lost_workers_report_is_not_the_reason_of_the_failure),
        PROCESS_TEST(a_run_whose_processes_are_all_suspended_continues),
        PROCESS_TEST(a_killed_server_fails_the_run),
        PROCESS_TEST(a_killed_rank_fails_the_run_and_is_named),
        PROCESS_TEST(a_killed_rank_is_named_with_the_line_breaks_of_open_mpi_5),
        PROCESS_TEST(a_rank_that_hangs_is_named_with_every_communicator),
        PROCESS_TEST(ranks_with_different_settings_are_an_error_before_training),
        PROCESS_TEST(the_error_of_a_stage_that_fails_alone_is_printed),
        PROCESS_TEST(a_killed_mpirun_fails_the_run),
        PROCESS_TEST(on_lost_continue_trains_on_without_a_lost_worker),
        PROCESS_TEST(ctrl_c_stops_a_run_and_keeps_its_rows),
        PROCESS_TEST(two_signals_at_once_are_one_request),
        PROCESS_TEST(a_second_ctrl_c_ends_a_run_that_does_not_stop),
        PROCESS_TEST(ctrl_c_ends_the_wait_for_a_locked_results_file),
        PROCESS_TEST(ctrl_c_stops_ranks_that_are_starting),
        PROCESS_TEST(killing_the_starter_ends_all_processes_and_fails_the_run),
        PROCESS_TEST(a_starter_killed_at_any_moment_leaves_no_process),
        PROCESS_TEST(a_run_with_a_closed_stdout_finishes),
        PROCESS_TEST(a_query_with_a_closed_stdout_ends_by_sigpipe),
        PROCESS_TEST(a_full_disk_for_stdout_is_an_error),
        PROCESS_TEST(a_sweep_skips_finished_runs),
        PROCESS_TEST(a_setting_without_influence_on_results_repeats_no_run),
        PROCESS_TEST(a_stopped_sweep_continues),
        PROCESS_TEST(a_sweep_continues_after_a_failed_run),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
