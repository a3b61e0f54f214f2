/*
 * Pipelines of real processes: results compared with mode=sync, idle times, lost stages.
 */
#include "base/status.h"
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

#define DATA                                                                                       \
    "dataset=gaussian", "dataset.size=8", "dataset.samples=600", "batch=16", "evaluate_every=0",   \
        "samples=320"
#define PIPELINE(r, ...) assert_int_equal(RIG_RUN(r, "run", DATA, "mode=pipeline", __VA_ARGS__), OK)
#define SYNC(r, ...)     assert_int_equal(RIG_RUN(r, "run", DATA, "mode=sync", __VA_ARGS__), OK)

static void expect_runs(struct process_rig *r, const char *count, const char *distinct)
{
    assert_string_equal(process_ask(r, "SELECT count(*) FROM run WHERE status = 'finished'"),
                        count);
    assert_string_equal(process_ask(r, "SELECT count(DISTINCT parameters_sha256) FROM run"),
                        distinct);
}

static void one_micro_batch_gives_the_bits_of_one_rank(void **state)
{
    struct process_rig *r = *state;
    SYNC(r, "model=mlp", "workers=1");
    PIPELINE(r, "model=mlp", "workers=1");
    PIPELINE(r, "model=mlp", "workers=2");
    PIPELINE(r, "model=mlp", "workers=3", "pipeline=1f1b");
    expect_runs(r, "4", "1");
}

/* One stage and several stages with the same micro-batches give the same bits. */
static void stages_schedules_and_recomputing_change_no_bit(void **state)
{
    struct process_rig *r = *state;
    const char *const micro[] = {"micro_batches=2", "micro_batches=8"};
    const char *const distinct[] = {"1", "2"}, *const count[] = {"4", "8"};
    for (size_t i = 0; i < COUNT_OF(micro); i++) {
        PIPELINE(r, "model=mlp", "workers=1", micro[i]);
        PIPELINE(r, "model=mlp", "workers=2", micro[i], "stage_cuts=fc2");
        PIPELINE(r, "model=mlp", "workers=3", micro[i], "pipeline=1f1b");
        PIPELINE(r, "model=mlp", "workers=3", micro[i], "recompute=true");
        expect_runs(r, count[i], distinct[i]);
    }
}

/* The ranks of one replica share its samples. */
static void a_pipeline_may_have_more_stages_than_samples(void **state)
{
    struct process_rig *r = *state;
    PIPELINE(r, "model=mlp", "workers=3", "dataset.samples=2", "dataset.classes=2");
}

/* Sums over micro-batches have another order than sums over the batch. */
static void micro_batches_end_near_one_rank(void **state)
{
    struct process_rig *r = *state;
    const char *const micro[] = {"micro_batches=1", "micro_batches=8"};
    SYNC(r, "model=cnn", "workers=1");
    for (size_t i = 0; i < COUNT_OF(micro); i++)
        PIPELINE(r, "model=cnn", "workers=4", micro[i], "pipeline=1f1b");
    assert_string_equal(process_ask(r, "SELECT max(final_loss) - min(final_loss) < 1e-4 FROM run"),
                        "1");
    assert_string_equal(process_ask(r, "SELECT count(*) FROM run WHERE final_loss > 0"), "3");
}

static void replicas_give_the_bits_of_as_many_ranks(void **state)
{
    struct process_rig *r = *state;
    SYNC(r, "model=mlp", "workers=2", "reduction=ordered", "lr_scaling=linear");
    PIPELINE(r, "model=mlp", "workers=4", "stages=2", "lr_scaling=linear");
    PIPELINE(r, "model=mlp", "workers=2", "stages=1", "lr_scaling=linear");
    expect_runs(r, "3", "1");
}

static void a_checkpoint_has_the_whole_model(void **state)
{
    struct process_rig *r = *state;
    PIPELINE(r, "model=mlp", "workers=3", "micro_batches=4", "checkpoint=kept.safetensors");
    /* With lr=0 the parameters keep the values of the file. */
    assert_int_equal(
        RIG_RUN(r, "run", DATA, "mode=sync", "model=mlp", "lr=0", "initial=kept.safetensors"), OK);
    expect_runs(r, "2", "1");
}

/* The pace's sleeps give every stage the same time on any number of processors, so the runs go side
 * by side. Other load makes the measured bubble larger, never smaller. Stages one after the other
 * would give 0.75 with four stages and 0.5 with two. */
static void the_measured_bubble_is_that_of_the_formula(void **state)
{
    static const struct {
        const char *settings[5], *formula;
    } runs[] = {
        {{"workers=4", "micro_batches=1", "updates=4", "pace.mean_ms=300", "pipeline=gpipe"},
         "0.750"},
        {{"workers=4", "micro_batches=8", "updates=4", "pace.mean_ms=1200", "pipeline=gpipe"},
         "0.273"},
        {{"workers=4", "micro_batches=8", "updates=4", "pace.mean_ms=1200", "pipeline=1f1b"},
         "0.273"},
        {{"workers=2", "micro_batches=16", "updates=3", "pace.mean_ms=1600", "pipeline=gpipe"},
         "0.059"},
    };
    struct process_rig *at[COUNT_OF(runs)] = {*state};
    int activation_bytes[COUNT_OF(runs)];
    for (size_t i = 0; i < COUNT_OF(runs); i++) {
        const char *const *with = runs[i].settings;
        if (i > 0)
            process_set_up((void **)&at[i]);
        process_start(at[i], (const char *const[]){"run", DATA, "mode=pipeline", "model=cnn",
                                                   "samples=0", "pace=constant", with[0], with[1],
                                                   with[2], with[3], with[4], NULL});
    }
    for (size_t i = 0; i < COUNT_OF(runs); i++) {
        assert_int_equal(process_wait(at[i]), OK);
        process_expect_answer(at[i],
                              "SELECT printf('%.3f', avg(detail ->> 'bubble_formula')) FROM event "
                              "WHERE code = 'stage'",
                              runs[i].formula);
        process_expect_answer(at[i],
                              "SELECT avg(detail ->> 'bubble') - avg(detail ->> 'bubble_formula') "
                              "BETWEEN -0.02 AND 0.24 FROM event WHERE code = 'stage'",
                              "1");
        activation_bytes[i] = atoi(process_ask(at[i], "SELECT max(detail ->> 'activation_bytes') "
                                                      "FROM event WHERE code = 'stage'"));
        if (i > 0)
            process_tear_down((void **)&at[i]);
    }
    /* 1f1b keeps at most one micro-batch for each following stage, gpipe keeps all. */
    assert_true(activation_bytes[1] > 1.5 * activation_bytes[2]);
}

static void every_rank_has_a_row_of_every_update(void **state)
{
    struct process_rig *r = *state;
    PIPELINE(r, "model=mlp", "workers=2", "micro_batches=2");
    assert_string_equal(process_ask(r, "SELECT count(*) FROM step WHERE loss > 0"), "40");
    assert_string_equal(process_ask(r, "SELECT count(DISTINCT worker) FROM step"), "2");
    assert_string_equal(process_ask(r, "SELECT samples_used FROM run"), "320");
    assert_string_equal(process_ask(r, "SELECT count(*) FROM evaluation"), "1");
}

/* Between D replicas: 2 (D - 1) gradients of 4 bytes per element. Between stages: activations
 * and their gradients, 256 floats of each sample at fc2. */
static void sent_bytes_counts_the_messages_of_a_pipeline(void **state)
{
    struct process_rig *r = *state;
    PIPELINE(r, "model=mlp", "workers=2", "stages=1");
    PIPELINE(r, "model=mlp", "workers=2", "micro_batches=4", "stage_cuts=fc2");
    assert_string_equal(
        process_ask(r, "SELECT sent_bytes = updates * 2 * 4 * (SELECT detail ->> 'parameters' FROM "
                       "event WHERE run_id = 1 AND code = 'stage' LIMIT 1) FROM run WHERE id = 1"),
        "1");
    assert_string_equal(
        process_ask(r, "SELECT sent_bytes = updates * 2 * 4 * 16 * 256 FROM run WHERE id = 2"),
        "1");
}

static void impossible_cuts_are_usage_errors(void **state)
{
    struct process_rig *r = *state;
    static const struct {
        const char *setting, *part;
    } wrong[] = {{"workers=4", "model=mlp"},
                 {"workers=65", "stages= "},
                 {"micro_batches=3", "micro_batches"},
                 {"stages=2", "stages"},
                 {"stage_cuts=conv1", "conv1"}};
    for (size_t i = 0; i < COUNT_OF(wrong); i++) {
        assert_int_equal(
            RIG_RUN(r, "run", DATA, "mode=pipeline", "model=mlp", "workers=3", wrong[i].setting),
            ERROR_USAGE);
        process_expect_error(r, wrong[i].part);
        process_expect_nothing_left(r);
    }
    assert_int_equal(RIG_RUN(r, "run", DATA, "mode=sync", "stages=2"), ERROR_USAGE);
    process_expect_error(r, "stages");
    assert_int_equal(RIG_RUN(r, "run", "mode=pipeline", "dataset=least-squares", "model=linear",
                             "label_smoothing=0.1"),
                     ERROR_USAGE);
    process_expect_errors_contain(r, "label_smoothing=0.1 ");
}

static void a_diverged_pipeline_has_the_exit_code_of_divergence(void **state)
{
    struct process_rig *r = *state;
    assert_int_equal(RIG_RUN(r, "run", DATA, "mode=pipeline", "model=mlp", "workers=3", "lr=1e6",
                             "warmup_epochs=0"),
                     ERROR_DIVERGED);
    assert_string_equal(process_ask(r, "SELECT status FROM run"), "diverged");
    process_expect_nothing_left(r);
}

/* ---- without flushes ----------------------------------------------------------------------------
 */

static void pipedream_with_one_stage_gives_the_bits_of_one_rank(void **state)
{
    struct process_rig *r = *state;
    SYNC(r, "model=mlp", "workers=1");
    PIPELINE(r, "model=mlp", "workers=1", "pipeline=pipedream");
    expect_runs(r, "2", "1");
}

/* Evaluations and recomputing do not change the bits. The staleness of a stage is the number of
 * stages behind it, except while the pipeline fills. */
static void pipedream_repeats_bit_for_bit_and_records_staleness(void **state)
{
    struct process_rig *r = *state;
    PIPELINE(r, "model=mlp", "workers=3", "pipeline=pipedream");
    assert_int_equal(RIG_RUN(r, "run", DATA, "mode=pipeline", "model=mlp", "workers=3",
                             "pipeline=pipedream", "recompute=true", "evaluate_every=0.1"),
                     OK);
    expect_runs(r, "2", "1");
    assert_string_equal(process_ask(r, "SELECT group_concat(late, '/') FROM (SELECT max(staleness) "
                                       "AS late FROM push WHERE run_id = 1 GROUP BY worker "
                                       "ORDER BY worker)"),
                        "2/1/0");
    assert_string_equal(process_ask(r, "SELECT min(staleness) FROM push WHERE run_id = 1 AND "
                                       "worker = 0 AND number > 10"),
                        "2");
    assert_string_equal(process_ask(r, "SELECT count(*) FROM push WHERE outcome = 'applied'"),
                        "120");
    assert_string_equal(process_ask(r, "SELECT min((gap > 0) = (staleness > 0)) FROM push"), "1");
    assert_string_equal(process_ask(r, "SELECT max_staleness FROM run WHERE id = 1"), "2");
    assert_string_equal(process_ask(r, "SELECT count(*) > 4 FROM evaluation WHERE run_id = 2"),
                        "1");
}

static void pipedream_replicas_agree_and_micro_batches_are_refused(void **state)
{
    struct process_rig *r = *state;
    PIPELINE(r, "model=mlp", "workers=4", "stages=2", "pipeline=pipedream");
    assert_int_equal(RIG_RUN(r, "run", DATA, "mode=pipeline", "model=mlp", "workers=2",
                             "pipeline=pipedream", "micro_batches=2"),
                     ERROR_USAGE);
    process_expect_error(r, "micro_batches");
}

static void pipedream_ends_at_a_divergence_in_any_stage(void **state)
{
    struct process_rig *r = *state;
    assert_int_equal(RIG_RUN(r, "run", DATA, "mode=pipeline", "model=mlp", "workers=3", "lr=1e6",
                             "warmup_epochs=0", "pipeline=pipedream"),
                     ERROR_DIVERGED);
    assert_string_equal(process_ask(r, "SELECT status FROM run"), "diverged");
    assert_string_equal(process_ask(r, "SELECT max(staleness) FROM push"), "2");
    /* The first unused row names the cause. The units in flight made no update. */
    assert_string_equal(process_ask(r, "SELECT reason FROM push WHERE outcome = 'not_finite' ORDER "
                                       "BY batch, worker"),
                        "gradient");
    assert_string_equal(process_ask(r, "SELECT count(*) > 0 AND count(gap) = 0 FROM push WHERE "
                                       "reason = 'run_diverged'"),
                        "1");
    assert_string_equal(process_ask(r, "SELECT samples_used < samples_computed FROM run"), "1");
    process_expect_nothing_left(r);
}

/* The gradient made no update, but it was computed. */
static void the_gradient_that_ended_a_run_counts_as_computed(void **state)
{
    struct process_rig *r = *state;
    static const char *const modes[] = {"mode=async", "mode=sync", "mode=pipeline"};
    for (size_t i = 0; i < COUNT_OF(modes); i++) {
        assert_int_equal(RIG_RUN(r, "run", DATA, modes[i], "model=mlp", "workers=1", "lr=1e6",
                                 "warmup_epochs=0"),
                         ERROR_DIVERGED);
        process_expect_answer(
            r,
            "SELECT (samples_computed - samples_used) || ' ' || (samples_used = 16 "
            "* updates) FROM run ORDER BY id DESC LIMIT 1",
            "16 1");
    }
}

/* ---- a stage is lost ----------------------------------------------------------------------------
 */

static void start_long(struct process_rig *r, const char *setting, pid_t ranks[3])
{
    bool flushes = strcmp(setting, "pipeline=pipedream") != 0;
    process_start(r, (const char *const[]){"run", RIG_LONG, "model=mlp", "mode=pipeline",
                                           "workers=3", setting, NULL});
    process_await(r, "rank", ranks, 3);
    process_await_row(r, flushes ? "SELECT count(*) FROM step" : "SELECT count(*) FROM push");
}

static void a_killed_stage_fails_the_run_and_is_named(void **state)
{
    struct process_rig *r = *state;
    pid_t ranks[3];
    start_long(r, "micro_batches=2", ranks);
    kill(ranks[1], SIGKILL);
    assert_int_equal(process_wait(r), ERROR_PEER);
    process_expect_error(r, "signal 9");
    assert_string_equal(process_ask(r, "SELECT status FROM run"), "failed");
    process_expect_nothing_left(r);
}

/* A rank's rows go to rank 0 at an evaluation at the latest, with flushes once a second. */
static void a_lost_stage_leaves_the_rows_before_it(void **state)
{
    struct process_rig *r = *state;
    pid_t ranks[3];
    static const char *const settings[] = {"micro_batches=2", "pipeline=pipedream"};
    static const char *const tables[] = {"step", "push"}, *const awaited[] = {"step", "evaluation"};
    char sql[96];
    for (size_t i = 0; i < COUNT_OF(settings); i++) {
        process_start(r, RIG_WITH("run", RIG_DATA, "model=mlp", "batch=10", "epochs=10000",
                                  "mode=pipeline", "workers=3", "trace=t.json", "pace=constant",
                                  "pace.mean_ms=20", "evaluate_every=0.1", settings[i]));
        process_await(r, "rank", ranks, 3);
        snprintf(sql, sizeof sql, "SELECT count(*) FROM %s", awaited[i]);
        process_await_row(r, sql);
        kill(ranks[1], SIGKILL);
        assert_int_equal(process_wait(r), ERROR_PEER);
        snprintf(sql, sizeof sql, "SELECT count(*) > 0 FROM %s", tables[i]);
        process_expect_answer(r, sql, "1");
        process_expect_answer(r, "SELECT count(*) > 0 FROM pass", "1");
        unlink(process_path(r, "results.db"));
    }
}

static void stop_rank(struct process_rig *r, unsigned count, unsigned rank)
{
    pid_t ranks[4];
    process_await(r, "rank", ranks, count);
    process_await_row(r, "SELECT (SELECT count(*) FROM push) + (SELECT count(*) FROM step)");
    for (unsigned i = 0; i < count; i++)
        if (process_rank(ranks[i]) == rank)
            kill(ranks[i], SIGSTOP);
}

/* Fails the test unless every message "rank N waited 4.0 s for rank …" names this rank. */
static void expect_waits_for(const char *messages, unsigned rank)
{
    static const char before[] = " s for rank ";
    const char *at = strstr(messages, " s for ");
    if (at == NULL)
        fail_msg("no rank waited: %s", messages);
    for (; at != NULL; at = strstr(at + 1, " s for "))
        if (strncmp(at, before, strlen(before)) != 0 ||
            strtoul(at + strlen(before), NULL, 10) != rank)
            fail_msg("rank %u hangs, but a rank waited%s", rank, at);
}

/* Without a pace the stopped rank mostly waited for another one. */
static void every_message_names_the_stage_that_hangs(void **state)
{
    static const struct {
        const char *settings[3];
        unsigned count, rank;
    } runs[] = {
        {{"workers=4", "stages=2", "micro_batches=4"}, 4, 0},
        {{"workers=4", "stages=2", "pipeline=pipedream"}, 4, 3},
        {{"workers=3", "stages=3", "pipeline=1f1b"}, 3, 1},
    };
    struct process_rig *r = *state;
    for (size_t i = 0; i < COUNT_OF(runs); i++) {
        const char *const *with = runs[i].settings;
        process_start(r, RIG_WITH("run", RIG_DATA, "model=mlp", "batch=16", "epochs=10000",
                                  "mode=pipeline", "timeout_s=4", with[0], with[1], with[2]));
        stop_rank(r, runs[i].count, runs[i].rank);
        assert_int_equal(process_wait(r), ERROR_PEER);
        expect_waits_for(process_errors(r), runs[i].rank);
        expect_waits_for(process_ask(r, "SELECT error FROM run"), runs[i].rank);
        process_expect_nothing_left(r);
        unlink(process_path(r, "results.db"));
    }
}

static void a_pipeline_stops_on_request(void **state)
{
    struct process_rig *r = *state;
    pid_t ranks[3];
    const char *const settings[] = {"micro_batches=2", "pipeline=pipedream"};
    for (size_t i = 0; i < COUNT_OF(settings); i++) {
        start_long(r, settings[i], ranks);
        kill(r->pid, SIGTERM);
        assert_int_equal(process_wait(r), STOPPED);
        assert_string_equal(process_ask(r, "SELECT min(status) FROM run"), "stopped");
        process_expect_nothing_left(r);
        unlink(process_path(r, "results.db"));
    }
}

#define PROCESS_TEST(f) cmocka_unit_test_setup_teardown(f, process_set_up, process_tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        PROCESS_TEST(one_micro_batch_gives_the_bits_of_one_rank),
        PROCESS_TEST(stages_schedules_and_recomputing_change_no_bit),
        PROCESS_TEST(a_pipeline_may_have_more_stages_than_samples),
        PROCESS_TEST(micro_batches_end_near_one_rank),
        PROCESS_TEST(replicas_give_the_bits_of_as_many_ranks),
        PROCESS_TEST(a_checkpoint_has_the_whole_model),
        PROCESS_TEST(the_measured_bubble_is_that_of_the_formula),
        PROCESS_TEST(every_rank_has_a_row_of_every_update),
        PROCESS_TEST(sent_bytes_counts_the_messages_of_a_pipeline),
        PROCESS_TEST(impossible_cuts_are_usage_errors),
        PROCESS_TEST(a_diverged_pipeline_has_the_exit_code_of_divergence),
        PROCESS_TEST(the_gradient_that_ended_a_run_counts_as_computed),
        PROCESS_TEST(pipedream_with_one_stage_gives_the_bits_of_one_rank),
        PROCESS_TEST(pipedream_repeats_bit_for_bit_and_records_staleness),
        PROCESS_TEST(pipedream_replicas_agree_and_micro_batches_are_refused),
        PROCESS_TEST(pipedream_ends_at_a_divergence_in_any_stage),
        PROCESS_TEST(a_killed_stage_fails_the_run_and_is_named),
        PROCESS_TEST(a_lost_stage_leaves_the_rows_before_it),
        PROCESS_TEST(every_message_names_the_stage_that_hangs),
        PROCESS_TEST(a_pipeline_stops_on_request),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
