/* The virtual cluster: the real rules and gradients on a simulated clock. */
#include "tests/ps/virtual/virtual_rig.h"
#include "tests/rigs/process_rig.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/sha256.h"
#include "experiments/config/config.h"
#include "ps/virtual/virtual.h"
#include "worker/optimizer/optimizer.h"
#include "worker/optimizer/schedule.h"

static void one_virtual_worker_computes_what_a_real_one_does(void **state)
{
    struct process_rig *r = *state;
    assert_int_equal(RIG_RUN(r, "run", RIG_SMALL, "damping=inverse"), OK);
    assert_int_equal(RIG_RUN(r, "run", VIRTUAL, "damping=inverse"), OK);
    expect_last_two_runs_equal(r);
    assert_string_equal(process_ask(r,
                                    "SELECT count(DISTINCT samples_used || ' ' || updates || ' ' "
                                    "|| samples_computed || ' ' || final_loss) FROM run"),
                        "1");
}

/* With one worker only the optimizer and the schedule decide the result. */
static void expect_the_same_in_every_mode(struct process_rig *r, const char *one, const char *other)
{
    static const char *const modes[][3] = {{"mode=async", "engine=real", "pace=none"},
                                           {"mode=sync", "engine=real", "pace=none"},
                                           {"mode=async", "engine=virtual", "pace=gamma"},
                                           {"mode=sync", "engine=virtual", "pace=gamma"}};
    for (size_t i = 0; i < COUNT_OF(modes); i++) {
        assert_int_equal(RIG_RUN(r, "run", RIG_SMALL, "weight_decay=0.01", one, other, modes[i][0],
                                 modes[i][1], modes[i][2]),
                         OK);
        if (i > 0)
            expect_last_two_runs_equal(r);
    }
}

static void one_worker_computes_the_same_in_every_mode_with_every_optimizer(void **state)
{
    struct process_rig *r = *state;
    char one[80], different[16];
    for (size_t i = 0; i < optimizer_registry.count; i++) {
        snprintf(one, sizeof one, "optimizer=%s", optimizer_registry.entries[i]->name);
        expect_the_same_in_every_mode(r, one, "warmup_epochs=0.2");
    }
    expect_the_same_in_every_mode(r, "optimizer=momentum", "optimizer.momentum_correction=false");
    expect_the_same_in_every_mode(r, "clip_norm=0.1", "weight_decay_of=all");
    expect_the_same_in_every_mode(r, "clip_norm=0.1", "weight_decay_of=matrices");
    expect_the_same_in_every_mode(r, "optimizer=muon", "model=mlp");
    snprintf(different, sizeof different, "%zu", optimizer_registry.count + 4);
    assert_string_equal(process_ask(r, "SELECT count(DISTINCT parameters_sha256) FROM run"),
                        different);
}

static void one_worker_computes_the_same_in_every_mode_with_every_schedule(void **state)
{
    struct process_rig *r = *state;
    char one[80];
    for (size_t i = 0; i < schedule_registry.count; i++) {
        snprintf(one, sizeof one, "schedule=%s", schedule_registry.entries[i]->name);
        expect_the_same_in_every_mode(r, one, "optimizer=rmsprop-warmup");
    }
    expect_the_same_in_every_mode(r, "warmup=constant", "lr_scaling=linear");
    expect_the_same_in_every_mode(r, "label_smoothing=0.1", "lr_scaling=none");
    assert_string_equal(process_ask(r, "SELECT count(DISTINCT parameters_sha256) FROM run"), "7");
}

static void a_virtual_barrier_computes_what_synchronous_ranks_do(void **state)
{
    struct process_rig *r = *state;
    assert_int_equal(RIG_RUN(r, "run", RIG_SMALL, "workers=3", "mode=sync", "reduction=ordered"),
                     OK);
    assert_int_equal(RIG_RUN(r, "run", VIRTUAL, "workers=3", "consistency=bsp"), OK);
    expect_last_two_runs_equal(r);
    assert_int_equal(RIG_RUN(r, "run", VIRTUAL, "workers=3", "mode=sync"), OK);
    expect_last_two_runs_equal(r);
}

/* Trains 3 real and then 3 virtual ranks with these settings: the bits must be equal. */
static void expect_virtual_ranks_equal_real_ones(struct process_rig *r, const char *one,
                                                 const char *two, const char *three)
{
    assert_int_equal(RIG_RUN(r, "run", RIG_SMALL, "workers=3", "mode=sync", "reduction=ordered",
                             one, two, three),
                     OK);
    assert_int_equal(RIG_RUN(r, "run", VIRTUAL, "workers=3", "mode=sync", one, two, three), OK);
    expect_last_two_runs_equal(r);
    assert_string_equal(process_ask(r, "SELECT count(DISTINCT updates || ' ' || samples_used) "
                                       "FROM run WHERE id > (SELECT max(id) FROM run) - 2"),
                        "1");
}

static void virtual_ranks_take_local_steps_and_grow_batches_as_real_ones(void **state)
{
    struct process_rig *r = *state;
    expect_virtual_ranks_equal_real_ones(r, "local_steps=3", "local_momentum=keep",
                                         "warmup_epochs=0");
    expect_virtual_ranks_equal_real_ones(r, "local_steps=3", "local_momentum=average",
                                         "optimizer=adamw");
    expect_virtual_ranks_equal_real_ones(r, "local_steps=7", "local_momentum=reset",
                                         "optimizer=adamw");
    expect_virtual_ranks_equal_real_ones(r, "local_steps=3", "post_local=decay", "schedule=step");
    expect_virtual_ranks_equal_real_ones(r, "decay=batch", "batch_growth_max=4", "schedule=step");
    assert_string_equal(process_ask(r, "SELECT updates FROM run ORDER BY id DESC LIMIT 1"), "13");
    assert_string_equal(process_ask(r, "SELECT count(DISTINCT parameters_sha256) FROM run"), "5");
}

static void virtual_ranks_apply_gradients_as_late_as_real_ones(void **state)
{
    struct process_rig *r = *state;
    expect_virtual_ranks_equal_real_ones(r, "delay=1", "optimizer=adamw", "warmup_epochs=0");
    expect_virtual_ranks_equal_real_ones(r, "delay=5", "decay=batch", "schedule=step");
    expect_virtual_ranks_equal_real_ones(r, "delay=3", "delay_correction=error-feedback",
                                         "delay_annealing=9");
    /* Real and virtual ranks record the same rows. */
    assert_string_equal(
        process_ask(r, "SELECT count(*) > 100 AND count(*) = (SELECT count(*) FROM step WHERE "
                       "run_id % 2 = 1) FROM step a JOIN step b ON b.run_id = a.run_id + 1 AND "
                       "b.update_version = a.update_version AND b.worker = a.worker AND "
                       "b.staleness = a.staleness AND b.loss = a.loss WHERE a.run_id % 2 = 1"),
        "1");
    assert_string_equal(process_ask(r, "SELECT count(DISTINCT staleness) || ' ' || "
                                       "max(staleness) FROM step WHERE run_id = 4"),
                        "6 5");
}

/* Ranks compute while they exchange. Only two kinds of exchanges take visible time: that of the
 * last gradient, and one that is longer than a step. */
static void a_delay_hides_the_virtual_allreduce(void **state)
{
    struct process_rig *r = *state;
    static const struct {
        const char *latency, *delay;
        double seconds;
    } known[] = {{"network.latency_ms=2", "delay=1", 20 * 0.030 + 0.008},
                 {"network.latency_ms=2", "delay=4", 20 * 0.030 + 0.008},
                 {"network.latency_ms=20", "delay=1", 0.030 + 20 * 0.080}};
    for (size_t i = 0; i < COUNT_OF(known); i++) {
        assert_int_equal(RIG_RUN(r, "run", RIG_SMALL, "engine=virtual", "pace=constant",
                                 "pace.mean_ms=10", "pace.worker=1", "pace.factor=3", "workers=3",
                                 "mode=sync", known[i].latency, known[i].delay,
                                 "checkpoint={run}.safetensors", "checkpoint_every=0.2"),
                         OK);
        assert_close(atof(process_ask(r, "SELECT train_seconds FROM run ORDER BY id DESC LIMIT 1")),
                     known[i].seconds, 1e-9);
    }
}

/* After two updates no loss is finite: ten updates are skipped, then the run ends. */
#define ASTRAY                                                                                     \
    RIG_SMALL, "model=mlp", "workers=3", "mode=sync", "reduction=ordered", "lr=1000000",           \
        "warmup_epochs=0", "on_nonfinite=skip"

static void virtual_ranks_skip_the_updates_that_real_ones_skip(void **state)
{
    struct process_rig *r = *state;
    assert_int_equal(RIG_RUN(r, "run", ASTRAY), ERROR_DIVERGED);
    assert_int_equal(RIG_RUN(r, "run", ASTRAY, "engine=virtual", "pace=gamma"), ERROR_DIVERGED);
    expect_last_two_runs_equal(r);
    assert_string_equal(process_ask(r,
                                    "SELECT group_concat(n || ' ' || samples, ' / ') FROM (SELECT "
                                    "count(event.code) AS n, samples_computed - samples_used AS "
                                    "samples FROM run JOIN event ON run_id = run.id AND code = "
                                    "'skipped' GROUP BY run.id)"),
                        "10 330 / 10 330");
}

static void with_one_rank_local_steps_change_nothing(void **state)
{
    struct process_rig *r = *state;
    static const char *const momenta[] = {"local_momentum=keep", "local_momentum=average"};
    assert_int_equal(RIG_RUN(r, "run", RIG_SMALL, "mode=sync"), OK);
    for (size_t i = 0; i < COUNT_OF(momenta); i++) {
        assert_int_equal(RIG_RUN(r, "run", RIG_SMALL, "mode=sync", "local_steps=7", momenta[i]),
                         OK);
        expect_last_two_runs_equal(r);
        assert_int_equal(RIG_RUN(r, "run", VIRTUAL, "mode=sync", "local_steps=7", momenta[i]), OK);
        expect_last_two_runs_equal(r);
    }
    assert_int_equal(RIG_RUN(r, "run", RIG_SMALL, "mode=sync", "workers=2"), OK);
    assert_int_equal(RIG_RUN(r, "run", RIG_SMALL, "mode=sync", "workers=2", "local_steps=7",
                             "post_local=epoch", "post_local_epoch=5"),
                     OK); /* training ends before */
    expect_last_two_runs_equal(r);
}

static void virtual_ranks_wait_for_the_slowest_and_the_allreduce(void **state)
{
    struct process_rig *r = *state;
    assert_int_equal(RIG_RUN(r, "run", RIG_SMALL, "engine=virtual", "pace=constant",
                             "pace.mean_ms=10", "pace.worker=1", "pace.factor=3", "workers=3",
                             "mode=sync", "network.latency_ms=2"),
                     OK);
    /* 20 updates of 3 × 10 samples; each 30 ms and 2 (3 − 1) rounds of 2 ms. */
    assert_close(atof(process_ask(r, "SELECT train_seconds FROM run")), 20 * 0.038, 1e-9);
    assert_string_equal(process_ask(r, "SELECT count(*) FROM step WHERE exchange_us = "
                                       "CASE worker WHEN 1 THEN 8000 ELSE 28000 END"),
                        "60");
    assert_int_equal(RIG_RUN(r, "run", RIG_SMALL, "engine=virtual", "pace=constant",
                             "pace.mean_ms=10", "pace.worker=1", "pace.factor=3", "workers=3",
                             "mode=sync", "network.latency_ms=2", "local_steps=2",
                             "local_momentum=average"),
                     OK);
    /* 10 rounds, each 2 × 30 ms, and parameters and velocity are averaged: 2 × 8 ms. */
    assert_close(atof(process_ask(r, "SELECT train_seconds FROM run WHERE id = 2")), 10 * 0.076,
                 1e-9);
}

/* Round trip: 4 ms to the worker, 10 ms for computing, 4 ms back, 1 ms for the update. */
static void a_virtual_push_takes_the_time_of_the_model(void **state)
{
    struct process_rig *r = *state;
    assert_int_equal(RIG_RUN(r, "run", RIG_SMALL, "engine=virtual", "pace=constant",
                             "pace.mean_ms=10", "network.latency_ms=4", "server.apply_ms=1"),
                     OK);
    assert_close(atof(process_ask(r, "SELECT train_seconds FROM run")), 60 * 0.019, 1e-9);
    assert_string_equal(process_ask(r, "SELECT count(*) FROM push WHERE compute_us = 10000 AND "
                                       "apply_us = 1000 AND queue_us = 0 AND "
                                       "pull_us = CASE sequence WHEN 0 THEN 0 ELSE 9000 END"),
                        "60");
}

static double ask_number(struct process_rig *r, const char *sql)
{
    return atof(process_ask(r, sql));
}

/* The spread of staleness for steps with cv 0.2; an independent simulator computed 0.32 for 4
 * workers and 0.22 for 16. */
static void staleness_has_the_spread_that_the_pace_implies(void **state)
{
    struct process_rig *r = *state;
    static const struct {
        const char *workers;
        double mean, cv;
    } expected[] = {{"workers=4", 3, 0.32}, {"workers=16", 15, 0.22}};
    for (size_t i = 0; i < COUNT_OF(expected); i++) {
        assert_int_equal(
            RIG_RUN(r, "run", VIRTUAL, expected[i].workers, "pace.cv=0.2", "samples=60000"), OK);
        double mean = ask_number(r, "SELECT mean_staleness FROM run ORDER BY id DESC");
        double cv = ask_number(r, "SELECT sqrt(avg(staleness * staleness) - avg(staleness) * "
                                  "avg(staleness)) / avg(staleness) FROM push WHERE run_id = "
                                  "(SELECT max(id) FROM run)");
        assert_close(mean, expected[i].mean, 0.1);
        assert_close(cv, expected[i].cv, 0.02);
    }
}

static void virtual_workers_die_and_come_back(void **state)
{
    struct process_rig *r = *state;
    assert_int_equal(RIG_RUN(r, "run", VIRTUAL, "workers=4", "samples=6000", "crash.mtbf_s=1",
                             "crash.down_s=0.2"),
                     OK);
    double died = ask_number(r, "SELECT count(*) FROM event WHERE code = 'worker_lost'");
    double came = ask_number(r, "SELECT count(*) FROM event WHERE code = 'worker_joined'");
    assert_true(died >= 4);
    assert_true(came >= died && came <= died + 4);
    double away = ask_number(r, "SELECT avg((SELECT min(at_seconds) FROM event j WHERE j.worker = "
                                "l.worker AND j.at_seconds > l.at_seconds) - l.at_seconds) "
                                "FROM event l WHERE code = 'worker_lost'");
    assert_true(away > 0.05 && away < 0.4); /* on average 0.2 */
    assert_string_equal(process_ask(r, "SELECT samples_used FROM run"), "6000");
    assert_string_equal(process_ask(r, "SELECT min(c) >= 2 FROM (SELECT count(*) AS c FROM push "
                                       "WHERE sequence = 0 GROUP BY worker)"),
                        "1");
}

/* The standard deviation of the mean of 100 exponential times of mean 0.05 is 0.005. */
static void late_virtual_workers_join_and_the_run_replays(void **state)
{
    struct process_rig *r = *state;
    static const char *const with[][2] = {{"virtual.threads=1", "crash.mtbf_s=0"},
                                          {"virtual.threads=2", "crash.mtbf_s=0"},
                                          {"virtual.threads=2", "crash.mtbf_s=0.3"}};
    for (size_t i = 0; i < COUNT_OF(with); i++) {
        assert_int_equal(RIG_RUN(r, "run", VIRTUAL, "sampler=whole", "workers=1", "workers.max=101",
                                 "join.after_s=0.05", "updates=6000", "samples=0", with[i][0],
                                 with[i][1]),
                         OK);
        double mean =
            ask_number(r, "SELECT avg(joined) FROM (SELECT min(at_seconds) AS joined FROM "
                          "event WHERE code = 'worker_joined' AND worker > 0 AND run_id = "
                          "(SELECT max(id) FROM run) GROUP BY worker)");
        assert_true(mean > 0.035 && mean < 0.065);
        process_expect_answer(
            r,
            "SELECT count(DISTINCT worker) || ' ' || (max(staleness) >= 100) FROM "
            "push WHERE run_id = (SELECT max(id) FROM run)",
            "101 1");
        assert_int_equal(RIG_RUN(r, "replay", "last"), OK);
    }
    process_expect_answer(r, "SELECT count(DISTINCT parameters_sha256) FROM run", "2");
    process_expect_answer(r,
                          "SELECT count(*) FROM event WHERE code = 'not_modelled' AND detail LIKE "
                          "'%new_workers%'",
                          "0");
    process_expect_answer(
        r, "SELECT count(*) > 20 FROM event WHERE code = 'worker_lost' AND worker > 0", "1");
}

/* Rules that use the number of workers that are there, or their clocks. */
static void every_rule_of_late_virtual_workers_replays(void **state)
{
    struct process_rig *r = *state;
    static const char *const with[][2] = {{"consistency=ssp", "servers=2"},
                                          {"consistency=softsync", "damping=koloskova"},
                                          {"consistency=buffered", "consistency.size=3"},
                                          {"consistency=rennala", "servers=2"},
                                          {"consistency=ringmaster", "correction=dana-slim"},
                                          {"pull_precision=bf16", "compression=topk"}};
    for (size_t i = 0; i < COUNT_OF(with); i++) {
        assert_int_equal(RIG_RUN(r, "run", VIRTUAL, "samples=3000", "workers=2", "workers.max=7",
                                 "join.after_s=0.1", "crash.mtbf_s=0.5", "crash.down_s=0.1",
                                 "optimizer=sgd", with[i][0], with[i][1]),
                         OK);
        assert_int_equal(RIG_RUN(r, "replay", "last"), OK);
    }
    process_expect_answer(
        r, "SELECT min(n) FROM (SELECT count(DISTINCT worker) n FROM push GROUP BY run_id)", "7");
}

/* A step takes 40 times the mean life. */
static void workers_that_die_before_any_update_end_the_run(void **state)
{
    struct process_rig *r = *state;
    const char *const policies[] = {"consistency=asp", "consistency=backup"};
    for (size_t i = 0; i < COUNT_OF(policies); i++) {
        assert_int_equal(RIG_RUN(r, "run", VIRTUAL, "workers=4", "samples=600", "pace.cv=0.01",
                                 policies[i], "crash.mtbf_s=0.0005", "crash.down_s=0.1"),
                         ERROR_PEER);
        process_expect_error(r, "crash.mtbf_s");
    }
    assert_string_equal(process_ask(r, "SELECT count(*) FROM run WHERE status = 'failed' AND "
                                       "updates = 0 AND error LIKE '%crash.mtbf_s%'"),
                        "2");
    assert_string_equal(process_ask(r, "SELECT count(*) FROM event WHERE code = 'worker_lost'"),
                        "8000");
}

static void thousands_of_virtual_workers_train(void **state)
{
    struct process_rig *r = *state;
    assert_int_equal(RIG_RUN(r, "run", RIG_DATA, "batch=10", "sampler=whole", "evaluate_every=0",
                             "engine=virtual", "pace=lognormal", "workers=16384", "updates=40000"),
                     OK);
    assert_string_equal(process_ask(r, "SELECT updates FROM run"), "40000");
    assert_string_equal(process_ask(r, "SELECT count(DISTINCT worker) FROM push"), "16384");
}

static void a_recorded_run_sets_the_pace(void **state)
{
    struct process_rig *r = *state;
    assert_int_equal(RIG_RUN(r, "run", RIG_SMALL, "engine=virtual", "pace=constant", "workers=2",
                             "pace.mean_ms=7"),
                     OK);
    assert_int_equal(
        RIG_RUN(r, "run", RIG_SMALL, "engine=virtual", "pace=fit", "pace.run=1", "workers=5"), OK);
    assert_string_equal(process_ask(r, "SELECT min(compute_us) || ' ' || max(compute_us) FROM push "
                                       "WHERE run_id = 2"),
                        "7000.0 7000.0");
    assert_int_equal(RIG_RUN(r, "run", RIG_SMALL, "engine=virtual", "pace=fit", "pace.run=77"),
                     ERROR_USAGE);
    process_expect_error(r, "77");
    assert_int_equal(RIG_RUN(r, "run", RIG_SMALL, "engine=virtual", "pace=fit"), ERROR_USAGE);
    process_expect_error(r, "pace.run");
}

static void a_trace_sets_the_pace(void **state)
{
    struct process_rig *r = *state;
    process_write(r, "trace.csv",
                  "step,worker,note,compute_us\n1,0,x,3000\n0,0,x,1000\n0,1,,2000\n");
    assert_int_equal(RIG_RUN(r, "run", RIG_SMALL, "engine=virtual", "pace=trace",
                             "pace.path=trace.csv", "workers=2"),
                     OK);
    assert_string_equal(process_ask(r, "SELECT count(*) FROM push WHERE compute_us = CASE worker "
                                       "WHEN 1 THEN 2000 ELSE 1000 + 2000 * (sequence % 2) END"),
                        "60");
    process_write(r, "trace.csv", "worker,compute_us\n0,5\n1,soon\n");
    assert_int_equal(
        RIG_RUN(r, "run", RIG_SMALL, "engine=virtual", "pace=trace", "pace.path=trace.csv"),
        ERROR_DATA);
    process_expect_error(r, "trace.csv:3");
    assert_int_equal(RIG_RUN(r, "run", RIG_SMALL, "engine=virtual", "pace=trace"), ERROR_USAGE);
    process_expect_error(r, "pace.path");
}

static void the_processor_time_of_gradients_is_separate_if_one_thread_computes_them(void **state)
{
    struct process_rig *r = *state;
    assert_int_equal(RIG_RUN(r, "run", VIRTUAL, "threads=1"), OK);
    assert_int_equal(RIG_RUN(r, "run", VIRTUAL, "threads=2"), OK);
    process_expect_answer(
        r,
        "SELECT group_concat(detail LIKE '%time: % s gradients, % s the rest', ' ') "
        "FROM event WHERE code = 'simulated'",
        "1 0");
}

static void keys_without_effect_in_a_virtual_run_are_a_usage_error(void **state)
{
    struct process_rig *r = *state;
    assert_int_equal(RIG_RUN(r, "run", RIG_SMALL, "engine=virtual"), ERROR_USAGE);
    process_expect_error(r, "pace=");
    assert_int_equal(RIG_RUN(r, "run", RIG_SMALL, "network.latency_ms=1"), ERROR_USAGE);
    process_expect_error(r, "engine=real");
    assert_int_equal(RIG_RUN(r, "run", VIRTUAL, "payload=frames"), ERROR_USAGE);
    process_expect_error(r, "engine=virtual");
    assert_int_equal(RIG_RUN(r, "run", VIRTUAL, "mode=sync", "crash.mtbf_s=1"), ERROR_USAGE);
    process_expect_error(r, "mode=sync");
    assert_int_equal(RIG_RUN(r, "run", RIG_SMALL, "pace.worker_cv=0.5"), ERROR_USAGE);
    process_expect_error(r, "pace=none");
    assert_int_equal(RIG_RUN(r, "run", VIRTUAL, "pace.slow_workers=2"), ERROR_USAGE);
    process_expect_error(r, "pace.worker=-1");
    static const char *const of_ranks[] = {"local_steps=2", "decay=batch"};
    for (size_t i = 0; i < COUNT_OF(of_ranks); i++) {
        assert_int_equal(RIG_RUN(r, "run", RIG_SMALL, of_ranks[i]), ERROR_USAGE);
        process_expect_error(r, "mode=async");
    }
    assert_int_equal(RIG_RUN(r, "run", RIG_SMALL, "mode=sync", "batch_growth_max=2"), ERROR_USAGE);
    process_expect_error(r, "decay=rate");
    assert_int_equal(RIG_RUN(r, "run", RIG_SMALL, "mode=sync", "local_steps=2", "compression=fp16"),
                     ERROR_USAGE);
    process_expect_error(r, "local_steps=2");
    assert_int_equal(RIG_RUN(r, "run", RIG_SMALL, "engine=replay"), ERROR_USAGE);
    process_expect_error(r, "gradlag replay");
}

/* ---- memory -------------------------------------------------------------------------------- */

static void ignore_release(void *context, unsigned server, unsigned w, bool everywhere)
{
    (void)context;
    (void)server;
    (void)w;
    (void)everywhere;
}

static void add_no_times(void *context, struct push_record *row)
{
    (void)context;
    (void)row;
}

static options *composed(const char *const *settings)
{
    struct settings s = {0};
    options *o = NULL;
    for (; *settings != NULL; settings++) {
        char key[64];
        const char *equals = strchr(*settings, '=');
        snprintf(key, sizeof key, "%.*s", (int)(equals - *settings), *settings);
        settings_add(&s, key, equals + 1, "test");
    }
    assert_int_equal(config_compose(&o, &s), OK);
    settings_free(&s);
    return o;
}

/* A gradient has a buffer only while it is computed or held, for any number of workers. */
static void only_computed_or_held_gradients_take_memory(void **state)
{
    (void)state;
    enum { WORKERS = 64, THREADS = 2 };
    options *o = composed(
        (const char *const[]){RIG_SMALL, "engine=virtual", "pace=constant", "workers=64", NULL});
    gradient_pool *pool = NULL;
    simulation *s = NULL;
    assert_int_equal(gradient_pool_open(&pool, o, WORKERS, 0, THREADS, NULL), OK);
    struct simulation_options setup = {.settings = o,
                                       .pool = pool,
                                       .workers = WORKERS,
                                       .length = {.total_samples = 6000},
                                       .released = ignore_release,
                                       .record = add_no_times};
    assert_int_equal(simulation_open(&s, &setup), OK);
    for (unsigned w = 0; w < WORKERS; w++)
        assert_int_equal(simulation_hello(s, 0, w, 0), OK);
    for (unsigned i = 0; !simulation_ended(s); i++) {
        struct simulation_times times = {.at_seconds = i};
        for (unsigned ahead = 0; ahead < WORKERS; ahead++)
            (void)simulation_prepare(s, (i + ahead) % WORKERS);
        assert_int_equal(simulation_push(s, 0, i % WORKERS, &times), OK);
    }
    assert_int_equal(simulation_version(s), 600);
    assert_in_range(simulation_buffers(s), 1, 2 * THREADS + 1);
    simulation_close(&s);
    gradient_pool_close(&pool);
    options_close(&o);
}

/* ---- a request to stop ----------------------------------------------------------------------- */

struct stopped_run {
    volatile sig_atomic_t wanted;
    size_t parameters;
    uint64_t updates;
    char sha256[65]; /* of the parameters in the checkpoint */
};

/* The request to stop comes during the run's first events. */
static void request_stop(void *context, const struct training_progress *p UNUSED)
{
    struct stopped_run *s = context;
    s->wanted = 1;
}

static status keep_checkpoint(void *context, const struct training_state *now)
{
    struct stopped_run *s = context;
    struct sha256 sum;
    sha256_begin(&sum);
    sha256_add(&sum, now->parameters, s->parameters * sizeof(float));
    sha256_end(&sum, s->sha256);
    s->updates = now->updates;
    return OK;
}

static void run_until_stopped(const char *servers, struct stopped_run *out)
{
    struct training_outcome outcome;
    gradient_pool *pool = NULL;
    pace *steps = NULL;
    options *o = composed((const char *const[]){RIG_SMALL, "engine=virtual", "pace=constant",
                                                "workers=2", servers, "checkpoint=x", NULL});
    assert_int_equal(pace_open(&steps, o, 0), OK);
    assert_int_equal(gradient_pool_open(&pool, o, 2, 0, 1, NULL), OK);
    *out = (struct stopped_run){.parameters = worker_parameter_count(gradient_pool_own(pool))};
    const struct virtual_options run = {.settings = o,
                                        .pool = pool,
                                        .pace = steps,
                                        .workers = 2,
                                        .length = {.total_samples = 600},
                                        .hooks = {.context = out,
                                                  .progress = request_stop,
                                                  .checkpoint = keep_checkpoint,
                                                  .stop = &out->wanted}};
    assert_int_equal(virtual_run(&run, &outcome), STOPPED);
    gradient_pool_close(&pool);
    pace_close(&steps);
    options_close(&o);
}

static void the_checkpoint_of_a_stopped_run_holds_one_version(void **state)
{
    (void)state;
    struct stopped_run one, several;
    run_until_stopped("servers=1", &one);
    assert_int_equal(one.updates, 1);
    run_until_stopped("servers=3", &several);
    assert_int_equal(several.updates, one.updates);
    assert_string_equal(several.sha256, one.sha256);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, process_set_up, process_tear_down)
    const struct CMUnitTest tests[] = {
        TEST(one_virtual_worker_computes_what_a_real_one_does),
        TEST(one_worker_computes_the_same_in_every_mode_with_every_optimizer),
        TEST(one_worker_computes_the_same_in_every_mode_with_every_schedule),
        TEST(a_virtual_barrier_computes_what_synchronous_ranks_do),
        TEST(virtual_ranks_take_local_steps_and_grow_batches_as_real_ones),
        TEST(virtual_ranks_apply_gradients_as_late_as_real_ones),
        TEST(a_delay_hides_the_virtual_allreduce),
        TEST(virtual_ranks_skip_the_updates_that_real_ones_skip),
        TEST(with_one_rank_local_steps_change_nothing),
        TEST(virtual_ranks_wait_for_the_slowest_and_the_allreduce),
        TEST(a_virtual_push_takes_the_time_of_the_model),
        TEST(staleness_has_the_spread_that_the_pace_implies),
        TEST(virtual_workers_die_and_come_back),
        TEST(late_virtual_workers_join_and_the_run_replays),
        TEST(every_rule_of_late_virtual_workers_replays),
        TEST(workers_that_die_before_any_update_end_the_run),
        TEST(thousands_of_virtual_workers_train),
        TEST(a_recorded_run_sets_the_pace),
        TEST(a_trace_sets_the_pace),
        TEST(the_processor_time_of_gradients_is_separate_if_one_thread_computes_them),
        TEST(keys_without_effect_in_a_virtual_run_are_a_usage_error),
        cmocka_unit_test(only_computed_or_held_gradients_take_memory),
        cmocka_unit_test(the_checkpoint_of_a_stopped_run_holds_one_version),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
