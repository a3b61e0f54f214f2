/* Several servers as processes: one order for all or one for each, what is recorded, and what
 * happens when one of them dies. */
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
/* Workers that overtake each other, and evaluations among their gradients. */
#define REAL                                                                                       \
    RIG_DATA, "batch=10", "samples=600", "evaluate_every=0.2", "pace=gamma", "pace.mean_ms=1",     \
        "workers=4"

static int answer(struct process_rig *r, const char *sql)
{
    return atoi(process_ask(r, sql));
}

/* How many gradients were computed at parts of different versions. */
static int torn_reads(struct process_rig *r)
{
    return answer(r, "SELECT count(*) FROM (SELECT 1 FROM push WHERE " LAST
                     " GROUP BY worker, batch HAVING max(read_version) > min(read_version))");
}

/* How many gradients were not at the same place of every server's order. */
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

static void expect_replayed(struct process_rig *r)
{
    expect_run(r, RIG_RUN(r, "replay", "last"));
    assert_non_null(strstr(process_output(r), "as recorded"));
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
    static const char *const ways[][3] = {{"servers=1", "payload=auto", "transport=auto"},
                                          {"servers=2", "payload=shm", "transport=ipc"},
                                          {"servers=3", "payload=frames", "transport=tcp"}};
    for (size_t i = 0; i < COUNT_OF(ways); i++) {
        expect_run(r, RIG_RUN(r, "run", RIG_DATA, "batch=10", "samples=600", "evaluate_every=0.2",
                              ways[i][0], ways[i][1], ways[i][2]));
    }
    expect_one_hash(r);
    assert_string_equal(process_ask(r,
                                    "SELECT count(DISTINCT final_loss || ' ' || updates || ' ' || "
                                    "samples_used) FROM run"),
                        "1");
    assert_string_equal(
        process_ask(r,
                    "SELECT count(*) FROM (SELECT 1 FROM evaluation GROUP BY updates, test_loss, "
                    "train_loss HAVING count(*) = 3)"),
        "3");
    assert_int_equal(rows_of(r, 2), 60);
    process_expect_nothing_left(r);
}

/* Training ends when server 0 says so: the last update may not be everywhere then. */
static void one_worker_computes_the_same_gradients_where_each_server_is_for_itself(void **state)
{
    struct process_rig *r = *state;
    expect_run(r, RIG_RUN(r, "run", RIG_SMALL));
    expect_run(r, RIG_RUN(r, "run", RIG_SMALL, "servers=3", "read=torn"));
    assert_string_equal(process_ask(r, "SELECT count(*) FROM push a JOIN push b ON a.run_id = 1 "
                                       "AND b.run_id = 2 AND b.server = 0 AND a.batch = b.batch "
                                       "AND a.loss = b.loss AND b.staleness = 0"),
                        "60");
    expect_replayed(r);
}

static void a_barrier_over_several_servers_computes_what_it_does_at_one(void **state)
{
    struct process_rig *r = *state;
    static const char *const servers[] = {"servers=1", "servers=3"};
    for (size_t i = 0; i < COUNT_OF(servers); i++)
        expect_run(r, RIG_RUN(r, "run", RIG_SMALL, "workers=3", "consistency=bsp", servers[i]));
    expect_one_hash(r);
    assert_int_equal(torn_reads(r), 0);
}

static void snapshots_are_whole_and_replay_bit_for_bit(void **state)
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
        expect_replayed(r);
    }
    assert_true(stale > 30);
}

static void every_server_for_itself_replays_bit_for_bit(void **state)
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
        if (i == 1)
            assert_int_equal(torn_reads(r), 0);
        expect_replayed(r);
    }
    assert_true(torn > 0);
}

/* Slices of whole pages lie side by side in a worker's memory, and it is the same slot of all
 * servers that it reads, or another of each. */
static void slices_that_are_not_copied_change_no_bit(void **state)
{
    struct process_rig *r = *state;
    static const char *const ways[][3] = {{"servers=1", "payload=shm", "read=snapshot"},
                                          {"servers=2", "payload=shm", "read=snapshot"},
                                          {"servers=2", "payload=frames", "read=snapshot"}};
#define LARGE                                                                                      \
    "dataset=gaussian", "dataset.size=64", "dataset.samples=600", "model=softmax", "batch=10"
    for (size_t i = 0; i < COUNT_OF(ways); i++)
        expect_run(r, RIG_RUN(r, "run", LARGE, "samples=300", ways[i][0], ways[i][1], ways[i][2]));
    expect_one_hash(r);
    expect_run(
        r, RIG_RUN(r, "run", LARGE, "samples=300", "workers=3", "servers=2", "damping=inverse"));
    expect_replayed(r);
    expect_run(r, RIG_RUN(r, "run", LARGE, "samples=1500", "workers=3", "servers=2", "read=torn",
                          "pace=gamma", "pace.mean_ms=1"));
    assert_true(torn_reads(r) > 0);
    expect_replayed(r);
}

static void a_temporary_folder_with_a_comma_in_its_name_does_not_part_places(void **state)
{
    struct process_rig *r = *state;
    expect_run(r, process_shell(r, "mkdir a,b && TMPDIR=$PWD/a,b gradlag run servers=2 workers=1 "
                                   "dataset=gaussian dataset.size=8 dataset.samples=100 "
                                   "model=softmax updates=3 --quiet"));
}

/* What follows the header of a .safetensors file; the caller frees it. */
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

static void the_first_of_several_servers_is_not_outlived(void **state)
{
    struct process_rig *r = *state;
    start_long(r, "read=torn", NULL);
    kill(server_process(r, 0, 3), SIGKILL);
    expect_lost(r, "server 0 ");
}

static void a_server_that_hangs_is_named_in_time(void **state)
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

static void several_servers_go_on_without_a_lost_worker_and_replay(void **state)
{
    struct process_rig *r = *state;
    static const char *const reads[] = {"read=snapshot", "read=torn"};
    pid_t workers[3];
    for (size_t i = 0; i < COUNT_OF(reads); i++) {
        process_start(r, (const char *const[]){"run", RIG_DATA, "batch=10", "samples=18000",
                                               "pace=gamma", "pace.mean_ms=4", "workers=3",
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
        expect_replayed(r);
    }
    process_expect_nothing_left(r);
}

static void a_stopped_run_of_several_servers_keeps_what_it_has_and_replays(void **state)
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
        expect_replayed(r);
        process_expect_nothing_left(r);
    }
}

static void what_diverges_at_one_server_ends_the_run_at_all(void **state)
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

/* ---- by hand --------------------------------------------------------------------------------- */

/* Two servers and two workers, each with a folder of its own; the results are in the first's. */
enum { ROLES = 4 };
struct cast {
    struct process_rig *at[ROLES];
    void *more[ROLES];
    char endpoint[256];
};

static const char *const roles[ROLES][2] = {
    {"server", "server=0"}, {"server", "server=1"}, {"worker", "worker=0"}, {"worker", "worker=1"}};

#define BY_HAND "workers=2", "servers=2", "run_token=5ea1ed", "timeout_s=20"

/* Whoever waits for another is there before it. */
static void start_cast(struct cast *c, struct process_rig *r, const char *samples, const char *pace)
{
    c->at[0] = r;
    for (size_t i = 1; i < ROLES; i++) {
        process_set_up(&c->more[i]);
        c->at[i] = c->more[i];
    }
    snprintf(c->endpoint, sizeof c->endpoint, "endpoint=ipc://%s/0,ipc://%s/1", r->folder,
             r->folder);
    for (size_t i = ROLES; i-- > 0;) {
        process_start(c->at[i],
                      (const char *const[]){roles[i][0], roles[i][1], RIG_DATA, BY_HAND, "batch=10",
                                            "on_lost=continue", c->endpoint, samples, pace, NULL});
    }
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
    start_cast(&c, r, "samples=600", "pace=none");
    for (size_t i = 0; i < ROLES; i++)
        expect_run(c.at[i], process_wait(c.at[i]));
    assert_string_equal(process_ask(r, "SELECT status FROM run"), "finished");
    assert_int_equal(rows_of(r, 1), rows_of(r, 0));
    expect_replayed(r);
    dismiss_cast(&c);
}

static void expect_end(struct process_rig *r, int expected)
{
    int code = process_wait(r);
    if (code != expected)
        fail_msg("exit %d in place of %d: %s", code, expected, process_errors(r));
}

static void a_lost_workers_place_stays_empty(void **state)
{
    struct process_rig *r = *state;
    struct cast c;
    start_cast(&c, r, "epochs=1000", "pace=gamma");
    process_await_row(r, "SELECT count(*) >= 20 FROM push WHERE server = 1");
    kill(c.at[3]->pid, SIGKILL);
    assert_int_equal(process_wait(c.at[3]), 128 + SIGKILL);
    process_await_row(r, "SELECT count(*) FROM event WHERE code = 'worker_lost'");
    assert_int_equal(RIG_RUN(c.at[3], "worker", "worker=1", RIG_DATA, BY_HAND, "batch=10",
                             "epochs=1000", "pace=gamma", c.endpoint),
                     ERROR_PEER);
    process_expect_error(c.at[3], "servers=2");
    kill(c.at[1]->pid, SIGTERM); /* any server's stop is the run's */
    expect_end(r, STOPPED);
    expect_end(c.at[1], STOPPED);
    expect_end(c.at[2], OK);
    assert_string_equal(process_ask(r, "SELECT status FROM run"), "stopped");
    expect_replayed(r);
    dismiss_cast(&c);
}

static void roles_that_do_not_fit_together_say_so(void **state)
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

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, process_set_up, process_tear_down)
    const struct CMUnitTest tests[] = {
        TEST(one_worker_computes_the_same_with_any_number_of_servers),
        TEST(one_worker_computes_the_same_gradients_where_each_server_is_for_itself),
        TEST(a_barrier_over_several_servers_computes_what_it_does_at_one),
        TEST(snapshots_are_whole_and_replay_bit_for_bit),
        TEST(every_server_for_itself_replays_bit_for_bit),
        TEST(slices_that_are_not_copied_change_no_bit),
        TEST(a_temporary_folder_with_a_comma_in_its_name_does_not_part_places),
        TEST(a_checkpoint_has_every_servers_slice),
        TEST(a_killed_server_of_several_fails_the_run_and_is_named),
        TEST(the_first_of_several_servers_is_not_outlived),
        TEST(a_server_that_hangs_is_named_in_time),
        TEST(a_killed_worker_of_several_servers_fails_the_run),
        TEST(several_servers_go_on_without_a_lost_worker_and_replay),
        TEST(a_stopped_run_of_several_servers_keeps_what_it_has_and_replays),
        TEST(what_diverges_at_one_server_ends_the_run_at_all),
        TEST(servers_and_workers_are_started_by_hand),
        TEST(a_lost_workers_place_stays_empty),
        TEST(roles_that_do_not_fit_together_say_so),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
