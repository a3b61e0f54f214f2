/*
 * The real program with real processes: exit codes, keys in errors, and equal results of both
 * modes.
 */
#include "base/memory.h"
#include "base/text.h"
#include "tests/rigs/process_rig.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include <signal.h>

static void an_unknown_key_is_a_usage_error_that_names_the_nearest(void **state)
{
    struct process_rig *r = *state;
    assert_int_equal(RIG_RUN(r, "run", RIG_SMALL, "wokers=2"), ERROR_USAGE);
    process_expect_error(r, "workers");
    assert_int_not_equal(access(process_path(r, "results.db"), F_OK), 0);
}

static void an_unknown_command_is_a_usage_error_that_names_the_nearest(void **state)
{
    struct process_rig *r = *state;
    assert_int_equal(RIG_RUN(r, "reprdouce"), ERROR_USAGE);
    process_expect_error(r, "reproduce");
}

static void a_value_out_of_range_is_a_usage_error_that_names_the_range(void **state)
{
    struct process_rig *r = *state;
    assert_int_equal(RIG_RUN(r, "run", RIG_SMALL, "batch=0"), ERROR_USAGE);
    process_expect_error(r, "65536");
}

static void a_setting_without_effect_is_a_usage_error(void **state)
{
    struct process_rig *r = *state;
    assert_int_equal(RIG_RUN(r, "run", RIG_SMALL, "mode=sync", "damping=inverse"), ERROR_USAGE);
    process_expect_error(r, "damping");
    process_expect_error(r, "mode=sync");
}

static void write_dataset(struct process_rig *r, const char *text)
{
    process_write(r, "train-images-idx3-ubyte.gz", text);
    process_write(r, "train-labels-idx1-ubyte.gz", text);
    process_write(r, "t10k-images-idx3-ubyte.gz", text);
    process_write(r, "t10k-labels-idx1-ubyte.gz", text);
}

static void a_malformed_dataset_fails_the_run_with_one_error(void **state)
{
    struct process_rig *r = *state;
    write_dataset(r, "\x1f\x8b\x08 cut off");
    const char *const modes[] = {"mode=async", "mode=sync"};
    for (size_t i = 0; i < COUNT_OF(modes); i++) {
        assert_int_equal(RIG_RUN(r, "run", modes[i], "workers=3", "dataset.path=."), ERROR_DATA);
        process_expect_error(r, "-ubyte");
        assert_string_equal(process_ask(r, "SELECT status FROM run ORDER BY id DESC"), "failed");
        assert_string_equal(process_ask(r, "SELECT error LIKE '%ubyte%' FROM run ORDER BY id DESC"),
                            "1");
        process_expect_nothing_left(r);
    }
}

static void a_missing_dataset_is_a_data_error(void **state)
{
    struct process_rig *r = *state;
    assert_int_equal(RIG_RUN(r, "run", "dataset.path=."), ERROR_DATA);
    process_expect_error(r, "ubyte");
}

/* Mistyped paths and devices. */
static void missing_files_and_devices_are_found_before_the_run_has_a_row(void **state)
{
    struct process_rig *r = *state;
    static const char *const missing[][2] = {{"dataset.path=nowhere", "dataset=fashion-mnist"},
                                             {"dataset.path=nowhere", "dataset=cifar10"},
                                             {"initial=nowhere", "dataset=gaussian"},
                                             {"pace=trace", "pace.path=nowhere"}};
    static const char *const kinds[] = {"mode=async", "mode=sync", "engine=virtual"};
    for (size_t i = 0; i < COUNT_OF(missing); i++) {
        for (size_t k = 0; k < COUNT_OF(kinds); k++) {
            assert_int_equal(RIG_RUN(r, "run", kinds[k], k == 2 ? "pace=constant" : "pace=none",
                                     missing[i][0], missing[i][1]),
                             ERROR_DATA);
            process_expect_error(r, "=nowhere");
        }
    }
    assert_int_equal(RIG_RUN(r, "sweep", "dataset.path=nowhere", "seed=1,2"), ERROR_DATA);
    assert_int_equal(
        process_shell(r, "GRADLAG_DATASETS=$PWD gradlag sweep dataset=cifar10 seed=1,2"),
        ERROR_DATA);
    process_expect_error(r, "/cifar10");
    setenv("CUDA_VISIBLE_DEVICES", "", 1);
    assert_int_equal(RIG_RUN(r, "run", RIG_SMALL, "device=cuda"), ERROR_USAGE);
    unsetenv("CUDA_VISIBLE_DEVICES");
    assert_int_equal(access(process_path(r, "results.db"), F_OK), -1);
}

static void a_file_that_is_no_results_file_is_not_changed(void **state)
{
    struct process_rig *r = *state;
    process_write(r, "results.db", "dear diary\n");
    assert_int_equal(RIG_RUN(r, "run", RIG_SMALL), ERROR_RESULTS);
    process_expect_error(r, "results.db");
    FILE *file = fopen(process_path(r, "results.db"), "r");
    char text[32] = {0};
    assert_non_null(fgets(text, sizeof text, file));
    fclose(file);
    assert_string_equal(text, "dear diary\n");
}

static void a_results_file_of_another_version_is_refused(void **state)
{
    struct process_rig *r = *state;
    assert_int_equal(RIG_RUN(r, "run", RIG_SMALL), OK);
    /* SQLite keeps user_version at byte 60, most significant byte first. */
    FILE *file = fopen(process_path(r, "results.db"), "r+b");
    assert_non_null(file);
    assert_int_equal(fseek(file, 62, SEEK_SET), 0);
    fputc(3, file);
    fclose(file);
    assert_int_equal(RIG_RUN(r, "run", RIG_SMALL), ERROR_RESULTS);
    process_expect_error(r, "769");
    assert_int_equal(RIG_RUN(r, "query", "runs"), ERROR_RESULTS);
    process_expect_error(r, "769");
}

static void a_port_in_use_is_an_error_that_names_it(void **state)
{
    struct process_rig *r = *state;
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof address;
    char endpoint[64];
    int taken = socket(AF_INET, SOCK_STREAM, 0);
    assert_int_equal(bind(taken, (struct sockaddr *)&address, sizeof address), 0);
    assert_int_equal(listen(taken, 1), 0);
    assert_int_equal(getsockname(taken, (struct sockaddr *)&address, &length), 0);
    snprintf(endpoint, sizeof endpoint, "endpoint=tcp://127.0.0.1:%d", ntohs(address.sin_port));
    int code = RIG_RUN(r, "run", RIG_SMALL, endpoint);
    close(taken);
    assert_int_equal(code, ERROR_OTHER);
    process_expect_error(r, endpoint + strlen("endpoint="));
    assert_string_equal(process_ask(r, "SELECT status FROM run"), "failed");
    process_expect_nothing_left(r);
}

static void a_diverged_run_has_its_own_exit_code_and_status(void **state)
{
    struct process_rig *r = *state;
    const char *const modes[] = {"mode=async", "mode=sync"};
    for (size_t i = 0; i < COUNT_OF(modes); i++) {
        assert_int_equal(RIG_RUN(r, "run", modes[i], "dataset=gaussian", "model=mlp", "epochs=1",
                                 "lr=1e6", "warmup_epochs=0", "workers=2"),
                         ERROR_DIVERGED);
        assert_string_equal(process_ask(r, "SELECT status FROM run ORDER BY id DESC"), "diverged");
        process_expect_error(r, i == 0 ? "worker " : "");
        process_expect_nothing_left(r);
    }
}

static void expect_equal_parameters(struct process_rig *r, const char *runs)
{
    assert_string_equal(process_ask(r, "SELECT count(*) FROM run WHERE status = 'finished' AND "
                                       "length(parameters_sha256) = 64"),
                        runs);
    assert_string_equal(process_ask(r, "SELECT count(DISTINCT parameters_sha256) FROM run"), "1");
}

static void one_worker_ends_in_the_same_parameters_in_both_modes(void **state)
{
    struct process_rig *r = *state;
    assert_int_equal(RIG_RUN(r, "run", RIG_SMALL, "model=mlp", "mode=async"), OK);
    assert_int_equal(
        RIG_RUN(r, "run", RIG_SMALL, "model=mlp", "mode=async", "payload=frames", "transport=tcp"),
        OK);
    assert_int_equal(RIG_RUN(r, "run", RIG_SMALL, "model=mlp", "mode=sync"), OK);
    expect_equal_parameters(r, "3");
    process_expect_nothing_left(r);
}

static void a_barrier_on_three_workers_equals_the_ordered_reduction(void **state)
{
    struct process_rig *r = *state;
    assert_int_equal(RIG_RUN(r, "run", RIG_SMALL, "workers=3", "mode=async", "consistency=bsp"),
                     OK);
    assert_int_equal(RIG_RUN(r, "run", RIG_SMALL, "workers=3", "mode=sync", "reduction=ordered"),
                     OK);
    expect_equal_parameters(r, "2");
}

static void a_run_records_its_configuration_and_its_totals(void **state)
{
    struct process_rig *r = *state;
    assert_int_equal(RIG_RUN(r, "run", RIG_SMALL, "workers=2", "damping=inverse", "tag=mine"), OK);
    assert_non_null(strstr(process_output(r), "accuracy"));
    assert_string_equal(process_ask(r, "SELECT tag || mode || workers || damping FROM run"),
                        "mineasync2inverse");
    assert_string_equal(process_ask(r, "SELECT updates || ' ' || samples_used FROM run"), "60 600");
    assert_string_equal(process_ask(r, "SELECT json_extract(config, '$.batch') FROM run"), "10");
    assert_string_equal(
        process_ask(r, "SELECT length(json_extract(host, '$.commit')) > 0 FROM run"), "1");
    assert_string_equal(
        process_ask(r, "SELECT json_extract(host, '$.device') LIKE 'cpu: %oneDNN%' FROM run"), "1");
    assert_string_equal(
        process_ask(r, "SELECT json_extract(host, '$.mpi') LIKE 'Open MPI%' FROM run"), "1");
    assert_int_equal(RIG_RUN(r, "show", "last"), OK);
    assert_non_null(strstr(process_output(r), "inverse"));
}

static void a_server_and_workers_started_by_hand_train(void **state)
{
    struct process_rig *r = *state, *other[2];
    char endpoint[RIG_ENDPOINT_BYTES], token[64];
    process_start(r, (const char *const[]){"server", RIG_SMALL, "workers=2", NULL});
    process_await_endpoint(r, endpoint, token);
    assert_int_equal(process_set_up((void **)&other[0]), 0); /* the worker's lr differs */
    process_start(other[0], (const char *const[]){"worker", RIG_SMALL, "workers=2", endpoint, token,
                                                  "worker=0", "lr=0.7", NULL});
    assert_int_equal(process_wait(other[0]), ERROR_PROTOCOL);
    process_tear_down((void **)&other[0]);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(process_set_up((void **)&other[i]), 0);
        process_start(other[i],
                      (const char *const[]){"worker", RIG_SMALL, "workers=2", endpoint, token,
                                            i == 0 ? "worker=0" : "worker=1", NULL});
    }
    for (int i = 0; i < 2; i++) {
        assert_int_equal(process_wait(other[i]), OK);
        process_tear_down((void **)&other[i]);
    }
    assert_int_equal(process_wait(r), OK);
    assert_string_equal(process_ask(r, "SELECT status || updates FROM run"), "finished60");
}

static void a_checkpoint_is_written_and_recorded(void **state)
{
    struct process_rig *r = *state;
    const char *const modes[] = {"mode=async", "mode=sync"};
    for (size_t i = 0; i < COUNT_OF(modes); i++) {
        assert_int_equal(RIG_RUN(r, "run", modes[i], RIG_SMALL, "checkpoint=end.safetensors"), OK);
        assert_int_equal(access(process_path(r, "end.safetensors"), R_OK), 0);
        assert_int_equal(unlink(process_path(r, "end.safetensors")), 0);
    }
    assert_string_equal(process_ask(r, "SELECT count(*) || max(version) FROM checkpoint"), "260");
}

static void initial_parameters_can_come_from_a_checkpoint(void **state)
{
    struct process_rig *r = *state;
    const char *const modes[] = {"mode=async", "mode=sync"};
    assert_int_equal(RIG_RUN(r, "run", RIG_SMALL, "checkpoint={run}-{version}.safetensors",
                             "checkpoint_every=0.2"),
                     OK);
    assert_int_equal(access(process_path(r, "1-60.safetensors"), R_OK), 0);
    assert_string_equal(process_ask(r, "SELECT count(*) >= 2 AND count(DISTINCT path) = count(*) "
                                       "AND count(DISTINCT sha256) = count(*) FROM checkpoint"),
                        "1");
    /* With lr=0 the parameters keep their initial values. */
    for (size_t i = 0; i < COUNT_OF(modes); i++) {
        assert_int_equal(RIG_RUN(r, "run", RIG_SMALL, modes[i], "initial=1-60.safetensors", "lr=0"),
                         OK);
    }
    assert_string_equal(process_ask(r, "SELECT count(*) FROM run"), "3");
    assert_string_equal(process_ask(r, "SELECT count(DISTINCT parameters_sha256) FROM run"), "1");
    assert_int_equal(RIG_RUN(r, "run", RIG_SMALL, "initial=none.safetensors"), ERROR_DATA);
    process_expect_error(r, "none.safetensors");
    assert_int_equal(
        RIG_RUN(r, "run", RIG_DATA, "model=mlp", "samples=600", "initial=1-60.safetensors"),
        ERROR_DATA);
    process_expect_nothing_left(r);
}

static void a_stopped_run_resumes_and_ends_in_the_same_bits(void **state)
{
    struct process_rig *r = *state;
    pid_t ranks[2];
    const char *const settings[] = {"run",
                                    RIG_DATA,
                                    "mode=sync",
                                    "workers=2",
                                    "batch=10",
                                    "epochs=25",
                                    "pace=gamma",
                                    "pace.mean_ms=2",
                                    "pace.cv=0",
                                    "checkpoint=at.safetensors",
                                    "evaluate_every=0",
                                    NULL};
    const char *again[COUNT_OF(settings) + 1];
    assert_int_equal(process_run(r, settings), OK);
    process_start(r, settings);
    process_await(r, "rank", ranks, 2);
    process_await_row(r, "SELECT count(*) >= 10 FROM step WHERE run_id = 2");
    kill(r->pid, SIGINT);
    assert_int_equal(process_wait(r), STOPPED);
    assert_string_equal(process_ask(r, "SELECT updates > 0 AND updates < (SELECT updates FROM run "
                                       "WHERE id = 1) FROM run WHERE id = 2"),
                        "1");
    memcpy(again, settings, sizeof settings);
    again[COUNT_OF(settings) - 1] = "--resume";
    again[COUNT_OF(settings)] = NULL;
    assert_int_equal(process_run(r, again), OK);
    process_expect_errors_contain(r, "at.safetensors");
    assert_string_equal(process_ask(r, "SELECT count(*) FROM event WHERE run_id = 3 AND code = "
                                       "'resumed' AND severity = 'info'"),
                        "1");
    process_expect_answer(
        r,
        "SELECT b.host ->> '$.resumed.version' = a.updates AND b.host ->> "
        "'$.resumed.lost' = 0 AND b.host ->> '$.resumed.run' = a.uuid FROM run a, "
        "run b WHERE a.id = 2 AND b.id = 3",
        "1");
    assert_string_equal(
        process_ask(r,
                    "SELECT a.parameters_sha256 = b.parameters_sha256 AND a.updates = b.updates "
                    "AND a.config_hash = b.config_hash AND b.status = 'finished' FROM run a, run "
                    "b WHERE a.id = 1 AND b.id = 3"),
        "1");
    /* A checkpoint of another run is refused. */
    assert_int_equal(RIG_RUN(r, "run", RIG_DATA, "mode=sync", "workers=2", "batch=10", "epochs=25",
                             "evaluate_every=0", "lr=0.5", "resume=at.safetensors"),
                     ERROR_USAGE);
    process_expect_error(r, "0.5");
    process_expect_error(r, "0.03");
    assert_int_equal(RIG_RUN(r, "run", RIG_DATA, "mode=pipeline", "resume=at.safetensors"),
                     ERROR_USAGE);
    process_expect_error(r, "initial");
}

/* The last run resumed the run before it: all values except times are equal. */
static void expect_rows_of_an_unbroken_run(struct process_rig *r)
{
    static const char *const equal[] = {
        "SELECT count(DISTINCT samples_computed || ' ' || ifnull(sent_bytes, 0)) FROM run WHERE "
        "id > (SELECT max(id) FROM run) - 2",
        "SELECT count(DISTINCT e.updates || ' ' || samples || ' ' || train_loss || ' ' || "
        "validation_loss || ' ' || test_loss || ' ' || test_accuracy) FROM evaluation e WHERE "
        "run_id > (SELECT max(id) FROM run) - 2",
        "SELECT min(a.loss = b.loss AND a.staleness = b.staleness) FROM step a JOIN "
        "step b ON b.run_id = a.run_id - 1 AND b.update_version = a.update_version AND "
        "b.worker = a.worker WHERE a.run_id = (SELECT max(id) FROM run)"};
    for (size_t i = 0; i < COUNT_OF(equal); i++)
        process_expect_answer(r, equal[i], "1");
}

/* An intermediate checkpoint holds the state of each rank, the gradients that wait, and the updates
 * that a delay correction needs. A run resumes from it. */
static void the_state_of_each_rank_is_in_the_checkpoint(void **state)
{
    struct process_rig *r = *state;
    static const char *const with[][2] = {{"delay=1", "compression=sign"},
                                          {"delay=3", "delay_correction=error-feedback"},
                                          {"local_steps=3", "momentum=0.9"}};
    for (size_t i = 0; i < COUNT_OF(with); i++) {
        assert_int_equal(RIG_RUN(r, "run", RIG_SMALL, "mode=sync", "workers=2", with[i][0],
                                 with[i][1], "checkpoint={run}-{version}.safetensors",
                                 "checkpoint_every=0.2"),
                         OK);
        char *from = text_copy(process_ask(r, "SELECT 'resume=' || path FROM checkpoint WHERE "
                                              "run_id = (SELECT max(id) FROM run) ORDER BY version "
                                              "LIMIT 1"));
        assert_int_equal(
            RIG_RUN(r, "run", RIG_SMALL, "mode=sync", "workers=2", with[i][0], with[i][1], from),
            OK);
        memory_free(from);
        assert_string_equal(process_ask(r, "SELECT count(*) || ' ' || count(DISTINCT updates || "
                                           "parameters_sha256) FROM run WHERE id > (SELECT max(id) "
                                           "FROM run) - 2"),
                            "2 1");
        assert_string_equal(process_ask(r, "SELECT count(*) FROM event WHERE code = 'resumed' AND "
                                           "run_id = (SELECT max(id) FROM run)"),
                            "1");
        expect_rows_of_an_unbroken_run(r);
    }
    process_expect_answer(r, /* local_steps=3 exchanges at every third step */
                          "SELECT group_concat(DISTINCT update_version % 3) FROM step WHERE run_id "
                          "> (SELECT max(id) FROM run) - 2 AND exchange_us > 0",
                          "0");
    process_expect_nothing_left(r);
}

static void virtual_ranks_write_checkpoints_at_the_same_versions(void **state)
{
    struct process_rig *r = *state;
    assert_int_equal(RIG_RUN(r, "run", RIG_SMALL, "mode=sync", "workers=2", "reduction=ordered",
                             "checkpoint={run}-{version}", "checkpoint_every=0.2"),
                     OK);
    assert_int_equal(RIG_RUN(r, "run", RIG_SMALL, "mode=sync", "workers=2", "reduction=ordered",
                             "checkpoint={run}-{version}", "checkpoint_every=0.2", "engine=virtual",
                             "pace=constant"),
                     OK);
    process_expect_answer(r,
                          "SELECT count(DISTINCT versions) || ' ' || min(n) FROM (SELECT "
                          "group_concat(version) AS versions, count(*) AS n FROM checkpoint "
                          "GROUP BY run_id)",
                          "1 3");
}

static void runs_of_a_sweep_may_not_overwrite_one_checkpoint(void **state)
{
    struct process_rig *r = *state;
    assert_int_equal(RIG_RUN(r, "sweep", RIG_SMALL, "seed=1,2", "checkpoint=end.safetensors"),
                     ERROR_USAGE);
    process_expect_error(r, "{run}");
}

static void an_overwritten_checkpoint_has_one_row(void **state)
{
    struct process_rig *r = *state;
    assert_int_equal(
        RIG_RUN(r, "run", RIG_SMALL, "checkpoint=end.safetensors", "checkpoint_every=0.2"), OK);
    assert_string_equal(process_ask(r, "SELECT count(*) || ' ' || max(version) FROM checkpoint"),
                        "1 60");
}

static void slurm_variables_do_not_change_the_shards(void **state)
{
    struct process_rig *r = *state;
    setenv("SLURM_NTASKS", "4", 1);
    int code = RIG_RUN(r, "run", RIG_SMALL);
    unsetenv("SLURM_NTASKS");
    assert_int_equal(code, OK);
    assert_int_equal(RIG_RUN(r, "run", RIG_SMALL), OK);
    assert_string_equal(process_ask(r, "SELECT count(DISTINCT parameters_sha256) FROM run"), "1");
}

static void expect_shell(struct process_rig *r, const char *script)
{
    int code = process_shell(r, script);
    if (code != OK)
        fail_msg("exit code %d: %s%s", code, script, process_errors(r));
}

static void every_kind_of_part_can_be_listed(void **state)
{
    struct process_rig *r = *state;
    expect_shell(
        r,
        "for kind in $(gradlag list --help | sed -n '/^KIND is one of /{s///; s/[,.]//g; p}'); do\n"
        "    gradlag list $kind | grep -q '[a-z]' || { echo $kind >&2; exit 1; }\n"
        "    count=$((count + 1))\n"
        "done; [ $count -ge 15 ] && gradlag list devices | grep -q '^cpu '\n");
    assert_int_equal(RIG_RUN(r, "query"), OK);
    assert_non_null(strstr(process_output(r), "staleness-histogram"));
}

static void every_benchmark_lists_its_options(void **state)
{
    struct process_rig *r = *state;
    expect_shell(r,
                 "for name in $(gradlag bench --help | sed -n 's/^  \\([a-z-]*\\)  .*/\\1/p'); do\n"
                 "    gradlag bench $name --help >options || exit 1\n"
                 "    [ $(grep -c '^  repeats=' options) = 1 ] || { echo $name >&2; exit 1; }\n"
                 "    count=$((count + 1))\n"
                 "done; [ $count -ge 8 ] && gradlag bench step --help | grep -q 'clock=wall'\n");
}

/* Two arms with one worker each give the same result. */
static void write_experiment(struct process_rig *r, const char *claims)
{
    struct text text = {0};
    text_add(&text,
             "name: small\n"
             "question: do the modes end alike?\n"
             "settings: {dataset: gaussian, dataset.size: 8, model: softmax, samples: 600,"
             " batch: 10, warmup_epochs: 0}\n"
             "workers: [1]\n"
             "seeds: [1, 2]\n"
             "arms:\n"
             "  async: {label: asynchronous, settings: {mode: async}}\n"
             "  sync: {label: synchronous, settings: {mode: sync}}\n"
             "claims:\n"
             "  - claim: They do\n"
             "    value: accuracy(async, 1) - accuracy(sync, 1)\n"
             "    band: [0, 0]\n%s"
             "verdict: {workers: 1, undamped: async, synchronous: sync}\n",
             claims);
    process_write(r, "small.yaml", text.at);
    text_free(&text);
}

static void an_experiment_runs_once_and_is_judged(void **state)
{
    struct process_rig *r = *state;
    write_experiment(r, "");
    assert_int_equal(RIG_RUN(r, "reproduce", "small.yaml", "--quiet"), OK);
    process_expect_line(r, "PASS", "They do");
    assert_string_equal(process_ask(r, "SELECT count(*) || ' ' || count(DISTINCT seed) || ' ' || "
                                       "count(DISTINCT parameters_sha256) FROM run"),
                        "4 2 2");
    write_experiment(r, "  - claim: One of them is perfect\n"
                        "    value: max(accuracy(async, 1), accuracy(sync, 1))\n"
                        "    band: [101, 102]\n"
                        "  - claim: None has learnt a thing\n"
                        "    value: max(accuracy(async, 1), accuracy(sync, 1))\n"
                        "    band: [-2, -1]\n");
    assert_int_equal(RIG_RUN(r, "reproduce", "small.yaml", "--quiet"), ERROR_OTHER);
    process_expect_line(r, "FAIL", "One of them is perfect");
    process_expect_line(r, "FAIL", "None has learnt a thing");
    process_expect_error(r, "2 ");
    process_expect_answer(r, "SELECT count(*) FROM run", "4");
}

/* A mean over only the finished seeds would let a claim pass wrongly. */
static void a_claim_on_runs_that_diverged_fails(void **state)
{
    struct process_rig *r = *state;
    process_write(
        r, "lost.yaml",
        "name: lost\n"
        "question: is a diverged run noticed?\n"
        "settings: {dataset: gaussian, model: mlp, epochs: 1, warmup_epochs: 0, lr: 1e6}\n"
        "workers: [1]\n"
        "seeds: [1]\n"
        "arms:\n"
        "  async: {label: asynchronous, settings: {mode: async}}\n"
        "claims:\n"
        "  - claim: It is accurate\n"
        "    value: accuracy(async, 1)\n"
        "    band: [0, 100]\n"
        "  - claim: It is dead\n"
        "    value: died(async, 1)\n"
        "    band: [1, 1]\n");
    assert_int_equal(RIG_RUN(r, "reproduce", "lost.yaml", "--quiet"), ERROR_OTHER);
    process_expect_line(r, "FAIL", "It is accurate");
    process_expect_line(r, "PASS", "It is dead");
    process_expect_answer(r, "SELECT group_concat(status) FROM run", "diverged");
    process_expect_nothing_left(r);
}

static void an_ignored_sigchld_does_not_break_waiting_for_children(void **state)
{
    struct process_rig *r = *state;
    assert_int_equal(process_shell(r, "env --ignore-signal=CHLD gradlag bench push-pull sizes=16 "
                                      "counts=1 repeats=1 window_s=0.01 cases=small"),
                     OK);
}

static void a_generated_results_file_answers_every_query(void **state)
{
    struct process_rig *r = *state;
    assert_int_equal(
        RIG_RUN(r, "bench", "results", "runs=4", "pushes=200", "repeats=1", "file=results.db"), OK);
    assert_non_null(strstr(process_output(r), "who-waits-for-whom"));
    assert_string_equal(
        process_ask(r, "SELECT group_concat(experiment || ' ' || arm || ' ' || "
                       "workers || ' ' || seed, ' / ') FROM run"),
        "trial-0 none 1 1 / trial-0 none 1 2 / trial-0 none 1 3 / trial-0 none 2 1");
    assert_string_equal(process_ask(r, "SELECT count(*) FROM push"), "800");
}

int main(void)
{
#define PROCESS_TEST(f) cmocka_unit_test_setup_teardown(f, process_set_up, process_tear_down)
    const struct CMUnitTest tests[] = {
        PROCESS_TEST(a_generated_results_file_answers_every_query),
        PROCESS_TEST(an_unknown_key_is_a_usage_error_that_names_the_nearest),
        PROCESS_TEST(an_unknown_command_is_a_usage_error_that_names_the_nearest),
        PROCESS_TEST(a_value_out_of_range_is_a_usage_error_that_names_the_range),
        PROCESS_TEST(a_setting_without_effect_is_a_usage_error),
        PROCESS_TEST(a_malformed_dataset_fails_the_run_with_one_error),
        PROCESS_TEST(a_missing_dataset_is_a_data_error),
        PROCESS_TEST(missing_files_and_devices_are_found_before_the_run_has_a_row),
        PROCESS_TEST(a_file_that_is_no_results_file_is_not_changed),
        PROCESS_TEST(a_results_file_of_another_version_is_refused),
        PROCESS_TEST(a_port_in_use_is_an_error_that_names_it),
        PROCESS_TEST(a_diverged_run_has_its_own_exit_code_and_status),
        PROCESS_TEST(one_worker_ends_in_the_same_parameters_in_both_modes),
        PROCESS_TEST(a_barrier_on_three_workers_equals_the_ordered_reduction),
        PROCESS_TEST(a_run_records_its_configuration_and_its_totals),
        PROCESS_TEST(a_server_and_workers_started_by_hand_train),
        PROCESS_TEST(an_experiment_runs_once_and_is_judged),
        PROCESS_TEST(a_claim_on_runs_that_diverged_fails),
        PROCESS_TEST(a_checkpoint_is_written_and_recorded),
        PROCESS_TEST(initial_parameters_can_come_from_a_checkpoint),
        PROCESS_TEST(a_stopped_run_resumes_and_ends_in_the_same_bits),
        PROCESS_TEST(the_state_of_each_rank_is_in_the_checkpoint),
        PROCESS_TEST(virtual_ranks_write_checkpoints_at_the_same_versions),
        PROCESS_TEST(runs_of_a_sweep_may_not_overwrite_one_checkpoint),
        PROCESS_TEST(an_overwritten_checkpoint_has_one_row),
        PROCESS_TEST(slurm_variables_do_not_change_the_shards),
        PROCESS_TEST(every_kind_of_part_can_be_listed),
        PROCESS_TEST(every_benchmark_lists_its_options),
        PROCESS_TEST(an_ignored_sigchld_does_not_break_waiting_for_children),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
