/* Key restarts: runs that lose a process go on by themselves. */
#include "base/clock.h"
#include "base/text.h"
#include "tests/rigs/process_rig.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Three seconds and more, with a checkpoint every 5 updates of a worker. */
#define WITHOUT_CHECKPOINT                                                                         \
    RIG_DATA, "samples=3000", "batch=10", "evaluate_every=0.5", "pace=constant", "pace.mean_ms=20"
#define CHECKPOINT       "checkpoint=at-{version}.safetensors"
#define CHECKPOINT_EVERY "checkpoint_every=0.1"
#define MODEST           WITHOUT_CHECKPOINT, CHECKPOINT, CHECKPOINT_EVERY

/* Kills one process of the run when it has written a checkpoint. `word`: an argument of that
 * process alone. */
static void kill_after_checkpoint(struct process_rig *r, const char *word)
{
    pid_t pid;
    process_await_row(r, "SELECT count(*) > 0 FROM checkpoint");
    process_await(r, word, &pid, 1);
    assert_int_equal(kill(pid, SIGKILL), 0);
}

static void ranks_go_on_from_the_last_checkpoint_with_the_same_bits(void **state)
{
    struct process_rig *r = *state;
    pid_t ranks[2];
    process_start(
        r, (const char *const[]){"run", "mode=sync", "workers=2", "restarts=1", MODEST, NULL});
    process_await_row(r, "SELECT count(*) > 0 FROM checkpoint");
    process_await(r, "rank", ranks, 2);
    assert_int_equal(kill(ranks[1], SIGKILL), 0);
    assert_int_equal(process_wait(r), OK);
    process_expect_answer(r, "SELECT status, updates, samples_used, error FROM run",
                          "finished,150,3000,");
    process_expect_answer(r, "SELECT count(*) FROM event WHERE code = 'restarted'", "1");
    process_expect_answer(r, "SELECT count(*), max(update_version) FROM step", "300,150");
    assert_int_equal(RIG_RUN(r, "run", "mode=sync", "workers=2", MODEST,
                             "checkpoint=other-{version}.safetensors"),
                     OK);
    process_expect_answer(r, "SELECT count(DISTINCT parameters_sha256) FROM run", "1");
}

static void restarts_are_counted(void **state)
{
    struct process_rig *r = *state;
    process_start(
        r, (const char *const[]){"run", "mode=sync", "workers=2", "restarts=1", MODEST, NULL});
    for (int i = 0; i < 2; i++) {
        struct text answer = {0};
        pid_t ranks[2];
        text_add(&answer,
                 "SELECT (SELECT count(*) FROM event WHERE code = 'restarted') = %d AND "
                 "(SELECT count(*) FROM checkpoint) > %d",
                 i, 4 * i);
        process_await_row(r, answer.at);
        process_await(r, "rank", ranks, 2);
        assert_int_equal(kill(ranks[0], SIGKILL), 0);
        text_free(&answer);
    }
    assert_int_equal(process_wait(r), ERROR_PEER);
    process_expect_answer(r, "SELECT status FROM run", "failed");
}

/* Kills a rank of a run with a checkpoint, and returns when the ranks have started again. */
static void restart_ranks(struct process_rig *r)
{
    pid_t ranks[2];
    process_start(
        r, (const char *const[]){"run", "mode=sync", "workers=2", "restarts=2", MODEST, NULL});
    process_await_row(r, "SELECT count(*) > 0 FROM checkpoint");
    process_await(r, "rank", ranks, 2);
    assert_int_equal(kill(ranks[1], SIGKILL), 0);
    process_await_row(r, "SELECT count(*) FROM event WHERE code = 'restarted'");
}

static void restarted_ranks_stop_on_request(void **state)
{
    struct process_rig *r = *state;
    char question[96];
    restart_ranks(r);
    snprintf(question, sizeof question, "SELECT max(version) > %d FROM checkpoint",
             atoi(process_ask(r, "SELECT max(version) FROM checkpoint")));
    process_await_row(r, question);
    assert_int_equal(kill(r->pid, SIGINT), 0);
    assert_int_equal(process_wait(r), STOPPED);
    process_expect_answer(r, "SELECT status, error FROM run", "stopped,");
}

static void ranks_lost_while_they_start_again_restart_once_more(void **state)
{
    struct process_rig *r = *state;
    pid_t mpirun;
    restart_ranks(r);
    process_await(r, "-n", &mpirun, 1);
    assert_int_equal(kill(mpirun, SIGKILL), 0);
    assert_int_equal(process_wait(r), OK);
    process_expect_answer(r, "SELECT status, updates FROM run", "finished,150");
    process_expect_answer(r, "SELECT count(*) FROM event WHERE code = 'restarted'", "2");
    process_expect_answer(
        r, "SELECT detail LIKE '%, 0 of %' FROM event WHERE code = 'restarted' ORDER BY rowid DESC",
        "1");
}

static bool is_zombie(pid_t pid)
{
    char path[32], text[256] = "";
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    assert_non_null(fgets(text, sizeof text, file));
    fclose(file);
    return strstr(text, ") Z") != NULL;
}

/* The starter sees the end of mpirun and the request at the same time. */
static void a_request_to_stop_beside_the_loss_prevents_a_restart(void **state)
{
    struct process_rig *r = *state;
    pid_t ranks[2], mpirun;
    process_start(
        r, (const char *const[]){"run", "mode=sync", "workers=2", "restarts=2", MODEST, NULL});
    process_await_row(r, "SELECT count(*) > 0 FROM checkpoint");
    process_await(r, "rank", ranks, 2);
    process_await(r, "-n", &mpirun, 1);
    assert_int_equal(kill(r->pid, SIGSTOP), 0);
    assert_int_equal(kill(ranks[1], SIGKILL), 0);
    for (const double until = clock_seconds() + RIG_LIMIT_S; !is_zombie(mpirun);) {
        assert_true(clock_seconds() < until);
        usleep(5000);
    }
    assert_int_equal(kill(r->pid, SIGINT), 0);
    assert_int_equal(kill(r->pid, SIGCONT), 0);
    assert_int_equal(process_wait(r), ERROR_PEER);
    process_expect_answer(r, "SELECT count(*) FROM event WHERE code = 'restarted'", "0");
}

static void lose_a_worker_and_go_on(struct process_rig *r, const char *servers, const char *read)
{
    pid_t workers[2];
    process_start(r, (const char *const[]){"run", "mode=async", "workers=2", "restarts=1",
                                           "on_lost=continue", MODEST, servers, read, NULL});
    process_await_row(r, "SELECT count(*) > 0 FROM checkpoint");
    process_await(r, "worker", workers, 2);
    assert_int_equal(kill(workers[1], SIGKILL), 0);
    assert_int_equal(process_wait(r), OK);
    process_expect_answer(
        r, "SELECT count(*) FROM event WHERE code = 'worker_joined' AND server = 0", "3");
    process_expect_answer(r, "SELECT status, samples_used FROM run", "finished,3000");
    assert_int_equal(RIG_RUN(r, "replay", "1"), OK);
}

static void a_lost_worker_comes_back_and_the_run_replays(void **state)
{
    lose_a_worker_and_go_on(*state, "servers=1", NULL);
}

static void a_lost_worker_comes_back_to_several_servers(void **state)
{
    lose_a_worker_and_go_on(*state, "servers=2", "read=snapshot");
}

static void a_lost_worker_comes_back_to_several_servers_with_torn_reads(void **state)
{
    lose_a_worker_and_go_on(*state, "servers=2", "read=torn");
}

/* Each row can be replayed. The program prints the JSON of the last row. */
static void after_the_loss_of_its_server_an_asynchronous_run_goes_on_in_a_new_row(void **state)
{
    struct process_rig *r = *state;
    process_start(r, (const char *const[]){"run", "mode=async", "workers=2", "restarts=1", MODEST,
                                           "--json", NULL});
    kill_after_checkpoint(r, "server");
    assert_int_equal(process_wait(r), OK);
    const char *row = strstr(process_output(r), "\"uuid\"");
    assert_true(row != NULL && strstr(row + 1, "\"uuid\"") == NULL);
    process_expect_line(r, "\"uuid\"", process_ask(r, "SELECT uuid FROM run WHERE id = 2"));
    assert_null(strstr(process_errors(r), "joins again")); /* the workers are started anew */
    process_expect_answer(r, "SELECT group_concat(status, ' ') FROM run", "failed finished");
    process_expect_answer(
        r,
        "SELECT a.id FROM run a JOIN run b ON a.uuid = b.host ->> '$.resumed.run' "
        "WHERE b.id = 2",
        "1");
    assert_int_equal(RIG_RUN(r, "replay", "2"), OK);
}

/* The run ends with the error of the loss, which also says why no restart followed. */
static void a_run_that_cannot_resume_ends_as_lost(void **state)
{
    struct process_rig *r = *state;
    pid_t ranks[2];
    process_start(r, (const char *const[]){"run", "mode=async", "workers=2", "restarts=1",
                                           "on_lost=continue", "outer=easgd", "optimizer=sgd",
                                           MODEST, "--json", NULL});
    kill_after_checkpoint(r, "server");
    assert_int_equal(process_wait(r), ERROR_PEER);
    process_expect_error(r, "no restart");
    assert_non_null(strstr(process_output(r), "\"uuid\""));
    process_start(r, (const char *const[]){"run", "mode=sync", "workers=2", "restarts=1", MODEST,
                                           "checkpoint=end.safetensors", "checkpoint_every=0.5",
                                           NULL});
    process_await_row(r, "SELECT count(*) > 0 FROM checkpoint WHERE run_id = 2");
    process_await(r, "rank", ranks, 2);
    process_write(r, "end.safetensors", "damaged");
    assert_int_equal(kill(ranks[1], SIGKILL), 0);
    assert_int_equal(process_wait(r), ERROR_PEER);
    process_expect_answer(r, "SELECT error LIKE '%signal 9%end.safetensors%' FROM run WHERE id = 2",
                          "1");
}

/* ---- by hand --------------------------------------------------------------------------------- */

enum { MEMBERS = 4 }; /* servers, then workers */
struct members {
    struct process_rig *at[MEMBERS];
    void *more[MEMBERS];
    unsigned servers;
    bool elsewhere; /* the workers are in a pid namespace, as on another host */
    const char *timeout;
    char count[16], endpoint[256];
};

static void start_member(const struct members *m, unsigned i, const char *resume)
{
    char number[16];
    struct text script = {0};
    const bool serves = i < m->servers;
    snprintf(number, sizeof number, serves ? "server=%u" : "worker=%u",
             serves ? i : i - m->servers);
    const char *const arguments[] = {serves ? "server" : "worker",
                                     number,
                                     WITHOUT_CHECKPOINT,
                                     "workers=2",
                                     "run_token=5ea1ed",
                                     "restarts=1",
                                     m->timeout,
                                     m->count,
                                     m->endpoint,
                                     serves ? CHECKPOINT : NULL, /* a worker writes none */
                                     CHECKPOINT_EVERY,
                                     resume,
                                     NULL};
    text_add(&script, "exec %s gradlag",
             m->elsewhere && !serves ? "unshare --pid --fork --mount-proc --kill-child" : "");
    for (const char *const *argument = arguments; *argument != NULL; argument++)
        text_add(&script, " '%s'", *argument);
    process_start_shell(m->at[i], script.at);
    text_free(&script);
}

/* m: servers, elsewhere and timeout are set. */
static void start_members(struct members *m, struct process_rig *r)
{
    const unsigned servers = m->servers;
    m->at[0] = r;
    snprintf(m->count, sizeof m->count, "servers=%u", servers);
    snprintf(m->endpoint, sizeof m->endpoint,
             servers == 1 ? "endpoint=ipc://%s/0" : "endpoint=ipc://%s/0,ipc://%s/1", r->folder,
             r->folder);
    for (unsigned i = 0; i < servers + 2; i++) {
        if (i > 0) {
            process_set_up(&m->more[i]);
            m->at[i] = m->more[i];
        }
        start_member(m, i, NULL);
    }
    process_await_row(r, "SELECT count(*) > 0 FROM checkpoint");
}

static void dismiss(struct members *m)
{
    for (unsigned i = 1; i < m->servers + 2; i++)
        process_tear_down(&m->more[i]);
}

static void restarted_servers_get_their_workers_back(void **state)
{
    struct process_rig *r = *state;
    static const struct members cases[] = {
        {.servers = 1}, {.servers = 2}, {.servers = 1, .elsewhere = true}};
    for (size_t n = 0; n < COUNT_OF(cases); n++) {
        struct members m = cases[n];
        const unsigned servers = m.servers;
        char resume[256];
        if (m.elsewhere && process_shell(r, "unshare --pid --fork --mount-proc true") != OK) {
            print_message("skipped: a pid namespace needs root and unshare\n");
            break;
        }
        assert_int_equal(process_shell(r, "rm -f results.db *.safetensors"), OK);
        m.timeout = "timeout_s=20";
        start_members(&m, r);
        kill(m.at[servers - 1]->pid, SIGKILL); /* if that is server 1, server 0 ends the run */
        for (unsigned i = servers; i-- > 0;)
            assert_int_equal(process_wait(m.at[i]), i == servers - 1 ? 128 + SIGKILL : ERROR_PEER);
        snprintf(resume, sizeof resume, "resume=%s/%s", r->folder,
                 process_ask(r, "SELECT path FROM checkpoint ORDER BY version DESC LIMIT 1"));
        for (unsigned i = 0; i < servers; i++)
            start_member(&m, i, resume);
        for (unsigned i = 0; i < servers + 2; i++)
            assert_int_equal(process_wait(m.at[i]), OK);
        process_expect_errors_contain(m.at[servers], "restart 1 of 1");
        process_expect_answer(r, "SELECT group_concat(status, ' ') FROM run", "failed finished");
        process_expect_answer(r, "SELECT samples_used FROM run WHERE id = 2", "3000");
        assert_int_equal(RIG_RUN(r, "replay", "2"), OK);
        dismiss(&m);
    }
}

static void workers_wait_timeout_s_for_a_restarted_server(void **state)
{
    struct process_rig *r = *state;
    struct members m = {.servers = 1, .timeout = "timeout_s=2"};
    start_members(&m, r);
    const double since = clock_seconds();
    kill(r->pid, SIGKILL);
    assert_int_equal(process_wait(r), 128 + SIGKILL);
    for (unsigned i = 1; i < 3; i++) {
        assert_int_equal(process_wait(m.at[i]), ERROR_PEER);
        process_expect_error(m.at[i], "no server at ");
    }
    assert_true(clock_seconds() - since >= 2);
    dismiss(&m);
}

static void an_asynchronous_run_that_cannot_start_is_not_started_again(void **state)
{
    struct process_rig *r = *state;
    assert_int_equal(RIG_RUN(r, "run", "model=external", "model.command=false", "restarts=2",
                             "checkpoint=a.safetensors"),
                     ERROR_PEER);
    process_expect_answer(r, "SELECT group_concat(status, ' ') FROM run", "failed");
}

static void restarts_that_cannot_resume_are_refused(void **state)
{
    struct process_rig *r = *state;
    assert_int_equal(RIG_RUN(r, "run", RIG_SMALL, "mode=sync", "restarts=1"), ERROR_USAGE);
    process_expect_error(r, "checkpoint=");
    assert_int_equal(RIG_RUN(r, "run", RIG_SMALL, "restarts=1"), ERROR_USAGE);
    assert_int_equal(RIG_RUN(r, "run", RIG_SMALL, "restarts=1", "on_lost=continue"), OK);
    assert_int_equal(RIG_RUN(r, "run", RIG_SMALL, "restarts=1", "mode=pipeline", "workers=2",
                             "checkpoint=a.safetensors"),
                     ERROR_USAGE);
    static const char *const cannot_resume[][2] = {
        {"outer=easgd", "optimizer=sgd"},
        {"correction=closed-loop-momentum", "optimizer=momentum"},
        {"servers=2", "read=torn"}};
    for (size_t i = 0; i < COUNT_OF(cannot_resume); i++) {
        const char *a = cannot_resume[i][0], *b = cannot_resume[i][1];
        assert_int_equal(
            RIG_RUN(r, "run", RIG_SMALL, "restarts=1", "checkpoint=at-{run}.safetensors", a, b),
            ERROR_USAGE);
        process_expect_error(r, "restarts");
        assert_int_equal(RIG_RUN(r, "run", RIG_SMALL, "restarts=1", "on_lost=continue",
                                 "checkpoint=at-{run}.safetensors", a, b),
                         OK);
    }
}

#define PROCESS_TEST(f) cmocka_unit_test_setup_teardown(f, process_set_up, process_tear_down)
int main(void)
{
    const struct CMUnitTest tests[] = {
        PROCESS_TEST(ranks_go_on_from_the_last_checkpoint_with_the_same_bits),
        PROCESS_TEST(restarts_are_counted),
        PROCESS_TEST(restarted_ranks_stop_on_request),
        PROCESS_TEST(ranks_lost_while_they_start_again_restart_once_more),
        PROCESS_TEST(a_request_to_stop_beside_the_loss_prevents_a_restart),
        PROCESS_TEST(a_lost_worker_comes_back_and_the_run_replays),
        PROCESS_TEST(a_lost_worker_comes_back_to_several_servers),
        PROCESS_TEST(a_lost_worker_comes_back_to_several_servers_with_torn_reads),
        PROCESS_TEST(after_the_loss_of_its_server_an_asynchronous_run_goes_on_in_a_new_row),
        PROCESS_TEST(a_run_that_cannot_resume_ends_as_lost),
        PROCESS_TEST(an_asynchronous_run_that_cannot_start_is_not_started_again),
        PROCESS_TEST(restarted_servers_get_their_workers_back),
        PROCESS_TEST(workers_wait_timeout_s_for_a_restarted_server),
        PROCESS_TEST(restarts_that_cannot_resume_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
