/*
 * device=cuda in the program and its processes: both modes, the GPU of each process, and GPU
 * errors. The program is linked with the fake CUDA (tests/worker/cuda/cuda_stand_in.h), which
 * provides several GPUs.
 */
#include "base/thread.h"
#include "tests/rigs/process_rig.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

/* Softmax of 8×8 images, which the fake CUDA computes quickly. */
#define SMALL RIG_SMALL, "device=cuda"

static int set_up(void **state)
{
    process_program_name = "tests/gradlag-stand-in";
    setenv("GRADLAG_STAND_IN_DEVICES", "3", 1);
    unsetenv("CUDA_VISIBLE_DEVICES"); /* all fake GPUs are visible */
    return process_set_up(state);
}

static int tear_down(void **state)
{
    static const char *const ours[] = {"GRADLAG_STAND_IN_DEVICES", "GRADLAG_STAND_IN_MEMORY",
                                       "GRADLAG_STAND_IN_FAULT", "SLURM_LOCALID",
                                       "CUDA_VISIBLE_DEVICES"};
    for (size_t i = 0; i < COUNT_OF(ours); i++)
        unsetenv(ours[i]);
    return process_tear_down(state);
}

static void expect_device(struct process_rig *r, const char *part)
{
    const char *device = process_ask(r, "SELECT host ->> '$.device' FROM run ORDER BY id DESC");
    if (strstr(device, part) == NULL)
        fail_msg("the device is '%s', not '%s'", device, part);
}

static void one_worker_ends_in_the_same_bits_in_both_modes_and_every_time(void **state)
{
    struct process_rig *r = *state;
    assert_int_equal(RIG_RUN(r, "run", SMALL, "mode=async"), OK);
    assert_int_equal(RIG_RUN(r, "run", SMALL, "mode=sync"), OK);
    assert_int_equal(RIG_RUN(r, "run", SMALL, "mode=async"), OK);
    assert_string_equal(process_ask(r, "SELECT count(*) FROM run WHERE status = 'finished'"), "3");
    assert_string_equal(process_ask(r, "SELECT count(DISTINCT parameters_sha256) FROM run"), "1");
    process_expect_nothing_left(r);
}

static void several_workers_share_the_gpus_in_both_modes(void **state)
{
    struct process_rig *r = *state;
    assert_int_equal(RIG_RUN(r, "run", SMALL, "mode=async", "workers=4"), OK);
    expect_device(r, "(1 of 3 visible)"); /* the server's GPU: the one after the last worker's */
    assert_int_equal(RIG_RUN(r, "run", SMALL, "mode=sync", "workers=4"), OK);
    expect_device(r, "(0 of 3 visible)"); /* rank 0's GPU */
    process_expect_nothing_left(r);
}

static void slurm_variables_do_not_put_all_workers_on_one_gpu(void **state)
{
    struct process_rig *r = *state;
    setenv("SLURM_LOCALID", "0", 1);
    assert_int_equal(RIG_RUN(r, "run", SMALL, "mode=async", "workers=4"), OK);
    expect_device(r, "(1 of 3 visible)");
}

static void device_index_names_the_gpu(void **state)
{
    struct process_rig *r = *state;
    assert_int_equal(RIG_RUN(r, "run", SMALL, "mode=async", "device.index=2"), OK);
    expect_device(r, "(2 of 3 visible)");
    assert_int_equal(RIG_RUN(r, "run", SMALL, "mode=sync", "workers=2", "device.index=2"), OK);
    expect_device(r, "(2 of 3 visible)");
}

static void device_index_does_not_change_the_configuration_hash(void **state)
{
    struct process_rig *r = *state;
    assert_int_equal(RIG_RUN(r, "run", SMALL, "device.index=1"), OK);
    assert_int_equal(RIG_RUN(r, "run", SMALL, "device.index=2"), OK);
    assert_string_equal(process_ask(r, "SELECT count(DISTINCT config_hash) FROM run"), "1");
}

static void a_missing_gpu_is_a_usage_error(void **state)
{
    struct process_rig *r = *state;
    const char *const modes[] = {"mode=async", "mode=sync"};
    for (size_t i = 0; i < COUNT_OF(modes); i++) {
        assert_int_equal(RIG_RUN(r, "run", SMALL, modes[i], "workers=2", "device.index=3"),
                         ERROR_USAGE);
        process_expect_error(r, "device.index");
    }
    process_expect_nothing_left(r);
}

static void exhausted_gpu_memory_fails_the_run(void **state)
{
    struct process_rig *r = *state;
    setenv("GRADLAG_STAND_IN_MEMORY", "1000", 1);
    const char *const modes[] = {"mode=async", "mode=sync"};
    for (size_t i = 0; i < COUNT_OF(modes); i++) {
        assert_int_equal(RIG_RUN(r, "run", SMALL, modes[i], "workers=2"), ERROR_OTHER);
        process_expect_error(r, "memory");
        assert_string_equal(process_ask(r, "SELECT status FROM run ORDER BY id DESC"), "failed");
        assert_string_equal(
            process_ask(r, "SELECT error LIKE '%memory%' FROM run ORDER BY id DESC"), "1");
    }
    process_expect_nothing_left(r);
}

/* Each rank has its own GPU, but its updates are in host memory. */
static void communicator_auto_is_on_the_host_if_the_updates_are(void **state)
{
    struct process_rig *r = *state;
    const char *const settings[] = {"optimizer=adamw", "clip_norm=1", "local_steps=2", "delay=1"};
    for (size_t i = 0; i < COUNT_OF(settings); i++)
        assert_int_equal(RIG_RUN(r, "run", SMALL, "mode=sync", "workers=2", settings[i]), OK);
    process_expect_answer(r,
                          "SELECT count(*) FROM run WHERE status = 'finished' AND "
                          "host ->> '$.communicator' = 'shared'",
                          "4");
    process_expect_nothing_left(r);
}

/* The kernel `gather` runs only during training, not when a worker is opened. */
static void a_gpu_fault_fails_the_run_in_both_modes(void **state)
{
    struct process_rig *r = *state;
    setenv("GRADLAG_STAND_IN_DEVICES", "1", 1); /* ranks on different GPUs would use NCCL */
    setenv("GRADLAG_STAND_IN_FAULT", "gather", 1);
    const char *const modes[] = {"mode=async", "mode=sync"};
    for (size_t i = 0; i < COUNT_OF(modes); i++) {
        assert_int_equal(RIG_RUN(r, "run", SMALL, modes[i], "workers=2"), ERROR_OTHER);
        process_expect_errors_contain(r, "700");
        assert_string_equal(
            process_ask(r, "SELECT status || (error LIKE '%700%') FROM run ORDER BY id DESC"),
            "failed1");
    }
    process_expect_nothing_left(r);
}

/* The real program, with every real GPU hidden. */
static void without_any_gpu_device_cuda_is_a_usage_error(void **state)
{
    struct process_rig *r = *state;
    process_program_name = "gradlag";
    setenv("CUDA_VISIBLE_DEVICES", "", 1);
    const char *const modes[] = {"mode=async", "mode=sync"};
    for (size_t i = 0; i < COUNT_OF(modes); i++) {
        assert_int_equal(RIG_RUN(r, "run", SMALL, modes[i]), ERROR_USAGE);
        process_expect_error(r, "device=cuda");
    }
    process_expect_nothing_left(r);
}

/* Counts pairs of runs that ran at the same time and satisfy `are`. */
#define PAIRS(are)                                                                                 \
    "SELECT count(*) FROM run AS a JOIN run AS b ON a.id < b.id AND a.started_at < b.finished_at " \
    "AND b.started_at < a.finished_at WHERE " are
/* The PCI address of the run's GPU: " at 0000:02:00.0 ". */
#define GPU_OF(run)                                                                                \
    "substr(" run ".host ->> '$.device', instr(" run ".host ->> '$.device', '0000:'), 7)"

/* Each run used only the GPU that its row names. */
static void expect_own_gpus(struct process_rig *r)
{
    process_expect_answer(r,
                          "SELECT count(*) FROM run WHERE host ->> '$.device' LIKE '%0000:0' || "
                          "(host ->> '$.environment.CUDA_VISIBLE_DEVICES') || ':00.0 (0 of 1 "
                          "visible)%'",
                          "6");
    process_expect_answer(r, PAIRS("1") " AND " GPU_OF("a") " = " GPU_OF("b"), "0");
    assert_true(atoi(process_ask(r, PAIRS("1"))) > 0);
}

#define SOME_SECONDS                                                                               \
    RIG_DATA, "samples=2000", "batch=10", "pace=gamma", "pace.mean_ms=5", "evaluate_every=0",      \
        "device=cuda", "seed=1..6:6"

static void parallel_runs_get_different_gpus(void **state)
{
    struct process_rig *r = *state;
    if (processor_count() < 2)
        skip();
    assert_int_equal(RIG_RUN(r, "sweep", SOME_SECONDS, "--jobs", "2", "--quiet"), OK);
    process_expect_answer(r, "SELECT count(*) FROM run WHERE status = 'finished'", "6");
    expect_own_gpus(r);
    process_expect_nothing_left(r);
}

static void oversubscribed_runs_get_different_gpus(void **state)
{
    struct process_rig *r = *state;
    setenv("CUDA_VISIBLE_DEVICES", "2,0", 1);
    assert_int_equal(
        RIG_RUN(r, "sweep", SOME_SECONDS, "mode=sync", "--jobs=2", "--oversubscribe", "--quiet"),
        OK);
    expect_own_gpus(r);
    process_expect_answer(r, "SELECT count(DISTINCT " GPU_OF("run") ") FROM run", "2");
    process_expect_answer(r, "SELECT count(*) FROM run WHERE host ->> '$.device' LIKE '%:01:%'",
                          "0");
}

/* A step with copies from and to the host, and a step whose vectors stay on the GPU. */
static void bench_step_measures_with_and_without_copies(void **state)
{
    struct process_rig *r = *state;
    assert_int_equal(RIG_RUN(r, "bench", "step", "device=cuda", "models=softmax,gpt", "batches=4",
                             "size=8", "repeats=1", "seconds=0.001"),
                     OK);
    assert_non_null(strstr(process_output(r), "softmax batch=4 step "));
    assert_non_null(strstr(process_output(r), "softmax batch=4 resident "));
    assert_non_null(strstr(process_output(r), "gpt batch=4 resident "));
    assert_int_equal(RIG_RUN(r, "bench", "step", "device=cuda", "clock=cpu", "models=softmax",
                             "batches=4", "size=8", "repeats=1", "seconds=0.001"),
                     ERROR_USAGE); /* the time of the host thread, which waits for the GPU */
    process_expect_error(r, "clock=cpu");
}

static void check_lists_the_gpus(void **state)
{
    struct process_rig *r = *state;
    assert_int_equal(RIG_RUN(r, "check", "--quick", "device=cuda", RIG_DATA), OK);
    assert_non_null(strstr(process_output(r), "0000:00:00.0"));
    assert_non_null(strstr(process_output(r), "0000:02:00.0"));
    assert_null(strstr(process_output(r), "FLOP/s"));
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(one_worker_ends_in_the_same_bits_in_both_modes_and_every_time),
        TEST(several_workers_share_the_gpus_in_both_modes),
        TEST(slurm_variables_do_not_put_all_workers_on_one_gpu),
        TEST(device_index_names_the_gpu),
        TEST(device_index_does_not_change_the_configuration_hash),
        TEST(a_missing_gpu_is_a_usage_error),
        TEST(exhausted_gpu_memory_fails_the_run),
        TEST(communicator_auto_is_on_the_host_if_the_updates_are),
        TEST(a_gpu_fault_fails_the_run_in_both_modes),
        TEST(parallel_runs_get_different_gpus),
        TEST(oversubscribed_runs_get_different_gpus),
        TEST(bench_step_measures_with_and_without_copies),
        TEST(check_lists_the_gpus),
        TEST(without_any_gpu_device_cuda_is_a_usage_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
