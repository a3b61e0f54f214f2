/* Local steps and outer rules in complete runs: real processes, the virtual cluster, and replay. */
#include "tests/rigs/process_rig.h"

#include "ps/rules/consistency/consistency.h"
#include "ps/rules/outer/outer.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define STEPS   "outer.steps=3", "optimizer=nesterov", "lr=0.05"
#define VIRTUAL RIG_SMALL, "engine=virtual", "pace=gamma"
#define CRASHES "crash.mtbf_s=0.5", "crash.down_s=0.1"

static const char *outer_at(size_t i, char out[64])
{
    snprintf(out, 64, "outer=%s", outer_registry.entries[i]->name);
    return out;
}

static void expect_hashes(struct process_rig *r, const char *count)
{
    assert_string_equal(process_ask(r, "SELECT count(DISTINCT parameters_sha256) FROM run"), count);
    assert_string_equal(process_ask(r, "SELECT count(*) FROM run WHERE status <> 'finished'"), "0");
}

static void one_local_step_with_outer_sgd_equals_a_run_without_outer(void **state)
{
    struct process_rig *r = *state;
    assert_int_equal(RIG_RUN(r, "run", RIG_SMALL, "optimizer=sgd", "weight_decay=0.01"), OK);
    assert_int_equal(RIG_RUN(r, "run", RIG_SMALL, "optimizer=sgd", "weight_decay=0.01", "outer=sgd",
                             "outer.steps=1"),
                     OK);
    assert_int_equal(RIG_RUN(r, "run", VIRTUAL, "optimizer=sgd", "weight_decay=0.01", "outer=sgd",
                             "outer.steps=1"),
                     OK);
    expect_hashes(r, "1");
    assert_string_equal(process_ask(r, "SELECT count(DISTINCT final_loss || ' ' || updates || ' ' "
                                       "|| samples_used) FROM run"),
                        "1");
}

static void one_virtual_worker_equals_one_real_worker(void **state)
{
    struct process_rig *r = *state;
    char outer[64], hashes[16];
    for (size_t i = 1; i < outer_registry.count; i++) {
        assert_int_equal(RIG_RUN(r, "run", RIG_SMALL, STEPS, outer_at(i, outer)), OK);
        assert_int_equal(RIG_RUN(r, "run", VIRTUAL, STEPS, outer), OK);
        /* With one worker the momentum is never delayed. */
        snprintf(hashes, sizeof hashes, "%zu", i == 3 ? 2 : i > 3 ? i - 1 : i);
        expect_hashes(r, hashes);
    }
}

static void real_runs_replay_bit_for_bit(void **state)
{
    struct process_rig *r = *state;
    char outer[64];
    for (size_t i = 1; i < outer_registry.count; i++) {
        const char *const more[] = {"damping=none", "payload=frames"};
        assert_int_equal(RIG_RUN(r, "run", RIG_SMALL, STEPS, outer_at(i, outer),
                                 more[i % COUNT_OF(more)], "workers=3", "pace=gamma",
                                 "pace.mean_ms=1"),
                         OK);
        process_expect_replayed(r);
    }
    assert_true(atoi(process_ask(r, "SELECT count(*) FROM push WHERE staleness > 0")) > 10);
}

static void virtual_runs_with_lost_workers_replay(void **state)
{
    struct process_rig *r = *state;
    char outer[64];
    for (size_t i = 1; i < outer_registry.count; i++) {
        assert_int_equal(RIG_RUN(r, "run", VIRTUAL, STEPS, outer_at(i, outer), "workers=7",
                                 "samples=6000", CRASHES),
                         OK);
        process_expect_replayed(r);
    }
    assert_true(atoi(process_ask(r, "SELECT count(*) FROM event WHERE code = 'worker_lost'")) > 9);
}

/* Elastic averaging is allowed only with asp, so it is not listed. */
static void every_consistency_policy_works_with_local_steps_and_replays(void **state)
{
    struct process_rig *r = *state;
    const char *const rules[] = {"outer=sgd",      "outer=nesterov", "outer=delayed-nesterov",
                                 "outer=fedasync", "outer=adam",     "outer=heloco"};
    for (size_t i = 0; i < consistency_registry.count; i++) {
        char policy[64];
        bool late =
            !((const struct consistency_policy *)consistency_registry.entries[i])->never_stale;
        snprintf(policy, sizeof policy, "consistency=%s", consistency_registry.entries[i]->name);
        assert_int_equal(RIG_RUN(r, "run", VIRTUAL, STEPS, rules[i % COUNT_OF(rules)], policy,
                                 late ? "damping=polynomial" : "damping=none", "workers=5",
                                 "samples=3000", CRASHES),
                         OK);
        process_expect_replayed(r);
    }
}

/* The run is long, so that it cannot end before its first rows are seen. */
static void a_run_that_lost_an_elastic_worker_replays(void **state)
{
    struct process_rig *r = *state;
    pid_t workers[3];
    process_start(r, (const char *const[]){"run", RIG_LONG, "workers=3", STEPS, "outer=easgd",
                                           "on_lost=continue", NULL});
    process_await(r, "worker", workers, 3);
    process_await_row(r, "SELECT count(*) > 30 FROM push");
    kill(workers[1], SIGKILL);
    process_await_row(r, "SELECT count(*) FROM push p JOIN event e ON e.code = 'worker_lost' AND "
                         "p.arrival > e.push_number + 10");
    kill(r->pid, SIGINT);
    assert_int_equal(process_wait(r), STOPPED);
    process_expect_replayed(r);
}

/* With one worker, servers that apply the rule to their slices give the bits of one server. With
 * several workers, the recorded run replays. Rules that need whole tensors are refused. */
static void several_servers_apply_every_outer_rule_to_their_slices(void **state)
{
    struct process_rig *r = *state;
    char outer[64];
    for (size_t i = 1; i < outer_registry.count; i++) {
        /* Two servers get a whole tensor each. */
        const bool whole = ((const struct outer_rule *)outer_registry.entries[i])->by_tensor;
        remove(process_path(r, "results.db"));
        assert_int_equal(RIG_RUN(r, "run", VIRTUAL, STEPS, outer_at(i, outer)), OK);
        assert_int_equal(
            RIG_RUN(r, "run", VIRTUAL, STEPS, outer, whole ? "servers=2" : "servers=3"), OK);
        assert_int_equal(RIG_RUN(r, "run", RIG_SMALL, STEPS, outer, "servers=2"), OK);
        expect_hashes(r, "1");
        assert_int_equal(RIG_RUN(r, "run", RIG_SMALL, STEPS, outer, "servers=2", "workers=3",
                                 "pace=gamma", "pace.mean_ms=1"),
                         OK);
        process_expect_replayed(r);
    }
    assert_int_equal(RIG_RUN(r, "run", VIRTUAL, STEPS, "outer=fedasync", "servers=2", "workers=7",
                             "samples=6000", "network.jitter_ms=20", CRASHES),
                     OK);
    process_expect_replayed(r);
    assert_true(atoi(process_ask(r, "SELECT count(*) FROM event WHERE code = 'worker_lost'")) > 3);
}

static void the_number_of_threads_does_not_change_a_run(void **state)
{
    struct process_rig *r = *state;
    char outer[64], hashes[16];
    for (size_t i = 1; i < outer_registry.count; i++) {
        const char *const threads[] = {"virtual.threads=1", "virtual.threads=3"};
        for (size_t t = 0; t < COUNT_OF(threads); t++) {
            assert_int_equal(
                RIG_RUN(r, "run", VIRTUAL, STEPS, outer_at(i, outer), threads[t], "workers=6"), OK);
        }
        snprintf(hashes, sizeof hashes, "%zu", i);
        expect_hashes(r, hashes);
    }
}

static void local_steps_of_adamw_and_lion_replay(void **state)
{
    struct process_rig *r = *state;
    const char *const optimizers[] = {"optimizer=adamw", "optimizer=lion"};
    for (size_t i = 0; i < COUNT_OF(optimizers); i++) {
        const char *const outer[] = {"outer=delayed-nesterov", "outer=heloco"};
        assert_int_equal(RIG_RUN(r, "run", RIG_SMALL, outer[i], "outer.steps=3", optimizers[i],
                                 "lr=0.001", "weight_decay=0.1", "workers=3", "pace=gamma",
                                 "pace.mean_ms=1"),
                         OK);
        process_expect_replayed(r);
        assert_int_equal(RIG_RUN(r, "run", VIRTUAL, outer[i], "outer.steps=3", optimizers[i],
                                 "lr=0.001", "weight_decay=0.1", "workers=5", "samples=3000",
                                 CRASHES),
                         OK);
        process_expect_replayed(r);
    }
}

static void the_row_of_a_push_covers_all_its_local_steps(void **state)
{
    struct process_rig *r = *state;
    assert_int_equal(RIG_RUN(r, "run", RIG_DATA, "batch=10", "evaluate_every=0", "engine=virtual",
                             "pace=constant", "pace.mean_ms=7", "workers=2", "updates=9",
                             "outer=sgd", "outer.steps=4", "outer.lr=0.5"),
                     OK);
    assert_string_equal(process_ask(r, "SELECT updates || ' ' || samples_used FROM run"), "9 360");
    assert_string_equal(process_ask(r, "SELECT count(*) FROM push WHERE compute_us = 28000 AND "
                                       "rate = 0.5 AND batch = sequence AND gradient_norm > 0"),
                        "9");
    assert_string_equal(process_ask(r, "SELECT max(staleness) FROM push"), "1");
    /* A run fitted to this one takes 7 ms for a step, not 28 ms. */
    assert_int_equal(RIG_RUN(r, "run", RIG_SMALL, "engine=virtual", "pace=fit", "pace.run=1",
                             "outer=easgd", "optimizer=sgd", "outer.steps=2"),
                     OK);
    assert_string_equal(process_ask(r, "SELECT min(compute_us) || ' ' || max(compute_us) FROM push "
                                       "WHERE run_id = 2"),
                        "14000.0 14000.0");
}

static void a_what_if_replay_keeps_the_number_of_local_steps(void **state)
{
    struct process_rig *r = *state;
    assert_int_equal(RIG_RUN(r, "run", VIRTUAL, STEPS, "outer=nesterov", "workers=4"), OK);
    assert_int_equal(RIG_RUN(r, "replay", "1", "outer=delayed-nesterov"), OK);
    assert_int_equal(RIG_RUN(r, "replay", "1", "outer.momentum=0"), OK);
    expect_hashes(r, "3");
    process_expect_answer(r, "SELECT group_concat(clock, ' ') FROM run_clock",
                          "virtual virtual virtual");
    assert_int_equal(RIG_RUN(r, "replay", "2"), OK);
    assert_int_equal(RIG_RUN(r, "replay", "1", "outer.steps=2"), ERROR_USAGE);
    process_expect_error(r, "outer.steps");
    assert_int_equal(RIG_RUN(r, "replay", "1", "outer=none"), ERROR_USAGE);
    process_expect_error(r, "3");
}

static void contradicting_settings_are_usage_errors(void **state)
{
    struct process_rig *r = *state;
    static const char *const wrong[][3] = {
        {"outer=easgd", "consistency=buffered", "consistency=asp"},
        {"outer=easgd", "damping=inverse", "outer.moving_rate"},
        {"outer=easgd", "optimizer=momentum", "optimizer"},
        {"outer=sgd", "correction=dana-slim", "correction"},
        {"outer=nesterov", "optimizer=lars", "optimizer"},
        {"outer=easgd", "optimizer=adamw", "optimizer"},
        {"outer=nesterov", "clip_norm=1", "clip_norm"},
        {"outer=sgd", "probe_every=5", "probe_every"},
        {"outer=sgd", "mode=sync", "mode=sync"},
        {"outer=sgd", "outer.momentum=0.5", "outer.momentum"},
        {"outer=none", "outer.steps=3", "outer.steps"},
        {"outer=easgd", "outer.moving_rate=1", "outer.moving_rate"},
        {"outer=fedasync", "outer.lr=0.5", "outer.lr"},
    };
    for (size_t i = 0; i < COUNT_OF(wrong); i++) {
        bool plain = strstr(wrong[i][1], "optimizer") == NULL;
        assert_int_equal(RIG_RUN(r, "run", RIG_SMALL, wrong[i][0], wrong[i][1],
                                 plain ? "optimizer=sgd" : "lr=0.1"),
                         ERROR_USAGE);
        process_expect_error(r, wrong[i][2]);
    }
    assert_int_equal(RIG_RUN(r, "run", RIG_SMALL, "outer=fedasync", "servers=2", "read=torn"),
                     ERROR_USAGE);
    process_expect_error(r, "read=snapshot");
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, process_set_up, process_tear_down)
    const struct CMUnitTest tests[] = {
        TEST(one_local_step_with_outer_sgd_equals_a_run_without_outer),
        TEST(one_virtual_worker_equals_one_real_worker),
        TEST(real_runs_replay_bit_for_bit),
        TEST(virtual_runs_with_lost_workers_replay),
        TEST(every_consistency_policy_works_with_local_steps_and_replays),
        TEST(a_run_that_lost_an_elastic_worker_replays),
        TEST(several_servers_apply_every_outer_rule_to_their_slices),
        TEST(the_number_of_threads_does_not_change_a_run),
        TEST(local_steps_of_adamw_and_lion_replay),
        TEST(the_row_of_a_push_covers_all_its_local_steps),
        TEST(a_what_if_replay_keeps_the_number_of_local_steps),
        TEST(contradicting_settings_are_usage_errors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
