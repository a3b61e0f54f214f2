/* Several servers as processes: snapshot and torn reads, recorded rows, and lost processes. */
#include "base/clock.h"
#include "tests/rigs/process_rig.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ps/core/slices.h"

#define LAST "run_id = (SELECT max(id) FROM run)"
/* Four workers in varying order, and evaluations between their gradients. */
#define REAL                                                                                       \
    RIG_DATA, "batch=10", "samples=600", "evaluate_every=0.2", "pace=gamma", "pace.mean_ms=1",     \
        "workers=4"

static int answer(struct process_rig *r, const char *sql)
{
    const char *found = process_ask(r, sql);
    assert_true(found[0] != '\0'); /* the query failed */
    return atoi(found);
}

/* The number of gradients computed on slices of different versions. */
static int torn_reads(struct process_rig *r)
{
    return answer(r, "SELECT count(*) FROM (SELECT 1 FROM push WHERE " LAST
                     " GROUP BY worker, batch HAVING max(read_version) > min(read_version))");
}

/* The number of gradients with different arrival numbers at the servers. */
static int out_of_order(struct process_rig *r)
{
    return answer(r, "SELECT count(*) FROM (SELECT 1 FROM push WHERE " LAST
                     " GROUP BY worker, batch HAVING max(arrival) > min(arrival))");
}

static int rows_of(struct process_rig *r, unsigned server)
{
    char sql[128];
    snprintf(sql, sizeof sql, "SELECT count(*) FROM push WHERE " LAST " AND server = %u", server);
    return answer(r, sql);
}

static void expect_run(struct process_rig *r, int code)
{
    if (code != OK)
        fail_msg("%s", process_errors(r));
}

static void expect_one_hash(struct process_rig *r)
{
    assert_string_equal(process_ask(r, "SELECT count(DISTINCT parameters_sha256) FROM run"), "1");
    assert_string_equal(process_ask(r, "SELECT length(parameters_sha256) FROM run"), "64");
}

/* ---- what is computed ------------------------------------------------------------------------ */

static void one_worker_computes_the_same_with_any_number_of_servers(void **state)
{
    struct process_rig *r = *state;
    static const char *const ways[][4] = {
        {"servers=1", "payload=auto", "transport=auto", "evaluation_pause=auto"},
        {"servers=1", "payload=shm", "transport=ipc", "evaluation_pause=no"},
        {"servers=2", "payload=shm", "transport=ipc", "evaluation_pause=no"},
        {"servers=3", "payload=frames", "transport=tcp", "evaluation_pause=yes"}};
    for (size_t i = 0; i < COUNT_OF(ways); i++) {
        expect_run(r, RIG_RUN(r, "run", RIG_DATA, "batch=10", "samples=600", "evaluate_every=0.2",
                              ways[i][0], ways[i][1], ways[i][2], ways[i][3]));
    }
    expect_one_hash(r);
    assert_string_equal(process_ask(r,
                                    "SELECT count(DISTINCT final_loss || ' ' || updates || ' ' || "
                                    "samples_used) FROM run"),
                        "1");
    assert_string_equal(
        process_ask(r,
                    "SELECT count(*) FROM (SELECT 1 FROM evaluation GROUP BY updates, test_loss, "
                    "train_loss HAVING count(*) = 4)"),
        "3");
    assert_int_equal(rows_of(r, 2), 60);
    process_expect_nothing_left(r);
}

static void several_servers_for_a_small_model_get_a_hint(void **state)
{
    struct process_rig *r = *state;
    expect_run(r, RIG_RUN(r, "run", RIG_SMALL));
    assert_null(strstr(process_errors(r), "servers=1"));
    expect_run(r, RIG_RUN(r, "run", RIG_SMALL, "servers=2"));
    assert_non_null(strstr(process_errors(r), "servers=1"));
}

/* Server 0 ends the training, so the other servers may lack the last update. */
static void torn_reads_of_one_worker_compute_the_same_gradients(void **state)
{
    struct process_rig *r = *state;
    expect_run(r, RIG_RUN(r, "run", RIG_SMALL));
    expect_run(r, RIG_RUN(r, "run", RIG_SMALL, "servers=3", "read=torn"));
    assert_string_equal(process_ask(r, "SELECT count(*) FROM push a JOIN push b ON a.run_id = 1 "
                                       "AND b.run_id = 2 AND b.server = 0 AND a.batch = b.batch "
                                       "AND a.loss = b.loss AND b.staleness = 0"),
                        "60");
    process_expect_replayed(r);
}

static void bsp_with_three_servers_equals_bsp_with_one(void **state)
{
    struct process_rig *r = *state;
    static const char *const servers[] = {"servers=1", "servers=3"};
    for (size_t i = 0; i < COUNT_OF(servers); i++)
        expect_run(r, RIG_RUN(r, "run", RIG_SMALL, "workers=3", "consistency=bsp", servers[i]));
    expect_one_hash(r);
    assert_int_equal(torn_reads(r), 0);
}

static void snapshot_reads_are_consistent_and_replay_bit_for_bit(void **state)
{
    struct process_rig *r = *state;
    static const char *const rules[][2] = {
        {"consistency=asp", "damping=inverse"},
        {"consistency=backup", "payload=frames"},
    };
    int stale = 0;
    for (size_t i = 0; i < COUNT_OF(rules); i++) {
        expect_run(r, RIG_RUN(r, "run", REAL, "servers=3", rules[i][0], rules[i][1]));
        assert_int_equal(torn_reads(r), 0);
        assert_int_equal(out_of_order(r), 0);
        assert_int_equal(rows_of(r, 0), rows_of(r, 2));
        stale += answer(r, "SELECT count(*) FROM push WHERE " LAST " AND staleness > 0");
        process_expect_replayed(r);
    }
    assert_true(stale > 30);
}

static void torn_reads_replay_bit_for_bit(void **state)
{
    struct process_rig *r = *state;
    static const char *const rules[][2] = {
        {"consistency=asp", "damping=inverse"},
        {"consistency=bsp", "payload=frames"},
    };
    int torn = 0;
    for (size_t i = 0; i < COUNT_OF(rules); i++) {
        expect_run(r, RIG_RUN(r, "run", REAL, "servers=3", "read=torn", rules[i][0], rules[i][1]));
        torn += torn_reads(r);
        /* The claim of an experiment reads the event, also if the gradients are not published. */
        assert_int_equal(
            answer(r, "SELECT detail ->> 'torn' FROM event WHERE " LAST " AND code = 'torn_reads'"),
            torn_reads(r));
        assert_int_equal(answer(r, "SELECT detail ->> 'gradients' FROM event WHERE " LAST
                                   " AND code = 'torn_reads'"),
                         answer(r, "SELECT count(*) FROM (SELECT 1 FROM push WHERE " LAST
                                   " GROUP BY worker, batch)"));
        if (i == 1)
            assert_int_equal(torn_reads(r), 0);
        process_expect_replayed(r);
    }
    assert_true(torn > 0);
}

/* Slices of whole pages are adjacent in the worker's memory. With snapshot reads the worker reads
 * the same slot of all servers, with torn reads possibly different slots. */
static void slices_in_shared_memory_change_no_bit(void **state)
{
    struct process_rig *r = *state;
    static const char *const ways[][3] = {{"servers=1", "payload=shm", "read=snapshot"},
                                          {"servers=2", "payload=shm", "read=snapshot"},
                                          {"servers=2", "payload=frames", "read=snapshot"}};
#define LARGE                                                                                      \
    "dataset=gaussian", "dataset.size=32", "dataset.samples=600", "model=softmax", "batch=10"
    for (size_t i = 0; i < COUNT_OF(ways); i++)
        expect_run(r, RIG_RUN(r, "run", LARGE, "samples=300", ways[i][0], ways[i][1], ways[i][2]));
    expect_one_hash(r);
    expect_run(
        r, RIG_RUN(r, "run", LARGE, "samples=300", "workers=3", "servers=2", "damping=inverse"));
    process_expect_replayed(r);
    expect_run(r, RIG_RUN(r, "run", LARGE, "samples=1500", "workers=3", "servers=2", "read=torn",
                          "pace=gamma", "pace.mean_ms=1"));
    assert_true(torn_reads(r) > 0);
    process_expect_replayed(r);
}

static void a_tmpdir_with_a_comma_works(void **state)
{
    struct process_rig *r = *state;
    expect_run(r, process_shell(r, "mkdir a,b && TMPDIR=$PWD/a,b gradlag run servers=2 workers=1 "
                                   "dataset=gaussian dataset.size=8 dataset.samples=100 "
                                   "model=softmax updates=3 --quiet"));
}

/* The data after the header of a .safetensors file; the caller frees it. */
static char *tensors_of(struct process_rig *r, const char *name, size_t *size)
{
    uint64_t header = 0;
    FILE *file = fopen(process_path(r, name), "rb");
    assert_non_null(file);
    assert_int_equal(fread(&header, sizeof header, 1, file), 1);
    assert_int_equal(fseek(file, (long)header, SEEK_CUR), 0);
    char *bytes = malloc(1 << 20);
    assert_non_null(bytes);
    *size = fread(bytes, 1, 1 << 20, file);
    fclose(file);
    return bytes;
}

static void a_checkpoint_has_every_servers_slice(void **state)
{
    struct process_rig *r = *state;
    size_t one_size, three_size;
    expect_run(r, RIG_RUN(r, "run", RIG_SMALL, "optimizer=adamw", "lr=0.001",
                          "checkpoint=one.safetensors"));
    expect_run(r, RIG_RUN(r, "run", RIG_SMALL, "optimizer=adamw", "lr=0.001",
                          "checkpoint=three-{version}.safetensors", "checkpoint_every=0.2",
                          "servers=3"));
    expect_one_hash(r);
    assert_true(answer(r, "SELECT count(*) FROM checkpoint WHERE run_id = 2") >= 2);
    char *one = tensors_of(r, "one.safetensors", &one_size);
    char *three = tensors_of(r, "three-60.safetensors", &three_size);
    assert_true(one_size > 3 * 64 * 4);
    assert_int_equal(one_size, three_size);
    assert_memory_equal(one, three, one_size);
    free(one);
    free(three);
}

/* ---- who dies -------------------------------------------------------------------------------- */

/* The process that is server `number`. */
static pid_t server_process(struct process_rig *r, unsigned number, unsigned servers)
{
    pid_t found[SERVERS_MAX];
    char path[64], wanted[16], line[8192];
    process_await(r, "server", found, servers);
    snprintf(wanted, sizeof wanted, "server=%u", number);
    for (unsigned i = 0; i < servers; i++) {
        snprintf(path, sizeof path, "/proc/%d/cmdline", (int)found[i]);
        FILE *file = fopen(path, "r");
        assert_non_null(file);
        size_t size = fread(line, 1, sizeof line - 1, file);
        fclose(file);
        line[size] = '\0';
        bool follows = false, it = false;
        for (const char *at = line; at < line + size; at += strlen(at) + 1) {
            follows |= strncmp(at, "server=", 7) == 0;
            it |= strcmp(at, wanted) == 0;
        }
        if (number > 0 ? it : !follows)
            return found[i];
    }
    fail_msg("no process is server %u", number);
    return 0;
}

static void start_long(struct process_rig *r, const char *first, const char *second)
{
    process_start(
        r, (const char *const[]){"run", RIG_LONG, "workers=2", "servers=3", first, second, NULL});
    process_await_row(r, "SELECT count(*) >= 20 FROM push WHERE server = 2");
}

static void expect_lost(struct process_rig *r, const char *who)
{
    assert_int_equal(process_wait(r), ERROR_PEER);
    process_expect_error(r, who);
    assert_string_equal(process_ask(r, "SELECT status FROM run"), "failed");
    assert_string_equal(process_ask(r, "SELECT error IS NOT NULL FROM run"), "1");
    process_expect_nothing_left(r);
}

static void a_killed_server_of_several_fails_the_run_and_is_named(void **state)
{
    struct process_rig *r = *state;
    start_long(r, "read=snapshot", NULL);
    kill(server_process(r, 2, 3), SIGKILL);
    expect_lost(r, "server 2 ");
    assert_string_equal(process_ask(r, "SELECT error LIKE 'server 2 %' FROM run"), "1");
}

static void a_killed_server_0_of_several_fails_the_run(void **state)
{
    struct process_rig *r = *state;
    start_long(r, "read=torn", NULL);
    kill(server_process(r, 0, 3), SIGKILL);
    expect_lost(r, "server 0 ");
}

static void a_hanging_server_is_named_in_time(void **state)
{
    struct process_rig *r = *state;
    start_long(r, "read=snapshot", "timeout_s=4");
    kill(server_process(r, 1, 3), SIGSTOP);
    const double since = clock_seconds();
    expect_lost(r, "server 1 ");
    process_expect_error(r, "timeout_s");
    assert_true(clock_seconds() - since < 4 + 20 * PATIENCE);
}

static void a_killed_worker_of_several_servers_fails_the_run(void **state)
{
    struct process_rig *r = *state;
    pid_t workers[2];
    start_long(r, "read=torn", NULL);
    process_await(r, "worker", workers, 2);
    kill(workers[1], SIGKILL);
    expect_lost(r, "worker ");
}

static void several_servers_continue_without_a_lost_worker_and_replay(void **state)
{
    struct process_rig *r = *state;
    static const char *const reads[] = {"read=snapshot", "read=torn"};
    pid_t workers[3];
    for (size_t i = 0; i < COUNT_OF(reads); i++) {
        process_start(r, (const char *const[]){"run", RIG_DATA, "batch=10", "samples=15000",
                                               "pace=gamma", "pace.mean_ms=8", "workers=3",
                                               "evaluate_every=2", "servers=2", reads[i],
                                               "on_lost=continue", NULL});
        process_await(r, "worker", workers, 3);
        process_await_row(r, "SELECT count(*) >= 60 FROM push WHERE " LAST);
        kill(workers[1], SIGKILL);
        expect_run(r, process_wait(r));
        assert_int_equal(answer(r, "SELECT count(*) FROM event WHERE code = 'worker_lost' AND "
                                   "server = 0 AND " LAST),
                         1);
        assert_int_equal(answer(r, "SELECT count(*) FROM event WHERE code = 'worker_lost' AND "
                                   "server = 1 AND " LAST),
                         (int)i);
        assert_int_equal(answer(r, "SELECT count(*) FROM event WHERE code = 'worker_lost' AND "
                                   "server = 1 AND detail LIKE 'worker 1 % lost%' AND " LAST),
                         (int)i);
        process_expect_replayed(r);
    }
    process_expect_nothing_left(r);
}

static void a_stopped_run_of_several_servers_replays(void **state)
{
    struct process_rig *r = *state;
    static const char *const reads[] = {"read=snapshot", "read=torn"};
    for (size_t i = 0; i < COUNT_OF(reads); i++) {
        assert_int_equal(process_shell(r, "rm -f results.db last.safetensors"), OK);
        start_long(r, reads[i], "checkpoint=last.safetensors");
        kill(r->pid, SIGINT);
        assert_int_equal(process_wait(r), STOPPED);
        assert_string_equal(process_ask(r, "SELECT status || length(parameters_sha256) FROM run"),
                            "stopped64");
        assert_int_equal(access(process_path(r, "last.safetensors"), R_OK), 0);
        process_expect_replayed(r);
        process_expect_nothing_left(r);
    }
}

static void divergence_at_one_server_ends_the_run_at_all_servers(void **state)
{
    struct process_rig *r = *state;
    static const char *const reads[] = {"read=snapshot", "read=torn"};
    for (size_t i = 0; i < COUNT_OF(reads); i++) {
        assert_int_equal(RIG_RUN(r, "run", REAL, "servers=3", "lr=1e6", "schedule=constant",
                                 "warmup_epochs=0", "model=mlp", reads[i]),
                         ERROR_DIVERGED);
        process_expect_error(r, "");
        assert_string_equal(process_ask(r, "SELECT status FROM run ORDER BY id DESC LIMIT 1"),
                            "diverged");
        expect_run(r, RIG_RUN(r, "replay", "last"));
    }
    process_expect_nothing_left(r);
}

/* The last push is in the slices of some servers only, so their versions differ. */
static void slices_may_differ_after_a_divergence(void **state)
{
    struct process_rig *r = *state;
    for (unsigned i = 0; i < 6; i++) {
        assert_int_equal(RIG_RUN(r, "run", "mode=async", "model=mlp", "dataset=gaussian",
                                 "dataset.size=4", "dataset.samples=256", "batch=8", "workers=4",
                                 "servers=2", "epochs=2", "lr=3000", "warmup_epochs=0",
                                 "damping=inverse", "correction=dc-asgd-c"),
                         ERROR_DIVERGED);
        assert_null(strstr(process_errors(r), "server: error"));
    }
    process_expect_nothing_left(r);
}

/* ---- by hand --------------------------------------------------------------------------------- */

/* Two servers and two workers, each in its own folder. The first folder has the results file. */
enum { ROLES = 4 };
struct cast {
    struct process_rig *at[ROLES];
    void *more[ROLES];
    char endpoint[256];
};

static const char *const roles[ROLES][2] = {
    {"server", "server=0"}, {"server", "server=1"}, {"worker", "worker=0"}, {"worker", "worker=1"}};

#define BY_HAND "workers=2", "servers=2", "run_token=5ea1ed", "timeout_s=20"

static void start_member(const struct cast *c, size_t i, const char *samples, const char *pace,
                         const char *read)
{
    process_start(c->at[i], (const char *const[]){roles[i][0], roles[i][1], RIG_DATA, BY_HAND,
                                                  "batch=10", "on_lost=continue", c->endpoint,
                                                  samples, pace, read, NULL});
}

/* Workers start first, then server 1, then server 0, so that each waits for the next. */
static void start_cast(struct cast *c, struct process_rig *r, const char *samples, const char *pace,
                       const char *read)
{
    c->at[0] = r;
    for (size_t i = 1; i < ROLES; i++) {
        process_set_up(&c->more[i]);
        c->at[i] = c->more[i];
    }
    snprintf(c->endpoint, sizeof c->endpoint, "endpoint=ipc://%s/0,ipc://%s/1", r->folder,
             r->folder);
    for (size_t i = ROLES; i-- > 0;)
        start_member(c, i, samples, pace, read);
}

static void dismiss_cast(struct cast *c)
{
    for (size_t i = 1; i < ROLES; i++)
        process_tear_down(&c->more[i]);
}

static void servers_and_workers_are_started_by_hand(void **state)
{
    struct process_rig *r = *state;
    struct cast c;
    start_cast(&c, r, "samples=600", "pace=none", NULL);
    for (size_t i = 0; i < ROLES; i++)
        expect_run(c.at[i], process_wait(c.at[i]));
    assert_string_equal(process_ask(r, "SELECT status FROM run"), "finished");
    assert_int_equal(rows_of(r, 1), rows_of(r, 0));
    process_expect_replayed(r);
    dismiss_cast(&c);
}

static void expect_end(struct process_rig *r, int expected)
{
    int code = process_wait(r);
    if (code != expected)
        fail_msg("exit %d in place of %d: %s", code, expected, process_errors(r));
}

/* The test replaces both workers, one after the other. In the end no original worker is left. */
static void a_lost_worker_is_replaced_and_the_run_replays(void **state)
{
    struct process_rig *r = *state;
    static const char *const reads[] = {"read=snapshot", "read=torn"};
#define AFTER_LOSS                                                                                 \
    " AND server = 1 AND arrival > (SELECT max(push_number) FROM event WHERE code = "              \
    "'worker_lost')"
    static const char *const lost[] = {
        "SELECT count(*) = 1 FROM event WHERE code = 'worker_lost' AND server = 0",
        "SELECT count(*) = 2 FROM event WHERE code = 'worker_lost' AND server = 0"};
    static const char *const back[] = {
        "SELECT count(*) > 20 FROM push WHERE worker = 0" AFTER_LOSS,
        "SELECT count(*) > 20 FROM push WHERE worker = 1" AFTER_LOSS};
    for (size_t i = 0; i < COUNT_OF(reads); i++) {
        struct cast c;
        assert_int_equal(process_shell(r, "rm -f results.db"), OK);
        start_cast(&c, r, "epochs=1000", "pace=gamma", reads[i]);
        process_await_row(r, "SELECT count(*) >= 20 FROM push WHERE server = 1");
        for (size_t w = 0; w < 2; w++) {
            struct process_rig *worker = c.at[2 + w];
            kill(worker->pid, SIGKILL);
            assert_int_equal(process_wait(worker), 128 + SIGKILL);
            process_await_row(r, lost[w]);
            start_member(&c, 2 + w, "epochs=1000", "pace=gamma", reads[i]);
            process_await_row(r, back[w]);
        }
        kill(c.at[1]->pid, SIGTERM); /* a stop of any server stops the run */
        for (size_t k = 0; k < ROLES; k++)
            expect_end(c.at[k], k < 2 ? STOPPED : OK);
        assert_string_equal(process_ask(r, "SELECT status FROM run"), "stopped");
        process_expect_replayed(r);
        dismiss_cast(&c);
    }
}

static void contradicting_roles_are_errors(void **state)
{
    struct process_rig *r = *state;
    assert_int_equal(RIG_RUN(r, "server", RIG_SMALL, "servers=2", "server=2"), ERROR_USAGE);
    process_expect_error(r, "server");
    assert_int_equal(RIG_RUN(r, "server", RIG_SMALL, "servers=2"), ERROR_USAGE);
    process_expect_error(r, "endpoint");
    assert_int_equal(RIG_RUN(r, "server", RIG_SMALL, "servers=2", "endpoint=tcp://127.0.0.1:*"),
                     ERROR_USAGE);
    process_expect_error(r, "servers=2");
    assert_int_equal(
        RIG_RUN(r, "server", RIG_SMALL, "servers=2", "server=1", "endpoint=ipc://a,ipc://b"),
        ERROR_USAGE);
    process_expect_error(r, "run_token=");
    assert_int_equal(RIG_RUN(r, "server", RIG_SMALL, "servers=2", "server=1", "run_token=1",
                             "timeout_s=0.5", "endpoint=ipc://a,ipc://b"),
                     ERROR_PEER);
    process_expect_error(r, "timeout_s");
    assert_int_equal(RIG_RUN(r, "server", RIG_SMALL, "servers=2", "run_token=1", "timeout_s=0.1",
                             "endpoint=ipc://a,ipc://b"),
                     ERROR_PEER);
    process_expect_error(r, "server 1, worker 0");
}

static void several_servers_on_one_host_for_a_small_model_are_commented(void **state)
{
    struct process_rig *r = *state;
    assert_int_equal(RIG_RUN(r, "run", RIG_SMALL, "servers=2"), OK);
    process_expect_errors_contain(r, "servers=1");
    assert_int_equal(RIG_RUN(r, "run", RIG_SMALL, "servers=1"), OK);
    assert_null(strstr(process_errors(r), "servers="));
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, process_set_up, process_tear_down)
    const struct CMUnitTest tests[] = {
        TEST(one_worker_computes_the_same_with_any_number_of_servers),
        TEST(several_servers_for_a_small_model_get_a_hint),
        TEST(torn_reads_of_one_worker_compute_the_same_gradients),
        TEST(bsp_with_three_servers_equals_bsp_with_one),
        TEST(snapshot_reads_are_consistent_and_replay_bit_for_bit),
        TEST(torn_reads_replay_bit_for_bit),
        TEST(slices_in_shared_memory_change_no_bit),
        TEST(a_tmpdir_with_a_comma_works),
        TEST(a_checkpoint_has_every_servers_slice),
        TEST(a_killed_server_of_several_fails_the_run_and_is_named),
        TEST(a_killed_server_0_of_several_fails_the_run),
        TEST(a_hanging_server_is_named_in_time),
        TEST(a_killed_worker_of_several_servers_fails_the_run),
        TEST(several_servers_continue_without_a_lost_worker_and_replay),
        TEST(a_stopped_run_of_several_servers_replays),
        TEST(divergence_at_one_server_ends_the_run_at_all_servers),
        TEST(slices_may_differ_after_a_divergence),
        TEST(servers_and_workers_are_started_by_hand),
        TEST(a_lost_worker_is_replaced_and_the_run_replays),
        TEST(contradicting_roles_are_errors),
        TEST(several_servers_on_one_host_for_a_small_model_are_commented),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
