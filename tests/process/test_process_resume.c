/* Asynchronous runs that are stopped or killed and resume from a checkpoint: to the same bits
 * where the settings determine them, with the lost updates recorded, and replayable. */
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

/* At 4 ms a batch the runs take at least a second. */
#define REAL                                                                                       \
    RIG_DATA, "mode=async", "batch=10", "pace=gamma", "pace.mean_ms=4", "pace.cv=0",               \
        "evaluate_every=0.7", "on_lost=stop"
#define LAST "(SELECT max(id) FROM run)"

static void expect_run(struct process_rig *r, const char *const *more, const char *last)
{
    const struct process_arguments c = process_run_arguments(more, last);
    if (process_run(r, c.at) != OK)
        fail_msg("%s", process_errors(r));
}

/* Starts the run and waits until `sql` yields 1 or more. */
static void start_until(struct process_rig *r, const char *const *more, const char *sql)
{
    const struct process_arguments c = process_run_arguments(more, NULL);
    process_start(r, c.at);
    process_await_row(r, sql);
}

/* ---- stopped --------------------------------------------------------------------------------- */

static void expect_bits_of_the_unbroken_run(struct process_rig *r)
{
    process_expect_answer(r,
                          "SELECT a.parameters_sha256 = b.parameters_sha256 AND a.updates = "
                          "b.updates AND a.samples_used = b.samples_used AND a.config_hash = "
                          "b.config_hash AND b.status = 'finished' AND b.train_seconds > "
                          "(SELECT min(at_seconds) FROM push WHERE run_id = b.id) AND (SELECT "
                          "min(at_seconds) FROM push WHERE run_id = b.id) > (SELECT at_seconds "
                          "FROM event WHERE run_id = b.id AND code = 'resumed') AND (SELECT "
                          "at_seconds FROM event WHERE run_id = b.id AND code = 'resumed') > 0 "
                          "FROM run a, run b WHERE a.id = 1 AND b.id = " LAST,
                          "1");
    /* Each update has one gradient of the same batch; the evaluations and training losses are
     * equal. */
    process_expect_answer(r,
                          "SELECT count(*) > 0 AND min(a.loss = b.loss AND a.rate = b.rate AND "
                          "a.batch = b.batch) FROM push a JOIN push b USING (update_version, "
                          "worker) WHERE a.run_id = 1 AND b.run_id = " LAST " AND b.outcome IN "
                          "('applied', 'aggregated')",
                          "1");
    process_expect_answer(r,
                          "SELECT count(*) > 0 AND min(a.train_loss = b.train_loss AND a.test_loss "
                          "= b.test_loss AND a.samples = b.samples) FROM evaluation a JOIN "
                          "evaluation b USING (updates) WHERE a.run_id = 1 AND b.run_id = " LAST,
                          "1");
}

/* The second process would compute the same updates again, and write the same checkpoint. */
static void a_run_that_is_still_running_is_not_resumed(void **state)
{
    struct process_rig *r = *state, *other = NULL;
    char results[512];
    const char *const *with = RIG_WITH(REAL, "epochs=100", "checkpoint=at.safetensors");
    snprintf(results, sizeof results, "results=%s", process_path(r, "results.db"));
    start_until(r, with, "SELECT count(*) >= 1 FROM push");
    assert_int_equal(process_set_up((void **)&other), 0);
    assert_int_equal(
        RIG_RUN(other, "run", REAL, "epochs=100", "checkpoint=at.safetensors", results, "--resume"),
        ERROR_USAGE);
    process_expect_error(other, "run 1 ");
    process_tear_down((void **)&other);
    kill(r->pid, SIGINT);
    assert_int_equal(process_wait(r), STOPPED);
    process_expect_answer(r, "SELECT count(*) FROM run", "1");
}

static void a_stopped_run_of_one_worker_resumes_to_the_same_bits(void **state)
{
    struct process_rig *r = *state;
    const char *const *with = RIG_WITH(REAL, "epochs=5", "optimizer=adamw",
                                       "checkpoint=at.safetensors", "schedule=cosine");
    expect_run(r, with, NULL);
    start_until(r, with, "SELECT count(*) >= 50 FROM push WHERE run_id = 2");
    kill(r->pid, SIGINT);
    assert_int_equal(process_wait(r), STOPPED);
    process_expect_answer(r,
                          "SELECT updates > 0 AND updates < (SELECT updates FROM run WHERE id "
                          "= 1) FROM run WHERE id = 2",
                          "1");
    expect_run(r, with, "--resume");
    expect_bits_of_the_unbroken_run(r);
    process_expect_answer(
        r,
        "SELECT r.updates || ' 0 ' || r.uuid = b.host ->> '$.resumed.version' || ' ' "
        "|| (b.host ->> '$.resumed.lost') || ' ' || (b.host ->> "
        "'$.resumed.run') FROM run r, run b WHERE r.id = 2 AND b.id = 3",
        "1");
    process_expect_answer(r,
                          "SELECT detail LIKE '%rolled back by 0 %' FROM event WHERE run_id = 3 "
                          "AND code = 'resumed'",
                          "1");
    process_expect_nothing_left(r);
    /* After a run that finished, --resume starts a new run. */
    expect_run(r,
               RIG_WITH(REAL, "epochs=5", "optimizer=adamw", "checkpoint=at.safetensors",
                        "schedule=cosine", "--dry-run"),
               "--resume");
    process_expect_errors_contain(r, "--resume");
}

/* Local steps start from the parameters read, so the server has all state. */
static void local_steps_resume_to_the_same_bits(void **state)
{
    struct process_rig *r = *state;
    static const char *const outer[] = {"outer=delayed-nesterov", "outer=adam", "outer=heloco"};
    for (size_t i = 0; i < COUNT_OF(outer); i++) {
        const char *const *with = RIG_WITH(REAL, "epochs=10", "optimizer=adamw", outer[i],
                                           "outer.steps=3", "checkpoint=at.safetensors");
        assert_int_equal(process_shell(r, "rm -f results.db at.safetensors"), OK);
        expect_run(r, with, NULL);
        start_until(r, with, "SELECT count(*) >= 20 FROM push WHERE run_id = 2");
        kill(r->pid, SIGINT);
        assert_int_equal(process_wait(r), STOPPED);
        expect_run(r, with, "--resume");
        expect_bits_of_the_unbroken_run(r);
    }
}

/* ---- killed ---------------------------------------------------------------------------------- */

/* The run has written a checkpoint and made 20 further updates. */
#define PAST_A_CHECKPOINT(run)                                                                     \
    "SELECT count(*) FROM push WHERE run_id = " run                                                \
    " AND update_version > (SELECT min(version) + 20 FROM checkpoint WHERE run_id = " run ")"

static void kill_server(struct process_rig *r)
{
    pid_t server;
    process_await(r, "server", &server, 1);
    kill(server, SIGKILL);
    assert_int_equal(process_wait(r), ERROR_PEER);
}

/* `least`: the least number of lost versions; 0 if the run may have written a checkpoint just
 * before it was killed. */
static void expect_what_was_lost(struct process_rig *r, const char *killed, unsigned least)
{
    char sql[1024];
    snprintf(
        sql, sizeof sql,
        "SELECT (b.host ->> '$.resumed.lost') >= %u AND b.host ->> '$.resumed.lost' = max(0, "
        "a.updates - (b.host ->> '$.resumed.version')) AND b.host ->> '$.resumed.run' = a.uuid AND "
        ""
        "a.status = 'failed' AND (SELECT count(*) FROM event WHERE run_id = b.id AND code = "
        "'resumed' AND detail LIKE '%%' || a.id || '%%at least ' || "
        "(b.host ->> '$.resumed.lost') || '%%') = 1 AND (SELECT min(update_version) "
        "FROM push WHERE run_id = b.id) = (b.host ->> '$.resumed.version') + 1 FROM run a, "
        "run b WHERE a.id = %s AND b.id = " LAST,
        least, killed);
    process_expect_answer(r, sql, "1");
}

/* One checkpoint halfway; the updates after it are lost when the run is killed. */
#define ONE_CHECKPOINT                                                                             \
    RIG_WITH(REAL, "epochs=20", "workers=2", "consistency=bsp",                                    \
             "checkpoint=at-{version}.safetensors", "checkpoint_every=8")

static void a_run_whose_server_or_all_of_it_was_killed_resumes_to_the_same_bits(void **state)
{
    struct process_rig *r = *state;
    const char *const *with = ONE_CHECKPOINT;
    expect_run(r, with, NULL);
    start_until(r, with, PAST_A_CHECKPOINT("2"));
    kill_server(r);
    expect_run(r, with, "--resume");
    expect_bits_of_the_unbroken_run(r);
    expect_what_was_lost(r, "2", 1);
    process_expect_replayed(r);
    /* Now kill every process. The row of run 4 still says that it runs. */
    assert_int_equal(process_shell(r, "rm at-*"), OK);
    start_until(r, with, PAST_A_CHECKPOINT("4"));
    kill(r->pid, SIGKILL);
    assert_int_equal(process_wait(r), 128 + SIGKILL);
    process_expect_none_running(r);
    expect_run(r, with, "--resume");
    expect_bits_of_the_unbroken_run(r);
    expect_what_was_lost(r, "4", 1);
    process_expect_nothing_left(r);
}

/* Every kind of state that a checkpoint keeps. The run is killed twice, the second time before it
 * writes another checkpoint: the loss then counts from the progress of the last run. */
static void rules_with_state_resume(void **state)
{
    struct process_rig *r = *state;
    static const char *const rules[][3] = {
        {"correction=dana-zero", "optimizer=sgd", "damping=tail"},
        {"correction=gap-aware", "optimizer=nesterov", "damping=rescaled"},
        {"consistency=ssp", "damping=inverse", "correction=dc-asgd-a"},
        {"damping=inverse", "optimizer=muon", "model=mlp"},
        {"servers=2", "damping=tail", "optimizer=adamw"},
    };
#if defined(GRADLAG_SANITIZE)
    const size_t first = COUNT_OF(rules) - 2; /* test_server_core_checkpoint has all of them */
#else
    const size_t first = 0;
#endif
    for (size_t i = first; i < COUNT_OF(rules); i++) {
        const char *const *with =
            RIG_WITH(REAL, "epochs=10000", "workers=3", rules[i][0], rules[i][1], rules[i][2],
                     "checkpoint=at-{version}.safetensors", "checkpoint_every=2");
        assert_int_equal(process_shell(r, "rm -f results.db at-*"), OK);
        start_until(r, with, PAST_A_CHECKPOINT("1"));
        kill_server(r);
        const struct process_arguments again = process_run_arguments(with, "--resume");
        process_start(r, again.at);
        process_await_row(r, "SELECT count(*) FROM push WHERE run_id = 2");
        kill_server(r);
        process_start(r, again.at);
        process_await_row(r, "SELECT count(*) >= 100 FROM push WHERE run_id = 3");
        kill(r->pid, SIGINT);
        assert_int_equal(process_wait(r), STOPPED);
        expect_what_was_lost(r, "2", 0);
        process_expect_answer(r,
                              "SELECT status || ' ' || (samples_used = 10 * updates) FROM run "
                              "WHERE id = 3",
                              "stopped 1");
        process_expect_replayed(r);
    }
}

static void several_servers_resume_to_the_same_bits(void **state)
{
    struct process_rig *r = *state;
    /* Cut anywhere; cut between layers. */
    static const char *const cuts[][2] = {{"optimizer=momentum", "model=softmax"},
                                          {"optimizer=muon", "model=mlp"}};
    for (size_t i = 0; i < COUNT_OF(cuts); i++) {
        const char *const *with =
            RIG_WITH(REAL, "epochs=10", "workers=2", "servers=3", "consistency=bsp", cuts[i][0],
                     cuts[i][1], "checkpoint=at-{version}.safetensors");
        assert_int_equal(process_shell(r, "rm -f results.db at-*"), OK);
        expect_run(r, with, NULL);
        start_until(r, with, "SELECT count(*) >= 200 FROM push WHERE run_id = 2");
        kill(r->pid, SIGINT);
        assert_int_equal(process_wait(r), STOPPED);
        expect_run(r, with, "--resume");
        expect_bits_of_the_unbroken_run(r);
        process_expect_replayed(r);
        process_expect_nothing_left(r);
    }
}

/* The checkpoints of a run hold the statistics of batch norm, but that of a stopped run does not.
 * Training does not need them: both kinds resume to the same bits, and `initial` reads both. */
static void statistics_of_batch_norm_do_not_change_what_resumes(void **state)
{
    struct process_rig *r = *state;
    const char *const *with = RIG_WITH(REAL, "model=resnet8", "dataset.size=4", "epochs=6",
                                       "checkpoint=at-{version}.safetensors", "checkpoint_every=1");
    expect_run(r, with, NULL);
    assert_int_equal(process_shell(r, "grep -aq 'bn.running_mean' at-100.safetensors && "
                                      "grep -aq 'stage3.shortcut_bn.running_var' "
                                      "at-600.safetensors && mv at-100.safetensors with && "
                                      "rm at-* && cp with at-100.safetensors"),
                     OK);
    expect_run(r, with, "resume=at-100.safetensors");
    expect_bits_of_the_unbroken_run(r);
    assert_int_equal(process_shell(r, "rm at-*"), OK);
    start_until(r, with, "SELECT count(*) >= 20 FROM push WHERE run_id = 3");
    kill(r->pid, SIGINT);
    assert_int_equal(process_wait(r), STOPPED);
    assert_int_equal(process_shell(r, "cp $(ls -t at-* | head -1) without && "
                                      "! grep -aq running_ without"),
                     OK);
    expect_run(r, with, "--resume");
    expect_bits_of_the_unbroken_run(r);
    const char *const *start = RIG_WITH(RIG_DATA, "model=resnet8", "dataset.size=4", "updates=1");
    expect_run(r, start, "initial=with");
    expect_run(r, start, "initial=without");
}

/* ---- what is refused ------------------------------------------------------------------------- */

static void initial_parameters_that_are_not_finite_are_refused(void **state)
{
    struct process_rig *r = *state;
    assert_int_equal(RIG_RUN(r, "run", RIG_SMALL, "checkpoint=at.safetensors"), OK);
    /* The first tensor, of the first layer, begins after the header and its length. */
    assert_int_equal(process_shell(r,
                                   "printf '\\0\\0\\300\\177' | dd of=at.safetensors bs=1 "
                                   "conv=notrunc seek=$((8 + $(od -An -td8 -N8 at.safetensors)))"),
                     OK);
    assert_int_equal(RIG_RUN(r, "run", RIG_SMALL, "initial=at.safetensors"), ERROR_DATA);
    process_expect_error(r, "fc.weight");
}

static void rules_without_state_in_the_checkpoint_cannot_resume(void **state)
{
    struct process_rig *r = *state;
    static const char *const of[][4] = {
        {"outer=easgd", "outer=easgd", "optimizer=sgd", "workers=2"},
        {"correction=closed-loop-momentum", "correction=closed-loop-momentum", "workers=2", NULL},
        {"read=torn", "servers=2", "read=torn", "workers=2"},
        {"correction=dc-asgd-a", "servers=2", "correction=dc-asgd-a", "workers=2"},
        {"damping=tail", "consistency=softsync", "damping=tail", "workers=4"},
        {"correction=gap-aware", "consistency=softsync", "correction=gap-aware", "workers=4"},
    };
    for (size_t i = 0; i < COUNT_OF(of); i++) {
        const struct process_arguments c = process_run_arguments(
            RIG_WITH(REAL, "resume=at.safetensors", of[i][1], of[i][2]), of[i][3]);
        assert_int_equal(process_run(r, c.at), ERROR_USAGE);
        process_expect_error(r, "resume");
        process_expect_error(r, of[i][0]);
    }
}

static void a_checkpoint_of_different_settings_is_refused(void **state)
{
    struct process_rig *r = *state;
    assert_int_equal(RIG_RUN(r, "run", RIG_SMALL, "mode=async", "checkpoint=end.safetensors"), OK);
    assert_int_equal(RIG_RUN(r, "run", RIG_SMALL, "mode=async", "resume=end.safetensors", "lr=0.5"),
                     ERROR_USAGE);
    process_expect_error(r, "0.5");
    process_expect_error(r, "0.03");
    assert_int_equal(RIG_RUN(r, "run", RIG_SMALL, "mode=sync", "resume=end.safetensors"),
                     ERROR_USAGE);
    process_expect_error(r, "mode");
    assert_int_equal(RIG_RUN(r, "run", RIG_SMALL, "mode=async", "engine=virtual", "pace=gamma",
                             "checkpoint=virtual.safetensors"),
                     OK);
    assert_int_equal(RIG_RUN(r, "run", RIG_SMALL, "mode=async", "resume=virtual.safetensors"),
                     ERROR_USAGE);
    process_expect_error(r, "engine");
}

/* These keys do not change what is computed. */
static void a_run_resumes_with_another_pace_and_from_moved_data(void **state)
{
    struct process_rig *r = *state;
    static const char *const changed[] = {"pace=gamma", "probe_every=5", "dataset.path=there",
                                          "dataset.path=other", "dataset.path="};
#define OF_TEXT                                                                                    \
    "dataset=text", "dataset.context=16", "model=gpt", "model.layers=1", "model.width=16",         \
        "model.heads=2", "batch=4", "updates=4", "warmup_epochs=0"
    assert_int_equal(
        process_shell(r, "head -c 40000 /dev/zero | tr '\\0' 'a' > here; cp here other"), OK);
    assert_int_equal(RIG_RUN(r, "run", OF_TEXT, "dataset.path=here", "checkpoint=a.safetensors"),
                     OK);
    assert_int_equal(process_shell(r, "ln here there"), OK);
    for (size_t i = 0; i < COUNT_OF(changed); i++) {
        const bool refused = i >= 3;
        assert_int_equal(RIG_RUN(r, "run", OF_TEXT, "dataset.path=here", "resume=a.safetensors",
                                 "--dry-run", changed[i]),
                         refused ? ERROR_USAGE : OK);
    }
    assert_int_equal(process_shell(r, "rm here there"), OK);
    assert_int_equal(
        RIG_RUN(r, "run", OF_TEXT, "dataset.path=other", "resume=a.safetensors", "--dry-run"), OK);
}

/* ---- what is not overwritten ------------------------------------------------------------------
 */

static void expect_kept(struct process_rig *r, const char *const *settings, const char *last,
                        const char *file)
{
    const struct process_arguments c = process_run_arguments(settings, last);
    assert_int_equal(process_run(r, c.at), ERROR_USAGE);
    process_expect_error(r, file);
    assert_int_equal(process_shell(r, "sha256sum --check --status sums"), OK);
}

/* A refused run writes no row. */
static void a_run_never_overwrites_a_checkpoint_of_different_settings(void **state)
{
    struct process_rig *r = *state;
    process_write(r, "notes", "not a checkpoint");
    expect_run(r, RIG_WITH(REAL, "samples=300", "workers=3", "checkpoint=at.safetensors"), NULL);
    expect_run(r, RIG_WITH(REAL, "samples=300", "workers=3", "checkpoint=at-{version}.safetensors"),
               NULL);
    assert_int_equal(process_shell(r, "sha256sum at*.safetensors notes > sums"), OK);
    expect_kept(r, RIG_WITH(REAL, "samples=300", "workers=2", "checkpoint=at.safetensors"),
                "--resume", "workers");
    expect_kept(r,
                RIG_WITH(REAL, "samples=300", "workers=2", "checkpoint=at-{version}.safetensors"),
                NULL, "at-30.safetensors");
    expect_kept(r, RIG_WITH(REAL, "samples=300", "checkpoint=notes"), NULL, "notes");
    process_expect_answer(r, "SELECT count(*) FROM run", "2");
    /* Allowed: the same run again, another file name, and an empty file. */
    expect_run(r, RIG_WITH(REAL, "samples=300", "workers=3", "checkpoint=at.safetensors"), NULL);
    expect_run(r, RIG_WITH(REAL, "samples=300", "workers=2", "checkpoint=at-{run}.safetensors"),
               NULL);
    /* Another simulated cluster computes something else. */
    expect_run(r, RIG_WITH(RIG_SMALL, "engine=virtual", "pace=gamma", "checkpoint=v.safetensors"),
               NULL);
    assert_int_equal(process_shell(r, "sha256sum v.safetensors > sums"), OK);
    expect_kept(r, RIG_WITH(RIG_SMALL, "engine=virtual", "pace=pareto", "checkpoint=v.safetensors"),
                NULL, "pareto");
    process_write(r, "empty", "");
    expect_run(r, RIG_WITH(REAL, "samples=300", "checkpoint=empty"), NULL);
}

/* Both runs begin before the file exists. The checkpoints of the later run fail; its training
 * does not. */
static void of_two_runs_with_one_checkpoint_file_the_first_keeps_it(void **state)
{
    struct process_rig *r = *state;
    start_until(r, RIG_WITH(REAL, "epochs=10000", "checkpoint=at.safetensors"),
                "SELECT count(*) FROM push");
    struct process_rig other = *r;
    other.pid = 0;
    const struct process_arguments c =
        process_run_arguments(RIG_WITH(REAL, "samples=300", "checkpoint=at.safetensors"), NULL);
    assert_int_equal(process_run(&other, c.at), OK);
    assert_int_equal(process_shell(&other, "sha256sum at.safetensors > sums"), OK);
    kill(r->pid, SIGINT);
    assert_int_equal(process_wait(r), ERROR_USAGE);
    assert_int_equal(process_shell(r, "sha256sum --check --status sums"), OK);
    process_expect_answer(r,
                          "SELECT status || ' ' || (SELECT count(*) FROM event WHERE run_id = "
                          "run.id AND code = 'checkpoint_failed') FROM run WHERE id = 1",
                          "failed 1");
}

static void a_replay_needs_the_unchanged_checkpoint(void **state)
{
    struct process_rig *r = *state;
    const char *const *with = RIG_WITH(REAL, "epochs=15", "workers=2", "checkpoint=at.safetensors");
    start_until(r, with, "SELECT count(*) >= 50 FROM push");
    kill(r->pid, SIGINT);
    assert_int_equal(process_wait(r), STOPPED);
    assert_int_equal(process_shell(r, "cp at.safetensors kept.safetensors"), OK);
    expect_run(r, with, "--resume");
    assert_int_equal(RIG_RUN(r, "replay", "2"), ERROR_DATA);
    process_expect_error(r, "at.safetensors");
    assert_int_equal(RIG_RUN(r, "replay", "2", "damping=inverse"), ERROR_USAGE);
    process_expect_error(r, "2");
    assert_int_equal(process_shell(r, "mv kept.safetensors at.safetensors"), OK);
    process_expect_replayed(r);
    assert_int_equal(process_shell(r, "rm at.safetensors"), OK);
    assert_int_equal(RIG_RUN(r, "replay", "2"), ERROR_DATA);
    process_expect_error(r, "at.safetensors");
    assert_int_equal(RIG_RUN(r, "replay", "1"), OK);
}

static void a_moved_checkpoint_is_recognised_by_its_hash(void **state)
{
    struct process_rig *r = *state;
    const char *const *with = RIG_WITH(REAL, "epochs=15", "workers=2", "checkpoint=at.safetensors");
    start_until(r, with, "SELECT count(*) >= 50 FROM push");
    kill(r->pid, SIGINT);
    assert_int_equal(process_wait(r), STOPPED);
    assert_int_equal(process_shell(r, "mv at.safetensors kept.safetensors"), OK);
    const char *const *moved = RIG_WITH(REAL, "epochs=15", "workers=2", "resume=kept.safetensors");
    expect_run(r, moved, NULL);
    process_expect_answer(
        r,
        "SELECT a.id || ' ' || (b.host ->> '$.resumed.lost') FROM run a JOIN run b "
        "ON a.uuid = b.host ->> '$.resumed.run' WHERE b.id = 2",
        "1 0");
    process_expect_replayed(r);
}

/* A loss spike with on_nonfinite=skip leaves such a sum, which is larger than the whole numbers
 * that a double represents. */
static void a_checkpoint_after_an_enormous_loss_resumes(void **state)
{
    struct process_rig *r = *state;
    const char *const *with =
        RIG_WITH(RIG_DATA, "mode=sync", "workers=1", "updates=12", "evaluate_every=0",
                 "checkpoint=at-{version}.safetensors", "checkpoint_every=0.1");
    expect_run(r, with, NULL);
    assert_int_equal(process_shell(r,
                                   "cp $(ls at-*.safetensors | head -n 1) at.safetensors && "
                                   "LC_ALL=C sed -i 's/\"loss_sum\":\"\\([0-9.]*\\)[0-9]\\{4\\}\"/"
                                   "\"loss_sum\":\"\\1e+25\"/' at.safetensors && "
                                   "grep -aq 'loss_sum\":\"[0-9.]*e+25' at.safetensors"),
                     OK);
    expect_run(r, with, "resume=at.safetensors");
}

int main(void)
{
#define RIG_TEST(test) cmocka_unit_test_setup_teardown(test, process_set_up, process_tear_down)
    const struct CMUnitTest tests[] = {
        RIG_TEST(a_run_that_is_still_running_is_not_resumed),
        RIG_TEST(a_stopped_run_of_one_worker_resumes_to_the_same_bits),
        RIG_TEST(local_steps_resume_to_the_same_bits),
        RIG_TEST(a_run_whose_server_or_all_of_it_was_killed_resumes_to_the_same_bits),
        RIG_TEST(rules_with_state_resume),
        RIG_TEST(several_servers_resume_to_the_same_bits),
        RIG_TEST(statistics_of_batch_norm_do_not_change_what_resumes),
        RIG_TEST(initial_parameters_that_are_not_finite_are_refused),
        RIG_TEST(rules_without_state_in_the_checkpoint_cannot_resume),
        RIG_TEST(a_checkpoint_of_different_settings_is_refused),
        RIG_TEST(a_run_resumes_with_another_pace_and_from_moved_data),
        RIG_TEST(a_run_never_overwrites_a_checkpoint_of_different_settings),
        RIG_TEST(of_two_runs_with_one_checkpoint_file_the_first_keeps_it),
        RIG_TEST(a_replay_needs_the_unchanged_checkpoint),
        RIG_TEST(a_checkpoint_after_an_enormous_loss_resumes),
        RIG_TEST(a_moved_checkpoint_is_recognised_by_its_hash),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
