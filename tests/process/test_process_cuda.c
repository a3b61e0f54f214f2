/*
 * device=cuda through the program and its processes: both modes, where each process computes, and
 * what a GPU's errors look like from outside. The program is linked with the stand-in for CUDA
 * (tests/worker/cuda/cuda_stand_in.h), which plays several GPUs.
 */
#include "base/thread.h"
#include "tests/rigs/process_rig.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

/* Softmax of 8×8 images: what the stand-in computes in a moment. */
#define SMALL RIG_SMALL, "device=cuda"

static int set_up(void **state)
{
    process_program_name = "tests/gradlag-stand-in";
    setenv("GRADLAG_STAND_IN_DEVICES", "3", 1);
    unsetenv("CUDA_VISIBLE_DEVICES"); /* all of them are visible */
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
    expect_device(r, "(1 of 3 visible)"); /* the server's: the place after the last worker's */
    assert_int_equal(RIG_RUN(r, "run", SMALL, "mode=sync", "workers=4"), OK);
    expect_device(r, "(0 of 3 visible)"); /* rank 0's */
    process_expect_nothing_left(r);
}

static void a_run_inside_somebody_elses_slurm_step_does_not_crowd_one_gpu(void **state)
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

static void the_gpu_a_run_was_made_on_does_not_make_it_another_run(void **state)
{
    struct process_rig *r = *state;
    assert_int_equal(RIG_RUN(r, "run", SMALL, "device.index=1"), OK);
    assert_int_equal(RIG_RUN(r, "run", SMALL, "device.index=2"), OK);
    assert_string_equal(process_ask(r, "SELECT count(DISTINCT config_hash) FROM run"), "1");
}

static void a_gpu_that_is_not_there_fails_the_run_with_a_usage_error(void **state)
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

static void a_gpu_whose_memory_is_out_fails_the_run_and_says_what_did_not_fit(void **state)
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

/* `gather` runs in training alone: not while a worker is opened. */
static void a_fault_while_training_fails_the_run_alike_in_both_modes(void **state)
{
    struct process_rig *r = *state;
    setenv("GRADLAG_STAND_IN_DEVICES", "1", 1); /* ranks on GPUs of their own would try NCCL */
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

/* The program that users have, with every real GPU hidden. */
static void no_gpu_at_all_fails_the_run_with_a_usage_error_that_says_why(void **state)
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

/* Pairs of runs that were being made at one time, and which of them `are` so. */
#define PAIRS(are)                                                                                 \
    "SELECT count(*) FROM run AS a JOIN run AS b ON a.id < b.id AND a.started_at < b.finished_at " \
    "AND b.started_at < a.finished_at WHERE " are
/* Where its steps were computed: " at 0000:02:00.0 ". */
#define GPU_OF(run)                                                                                \
    "substr(" run ".host ->> '$.device', instr(" run ".host ->> '$.device', '0000:'), 7)"

/* On the GPU that a row says its run was given, and no other. */
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

static void runs_made_side_by_side_have_gpus_of_their_own(void **state)
{
    struct process_rig *r = *state;
    if (processor_count() < 2)
        skip();
    assert_int_equal(RIG_RUN(r, "sweep", SOME_SECONDS, "--jobs", "2", "--quiet"), OK);
    process_expect_answer(r, "SELECT count(*) FROM run WHERE status = 'finished'", "6");
    expect_own_gpus(r);
    process_expect_nothing_left(r);
}

static void runs_that_share_cores_have_gpus_of_their_own_as_long_as_there_are_some(void **state)
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

/* A worker's step with its copies, and one that stays on the GPU. */
static void a_step_is_measured_both_ways(void **state)
{
    struct process_rig *r = *state;
    assert_int_equal(RIG_RUN(r, "bench", "step", "device=cuda", "models=softmax", "batches=4",
                             "size=8", "repeats=1", "seconds=0.001"),
                     OK);
    assert_non_null(strstr(process_output(r), "softmax batch=4 step "));
    assert_non_null(strstr(process_output(r), "softmax batch=4 resident "));
}

static void a_look_at_the_machine_shows_its_gpus(void **state)
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
        TEST(a_run_inside_somebody_elses_slurm_step_does_not_crowd_one_gpu),
        TEST(device_index_names_the_gpu),
        TEST(the_gpu_a_run_was_made_on_does_not_make_it_another_run),
        TEST(a_gpu_that_is_not_there_fails_the_run_with_a_usage_error),
        TEST(a_gpu_whose_memory_is_out_fails_the_run_and_says_what_did_not_fit),
        TEST(a_fault_while_training_fails_the_run_alike_in_both_modes),
        TEST(runs_made_side_by_side_have_gpus_of_their_own),
        TEST(runs_that_share_cores_have_gpus_of_their_own_as_long_as_there_are_some),
        TEST(a_step_is_measured_both_ways),
        TEST(a_look_at_the_machine_shows_its_gpus),
        TEST(no_gpu_at_all_fails_the_run_with_a_usage_error_that_says_why),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
