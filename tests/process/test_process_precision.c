/* precision=auto: what runs, sweeps, replays and resumed runs record and use. Subnormal numbers. */
#include "base/status.h"
#include "tests/rigs/process_rig.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define AUTO    "precision=auto"
#define VIRTUAL "engine=virtual", "pace=gamma"
/* The event of every run begins with the format in its row. */
#define EVENT "(SELECT detail FROM event WHERE run_id = run.id AND code = 'precision')"

static void the_row_has_the_chosen_format_and_the_run_replays(void **state)
{
    struct process_rig *r = *state;
    char chosen[32];
    assert_int_equal(RIG_RUN(r, "run", RIG_SMALL, AUTO, "workers=2"), OK);
    assert_int_equal(RIG_RUN(r, "replay", "last"), OK);
    snprintf(chosen, sizeof chosen, "precision=%s",
             process_ask(r, "SELECT config ->> '$.precision' FROM run WHERE id = 1"));
    assert_true(strcmp(chosen, "precision=fp32") == 0 || strcmp(chosen, "precision=bf16") == 0);
    process_expect_answer(
        r, "SELECT instr(" EVENT ", config ->> '$.precision') FROM run WHERE id = 1", "1");
    /* The run is that of the chosen format, for every mode. */
    static const char *const modes[][2] = {{"mode=async", "engine=real"},
                                           {"mode=sync", "engine=real"},
                                           {"engine=virtual", "pace=gamma"}};
    for (size_t i = 0; i < COUNT_OF(modes); i++) {
        assert_int_equal(RIG_RUN(r, "run", RIG_SMALL, AUTO, modes[i][0], modes[i][1]), OK);
        assert_int_equal(RIG_RUN(r, "run", RIG_SMALL, chosen, modes[i][0], modes[i][1]), OK);
        process_expect_answer(r,
                              "SELECT count(DISTINCT config_hash) || count(DISTINCT "
                              "parameters_sha256) || count(" EVENT ") FROM (SELECT * FROM run "
                              "ORDER BY id DESC LIMIT 2) AS run",
                              "111");
    }
    process_expect_nothing_left(r);
}

static void processes_started_by_hand_refuse(void **state)
{
    struct process_rig *r = *state;
    assert_int_equal(RIG_RUN(r, "server", RIG_SMALL, AUTO), ERROR_USAGE);
    process_expect_error(r, AUTO);
    assert_int_equal(
        RIG_RUN(r, "worker", RIG_SMALL, AUTO, "worker=0", "endpoint=tcp://127.0.0.1:9"),
        ERROR_USAGE);
    process_expect_error(r, AUTO);
    assert_int_equal(RIG_RUN(r, "rank", RIG_SMALL, AUTO, "mode=sync"), ERROR_USAGE);
    process_expect_error(r, AUTO);
    assert_int_not_equal(access(process_path(r, "results.db"), F_OK), 0);
    process_expect_nothing_left(r); /* a rank without mpirun starts a daemon of Open MPI */
}

static void a_sweep_has_one_answer_for_each_computation(void **state)
{
    struct process_rig *r = *state;
    assert_int_equal(
        RIG_RUN(r, "sweep", RIG_SMALL, VIRTUAL, AUTO, "workers=1,2", "batch=10,20", "--jobs", "2"),
        OK);
    process_expect_answer(r,
                          "SELECT count(*) || ' ' || sum(status = 'finished') || ' ' || "
                          "min(instr(" EVENT ", config ->> '$.precision')) FROM run",
                          "4 4 1");
    /* One trial for each batch: equal texts mean equal times. */
    process_expect_answer(r,
                          "SELECT max(n) FROM (SELECT count(DISTINCT " EVENT ") AS n FROM run "
                          "GROUP BY batch)",
                          "1");
    /* The same command, a longer one, and a search go on with these answers. */
    assert_int_equal(RIG_RUN(r, "sweep", RIG_SMALL, VIRTUAL, AUTO, "workers=1,2", "batch=10,20"),
                     OK);
    process_expect_answer(r, "SELECT count(*) FROM run", "4");
    assert_int_equal(RIG_RUN(r, "sweep", RIG_SMALL, VIRTUAL, AUTO, "workers=1,2,3", "batch=10"),
                     OK);
    assert_int_equal(RIG_RUN(r, "sweep", RIG_SMALL, VIRTUAL, AUTO, "search=grid", "lr=0.01,0.02",
                             "batch=10", "workers=3"),
                     OK);
    process_expect_answer(r,
                          "SELECT count(*) || ' ' || count(DISTINCT " EVENT ") FROM run WHERE "
                          "batch = 10",
                          "5 1");
    assert_int_equal(RIG_RUN(r, "sweep", RIG_SMALL, VIRTUAL, AUTO, "seed=4,5", "--part", "1/2"),
                     ERROR_USAGE);
    process_expect_error(r, AUTO);
}

static void an_experiment_has_one_answer_for_its_trials_and_runs(void **state)
{
    struct process_rig *r = *state;
    process_write(r, "e.yaml",
                  "name: e\nquestion: Does it run?\nworkers: [1, 2]\nseeds: [1]\n"
                  "settings: {dataset: gaussian, dataset.size: 8, model: softmax, samples: 300, "
                  "batch: 10, evaluate_every: 0, engine: virtual, pace: gamma, precision: auto}\n"
                  "arms:\n  one: {label: one}\n"
                  "  tuned: {label: tuned, tune: {lr: [0.01, 0.02]}}\n");
    assert_int_equal(RIG_RUN(r, "reproduce", "e.yaml", "--no-run"), OK); /* makes no trial */
    assert_null(strstr(process_errors(r), AUTO));
    for (int i = 0; i < 2; i++) {
        assert_int_equal(RIG_RUN(r, "reproduce", "e.yaml"), OK);
        process_expect_answer(r,
                              "SELECT count(*) || ' ' || count(DISTINCT " EVENT ") || ' ' || "
                              "count(" EVENT ") FROM run",
                              "8 1 8");
    }
    assert_int_equal(RIG_RUN(r, "report", "e.yaml"), OK);
}

/* A queued run keeps the answer of the sweep that queued it. */
static void a_queued_run_has_the_answer_of_its_sweep(void **state)
{
    struct process_rig *r = *state;
    process_start(r, (const char *const[]){"sweep", RIG_SMALL, VIRTUAL, AUTO,
                                           "seed=1,2,3,4,5,6,7,8", "samples=20000", NULL});
    process_await_row(r, "SELECT count(*) = 8 FROM run");
    kill(r->pid, SIGINT);
    assert_int_equal(process_wait(r), STOPPED);
    r->ended = 0;
    assert_int_equal(RIG_RUN(r, "sweep", "--work"), OK);
    process_expect_answer(r,
                          "SELECT count(DISTINCT " EVENT ") || ' ' || count(DISTINCT config ->> "
                          "'$.precision') || ' ' || count(" EVENT ") FROM run",
                          "1 1 8");
}

static void a_resumed_run_has_the_format_of_its_checkpoint(void **state)
{
    struct process_rig *r = *state;
    static const char *const formats[] = {"precision=fp32", "precision=bf16"};
    for (size_t i = 0; i < COUNT_OF(formats); i++) {
        char sql[160];
        int code = RIG_RUN(r, "run", RIG_SMALL, formats[i], "checkpoint=at.safetensors");
        if (code == ERROR_USAGE && i == 1) { /* this processor has no bf16 */
            r->ended = 0;
            print_message("skipped: %s\n", formats[i]);
            break;
        }
        assert_int_equal(code, OK);
        assert_int_equal(RIG_RUN(r, "run", RIG_SMALL, AUTO, "resume=at.safetensors"), OK);
        snprintf(sql, sizeof sql,
                 "SELECT 'precision=' || (config ->> '$.precision') FROM run ORDER BY id DESC "
                 "LIMIT 1");
        process_expect_answer(r, sql, formats[i]);
        unlink(process_path(r, "at.safetensors"));
    }
}

static void an_interrupted_run_resumes_with_its_answer(void **state)
{
    struct process_rig *r = *state;
    const char *const settings[] = {
        "run",        RIG_DATA,         AUTO,           "batch=10",
        "pace=gamma", "pace.mean_ms=4", "samples=8000", "checkpoint=at.safetensors",
        NULL};
    process_start(r, settings);
    process_await_row(r, "SELECT count(*) > 20 FROM push");
    kill(r->pid, SIGTERM);
    assert_int_equal(process_wait(r), STOPPED);
    r->ended = 0;
    assert_int_equal(RIG_RUN(r, "run", RIG_DATA, AUTO, "batch=10", "pace=gamma", "pace.mean_ms=4",
                             "samples=8000", "checkpoint=at.safetensors", "--resume"),
                     OK);
    process_expect_answer(r,
                          "SELECT count(*) || count(DISTINCT config_hash) || (SELECT count(*) FROM "
                          "event WHERE code = 'resumed') || (SELECT count(*) FROM event WHERE code "
                          "= 'precision') FROM run",
                          "2112");
}

static void errors_of_the_trial_are_those_of_the_run(void **state)
{
    struct process_rig *r = *state;
    assert_int_equal(RIG_RUN(r, "run", "dataset=cifar10", "dataset.path=nowhere", AUTO),
                     ERROR_DATA);
    process_expect_error(r, "nowhere");
    assert_int_equal(RIG_RUN(r, "check", "--quick", RIG_DATA, AUTO), OK);
    process_expect_line(r, "precision", "softmax");
    assert_int_equal(RIG_RUN(r, "run", RIG_SMALL, AUTO, "--print-config"), OK);
    process_expect_line(r, "precision", "auto");
}

/* Writes a copy of a checkpoint whose parameters all have these bits. The file: the length of the
 * header, the header, the parameters. */
static void copy_with_parameters(struct process_rig *r, const char *from, const char *to,
                                 uint32_t bits)
{
    static unsigned char bytes[1 << 17];
    uint64_t header;
    FILE *f = fopen(process_path(r, from), "rb");
    assert_non_null(f);
    const size_t count = fread(bytes, 1, sizeof bytes, f);
    assert_int_equal(fclose(f), 0);
    assert_in_range(count, sizeof header + 1, sizeof bytes - 1);
    memcpy(&header, bytes, sizeof header);
    assert_in_range(header, 1, count - sizeof header - sizeof bits);
    for (size_t at = sizeof header + header; at + sizeof bits <= count; at += sizeof bits)
        memcpy(bytes + at, &bits, sizeof bits);
    f = fopen(process_path(r, to), "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(bytes, 1, count, f), count);
    assert_int_equal(fclose(f), 0);
}

/* With lr=0 an update copies the parameters, but a subnormal operand counts as 0. */
static void training_computes_with_subnormal_numbers_as_0(void **state)
{
    struct process_rig *r = *state;
    static const char *const modes[][2] = {{"mode=async", "engine=real"},
                                           {"mode=sync", "engine=real"},
                                           {"engine=virtual", "pace=gamma"}};
#if !defined(__x86_64__)
    skip();
#endif
    assert_int_equal(RIG_RUN(r, "run", RIG_SMALL, "checkpoint=end.safetensors"), OK);
    copy_with_parameters(r, "end.safetensors", "zero.safetensors", 0);
    copy_with_parameters(r, "end.safetensors", "subnormal.safetensors", 0x00400000);
    for (size_t i = 0; i < COUNT_OF(modes); i++) {
        assert_int_equal(RIG_RUN(r, "run", RIG_SMALL, modes[i][0], modes[i][1], "lr=0",
                                 "initial=zero.safetensors"),
                         OK);
        assert_int_equal(RIG_RUN(r, "run", RIG_SMALL, modes[i][0], modes[i][1], "lr=0",
                                 "initial=subnormal.safetensors"),
                         OK);
    }
    process_expect_answer(
        r, "SELECT count(*) || count(DISTINCT parameters_sha256) FROM run WHERE id > 1", "61");
    process_expect_nothing_left(r);
}

int main(void)
{
#define PROCESS_TEST(name) cmocka_unit_test_setup_teardown(name, process_set_up, process_tear_down)
    const struct CMUnitTest tests[] = {
        PROCESS_TEST(the_row_has_the_chosen_format_and_the_run_replays),
        PROCESS_TEST(processes_started_by_hand_refuse),
        PROCESS_TEST(a_sweep_has_one_answer_for_each_computation),
        PROCESS_TEST(an_experiment_has_one_answer_for_its_trials_and_runs),
        PROCESS_TEST(a_queued_run_has_the_answer_of_its_sweep),
        PROCESS_TEST(a_resumed_run_has_the_format_of_its_checkpoint),
        PROCESS_TEST(an_interrupted_run_resumes_with_its_answer),
        PROCESS_TEST(errors_of_the_trial_are_those_of_the_run),
        PROCESS_TEST(training_computes_with_subnormal_numbers_as_0),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
