/*
 * Sweeps: parallel runs, the queue, and a killed sweep. GRADLAG_KILLS=50 kills a sweep 50 times
 * (`make nightly`).
 */
#include "base/text.h"
#include "base/thread.h"
#include "tests/rigs/process_rig.h"
#include "base/random.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define VIRTUAL "engine=virtual", "pace=constant", "virtual.threads=1"

/* A run of at least two seconds; its rows appear after one second. */
#define SOME_SECONDS                                                                               \
    RIG_DATA, "samples=8000", "batch=10", "pace=gamma", "pace.mean_ms=5", "evaluate_every=0"

static bool two_cores(void)
{
    return processor_count() >= 2;
}

static void a_run_that_diverged_is_a_result(void **state)
{
    struct process_rig *r = *state;
    for (int turn = 0; turn < 2; turn++) {
        assert_int_equal(RIG_RUN(r, "sweep", RIG_SMALL, VIRTUAL, "model=mlp", "lr=0.01,1e6",
                                 "warmup_epochs=0", "--quiet"),
                         OK);
    }
    process_expect_answer(r, "SELECT group_concat(status, ' ') FROM run", "finished diverged");
}

/* ---- several at a time --------------------------------------------------------------------------
 */

static void parallel_runs_have_their_own_cores(void **state)
{
    struct process_rig *r = *state;
    if (!two_cores())
        skip();
    assert_int_equal(
        RIG_RUN(r, "sweep", RIG_SMALL, VIRTUAL, "seed=1,2,3,4", "--jobs", "2", "--quiet"), OK);
    process_expect_answer(r, "SELECT count(*) FROM run WHERE status = 'finished'", "4");
    process_expect_answer(r, "SELECT group_concat(DISTINCT host ->> '$.processors') FROM run", "1");
    process_expect_nothing_left(r);
}

static void more_jobs_than_cores_need_oversubscribe(void **state)
{
    struct process_rig *r = *state;
    assert_int_equal(RIG_RUN(r, "sweep", RIG_SMALL, VIRTUAL, "seed=1,2", "--jobs=4096"),
                     ERROR_USAGE);
    process_expect_error(r, "--oversubscribe");
    assert_int_equal(RIG_RUN(r, "sweep", RIG_SMALL, VIRTUAL, "seed=1,2", "--jobs=0"), ERROR_USAGE);
    process_expect_error(r, "--jobs");
    assert_int_equal(RIG_RUN(r, "sweep", RIG_SMALL, VIRTUAL, "seed=1,2", "--jobs"), ERROR_USAGE);
    process_expect_error(r, "--jobs");
    assert_string_equal(process_ask(r, "SELECT count(*) FROM run"), "");
}

static void eight_parallel_runs_lose_no_row(void **state)
{
    struct process_rig *r = *state;
    assert_int_equal(RIG_RUN(r, "sweep", RIG_DATA, "samples=3000", "batch=10", "evaluate_every=0.5",
                             VIRTUAL, "workers=2", "seed=1..8:8", "--jobs=8", "--oversubscribe",
                             "--quiet"),
                     OK);
    process_expect_answer(r, "SELECT count(*) FROM run WHERE status = 'finished'", "8");
    process_expect_answer(r,
                          "SELECT count(*) >= 4 FROM run AS a WHERE EXISTS (SELECT 1 FROM run AS b "
                          "WHERE b.id <> a.id AND b.started_at < a.finished_at AND a.started_at < "
                          "b.finished_at)",
                          "1");
    process_expect_answer(r,
                          "SELECT count(*) FROM run WHERE updates = 300 AND updates = (SELECT "
                          "count(*) FROM push WHERE run_id = run.id AND outcome = 'applied') AND "
                          "(SELECT count(*) || ' ' || max(number) FROM push WHERE run_id = run.id) "
                          "IN ('300 299', '301 300')",
                          "8");
    process_expect_answer(r,
                          "SELECT count(DISTINCT n) FROM (SELECT count(*) AS n FROM evaluation "
                          "GROUP BY run_id)",
                          "1");
    process_expect_answer(r, "PRAGMA integrity_check", "ok");
}

/* Runs the same command twice in parallel; both must succeed. */
static void start_both(struct process_rig *r, struct process_rig *other, const char *const *command)
{
    struct process_rig *const both[] = {r, other};
    process_start(r, command);
    process_start(other, command);
    for (size_t i = 0; i < COUNT_OF(both); i++)
        if (process_wait(both[i]) != OK)
            fail_msg("%s %zu: %s", command[0], i, process_errors(both[i]));
}

static void two_concurrent_sweeps_make_each_run_once(void **state)
{
    struct process_rig *r = *state;
    struct process_rig *other = NULL;
    char results[128];
    assert_int_equal(process_set_up((void **)&other), 0);
    snprintf(results, sizeof results, "results=%s/results.db", r->folder);
    const char *const command[] = {"sweep", RIG_SMALL, VIRTUAL, "seed=1..12:12",
                                   results, "--quiet", NULL};
    start_both(r, other, command);
    process_expect_answer(r, "SELECT count(*) || ' ' || count(DISTINCT seed) FROM run", "12 12");
    process_tear_down((void **)&other);
}

/* ---- the queue ----------------------------------------------------------------------------------
 */

static void runs_of_a_stopped_sweep_stay_queued_and_can_be_dropped(void **state)
{
    struct process_rig *r = *state;
    process_start(r, (const char *const[]){"sweep", RIG_LONG, "seed=1,2,3", "priority=7", NULL});
    process_await_row(r, "SELECT count(*) FROM push");
    kill(r->pid, SIGINT);
    assert_int_equal(process_wait(r), STOPPED);
    process_expect_answer(r, "SELECT group_concat(status, ' ') FROM run", "stopped queued queued");
    assert_int_equal(RIG_RUN(r, "sweep", "--status"), OK);
    assert_int_equal(RIG_RUN(r, "show", "last"), OK);
    assert_non_null(strstr(process_output(r), "stopped"));
    assert_int_equal(RIG_RUN(r, "sweep", "--drop"), OK);
    process_expect_line(r, "2 ", "");
    process_expect_answer(r, "SELECT group_concat(status, ' ') FROM run", "stopped");
}

/* The signal arrives while the process of the run is loaded. */
static void a_run_stopped_before_its_start_stays_queued(void **state)
{
    struct process_rig *r = *state;
    for (int turn = 0; turn < 5; turn++) {
        pid_t run;
        process_start(r, (const char *const[]){"sweep", RIG_LONG, "seed=1,2", "--quiet", NULL});
        process_await(r, "run", &run, 1);
        kill(r->pid, SIGINT);
        assert_int_equal(process_wait(r), STOPPED);
        process_expect_answer(
            r, "SELECT count(*) FROM run WHERE status NOT IN ('queued', 'stopped')", "0");
    }
}

/* The first command stopped run 1; the second one adds it again as run 4. */
static void a_waiting_run_gets_the_settings_of_the_last_command(void **state)
{
    struct process_rig *r = *state;
    process_start(r, (const char *const[]){"sweep", RIG_LONG, "seed=1,2,3", NULL});
    process_await_row(r, "SELECT count(*) FROM push");
    kill(r->pid, SIGINT);
    assert_int_equal(process_wait(r), STOPPED);
    process_start(r, (const char *const[]){"sweep", RIG_LONG, "seed=1,2,3", "record=evaluations",
                                           "tag=second", "priority=3", NULL});
    process_await_row(r, "SELECT count(*) FROM run WHERE id = 4 AND status = 'running'");
    kill(r->pid, SIGINT);
    assert_int_equal(process_wait(r), STOPPED);
    process_expect_answer(r,
                          "SELECT group_concat(seed || (config ->> '$.record') || tag || priority, "
                          "' ') FROM run WHERE status = 'queued'",
                          "2evaluationssecond3 3evaluationssecond3");
}

/* Without --again the command would find the earlier runs. */
static void a_run_stopped_in_a_repeated_sweep_waits_for_work(void **state)
{
    struct process_rig *r = *state;
    assert_int_equal(RIG_RUN(r, "sweep", SOME_SECONDS, "seed=1", "--quiet"), OK);
    process_start(r, (const char *const[]){"sweep", SOME_SECONDS, "seed=1", "--again", NULL});
    process_await_row(r, "SELECT count(*) FROM push WHERE run_id = 2");
    kill(r->pid, SIGINT);
    assert_int_equal(process_wait(r), STOPPED);
    process_expect_errors_contain(r, "run `gradlag sweep --work results=results.db`");
    process_expect_answer(r, "SELECT group_concat(status, ' ') FROM run",
                          "finished stopped queued");
}

/* According to its row, a process in another container executes the run. */
static void a_run_that_another_host_executes_has_not_ended(void **state)
{
    struct process_rig *r = *state;
    const char *const sweep[] = {"sweep", RIG_SMALL, VIRTUAL, "seed=1,2", "--quiet", NULL};
    assert_int_equal(process_run(r, sweep), OK);
    assert_int_equal(
        process_shell(r, "sqlite3 results.db \"UPDATE run SET status = 'running', runner = "
                         "json_object('host', 'other', 'boot', 'b', 'namespace', 'n', 'pid', 1, "
                         "'started', 1), progress = json_object('at', "
                         "strftime('%Y-%m-%dT%H:%M:%fZ', 'now')) WHERE id = 2\""),
        OK);
    assert_int_equal(process_run(r, sweep), ERROR_OTHER);
    process_expect_error(r, "executes run 2;");
    process_expect_answer(r, "SELECT group_concat(status, ' ') FROM run", "finished running");
}

/* Its row is one line of JSON. */
static void run_last_of_queue(struct process_rig *r)
{
    char number[24], id[32];
    snprintf(number, sizeof number, "%s",
             process_ask(r, "SELECT max(id) FROM run WHERE status = 'queued'"));
    snprintf(id, sizeof id, "{\"id\": %s,", number);
    assert_int_equal(RIG_RUN(r, "run", "--queued", number, "--json", "--dry-run"), ERROR_USAGE);
    process_expect_error(r, "--dry-run");
    assert_int_equal(RIG_RUN(r, "run", "--queued", number, "--json", "--quiet"), OK);
    process_expect_line(r, id, "\"status\": \"finished\"");
    assert_ptr_equal(strchr(process_output(r), '\n') + 1, strchr(process_output(r), '\0'));
    assert_int_equal(RIG_RUN(r, "run", "--queued", number, "--json"), ERROR_USAGE);
    assert_string_equal(process_output(r), "");
}

static void work_runs_the_queue_of_any_sweep(void **state)
{
    struct process_rig *r = *state;
    process_start(r, (const char *const[]){"sweep", RIG_SMALL, VIRTUAL, "seed=1..24:24", NULL});
    process_await_row(r, "SELECT count(*) FROM run WHERE status = 'finished'");
    kill(r->pid, SIGINT);
    assert_int_equal(process_wait(r), STOPPED);
    assert_true(atoi(process_ask(r, "SELECT count(*) FROM run WHERE status = 'queued'")) > 0);
    assert_int_equal(RIG_RUN(r, "sweep", "--status"), OK);
    run_last_of_queue(r);
    assert_int_equal(RIG_RUN(r, "sweep", "--work", "--quiet"), OK);
    process_expect_answer(r, "SELECT count(*) FROM run WHERE status = 'queued'", "0");
    assert_int_equal(RIG_RUN(r, "sweep", RIG_SMALL, VIRTUAL, "seed=1..24:24", "--quiet"), OK);
    process_expect_answer(
        r, "SELECT count(*) || ' ' || count(DISTINCT seed) FROM run WHERE status = 'finished'",
        "24 24");
    assert_int_equal(RIG_RUN(r, "sweep", "--work", "lr=0.1"), ERROR_USAGE);
    process_expect_error(r, "--work");
}

static void runs_of_a_higher_priority_come_first(void **state)
{
    struct process_rig *r = *state;
    assert_int_equal(RIG_RUN(r, "sweep", RIG_SMALL, VIRTUAL, "priority=1,3,2", "--quiet"), OK);
    process_expect_answer(
        r, "SELECT group_concat(priority, ' ') FROM (SELECT priority FROM run ORDER BY started_at)",
        "3 2 1");
}

static void a_crashed_run_is_retried_and_an_impossible_one_is_not(void **state)
{
    struct process_rig *r = *state;
    pid_t server;
    process_start(r,
                  (const char *const[]){"sweep", RIG_DATA, "samples=6000", "batch=10", "pace=gamma",
                                        "pace.mean_ms=5", "evaluate_every=0", "retries=1", NULL});
    process_await_row(r, "SELECT count(*) FROM push");
    process_await(r, "server", &server, 1);
    kill(server, SIGKILL);
    assert_int_equal(process_wait(r), OK);
    process_expect_answer(
        r, "SELECT group_concat(status || ' ' || attempt, ', ') FROM run ORDER BY id",
        "\"failed 1, finished 2\"");
    assert_int_equal(
        RIG_RUN(r, "sweep", "dataset.path=.", "model=softmax", "updates=1", "retries=2", "--quiet"),
        ERROR_OTHER);
    process_expect_answer(r, "SELECT count(*) FROM run WHERE id > 2", "1");
    assert_int_equal(RIG_RUN(r, "sweep", RIG_SMALL, "lr=1e6", "batch=10", "warmup_epochs=0",
                             "retries=2", "--quiet"),
                     OK);
    process_expect_answer(r, "SELECT count(*) FROM run WHERE id > 3", "1");
}

static void work_shows_the_settings_that_differ(void **state)
{
    struct process_rig *r = *state;
    process_start(r, (const char *const[]){"sweep", RIG_SMALL, VIRTUAL, "lr=0.01..0.24:24",
                                           "batch=10", NULL});
    process_await_row(r, "SELECT count(*) FROM run WHERE status = 'finished'");
    kill(r->pid, SIGINT);
    assert_int_equal(process_wait(r), STOPPED);
    assert_int_equal(RIG_RUN(r, "sweep", "--work", "--quiet"), OK);
    assert_non_null(strstr(process_output(r), " seed 1 lr=0.24 "));
    assert_null(strstr(process_output(r), "batch="));
}

static void work_does_not_retry_a_crashed_run_without_retries(void **state)
{
    struct process_rig *r = *state;
    pid_t server;
    process_start(r, (const char *const[]){"sweep", SOME_SECONDS, "seed=1,2", NULL});
    process_await_row(r, "SELECT count(*) FROM push");
    kill(r->pid, SIGINT);
    assert_int_equal(process_wait(r), STOPPED);
    process_start(r, (const char *const[]){"sweep", "--work", NULL});
    process_await_row(r, "SELECT count(*) FROM push WHERE run_id = 2");
    process_await(r, "server", &server, 1);
    kill(server, SIGKILL);
    assert_int_equal(process_wait(r), ERROR_OTHER);
    process_expect_answer(
        r, "SELECT group_concat(status || ' ' || attempt, ', ') FROM run ORDER BY id",
        "\"stopped 1, failed 1\"");
}

static void dropping_the_queue_leaves_the_running_run_alone(void **state)
{
    struct process_rig *r = *state;
    struct process_rig *other = NULL;
    char results[128];
    assert_int_equal(process_set_up((void **)&other), 0);
    snprintf(results, sizeof results, "results=%s/results.db", r->folder);
    process_start(r, (const char *const[]){"sweep", SOME_SECONDS, "seed=1,2,3", NULL});
    process_await_row(r, "SELECT count(*) FROM push");
    kill(r->pid, SIGSTOP); /* the sweep's current run continues; the sweep starts no other */
    assert_int_equal(RIG_RUN(other, "sweep", "--drop", results), OK);
    assert_int_equal(RIG_RUN(other, "sweep", RIG_SMALL, VIRTUAL, "seed=9", results), OK);
    kill(r->pid, SIGCONT);
    assert_int_equal(process_wait(r), ERROR_OTHER);
    process_expect_answer(r, "SELECT group_concat(status || ' ' || seed, ', ') FROM run",
                          "\"finished 1, finished 9\"");
    process_tear_down((void **)&other);
}

static void contradicting_flags_are_errors(void **state)
{
    struct process_rig *r = *state;
    assert_int_equal(RIG_RUN(r, "sweep", "--status"), ERROR_RESULTS);
    process_expect_error(r, "results.db");
    assert_int_equal(RIG_RUN(r, "sweep", "--drop"), ERROR_RESULTS);
    process_expect_error(r, "results.db");
    assert_int_equal(access(process_path(r, "results.db"), F_OK), -1);
    assert_int_equal(RIG_RUN(r, "sweep", "--work", "--part", "1/2"), ERROR_USAGE);
    process_expect_error(r, "--part");
    static const char *const idle[] = {"--jobs=2", "--oversubscribe", "--quiet"};
    for (size_t i = 0; i < COUNT_OF(idle); i++) {
        char name[32];
        snprintf(name, sizeof name, "%.*s", (int)strcspn(idle[i], "="), idle[i]);
        assert_int_equal(RIG_RUN(r, "sweep", "--status", idle[i]), ERROR_USAGE);
        process_expect_error(r, name);
        assert_int_equal(RIG_RUN(r, "sweep", "--drop", idle[i]), ERROR_USAGE);
        process_expect_error(r, name);
        assert_int_equal(RIG_RUN(r, "sweep", "--work", idle[i]), ERROR_RESULTS);
    }
    assert_int_equal(RIG_RUN(r, "sweep", "--status", "--drop"), ERROR_USAGE);
    process_expect_error(r, "--drop");
}

static void hosts_give_the_workers_of_a_sweep_without_workers(void **state)
{
    struct process_rig *r = *state;
    assert_int_equal(RIG_RUN(r, "sweep", "hosts=(localhost:4,192.0.2.1:4)", "--dry-run"), OK);
    process_expect_line(r, "async ×8", "lenet");
    assert_int_equal(RIG_RUN(r, "sweep", "hosts=(localhost:4,192.0.2.1:4)", "lr=0.1,0.2",
                             "search=random", "search.trials=1", "--dry-run"),
                     OK);
    process_expect_line(r, "async ×8", "lr=0.");
}

/* Key device.index does not exist with device=cpu. */
static void a_key_that_some_combinations_lack_distinguishes_the_others(void **state)
{
    struct process_rig *r = *state;
    assert_int_equal(RIG_RUN(r, "sweep", RIG_SMALL, VIRTUAL, "record=all,evaluations", "--quiet"),
                     OK);
    assert_int_equal(RIG_RUN(r, "sweep", RIG_SMALL, VIRTUAL, "device=cpu,cuda", "device.index=0,1",
                             "record=all,evaluations", "--dry-run"),
                     OK);
    process_expect_line(r, "6 combinations", "2 there already");
}

/* ---- kill -9 ------------------------------------------------------------------------------------
 */

static void sleep_ms(uint32_t ms)
{
    struct timespec time = {.tv_sec = ms / 1000, .tv_nsec = (long)(ms % 1000) * 1000000};
    nanosleep(&time, NULL);
}

/* "1 2 3": the runs that finished. */
static void read_finished(struct process_rig *r, char out[4096])
{
    snprintf(out, 4096, "%s",
             process_ask(r, "SELECT group_concat(id, ' ') FROM run WHERE status = 'finished'"));
}

/* Checks that these runs are still finished. */
static void expect_kept(struct process_rig *r, const char *finished)
{
    struct text sql = {0};
    unsigned count = finished[0] != '\0';
    char wanted[16];
    text_add(&sql, "SELECT count(*) FROM run WHERE status = 'finished' AND id IN (");
    for (const char *c = finished; *c != '\0'; c++) {
        count += *c == ' ';
        text_add(&sql, "%c", *c == ' ' ? ',' : *c);
    }
    text_add(&sql, ")");
    snprintf(wanted, sizeof wanted, "%u", count);
    if (access(process_path(r, "results.db"), F_OK) == 0 && count > 0)
        process_expect_answer(r, sql.at, wanted);
    text_free(&sql);
}

/* Runs the sweep to its end. If one start takes too long for process_wait(), kills and restarts
 * it. */
static void let_it_end(struct process_rig *r, const char *const *sweep)
{
    for (unsigned starts = 1;; starts++) {
        siginfo_t ended = {0};
        process_start(r, sweep);
        for (unsigned ms = 0; ms < 1000 * (RIG_LIMIT_S - 10) && ended.si_pid == 0; ms += 20) {
            sleep_ms(20);
            assert_int_equal(waitid(P_PID, (id_t)r->pid, &ended, WEXITED | WNOHANG | WNOWAIT), 0);
        }
        if (ended.si_pid == 0)
            kill(r->pid, SIGKILL);
        int code = process_wait(r);
        process_expect_none_running(r);
        if (code == OK)
            return;
        if (code != 128 + SIGKILL || starts == 10)
            fail_msg("start %u: %d, %s", starts, code, process_errors(r));
    }
}

static void a_killed_sweep_loses_and_repeats_no_finished_run(void **state)
{
    struct process_rig *r = *state;
    const char *kills_text = getenv("GRADLAG_KILLS"), *seed = getenv("GRADLAG_PROPERTY_SEED");
    unsigned kills = kills_text != NULL ? (unsigned)atoi(kills_text) : 3, killed = 0;
    unsigned runs = 3 * kills + 4 < 250 ? 3 * kills + 4 : 250;
    char seeds[32], wanted[32], finished[4096] = "";
    struct random_stream moments;
    random_open(&moments, RANDOM_TEST, seed != NULL ? strtoull(seed, NULL, 10) : 1, 0, 0);
    snprintf(seeds, sizeof seeds, "seed=1..%u:%u", runs, runs);
    const char *const sweep[] = {"sweep",         RIG_SMALL,         "engine=virtual",
                                 "pace=constant", "--quiet",         seeds,
                                 "--jobs=2",      "--oversubscribe", NULL};
    for (unsigned i = 0; i < kills; i++) {
        process_start(r, sweep);
        sleep_ms(random_below(&moments, i % 2 == 0 ? 150 : 600));
        kill(r->pid, SIGKILL);
        killed += process_wait(r) == 128 + SIGKILL;
        process_expect_none_running(r);
        expect_kept(r, finished);
        read_finished(r, finished);
    }
    assert_true(killed >
                kills /
                    2); /* otherwise the sweep ended before the kill, and the test shows nothing */
    let_it_end(r, sweep);
    expect_kept(r, finished);
    snprintf(wanted, sizeof wanted, "%u %u %u", runs, runs, runs);
    process_expect_answer(r,
                          "SELECT count(*) || ' ' || count(DISTINCT config_hash) || ' ' || "
                          "count(DISTINCT seed) FROM run WHERE status = 'finished'",
                          wanted);
    process_expect_answer(r, "SELECT count(*) FROM run WHERE status NOT IN ('finished', 'failed')",
                          "0");
    process_expect_answer(
        r,
        "SELECT count(*) FROM run WHERE status = 'finished' AND updates <> (SELECT count(*) FROM "
        "push WHERE run_id = run.id AND outcome = 'applied')",
        "0");
    process_expect_answer(r, "PRAGMA integrity_check", "ok");
    process_expect_nothing_left(r);
}

/* ---- searches -----------------------------------------------------------------------------------
 */

static void a_search_continues_and_repeats_the_same_trials(void **state)
{
    struct process_rig *r = *state;
    const char *const search[] = {"sweep",           RIG_SMALL,          VIRTUAL,
                                  "search=tpe",      "search.trials=6",  "search.startup=4",
                                  "search.batch=2",  "lr=0.0001..1:log", "momentum=0,0.9",
                                  "warmup_epochs=0", "--quiet",          NULL};
    char first[256];
    assert_int_equal(process_run(r, search), OK);
    snprintf(first, sizeof first, "%s",
             process_ask(r, "SELECT group_concat(lr || ':' || momentum, ' ') FROM run"));
    process_expect_answer(r, "SELECT count(*) FROM run WHERE config ->> '$.trial_of' = 'tpe'", "6");
    assert_int_equal(process_run(r, search), OK);
    process_expect_answer(r, "SELECT count(*) FROM run", "6");
    assert_int_equal(unlink(process_path(r, "results.db")), 0);
    assert_int_equal(process_run(r, search), OK);
    process_expect_answer(r, "SELECT group_concat(lr || ':' || momentum, ' ') FROM run", first);
}

static void searches_per_key_have_equal_budgets(void **state)
{
    struct process_rig *r = *state;
    assert_int_equal(RIG_RUN(r, "sweep", RIG_SMALL, VIRTUAL, "workers=2", "search=halving",
                             "search.trials=2", "search.eta=2", "search.per=damping",
                             "damping=none,inverse", "lr=0.001..1:log", "seed=1,2", "--quiet",
                             "compression=dgc", "compression.warmup_epochs=0.2", "optimizer=sgd"),
                     OK);
    /* For each damping: 2 runs of half length, 1 of full length, each with 2 seeds. */
    process_expect_answer(
        r,
        "SELECT group_concat(damping || samples_used || '@' || c || '*' || n, ' ') FROM (SELECT "
        "damping, samples_used, config ->> '$.\"compression.warmup_epochs\"' AS c, count(*) AS n "
        "FROM run GROUP BY 1, 2, 3 ORDER BY 1, 2)",
        "inverse300@0.1*4 inverse600@0.2*2 none300@0.1*4 none600@0.2*2");
    process_expect_line(r, "damping=inverse", "halving");
    assert_int_equal(RIG_RUN(r, "sweep", RIG_SMALL, VIRTUAL, "search=random", "search.trials=5",
                             "momentum=0,0.9", "--quiet"),
                     OK);
    /* Four places for two points at a quarter of the length, two at half of it, and one. */
    assert_int_equal(RIG_RUN(r, "sweep", RIG_SMALL, VIRTUAL, "search=halving", "search.trials=4",
                             "search.eta=2", "momentum=0,0.9", "--quiet"),
                     OK);
    process_expect_line(r, "best of 7, 5", " 2.5 ");
    assert_int_equal(RIG_RUN(r, "sweep", RIG_SMALL, "lr=0.01..1:log"), ERROR_USAGE);
    process_expect_error(r, "lr");
    assert_int_equal(RIG_RUN(r, "sweep", RIG_SMALL, "search=tpe", "damping=inverse"), ERROR_USAGE);
    process_expect_error(r, "search");
}

static void a_search_with_dropped_trials_has_not_ended(void **state)
{
    struct process_rig *r = *state;
    struct process_rig *other = NULL;
    char results[128];
    assert_int_equal(process_set_up((void **)&other), 0);
    snprintf(results, sizeof results, "results=%s/results.db", r->folder);
    process_start(
        r, (const char *const[]){"sweep", SOME_SECONDS, "search=grid", "lr=0.01,0.02", NULL});
    process_await_row(r, "SELECT count(*) FROM push");
    assert_int_equal(RIG_RUN(other, "sweep", "--drop", results), OK);
    assert_int_equal(process_wait(r), ERROR_OTHER);
    process_expect_answer(r, "SELECT group_concat(status, ' ') FROM run", "finished");
    process_tear_down((void **)&other);
}

static void a_search_runs_all_points_of_a_range_of_seeds(void **state)
{
    struct process_rig *r = *state;
    assert_int_equal(RIG_RUN(r, "sweep", RIG_SMALL, VIRTUAL, "search=grid", "lr=0.01,0.1",
                             "seed=1..2:2", "--quiet"),
                     OK);
    process_expect_line(r, "2 trials with 2 seeds", "4 runs");
    process_expect_answer(r, "SELECT group_concat(lr || ' ' || seed, ', ') FROM run",
                          "\"0.01 1, 0.1 1, 0.01 2, 0.1 2\"");
}

static void searches_per_key_beside_the_computation_have_their_own_runs(void **state)
{
    struct process_rig *r = *state;
    for (int turn = 0; turn < 2; turn++) {
        assert_int_equal(RIG_RUN(r, "sweep", RIG_SMALL, VIRTUAL, "search=random", "search.trials=1",
                                 "search.per=record", "record=all,evaluations", "lr=0.01..0.1",
                                 "--quiet"),
                         OK);
        process_expect_answer(
            r, "SELECT group_concat(config ->> '$.record', ' ') || count(DISTINCT lr) FROM run",
            "all evaluations1");
    }
}

int main(void)
{
#define PROCESS_TEST(f) cmocka_unit_test_setup_teardown(f, process_set_up, process_tear_down)
    const struct CMUnitTest tests[] = {
        PROCESS_TEST(a_run_that_diverged_is_a_result),
        PROCESS_TEST(parallel_runs_have_their_own_cores),
        PROCESS_TEST(more_jobs_than_cores_need_oversubscribe),
        PROCESS_TEST(eight_parallel_runs_lose_no_row),
        PROCESS_TEST(two_concurrent_sweeps_make_each_run_once),
        PROCESS_TEST(runs_of_a_stopped_sweep_stay_queued_and_can_be_dropped),
        PROCESS_TEST(a_run_stopped_before_its_start_stays_queued),
        PROCESS_TEST(a_waiting_run_gets_the_settings_of_the_last_command),
        PROCESS_TEST(a_run_stopped_in_a_repeated_sweep_waits_for_work),
        PROCESS_TEST(a_run_that_another_host_executes_has_not_ended),
        PROCESS_TEST(work_runs_the_queue_of_any_sweep),
        PROCESS_TEST(runs_of_a_higher_priority_come_first),
        PROCESS_TEST(a_crashed_run_is_retried_and_an_impossible_one_is_not),
        PROCESS_TEST(work_shows_the_settings_that_differ),
        PROCESS_TEST(work_does_not_retry_a_crashed_run_without_retries),
        PROCESS_TEST(dropping_the_queue_leaves_the_running_run_alone),
        PROCESS_TEST(contradicting_flags_are_errors),
        PROCESS_TEST(hosts_give_the_workers_of_a_sweep_without_workers),
        PROCESS_TEST(a_key_that_some_combinations_lack_distinguishes_the_others),
        PROCESS_TEST(a_killed_sweep_loses_and_repeats_no_finished_run),
        PROCESS_TEST(a_search_continues_and_repeats_the_same_trials),
        PROCESS_TEST(searches_per_key_have_equal_budgets),
        PROCESS_TEST(a_search_with_dropped_trials_has_not_ended),
        PROCESS_TEST(a_search_runs_all_points_of_a_range_of_seeds),
        PROCESS_TEST(searches_per_key_beside_the_computation_have_their_own_runs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
