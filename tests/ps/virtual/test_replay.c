/* Recorded asynchronous runs replay bit for bit, or the first row that differs is named. */
#include "tests/rigs/process_rig.h"

#include "ps/rules/consistency/consistency.h"
#include "worker/compression/compression.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <signal.h>
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Changes one row of the results file. */
static void tamper(struct process_rig *r, const char *sql)
{
    sqlite3 *db = NULL;
    assert_int_equal(sqlite3_open(process_path(r, "results.db"), &db), SQLITE_OK);
    assert_int_equal(sqlite3_exec(db, sql, NULL, NULL, NULL), SQLITE_OK);
    assert_int_equal(sqlite3_changes(db), 1);
    sqlite3_close(db);
}

static void expect_replayed(struct process_rig *r)
{
    assert_int_equal(RIG_RUN(r, "replay", "last"), OK);
}

static void runs_of_real_processes_replay_bit_for_bit(void **state)
{
    struct process_rig *r = *state;
    static const char *const rules[][2] = {
        {"damping=none", "consistency=asp"},
        {"damping=inverse", "optimizer=nesterov"},
        {"damping=polynomial", "schedule=cosine"},
        {"damping=generation", "weight_decay=0.01"},
        {"damping=cutoff", "damping.after=0"}, /* drops many: 4 workers */
        {"consistency=bsp", "damping=none"},
        {"consistency=ssp", "consistency.slack=1"},
        {"consistency=softsync", "damping=inverse"},
        {"consistency=backup", "consistency.backups=1"},
        {"consistency=buffered", "consistency.size=3"},
        {"consistency=rennala", "consistency.size=2"},
        {"consistency=ringmaster", "consistency.limit=2"},
    };
    static const char *const workers[] = {"workers=2", "workers=4", "workers=1"};
    for (size_t i = 0; i < COUNT_OF(rules); i++) {
        bool barrier_of_several = strstr(rules[i][0], "backup") != NULL;
        assert_int_equal(RIG_RUN(r, "run", RIG_SMALL, rules[i][0], rules[i][1],
                                 workers[barrier_of_several ? 0 : i % COUNT_OF(workers)],
                                 "pace=gamma", "pace.mean_ms=1"),
                         OK);
        expect_replayed(r);
    }
    assert_true(atoi(process_ask(r, "SELECT count(*) FROM push WHERE outcome = 'dropped_stale'")) >
                10);
}

/* The worker codes and decodes: neither the payload nor the engine changes the bits. */
static void
a_compressed_run_has_the_same_bits_in_frames_in_shared_memory_and_simulated(void **state)
{
    struct process_rig *r = *state;
    for (size_t i = 1; i < compression_registry.count; i++) {
        char code[64];
        snprintf(code, sizeof code, "compression=%s", compression_registry.entries[i]->name);
        const struct compression_kind *kind =
            (const struct compression_kind *)compression_registry.entries[i];
        const char *optimizer = kind->has_momentum ? "optimizer=sgd" : "optimizer=momentum";
        assert_int_equal(RIG_RUN(r, "run", RIG_SMALL, code, optimizer, "payload=frames"), OK);
        expect_replayed(r);
        assert_int_equal(RIG_RUN(r, "run", RIG_SMALL, code, optimizer, "payload=shm"), OK);
        assert_int_equal(
            RIG_RUN(r, "run", RIG_SMALL, code, optimizer, "engine=virtual", "pace=gamma"), OK);
    }
    assert_int_equal(RIG_RUN(r, "run", RIG_SMALL), OK);
    process_expect_answer(r,
                          "SELECT count(*) FROM (SELECT 1 FROM run WHERE compression <> 'none' "
                          "GROUP BY compression HAVING count(DISTINCT parameters_sha256) > 1 OR "
                          "count(*) <> 3)",
                          "0");
    process_expect_answer(
        r, "SELECT count(DISTINCT parameters_sha256) = count(DISTINCT compression) FROM run", "1");
    /* Frames and the simulated network carry a code up and floats down, for each of 60 updates. */
    process_expect_answer(r,
                          "SELECT group_concat(DISTINCT (SELECT sent_bytes FROM run x WHERE "
                          "x.compression = run.compression AND x.engine = 'virtual') = sent_bytes) "
                          "FROM run WHERE config ->> '$.payload' = 'frames'",
                          "1");
    process_expect_answer(r, "SELECT sum(sent_bytes) FROM run WHERE config ->> '$.payload' = 'shm'",
                          "0");
}

static void compressed_runs_replay_bit_for_bit(void **state)
{
    struct process_rig *r = *state;
    static const char *const with[][2] = {
        {"payload=frames", "damping=inverse"}, {"payload=shm", "consistency=softsync"},
        {"servers=3", "payload=frames"},       {"servers=2", "read=torn"},
        {"outer=nesterov", "outer.steps=2"},   {"on_nonfinite=skip", "payload=frames"},
    };
    static const char *const codes[] = {"compression=topk", "compression=sign", "compression=fp16"};
    for (size_t i = 0; i < COUNT_OF(with); i++) {
        assert_int_equal(RIG_RUN(r, "run", RIG_SMALL, "workers=2", with[i][0], with[i][1],
                                 codes[i % COUNT_OF(codes)], "pace=gamma", "pace.mean_ms=1"),
                         OK);
        expect_replayed(r);
    }
    assert_int_equal(RIG_RUN(r, "run", RIG_SMALL, "engine=virtual", "pace=gamma", "workers=9",
                             "samples=3000", "crash.mtbf_s=0.5", "crash.down_s=0.1",
                             "compression=topk"),
                     OK);
    expect_replayed(r);
}

/* The worker computes at rounded parameters in all three cases. */
static void rounded_pulls_have_the_same_bits_in_frames_in_shared_memory_and_simulated(void **state)
{
    struct process_rig *r = *state;
    static const char *const precisions[] = {"pull_precision=fp16", "pull_precision=bf16"};
    for (size_t i = 0; i < COUNT_OF(precisions); i++) {
        assert_int_equal(RIG_RUN(r, "run", RIG_SMALL, precisions[i], "payload=frames"), OK);
        expect_replayed(r);
        assert_int_equal(RIG_RUN(r, "run", RIG_SMALL, precisions[i], "payload=shm"), OK);
        assert_int_equal(
            RIG_RUN(r, "run", RIG_SMALL, precisions[i], "engine=virtual", "pace=gamma"), OK);
    }
    assert_int_equal(RIG_RUN(r, "run", RIG_SMALL, "payload=frames"), OK);
#define PULLS "coalesce(config ->> '$.pull_precision', 'fp32')"
    process_expect_answer(r,
                          "SELECT group_concat(n || ' ' || bits, '; ') FROM (SELECT count(*) n, "
                          "count(DISTINCT parameters_sha256) bits FROM run GROUP BY " PULLS ")",
                          "3 1; 3 1; 1 1");
    process_expect_answer(r, "SELECT count(DISTINCT parameters_sha256) FROM run", "3");
    /* With fp32 a parameter takes 4 bytes up and 4 down. In 16 bits it takes 2 bytes down. */
    process_expect_answer(r,
                          "SELECT group_concat(DISTINCT 4 * sent_bytes = 3 * (SELECT sent_bytes "
                          "FROM run x WHERE x.id "
                          "= (SELECT max(id) FROM run))) FROM run WHERE " PULLS
                          " <> 'fp32' AND sent_bytes > 0",
                          "1");
    process_expect_answer(r, "SELECT count(*) FROM run WHERE sent_bytes > 0", "5");
}

static void rounded_pulls_replay_bit_for_bit(void **state)
{
    struct process_rig *r = *state;
    static const char *const with[][3] = {
        {"payload=frames", "correction=dc-asgd-c", "optimizer=sgd"},
        {"servers=3", "payload=frames", "compression=sign"},
        {"servers=2", "read=torn", "payload=frames"},
        {"outer=nesterov", "outer.steps=2", "optimizer=momentum"},
        {"payload=frames", "consistency=ssp", "correction=gap-aware"},
    };
    for (size_t i = 0; i < COUNT_OF(with); i++) {
        assert_int_equal(RIG_RUN(r, "run", RIG_SMALL, "workers=3", "pull_precision=bf16",
                                 with[i][0], with[i][1], with[i][2], "pace=gamma",
                                 "pace.mean_ms=1"),
                         OK);
        expect_replayed(r);
    }
}

/* 4000 samples are four epochs: the size of a code changes during the run. */
static void runs_with_deep_gradient_compression_have_the_same_bits_and_replay(void **state)
{
    struct process_rig *r = *state;
#define DEEP RIG_SMALL, "samples=4000", "compression=dgc", "optimizer=sgd"
    assert_int_equal(RIG_RUN(r, "run", DEEP, "compression.warmup_epochs=3", "payload=frames"), OK);
    assert_int_equal(RIG_RUN(r, "run", DEEP, "compression.warmup_epochs=3", "payload=shm"), OK);
    assert_int_equal(RIG_RUN(r, "run", DEEP, "compression.warmup_epochs=3", "engine=virtual",
                             "pace=gamma", "network.gbps=1"),
                     OK);
    process_expect_answer(r,
                          "SELECT count(DISTINCT parameters_sha256) || ' ' || count(DISTINCT "
                          "nullif(sent_bytes, 0)) FROM run",
                          "1 1");
    static const char *const with[][2] = {{"servers=3", "payload=frames"},
                                          {"payload=frames", "consistency=softsync"},
                                          {"engine=virtual", "servers=2"}};
    for (size_t i = 0; i < COUNT_OF(with); i++) {
        assert_int_equal(RIG_RUN(r, "run", DEEP, "workers=2", with[i][0], with[i][1], "pace=gamma"),
                         OK);
        expect_replayed(r);
    }
}

static void virtual_runs_with_workers_that_died_replay(void **state)
{
    struct process_rig *r = *state;
    assert_int_equal(RIG_RUN(r, "run", RIG_SMALL, "engine=virtual", "pace=gamma", "workers=9",
                             "samples=6000", "crash.mtbf_s=1", "crash.down_s=0.1",
                             "damping=inverse"),
                     OK);
    assert_true(atoi(process_ask(r, "SELECT count(*) FROM event WHERE code = 'worker_lost'")) > 9);
    expect_replayed(r);
}

static void every_consistency_replays_with_workers_that_died(void **state)
{
    struct process_rig *r = *state;
    for (size_t i = 0; i < consistency_registry.count; i++) {
        char policy[64];
        snprintf(policy, sizeof policy, "consistency=%s", consistency_registry.entries[i]->name);
        assert_int_equal(RIG_RUN(r, "run", RIG_SMALL, "engine=virtual", "pace=gamma", "workers=9",
                                 "samples=3000", "crash.mtbf_s=0.5", "crash.down_s=0.1", policy),
                         OK);
        expect_replayed(r);
    }
}

/* A dropped gradient has its row at once; a used one has it with its update. */
static void gradients_with_the_same_time_replay_in_order_of_arrival(void **state)
{
    struct process_rig *r = *state;
    assert_int_equal(RIG_RUN(r, "run", RIG_SMALL, "engine=virtual", "pace=constant", "workers=5",
                             "pace.worker=2", "pace.factor=2", "consistency=softsync",
                             "consistency.n=2", "damping=cutoff", "damping.after=0"),
                     OK);
    process_expect_answer(r,
                          "SELECT count(*) > 0 FROM push x JOIN push y ON x.at_seconds = "
                          "y.at_seconds WHERE x.number < y.number AND x.arrival > y.arrival",
                          "1");
    expect_replayed(r);
}

/* An endless run, since a short one could end before its first rows are read. */
static void a_run_that_lost_a_worker_replays(void **state)
{
    struct process_rig *r = *state;
    pid_t workers[3];
    process_start(r, (const char *const[]){"run", RIG_LONG, "workers=3", "on_lost=continue",
                                           "damping=polynomial", NULL});
    process_await(r, "worker", workers, 3);
    process_await_row(r, "SELECT count(*) > 30 FROM push");
    kill(workers[1], SIGKILL);
    process_await_row(r, "SELECT count(*) FROM push p JOIN event e ON e.code = 'worker_lost' AND "
                         "p.arrival > e.push_number + 30");
    kill(r->pid, SIGINT);
    assert_int_equal(process_wait(r), STOPPED);
    assert_string_equal(process_ask(r, "SELECT count(*) FROM event WHERE code = 'worker_lost'"),
                        "1");
    expect_replayed(r);
}

/* Worker 1 joins and dies, worker 2 never joins. Training begins without both, 20 times the
 * server's timeout_s after the last worker joined. */
static void a_run_that_lost_a_worker_before_training_began_replays(void **state)
{
#define BY_HAND RIG_SMALL, "workers=3", "consistency=bsp", "on_lost=continue"
    struct process_rig *r = *state, *worker[2];
    static const char *const numbers[] = {"worker=0", "worker=1"};
    char endpoint[RIG_ENDPOINT_BYTES], token[64];
    process_start(r, (const char *const[]){"server", BY_HAND, "timeout_s=1.2", NULL});
    process_await_endpoint(r, endpoint, token);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(process_set_up((void **)&worker[i]), 0);
        process_start(worker[i],
                      (const char *const[]){"worker", BY_HAND, endpoint, token, numbers[i], NULL});
    }
    process_await_row(r, "SELECT count(*) > 1 FROM event WHERE code = 'worker_joined'");
    process_tear_down((void **)&worker[1]);
    assert_int_equal(process_wait(worker[0]), OK);
    process_tear_down((void **)&worker[0]);
    assert_int_equal(process_wait(r), OK);
    assert_string_equal(process_ask(r, "SELECT count(DISTINCT worker) || max(read_version = 0) "
                                       "FROM push"),
                        "11");
    expect_replayed(r);
}

static void a_run_that_was_stopped_replays(void **state)
{
    struct process_rig *r = *state;
    process_start(r, (const char *const[]){"run", RIG_LONG, "workers=3", NULL});
    process_await_row(r, "SELECT count(*) > 30 FROM push");
    kill(r->pid, SIGINT);
    assert_int_equal(process_wait(r), STOPPED);
    expect_replayed(r);
}

static void a_run_that_diverged_replays_until_it_diverged(void **state)
{
    struct process_rig *r = *state;
    assert_int_equal(RIG_RUN(r, "run", RIG_SMALL, "workers=2", "lr=1e6", "schedule=constant",
                             "model=mlp", "samples=60000"),
                     ERROR_DIVERGED);
    assert_string_equal(process_ask(r, "SELECT count(*) FROM push WHERE outcome = 'not_finite'"),
                        "1");
    expect_replayed(r);
}

/* The parameters are too large, so gradients are skipped until eleven in a row end the run. */
static void skipped_gradients_are_skipped_in_the_replay(void **state)
{
    struct process_rig *r = *state;
    assert_int_equal(RIG_RUN(r, "run", RIG_SMALL, "workers=2", "lr=1e6", "schedule=constant",
                             "model=mlp", "samples=60000", "on_nonfinite=skip"),
                     ERROR_DIVERGED);
    assert_string_equal(process_ask(r, "SELECT count(*) >= 11 FROM push "
                                       "WHERE outcome = 'not_finite'"),
                        "1");
    assert_string_equal(process_ask(r, "SELECT count(*) = (SELECT count(*) FROM push WHERE "
                                       "outcome = 'not_finite') FROM event WHERE code = 'skipped' "
                                       "AND severity = 'warning'"),
                        "1");
    expect_replayed(r);
}

/* The sum has room for three gradients. A worker with a gradient in the sum reads the next version,
 * which is too large. The record of its skipped gradient precedes that of its gradient in the
 * sum. */
static void a_skipped_gradient_overtakes_one_in_the_sum(void **state)
{
    struct process_rig *r = *state;
    assert_int_equal(RIG_RUN(r, "run", RIG_SMALL, "engine=virtual", "pace=gamma", "workers=2",
                             "lr=1e6", "schedule=constant", "model=mlp", "samples=60000",
                             "consistency=buffered", "consistency.size=3", "on_nonfinite=skip"),
                     ERROR_DIVERGED);
    assert_string_equal(process_ask(r, "SELECT count(*) > 0 FROM push AS a JOIN push AS b "
                                       "ON a.worker = b.worker AND a.sequence < b.sequence AND "
                                       "a.number > b.number"),
                        "1");
    expect_replayed(r);
}

/* The replay then diverges where the changed record does not. */
static void a_changed_end_is_found(void **state)
{
    struct process_rig *r = *state;
    assert_int_equal(
        RIG_RUN(r, "run", RIG_SMALL, "lr=1e6", "schedule=constant", "model=mlp", "samples=60000"),
        ERROR_DIVERGED);
    tamper(r, "UPDATE push SET outcome = 'applied' WHERE outcome = 'not_finite'");
    assert_int_equal(RIG_RUN(r, "replay", "last"), ERROR_OTHER);
    process_expect_error(r, "outcome");
}

static void a_changed_row_is_named(void **state)
{
    struct process_rig *r = *state;
    static const struct {
        const char *change, *named;
    } tampered[] = {
        {"UPDATE push SET loss = loss * 1.0000001 WHERE number = 17", "17"},
        {"UPDATE push SET scale = 0.5 WHERE number = 23 AND run_id = 2", "23"},
        {"UPDATE push SET staleness = staleness + 1 WHERE number = 5 AND run_id = 3", "5"},
        {"UPDATE push SET gradient_norm = 1.0 WHERE number = 59 AND run_id = 4", "59"},
        {"UPDATE run SET parameters_sha256 = '0123' WHERE id = 5", "0123"},
    };
    for (size_t i = 0; i < COUNT_OF(tampered); i++) {
        assert_int_equal(RIG_RUN(r, "run", RIG_SMALL, "workers=2"), OK);
        tamper(r, tampered[i].change);
        assert_int_equal(RIG_RUN(r, "replay", "last"), ERROR_OTHER);
        process_expect_error(r, tampered[i].named);
    }
}

static void every_computed_column_is_compared(void **state)
{
    struct process_rig *r = *state;
    static const struct {
        const char *change, *named;
    } tampered[] = {
        {"push SET gap = 0.123", "gap"},
        {"push SET gradient_norm = 0.123", "gradient_norm"},
        {"push SET rate = 0.123", "rate"},
        {"push SET waited_for = CASE waited_for WHEN 1 THEN 2 ELSE 1 END", "waited_for"},
        {"push SET batch = batch + 1", "batch"},
        {"push SET momentum = 0.123", " momentum"},
        {"push SET total_momentum = 0.123", "total_momentum"},
    };
    assert_int_equal(RIG_RUN(r, "run", RIG_SMALL, "engine=virtual", "pace=gamma", "workers=4",
                             "consistency=ssp", "consistency.slack=0",
                             "correction=closed-loop-momentum"),
                     OK);
    assert_int_equal(process_shell(r, "cp results.db kept.db"), 0);
    for (size_t i = 0; i < COUNT_OF(tampered); i++) {
        char sql[160];
        snprintf(sql, sizeof sql,
                 "UPDATE %s WHERE number = (SELECT max(number) FROM push WHERE worker = 3)",
                 tampered[i].change);
        tamper(r, sql);
        assert_int_equal(RIG_RUN(r, "replay", "last"), ERROR_OTHER);
        process_expect_error(r, tampered[i].named);
        assert_int_equal(process_shell(r, "cp kept.db results.db"), 0);
    }
}

static void a_replay_under_other_rules_is_recorded_as_a_new_run(void **state)
{
    struct process_rig *r = *state;
    assert_int_equal(RIG_RUN(r, "run", RIG_SMALL, "engine=virtual", "pace=gamma", "workers=5"), OK);
    assert_int_equal(RIG_RUN(r, "replay", "1", "damping=none"), OK); /* the recorded rule */
    assert_string_equal(process_ask(r, "SELECT count(DISTINCT parameters_sha256) FROM run"), "1");
    assert_string_equal(process_ask(r, "SELECT count(DISTINCT final_loss) FROM run"), "1");
    assert_int_equal(RIG_RUN(r, "replay", "1", "damping=inverse", "tag=what-if"), OK);
    assert_non_null(strstr(process_output(r), "damping=inverse"));
    assert_string_equal(process_ask(r, "SELECT engine || damping || tag || status FROM run "
                                       "WHERE id = 3"),
                        "replayinversewhat-iffinished");
    assert_string_equal(process_ask(r, "SELECT count(DISTINCT parameters_sha256) FROM run"), "2");
    assert_string_equal(process_ask(r, "SELECT min(scale) < 1 FROM push WHERE run_id = 3"), "1");
    assert_string_equal(
        process_ask(r, "SELECT count(*) FROM push a JOIN push b ON a.run_id = 1 AND b.run_id = 3 "
                       "AND a.number = b.number AND a.worker = b.worker AND "
                       "a.compute_us = b.compute_us WHERE a.number < 60"),
        "60");
    assert_int_equal(RIG_RUN(r, "replay", "3"), OK); /* the new run replays, too */
}

static void the_warm_up_and_what_the_update_does_may_differ_in_a_replay(void **state)
{
    struct process_rig *r = *state;
    static const struct {
        const char *length, *warmup, *changes[2];
    } cases[] = {{"updates=60", "warmup_updates=10", {"warmup_updates=20", "tag=longer"}},
                 {"updates=60", "warmup_updates=10", {"warmup_updates=0", "warmup_epochs=0.3"}},
                 {"seconds=0.4", "warmup_seconds=0.1", {"warmup_seconds=0.2", "tag=longer"}},
                 {"updates=60", "warmup_epochs=0", {"clip_norm=0.1", "tag=clipped"}},
                 {"updates=60", "warmup_epochs=0", {"weight_decay_of=matrices", "weight_decay=1"}}};
    char recorded[32];
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        assert_int_equal(RIG_RUN(r, "run", RIG_DATA, "batch=10", cases[i].length, cases[i].warmup,
                                 "engine=virtual", "pace=gamma", "workers=3"),
                         OK);
        snprintf(recorded, sizeof recorded, "%zu", 2 * i + 1);
        assert_int_equal(RIG_RUN(r, "replay", recorded, cases[i].changes[0], cases[i].changes[1]),
                         OK);
        process_expect_answer(r,
                              "SELECT count(DISTINCT parameters_sha256) FROM run "
                              "WHERE id > (SELECT max(id) - 2 FROM run)",
                              "2");
        assert_int_equal(RIG_RUN(r, "replay", "last"), OK);
    }
}

/* A recorded value does not apply to another rule that has a key of the same name. */
static void another_rule_starts_with_its_own_default_parameters(void **state)
{
#define SETTING(key) "SELECT config ->> '$.\"" key "\"' FROM run ORDER BY id DESC LIMIT 1"
    struct process_rig *r = *state;
    assert_int_equal(RIG_RUN(r, "run", RIG_SMALL, "engine=virtual", "pace=gamma", "workers=3",
                             "damping=generation", "damping.after=3", "outer=sgd", "outer.steps=2",
                             "outer.lr=0.5"),
                     OK);
    assert_int_equal(RIG_RUN(r, "replay", "1", "damping=hinge"), OK);
    process_expect_answer(r, SETTING("damping.after"), "4");
    process_expect_answer(r, SETTING("outer.lr"), "0.5");
    assert_int_equal(RIG_RUN(r, "replay", "1", "damping=generation", "damping.weight=0.5"), OK);
    process_expect_answer(r, SETTING("damping.after"), "3");
    assert_int_equal(RIG_RUN(r, "replay", "1", "outer=nesterov"), OK);
    process_expect_answer(r, SETTING("outer.lr"), "0.7");
    process_expect_answer(r, SETTING("outer.steps"), "2"); /* as in the recorded pushes */
}

/* Dropped gradients use no samples, so the arrivals end before the samples are used. */
static void a_replay_ends_when_no_arrivals_are_left(void **state)
{
    struct process_rig *r = *state;
    assert_int_equal(RIG_RUN(r, "run", RIG_SMALL, "engine=virtual", "pace=gamma", "workers=5"), OK);
    assert_int_equal(RIG_RUN(r, "replay", "1", "damping=cutoff", "damping.after=1"), OK);
    assert_non_null(strstr(process_output(r), "damping=cutoff"));
    assert_non_null(
        strstr(process_output(r), process_ask(r, "SELECT samples_used FROM run WHERE id = 2")));
    assert_string_equal(process_ask(r, "SELECT status || (samples_used < 600) || "
                                       "(final_accuracy IS NOT NULL) FROM run WHERE id = 2"),
                        "finished11");
}

static void an_exported_trace_drives_a_virtual_cluster(void **state)
{
    struct process_rig *r = *state;
    assert_int_equal(RIG_RUN(r, "run", RIG_SMALL, "engine=virtual", "pace=gamma", "workers=3"), OK);
    assert_int_equal(RIG_RUN(r, "replay", "1", "lr=0.1", "--export", "trace.csv"), ERROR_USAGE);
    process_expect_error(r, "lr=0.1");
    assert_int_equal(RIG_RUN(r, "replay", "1", "--export", "trace.csv"), OK);
    assert_int_equal(RIG_RUN(r, "run", RIG_SMALL, "engine=virtual", "pace=trace",
                             "pace.path=trace.csv", "workers=3"),
                     OK);
    /* The file has whole microseconds, so times differ slightly; the order does not. */
    assert_string_equal(process_ask(r, "SELECT count(DISTINCT parameters_sha256) FROM run"), "1");
    assert_string_equal(process_ask(r,
                                    "SELECT count(*) FROM push a JOIN push b ON a.run_id = 1 AND "
                                    "b.run_id = 2 AND a.number = b.number AND "
                                    "a.worker = b.worker AND a.compute_us = b.compute_us"),
                        "60");
}

/* A worker that joins again counts its gradients from 0, but its batches go on. */
static void a_trace_of_workers_that_died_has_their_steps_in_order(void **state)
{
#define DYING                                                                                      \
    RIG_SMALL, "engine=virtual", "workers=3", "samples=3000", "crash.mtbf_s=0.4",                  \
        "crash.down_s=0.05"
    struct process_rig *r = *state;
    assert_int_equal(RIG_RUN(r, "run", DYING, "pace=gamma"), OK);
    assert_true(atoi(process_ask(r, "SELECT count(*) FROM event WHERE code = 'worker_lost'")) > 3);
    assert_int_equal(RIG_RUN(r, "replay", "1", "--export", "trace.csv"), OK);
    assert_int_equal(RIG_RUN(r, "run", DYING, "pace=trace", "pace.path=trace.csv"), OK);
    /* Except the last ones: a step that was not finished at the end has no line. */
    process_expect_answer(r,
                          "SELECT count(*) FROM push a JOIN push b ON a.run_id = 1 AND "
                          "b.run_id = 2 AND a.number = b.number WHERE a.number < 290 AND "
                          "a.worker = b.worker AND a.batch = b.batch AND a.loss = b.loss AND "
                          "a.compute_us = b.compute_us",
                          "290");
}

static void what_cannot_be_replayed_is_a_usage_error(void **state)
{
    struct process_rig *r = *state;
    assert_int_equal(RIG_RUN(r, "run", RIG_SMALL, "mode=sync", "engine=virtual", "pace=constant"),
                     OK);
    assert_int_equal(RIG_RUN(r, "replay", "1"), ERROR_USAGE);
    process_expect_error(r, "");
    assert_int_equal(RIG_RUN(r, "run", RIG_SMALL, "record=evaluations"), OK);
    assert_int_equal(RIG_RUN(r, "replay", "2"), ERROR_USAGE);
    process_expect_error(r, "record=evaluations");
    assert_int_equal(RIG_RUN(r, "run", RIG_SMALL), OK);
    assert_int_equal(RIG_RUN(r, "replay", "3", "workers=2"), ERROR_USAGE);
    process_expect_error(r, "workers=2");
    assert_int_equal(RIG_RUN(r, "replay", "3", "dampin=none"), ERROR_USAGE);
    process_expect_error(r, "dampin");
    static const char *const others[] = {"consistency.slack=0", "dataset.samples=500", "pace.cv=1",
                                         "network.latency_ms=1"};
    for (size_t i = 0; i < COUNT_OF(others); i++) {
        assert_int_equal(RIG_RUN(r, "replay", "3", "damping=none", others[i]), ERROR_USAGE);
        process_expect_error(r, others[i]);
    }
    assert_int_equal(RIG_RUN(r, "replay", "3", "tag=again"), ERROR_USAGE);
    process_expect_error(r, "tag=again");
    assert_int_equal(RIG_RUN(r, "replay", "3", "lr=0.1", "trace=t.json"), ERROR_USAGE);
    process_expect_error(r, "trace=t.json");
    assert_int_equal(RIG_RUN(r, "replay", "3", "warmup_epochs=0", "tag=rate"), OK);
    assert_int_equal(RIG_RUN(r, "replay"), ERROR_USAGE);
    assert_int_equal(RIG_RUN(r, "replay", "44"), ERROR_USAGE);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, process_set_up, process_tear_down)
    const struct CMUnitTest tests[] = {
        TEST(runs_of_real_processes_replay_bit_for_bit),
        TEST(a_compressed_run_has_the_same_bits_in_frames_in_shared_memory_and_simulated),
        TEST(compressed_runs_replay_bit_for_bit),
        TEST(rounded_pulls_have_the_same_bits_in_frames_in_shared_memory_and_simulated),
        TEST(rounded_pulls_replay_bit_for_bit),
        TEST(runs_with_deep_gradient_compression_have_the_same_bits_and_replay),
        TEST(virtual_runs_with_workers_that_died_replay),
        TEST(every_consistency_replays_with_workers_that_died),
        TEST(gradients_with_the_same_time_replay_in_order_of_arrival),
        TEST(a_run_that_lost_a_worker_replays),
        TEST(a_run_that_lost_a_worker_before_training_began_replays),
        TEST(a_run_that_was_stopped_replays),
        TEST(a_run_that_diverged_replays_until_it_diverged),
        TEST(skipped_gradients_are_skipped_in_the_replay),
        TEST(a_skipped_gradient_overtakes_one_in_the_sum),
        TEST(a_changed_end_is_found),
        TEST(a_changed_row_is_named),
        TEST(every_computed_column_is_compared),
        TEST(a_replay_under_other_rules_is_recorded_as_a_new_run),
        TEST(the_warm_up_and_what_the_update_does_may_differ_in_a_replay),
        TEST(another_rule_starts_with_its_own_default_parameters),
        TEST(a_replay_ends_when_no_arrivals_are_left),
        TEST(an_exported_trace_drives_a_virtual_cluster),
        TEST(a_trace_of_workers_that_died_has_their_steps_in_order),
        TEST(what_cannot_be_replayed_is_a_usage_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
