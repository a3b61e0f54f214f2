/* Key workers.max: workers that join a run later, leave and come back. */
#include "base/text.h"
#include "tests/rigs/process_rig.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <signal.h>
#include <stdlib.h>
#include <string.h>

#define SETTINGS RIG_LONG, "workers=2", "workers.max=3", "on_lost=continue"

/* Another worker, and the run that it joins. */
struct late_worker {
    struct process_rig *rig;
    const char *servers, *read; /* settings */
    char endpoint[RIG_ENDPOINT_BYTES], token[64];
};

static struct late_worker late_worker_of(struct process_rig *run, const char *servers,
                                         const char *read)
{
    struct late_worker late = {.servers = servers, .read = read};
    void *rig;
    process_set_up(&rig);
    late.rig = rig;
    process_await_endpoint(run, late.endpoint, late.token);
    return late;
}

static void join(const struct late_worker *late, const char *worker)
{
    process_start(late->rig, (const char *const[]){"worker", SETTINGS, late->endpoint, late->token,
                                                   worker, late->servers, late->read, NULL});
}

static void forget(struct late_worker *late)
{
    void *rig = late->rig;
    process_tear_down(&rig);
}

/* Waits until worker 2 has joined `times` times and 20 of its gradients have arrived since then. */
static void await_pushes(struct process_rig *r, int times)
{
    struct text sql = {0};
    text_add(&sql,
             "SELECT count(*) >= 20 AND (SELECT count(*) FROM event WHERE run_id = run.id AND "
             "code = 'worker_joined' AND worker = 2 AND server = 0) = %d FROM push JOIN run ON "
             "run.id = run_id WHERE run.id = (SELECT max(id) FROM run) AND worker = 2 AND arrival "
             ">= (SELECT max(push_number) FROM event WHERE run_id = run.id AND code = "
             "'worker_joined')",
             times);
    process_await_row(r, sql.at);
    text_free(&sql);
}

static void stop_run(struct process_rig *r)
{
    kill(r->pid, SIGINT);
    assert_int_equal(process_wait(r), STOPPED);
}

static void join_leave_and_come_back(struct process_rig *r, const char *servers, const char *read)
{
    process_start(r, (const char *const[]){"run", SETTINGS, servers, read, NULL});
    process_await_row(r, "SELECT count(*) > 20 FROM push");
    struct late_worker late = late_worker_of(r, servers, read);
    join(&late, "worker=2");
    await_pushes(r, 1);
    kill(late.rig->pid, SIGKILL);
    assert_int_equal(process_wait(late.rig), 128 + SIGKILL);
    process_await_row(r, "SELECT count(*) FROM event WHERE code = 'worker_lost'");
    join(&late, "worker=2");
    await_pushes(r, 2);
    kill(late.rig->pid, SIGTERM);
    assert_int_equal(process_wait(late.rig), STOPPED);
    join(&late, "worker=2");
    await_pushes(r, 3);
    stop_run(r);
    assert_int_equal(process_wait(late.rig), OK);
    process_expect_answer(r, "SELECT status, workers FROM run", "stopped,2");
    process_expect_answer(r,
                          "SELECT group_concat(code, ' ') FROM (SELECT code FROM event WHERE "
                          "worker = 2 AND push_number IS NOT NULL AND server = 0 ORDER BY "
                          "push_number)",
                          "worker_joined worker_lost worker_joined worker_lost worker_joined");
    /* The worker continues at its next batch. The batch of a lost gradient may be missing. */
    process_expect_answer(r,
                          "SELECT count(*) = count(DISTINCT server || ' ' || batch) FROM push "
                          "WHERE worker = 2",
                          "1");
    process_expect_replayed(r);
    assert_int_equal(RIG_RUN(r, "replay", "1", "damping=inverse"), OK);
    process_expect_replayed(r);
    forget(&late);
}

static void a_worker_joins_later_leaves_comes_back_and_the_run_replays(void **state)
{
    join_leave_and_come_back(*state, "servers=1", NULL);
}

static void the_same_with_several_servers_and_snapshots(void **state)
{
    join_leave_and_come_back(*state, "servers=2", "read=snapshot");
}

static void the_same_with_several_servers_and_torn_reads(void **state)
{
    join_leave_and_come_back(*state, "servers=2", "read=torn");
}

static void late_workers_train_on_without_the_first_ones(void **state)
{
    struct process_rig *r = *state;
    pid_t workers[2];
    process_start(
        r, (const char *const[]){"run", SETTINGS, "correction=dana-slim", "optimizer=sgd", NULL});
    process_await_row(r, "SELECT count(*) > 20 FROM push");
    struct late_worker late = late_worker_of(r, NULL, NULL);
    process_start(late.rig,
                  (const char *const[]){"worker", SETTINGS, "correction=dana-slim", "optimizer=sgd",
                                        late.endpoint, late.token, "worker=2", NULL});
    await_pushes(r, 1);
    process_await(r, "worker", workers, 2);
    for (int i = 0; i < 2; i++)
        assert_int_equal(kill(workers[i], SIGKILL), 0);
    process_await_row(r, "SELECT count(*) > 100 FROM push WHERE arrival > (SELECT "
                         "max(push_number) FROM event WHERE code = 'worker_lost') AND (SELECT "
                         "count(*) = 2 FROM event WHERE code = 'worker_lost')");
    kill(late.rig->pid, SIGKILL);
    assert_int_equal(process_wait(late.rig), 128 + SIGKILL);
    assert_int_equal(process_wait(r), ERROR_PEER); /* no worker is left */
    process_expect_replayed(r);
    forget(&late);
}

static void join_a_resumed_run_again(struct process_rig *r, const char *servers)
{
    for (int i = 0; i < 2; i++) {
        process_start(r, (const char *const[]){"run", SETTINGS, "checkpoint=at-{run}.safetensors",
                                               servers, i == 0 ? NULL : "resume=at-1.safetensors",
                                               NULL});
        struct late_worker late = late_worker_of(r, servers, NULL);
        join(&late, "worker=2");
        await_pushes(r, 1);
        stop_run(r);
        assert_int_equal(process_wait(late.rig), OK);
        process_expect_replayed(r);
        forget(&late);
    }
    process_expect_answer(r,
                          "SELECT min(b.batch) > 0 AND min(b.batch) <= (SELECT 1 + max(batch) FROM "
                          "push WHERE run_id = 1 AND worker = 2) FROM push b WHERE run_id = 2 AND "
                          "worker = 2",
                          "1");
}

static void a_late_worker_joins_a_resumed_run_again(void **state)
{
    join_a_resumed_run_again(*state, "servers=1");
}

static void a_late_worker_joins_a_resumed_run_of_several_servers_again(void **state)
{
    join_a_resumed_run_again(*state, "servers=2");
}

static void numbers_from_the_most_workers_on_are_refused(void **state)
{
    struct process_rig *r = *state;
    static const char *const settings[][2] = {{"workers.max=0", "workers=2"},
                                              {"workers.max=3", "workers.max=3"}};
    static const char *const numbers[] = {"worker=2", "worker=3"};
    for (size_t i = 0; i < COUNT_OF(settings); i++) {
        assert_int_equal(RIG_RUN(r, "worker", RIG_SMALL, "workers=2", settings[i][0], numbers[i],
                                 "run_token=1", "endpoint=ipc://x"),
                         ERROR_USAGE);
        process_expect_error(r, settings[i][1]);
    }
}

#define PROCESS_TEST(f) cmocka_unit_test_setup_teardown(f, process_set_up, process_tear_down)
int main(void)
{
    const struct CMUnitTest tests[] = {
        PROCESS_TEST(a_worker_joins_later_leaves_comes_back_and_the_run_replays),
        PROCESS_TEST(the_same_with_several_servers_and_snapshots),
        PROCESS_TEST(the_same_with_several_servers_and_torn_reads),
        PROCESS_TEST(late_workers_train_on_without_the_first_ones),
        PROCESS_TEST(a_late_worker_joins_a_resumed_run_again),
        PROCESS_TEST(a_late_worker_joins_a_resumed_run_of_several_servers_again),
        PROCESS_TEST(numbers_from_the_most_workers_on_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
