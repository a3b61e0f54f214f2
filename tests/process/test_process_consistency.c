/* Consistency policies with real processes: staleness, waiting times and dropped gradients in
 * the results file. */
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

#include "ps/rules/consistency/consistency.h"

/* Steps take 10 ms, those of worker 0 take 50 ms. Both are long compared to the overhead of a
 * busy machine. */
#define SLOW_WORKER_0                                                                              \
    "mode=async", "pace=gamma", "pace.mean_ms=10" STRETCHED, "pace.cv=0", "pace.worker=0",         \
        "pace.factor=5"

static double number(struct process_rig *r, const char *sql)
{
    const char *found = process_ask(r, sql);
    assert_true(found[0] != '\0');
    return atof(found);
}

/* Rows, counters and arrival numbers must agree under every policy. */
static void expect_whole_records(struct process_rig *r)
{
    process_expect_answer(r, "SELECT status FROM run", "finished");
    process_expect_answer(r, "SELECT count(*) * 10 = (SELECT samples_computed FROM run) FROM push",
                          "1");
    process_expect_answer(
        r, "SELECT count(*) * 10 = (SELECT samples_used FROM run) FROM push WHERE reason IS NULL",
        "1");
    process_expect_answer(r, "SELECT samples_used >= 600 FROM run", "1");
    process_expect_answer(r,
                          "SELECT count(DISTINCT arrival) = count(*) AND min(arrival) = 0 AND "
                          "max(arrival) = count(*) - 1 FROM push",
                          "1");
    process_expect_answer(r, "SELECT count(*) FROM push WHERE batch <> sequence", "0");
    process_expect_answer(
        r, "SELECT count(*) FROM push WHERE (reason IS NULL) <> (rate IS NOT NULL)", "0");
    process_expect_answer(r,
                          "SELECT count(*) FROM push WHERE (reason IS NULL) <> (outcome IN "
                          "('applied', 'aggregated'))",
                          "0");
    process_expect_answer(r, "SELECT count(*) FROM push WHERE waited_for = worker", "0");
    process_expect_answer(
        r, "SELECT count(*) FROM event WHERE code = 'worker_joined' AND push_number = 0", "3");
}

static void every_policy_trains_on_three_processes(void **state)
{
    struct process_rig *r = *state;
    for (size_t i = 0; i < consistency_registry.count; i++) {
        const struct consistency_policy *policy =
            (const struct consistency_policy *)consistency_registry.entries[i];
        char chosen[64], *file = strdup(process_path(r, "results.db"));
        snprintf(chosen, sizeof chosen, "consistency=%s", policy->about.name);
        if (RIG_RUN(r, "run", RIG_SMALL, "workers=3", "mode=async", chosen) != 0)
            fail_msg("%s: %s", chosen, process_errors(r));
        expect_whole_records(r);
        if (policy->never_stale)
            process_expect_answer(r, "SELECT max(staleness) FROM push WHERE reason IS NULL", "0");
        if (!policy->holds && policy->may_go == NULL)
            process_expect_answer(r, "SELECT count(waited_for) FROM push", "0");
        assert_int_equal(remove(file), 0);
        free(file);
    }
}

/* Counts gradients that a worker began while it was more than one gradient ahead of the slowest. A
 * worker begins gradient `sequence` after `sequence` pushes. When it arrives, the other workers
 * have pushed at least as many gradients as when it was begun. */
static const char *const too_far_ahead =
    "SELECT count(*) FROM push p, (SELECT DISTINCT worker FROM push) w "
    "WHERE p.reason IS NULL AND w.worker <> p.worker AND p.sequence > 1 + "
    "(SELECT count(*) FROM push q WHERE q.worker = w.worker AND q.arrival < p.arrival)";

static void ssp_keeps_fast_workers_near_a_slow_one(void **state)
{
    struct process_rig *r = *state;
    assert_int_equal(RIG_RUN(r, "run", RIG_SMALL, SLOW_WORKER_0, "workers=3", "consistency=ssp",
                             "consistency.slack=1"),
                     0);
    expect_whole_records(r);
    process_expect_answer(r, too_far_ahead, "0");
    assert_true(number(r, "SELECT max(staleness) FROM push") <= 2 * (2 * 1 + 1));
    /* The fast workers spend most of their time waiting for worker 0. Worker 0 waits only if the
     * machine pauses a fast one. */
    assert_true(number(r, "SELECT count(*) FROM push WHERE worker > 0 AND waited_for = 0") > 15);
    assert_true(number(r, "SELECT count(*) FROM push WHERE worker = 0 AND waited_for IS NOT NULL") <
                6);
    assert_true(number(r, "SELECT avg(pull_us) FROM push WHERE waited_for = 0") > 15000);
}

static void asp_lets_fast_workers_run_ahead(void **state)
{
    struct process_rig *r = *state;
    assert_int_equal(RIG_RUN(r, "run", RIG_SMALL, SLOW_WORKER_0, "workers=3", "consistency=asp"),
                     0);
    expect_whole_records(r);
    assert_true(number(r, too_far_ahead) > 15);
    process_expect_answer(r, "SELECT count(waited_for) FROM push", "0");
}

static void bsp_makes_all_workers_wait_for_the_slowest(void **state)
{
    struct process_rig *r = *state;
    assert_int_equal(RIG_RUN(r, "run", RIG_SMALL, SLOW_WORKER_0, "workers=3", "consistency=bsp"),
                     0);
    expect_whole_records(r);
    /* 20 updates; before its first gradient no worker waits */
    assert_true(number(r, "SELECT count(*) FROM push WHERE worker > 0 AND waited_for = 0") > 20);
    assert_true(number(r, "SELECT avg(pull_us) FROM push WHERE waited_for = 0") > 15000);
}

static void backup_workers_drop_the_gradients_of_the_slowest(void **state)
{
    struct process_rig *r = *state;
    assert_int_equal(RIG_RUN(r, "run", RIG_SMALL, SLOW_WORKER_0, "workers=3", "consistency=backup",
                             "consistency.backups=1"),
                     0);
    expect_whole_records(r);
    process_expect_answer(
        r,
        "SELECT count(*) FROM push WHERE outcome = 'aggregated' GROUP BY update_version "
        "HAVING count(*) <> 2",
        "");
    assert_true(
        number(r, "SELECT count(*) FROM push WHERE reason = 'consistency' AND worker = 0") >= 3);
    assert_true(number(r, "SELECT count(*) FROM push WHERE waited_for = 0") < 15);
}

static void with_one_worker_every_policy_equals_plain_training(void **state)
{
    struct process_rig *r = *state;
    static const char *const cases[][2] = {
        {"consistency=asp", "tag=asp"},
        {"consistency=bsp", "tag=bsp"},
        {"consistency=ssp", "consistency.slack=0"},
        {"consistency=softsync", "consistency.n=1"},
        {"consistency=backup", "consistency.backups=0"},
        {"consistency=buffered", "consistency.size=1"},
        {"consistency=rennala", "consistency.size=1"},
        {"consistency=ringmaster", "consistency.limit=1"},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        assert_int_equal(
            RIG_RUN(r, "run", RIG_SMALL, "workers=1", "mode=async", cases[i][0], cases[i][1]), 0);
    }
    assert_int_equal(RIG_RUN(r, "run", RIG_SMALL, "workers=1", "mode=sync"), 0);
    process_expect_answer(r, "SELECT count(*) || ' ' || count(DISTINCT parameters_sha256) FROM run",
                          "9 1");
}

static void an_update_aggregates_as_many_gradients_as_configured(void **state)
{
    struct process_rig *r = *state;
    assert_int_equal(RIG_RUN(r, "run", RIG_DATA, "batch=10", "evaluate_every=0", "updates=7",
                             "workers=2", "mode=async", "consistency=buffered",
                             "consistency.size=5"),
                     0);
    process_expect_answer(r, "SELECT updates || ' ' || samples_used FROM run", "7 350");
    process_expect_answer(r, "SELECT count(*) FROM push WHERE outcome = 'aggregated'", "35");
}

static void a_worker_loss_is_ordered_among_the_gradients(void **state)
{
    struct process_rig *r = *state;
    pid_t workers[2];
    process_start(r, (const char *const[]){"run", RIG_LONG, "workers=2", "mode=async",
                                           "consistency=bsp", "on_lost=continue", NULL});
    process_await(r, "worker", workers, 2);
    process_await_row(r, "SELECT count(*) > 20 FROM push");
    assert_int_equal(kill(workers[0], SIGKILL), 0);
    process_await_row(r, "SELECT count(*) FROM event WHERE code = 'worker_lost'");
    process_await_row(r, "SELECT count(*) > 20 FROM push WHERE outcome = 'applied'");
    assert_int_equal(kill(r->pid, SIGTERM), 0);
    assert_int_equal(process_wait(r), 75);
    /* Before the loss, every update aggregates both workers (or one waited in vain); after it,
     * one worker. */
    process_expect_answer(r,
                          "SELECT count(*) FROM push, event WHERE code = 'worker_lost' AND "
                          "((arrival < push_number - 2 AND outcome <> 'aggregated') OR "
                          "(arrival >= push_number AND outcome = 'aggregated'))",
                          "0");
    process_expect_answer(
        r,
        "SELECT count(*) FROM push, event WHERE code = 'worker_lost' AND push.worker = "
        "event.worker AND arrival >= push_number",
        "0");
    assert_true(number(r, "SELECT push_number FROM event WHERE code = 'worker_lost'") > 20);
}

int main(void)
{
#define PROCESS_TEST(name) cmocka_unit_test_setup_teardown(name, process_set_up, process_tear_down)
    const struct CMUnitTest tests[] = {
        PROCESS_TEST(every_policy_trains_on_three_processes),
        PROCESS_TEST(ssp_keeps_fast_workers_near_a_slow_one),
        PROCESS_TEST(asp_lets_fast_workers_run_ahead),
        PROCESS_TEST(bsp_makes_all_workers_wait_for_the_slowest),
        PROCESS_TEST(backup_workers_drop_the_gradients_of_the_slowest),
        PROCESS_TEST(with_one_worker_every_policy_equals_plain_training),
        PROCESS_TEST(an_update_aggregates_as_many_gradients_as_configured),
        PROCESS_TEST(a_worker_loss_is_ordered_among_the_gradients),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
