#include "tests/ps/server/ps_rig.h"

#include "base/clock.h"
#include "base/memory.h"
#include "experiments/config/config.h"
#include "tests/rigs/patience.h"
#include "tests/rigs/scratch.h"

#include <math.h>
#include <signal.h>
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <setjmp.h>
#include <cmocka.h>

options *rig_settings(void)
{
    static const char *const base[] = {"batch=10",        "lr=0.001",     "schedule=constant",
                                       "warmup_epochs=0", "timeout_s=20", NULL};
    options *o = NULL;
    assert_int_equal(config_compose_texts(&o, base, NULL, "test"), OK);
    return o;
}

void rig_set(options *o, const char *key, const char *value)
{
    if (options_set(o, key, value, "test") != OK)
        fail_msg("%s", error_message());
}

struct rig *rig_open(unsigned workers, size_t count)
{
    struct rig *r =
        mmap(NULL, sizeof *r, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_ptr_not_equal(r, MAP_FAILED);
    assert_true(workers <= RIG_PROCESSES);
    r->workers = workers;
    r->count = count;
    r->total_samples = 1000;
    r->token = 0x1234567890abcdef;
    snprintf(r->listen, sizeof r->listen, "ipc://%s/gradlag-test-%d.sock", scratch_folder(),
             (int)getpid());
    return r;
}

void rig_close(struct rig *r)
{
    munmap(r, sizeof *r);
}

struct rig *rig_open_with(options **settings, unsigned workers, const char *timeout_s)
{
    char number[16];
    struct rig *r = rig_open(workers, 1000);
    *settings = rig_settings();
    snprintf(number, sizeof number, "%u", workers);
    rig_set(*settings, "workers", number);
    rig_set(*settings, "timeout_s", timeout_s);
    return r;
}

void rig_close_with(struct rig *r, options *settings)
{
    options_close(&settings);
    rig_close(r);
}

void rig_expect_named(const char *message, const char *name)
{
    if (strstr(message, name) == NULL)
        fail_msg("'%s' does not name '%s'", message, name);
}

/* ---- the server's process ------------------------------------------------------------------ */

static struct rig *bound_rig; /* of this process: one server */

static void bound(void *context UNUSED, const char *endpoint)
{
    snprintf(bound_rig->endpoint, sizeof bound_rig->endpoint, "%s", endpoint);
    bound_rig->bound = 1;
}

static status evaluate(void *context, const float *parameters, unsigned threads,
                       struct evaluation *out)
{
    struct rig *r = context;
    const float first = parameters[0];
    r->evaluating = 1;
    r->evaluation_threads = threads;
    if (r->at_evaluation != NULL)
        r->at_evaluation(r);
    clock_sleep_until_ns(clock_ns() + r->evaluation_ms * 1000000ULL);
    r->evaluating = 0;
    r->evaluations++;
    if (r->evaluation_fails)
        return error_set(ERROR_DATA, __FILE__, __LINE__, "the test's evaluation fails");
    if (parameters[0] != first)
        return error_set(ERROR_DATA, __FILE__, __LINE__, "the parameters changed meanwhile");
    *out = (struct evaluation){NAN, parameters[0], 0.5, parameters[0], 0.5, 0.1};
    return OK;
}

static status checkpoint(void *context, const struct training_state *now UNUSED)
{
    struct rig *r = context;
    if (r->at_checkpoint != NULL)
        r->at_checkpoint(r);
    r->checkpoints++;
    return r->checkpoint_fails
               ? error_set(ERROR_OTHER, __FILE__, __LINE__, "the test's checkpoint fails")
               : OK;
}

static void lost(void *context, unsigned w UNUSED)
{
    struct rig *r = context;
    r->lost++;
}

static status serve(struct rig *r, const options *settings)
{
    status result = OK;
    float *initial = NULL;
    recorder *rows = NULL;
    int64_t run;
    TRY(memory_new(&initial, r->count, sizeof *initial, "parameters"));
    for (size_t i = 0; i < r->count; i++)
        initial[i] = 1.0f + (float)(i % 7);
    if (r->results != NULL) {
        TRY(recorder_open(&rows, r->results));
        TRY(recorder_begin(rows,
                           &(struct run_description){.mode = "async",
                                                     .engine = "real",
                                                     .model = "none",
                                                     .dataset = "none",
                                                     .device = "cpu",
                                                     .optimizer = "momentum",
                                                     .consistency = "asp",
                                                     .damping = "none",
                                                     .workers = r->workers,
                                                     .batch = 10},
                           "running", &run));
    }
    result =
        ps_server_run(&(struct ps_server_options){.settings = settings,
                                                  .workers = r->workers,
                                                  .server = r->server,
                                                  .leader = r->leader,
                                                  .count = r->count,
                                                  .initial = initial,
                                                  .epoch_samples = 100,
                                                  .length = {.total_samples = r->total_samples,
                                                             .evaluate_every = r->evaluate_every},
                                                  .run_token = r->token,
                                                  .settings_hash = r->settings_hash,
                                                  .endpoint = r->listen,
                                                  .bound = bound,
                                                  .recorder = rows,
                                                  .hooks = {.context = r,
                                                            .evaluate = evaluate,
                                                            .checkpoint = checkpoint,
                                                            .lost = lost,
                                                            .stop = &r->stop}},
                      &r->outcome);
    if (rows != NULL) {
        status code = recorder_finish(rows, &(struct run_outcome){.status = "finished"});
        if (code != OK)
            result = code;
    }
done:
    recorder_close(&rows);
    memory_free(initial);
    return result;
}

pid_t rig_serve(struct rig *r, const options *settings)
{
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL); /* a failed test leaves no process behind */
        bound_rig = r;
        r->code = serve(r, settings);
        r->ended_ns = clock_ns();
        snprintf(r->message, sizeof r->message, "%s", error_message());
        r->bound = 1;
        _exit(r->code);
    }
    assert_true(pid > 0);
    assert_true(rig_until(&r->bound, 1, 10));
    return pid;
}

/* ---- workers ------------------------------------------------------------------------------- */

status rig_join(struct rig *r, const options *settings, unsigned w, ps_client **client,
                struct ps_release *at)
{
    return ps_client_open(client,
                          &(struct ps_client_options){.settings = settings,
                                                      .endpoint = r->endpoint,
                                                      .run_token = r->token,
                                                      .settings_hash = r->settings_hash,
                                                      .worker = w,
                                                      .count = r->count,
                                                      .dismissal = &r->worker[w].dismissal},
                          at);
}

static status train(struct rig *r, const options *settings, unsigned w, unsigned step_ms)
{
    status result = OK;
    ps_client *client = NULL;
    struct ps_release at;
    struct rig_worker *report = &r->worker[w];
    if (r->endpoint[0] == '\0' && !rig_until(&r->bound, 1, 10))
        FAIL(ERROR_PEER, "no server after 10 s");
    TRY(rig_join(r, settings, w, &client, &at));
    report->first_batch = at.batch;
    while (!at.finished) {
        report->stage++;
        report->last_version = at.version;
        while (r->held_at != 0 && report->stage >= r->held_at)
            clock_sleep_until_ns(clock_ns() + 1000000);
        if (step_ms > 0)
            clock_sleep_until_ns(clock_ns() + step_ms * 1000000ULL);
        memcpy(at.gradient, at.parameters, r->count * sizeof(float));
        TRY(ps_client_push_pull(client, &(struct ps_push){.loss = at.parameters[0], .samples = 10},
                                &at));
        report->pushes++;
    }
done:
    ps_client_close(&client);
    return result;
}

pid_t rig_fork(struct rig *r, const options *settings, unsigned w, unsigned argument,
               rig_body *body)
{
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        struct rig_worker *report = &r->worker[w];
        status code = body(r, settings, w, argument);
        report->code = code;
        snprintf(report->message, sizeof report->message, "%s", code == OK ? "" : error_message());
        _exit(code);
    }
    assert_true(pid > 0);
    return pid;
}

pid_t rig_train(struct rig *r, const options *settings, unsigned w, unsigned step_ms)
{
    return rig_fork(r, settings, w, step_ms, train);
}

int rig_wait(pid_t pid, double seconds)
{
    int state;
    seconds *= PATIENCE;
    for (double until = clock_seconds() + seconds; clock_seconds() < until;) {
        if (waitpid(pid, &state, WNOHANG) == pid)
            return WIFEXITED(state) ? WEXITSTATUS(state) : 128 + WTERMSIG(state);
        clock_sleep_until_ns(clock_ns() + 2000000);
    }
    kill(pid, SIGKILL);
    waitpid(pid, &state, 0);
    fail_msg("process %d did not end within %.1f s", (int)pid, seconds);
    return -1;
}

bool rig_until(const volatile int *value, int least, double seconds)
{
    for (double until = clock_seconds() + seconds * PATIENCE; clock_seconds() < until;) {
        if (*value >= least)
            return true;
        clock_sleep_until_ns(clock_ns() + 1000000);
    }
    return *value >= least;
}

/* ---- whole runs, and what they recorded ---------------------------------------------------- */

void rig_train_all(struct rig *r, const options *o)
{
    pid_t pids[RIG_PROCESSES];
    pid_t server = rig_serve(r, o);
    for (unsigned w = 0; w < r->workers; w++)
        pids[w] = rig_train(r, o, w, 0);
    for (unsigned w = 0; w < r->workers; w++)
        if (rig_wait(pids[w], 20) != OK)
            fail_msg("worker %u: %s", w, r->worker[w].message);
    if (rig_wait(server, 20) != OK)
        fail_msg("server: %s", r->message);
}

int64_t rig_number(const char *path, const char *sql)
{
    sqlite3 *db = NULL;
    sqlite3_stmt *statement = NULL;
    assert_int_equal(sqlite3_open_v2(path, &db, SQLITE_OPEN_READWRITE, NULL), SQLITE_OK);
    if (sqlite3_prepare_v2(db, sql, -1, &statement, NULL) != SQLITE_OK)
        fail_msg("%s: %s", sql, sqlite3_errmsg(db));
    assert_int_equal(sqlite3_step(statement), SQLITE_ROW);
    int64_t value = sqlite3_column_int64(statement, 0);
    sqlite3_finalize(statement);
    sqlite3_close(db);
    return value;
}

void rig_expect_apart(double seconds, double meanwhile, double wall)
{
    if (seconds + meanwhile > wall + 0.4 * STRETCH)
        fail_msg("%.3f s of %.3f s, and %.3f s beside them", seconds, wall, meanwhile);
}

double rig_longest_wait(const char *path)
{
    return 1e-6 * (double)rig_number(path, "SELECT max(max(q, p)) FROM (SELECT sum(queue_us) AS q, "
                                           "sum(pull_us) AS p FROM push GROUP BY worker)");
}
