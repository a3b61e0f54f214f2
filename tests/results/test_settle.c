/* test_settle.c — counts in the row of a killed run, computed from its other rows. */
#include "tests/results/results_rig.h"

#include "results/query/show_run.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char figures[] = "SELECT format('%s updates, %s of %s samples, %s s', coalesce("
                              "updates, '-'), coalesce(samples_used, '-'), coalesce("
                              "samples_computed, '-'), coalesce(train_seconds, '-')) FROM run";

static recorder *begin(const char *mode, const char *engine, const char *config)
{
    int64_t id;
    struct run_description run = rig_run;
    run.mode = mode;
    run.engine = engine;
    run.config = config;
    return rig_begin(&run, &id);
}

static void report(recorder *r, uint64_t updates, uint64_t samples, double seconds)
{
    recorder_progress(r, &(struct progress_record){.updates = updates,
                                                   .samples = samples,
                                                   .total_samples = 100000,
                                                   .seconds = seconds,
                                                   .loss = 1,
                                                   .staleness = 3});
}

static void evaluate(recorder *r, uint64_t updates, uint64_t samples, double seconds)
{
    recorder_evaluation(
        r, &(struct evaluation_record){
               .updates = updates, .samples = samples, .seconds = seconds, .test_accuracy = 0.5});
}

static void step(recorder *r, uint64_t version, double at_seconds)
{
    for (uint32_t worker = 0; worker < 4; worker++) {
        recorder_step(r, &(struct step_record){.update_version = version,
                                               .worker = worker,
                                               .at_seconds = at_seconds});
    }
}

/* Closes the recorder as if the processes were killed, ends the row, and returns its figures. */
static const char *killed(recorder *r)
{
    bool changed;
    recorder_close(&r);
    assert_int_equal(recorder_settle(rig_path, 1, "failed", "signal 9", &changed), OK);
    assert_true(changed);
    assert_string_equal(rig_ask("SELECT status || (progress IS NULL) FROM run"), "failed1");
    return rig_ask(figures);
}

static void counts_of_an_asynchronous_run_come_from_its_gradients(void **state)
{
    (void)state;
    recorder *r = begin("async", "real", "{}");
    for (uint64_t i = 0; i < 45; i++) {
        struct push_record p = rig_push(i);
        recorder_push(r, &p);
    }
    /* A dropped gradient, and a slice at another server: neither counts. */
    struct push_record p = rig_push(44);
    p.outcome = PUSH_DROPPED_STALE;
    p.at_seconds = 4.5;
    recorder_push(r, &p);
    p = rig_push(45);
    p.server = 1;
    recorder_push(r, &p);
    report(r, 40, 1280, 3.95);
    assert_string_equal(killed(r), "45 updates, 1440 of 1472 samples, 4.4 s");
}

static void gradients_of_one_update_are_all_counted(void **state)
{
    (void)state;
    recorder *r = begin("async", "real", "{\"outer.steps\": 8}");
    for (uint64_t i = 0; i < 12; i++) {
        struct push_record p = rig_push(i);
        p.update_version = 1 + i / 4;
        p.outcome = PUSH_AGGREGATED;
        recorder_push(r, &p);
    }
    assert_string_equal(killed(r), "3 updates, 3072 of 3072 samples, 1.1 s");
}

static void without_gradients_the_last_progress_report_counts(void **state)
{
    (void)state;
    recorder *r = begin("async", "real", "{}");
    evaluate(r, 100, 3200, 1.5);
    report(r, 170, 5440, 2.5);
    assert_string_equal(killed(r), "170 updates, 5440 of - samples, 2.5 s");
}

static void counts_of_a_synchronous_run_come_from_steps_and_progress(void **state)
{
    (void)state;
    recorder *r = begin("sync", "real", "{\"decay\": \"rate\"}");
    step(r, 41, 1.9);
    step(r, 42, 2.5);
    report(r, 40, 5120, 1.8);
    assert_string_equal(killed(r), "42 updates, 5376 of - samples, 2.5 s");
    assert_string_equal(rig_ask("SELECT samples_per_second FROM run"), "2150.4");
}

static void a_step_counts_one_batch_per_rank(void **state)
{
    (void)state;
    recorder *r = begin("sync", "real", "{}");
    step(r, 1, 0.5);
    step(r, 2, 0.75);
    assert_string_equal(killed(r), "2 updates, 256 of - samples, 0.75 s");
}

static void steps_of_a_growing_batch_are_not_counted(void **state)
{
    (void)state;
    recorder *r = begin("sync", "real", "{\"decay\": \"batch\"}");
    step(r, 42, 2.5);
    report(r, 40, 7000, 1.75);
    assert_string_equal(killed(r), "40 updates, 7000 of - samples, 1.75 s");
}

static void host_seconds_of_a_virtual_run_are_not_counted(void **state)
{
    (void)state;
    recorder *r = begin("sync", "virtual", "{}");
    evaluate(r, 100, 12800, 1000);
    report(r, 170, 21760, 2.5);
    assert_string_equal(killed(r), "170 updates, 21760 of - samples, - s");
}

static void a_run_that_was_killed_before_training_has_no_counts(void **state)
{
    (void)state;
    assert_string_equal(killed(begin("async", "real", "{}")), "- updates, - of - samples, - s");
}

/* The outcome of the first part, with its hash of the parameters, is no longer valid. */
static void a_run_that_was_killed_after_a_restart_has_new_counts(void **state)
{
    (void)state;
    struct run_outcome first = {.status = "failed",
                                .updates = 102,
                                .samples_used = 13056,
                                .samples_computed = 13056,
                                .train_seconds = 2.5,
                                .parameters_sha256 = "cafe"};
    recorder *r = begin("sync", "real", "{}");
    step(r, 100, 2);
    step(r, 102, 2.5);
    rig_finish(r, &first);
    assert_int_equal(recorder_roll_back(rig_path, 1, 100, "rank 2 was lost"), OK);
    assert_string_equal(rig_ask("SELECT summarized IS NULL FROM run"), "1");
    assert_int_equal(recorder_open(&r, rig_path), OK);
    assert_int_equal(recorder_resume(r, 1), OK);
    step(r, 101, 2.25);
    assert_string_equal(killed(r), "101 updates, 12928 of - samples, 2.25 s");
    assert_string_equal(rig_ask("SELECT parameters_sha256 IS NULL FROM run"), "1");
}

/* No rank has reported anything since the restart. */
static void a_run_that_was_killed_in_a_restart_has_the_counts_of_its_checkpoint(void **state)
{
    (void)state;
    recorder *r = begin("sync", "real", "{}");
    step(r, 40, 1.5);
    step(r, 42, 2.5);
    report(r, 42, 5376, 2.5);
    recorder_close(&r);
    assert_int_equal(recorder_roll_back(rig_path, 1, 40, "rank 2 was lost"), OK);
    /* The restart is a sign of life. */
    assert_string_equal(
        rig_ask("SELECT (progress ->> '$.at' >= started_at) || (progress ->> '$.updates' IS NULL) "
                "FROM run"),
        "11");
    assert_int_equal(recorder_open(&r, rig_path), OK);
    assert_string_equal(killed(r), "40 updates, 5120 of - samples, 1.5 s");
}

/* As in a run that ends normally, samples computed before the checkpoint count. */
static void counts_include_the_part_before_a_checkpoint(void **state)
{
    (void)state;
    recorder *r = begin("async", "real", "{}");
    recorder_origin(r, "{\"version\": 30, \"computed\": 1000}");
    for (uint64_t i = 30; i < 45; i++) {
        struct push_record p = rig_push(i);
        recorder_push(r, &p);
    }
    report(r, 40, 1280, 3.95);
    assert_string_equal(killed(r), "45 updates, 1440 of 1480 samples, 4.4 s");
}

/* Also for a killed run whose row has not been ended yet. */
static void a_running_run_is_shown_with_its_last_progress(void **state)
{
    (void)state;
    char *page = NULL;
    size_t bytes;
    recorder *r = begin("async", "real", "{}");
    report(r, 40, 1280, 2.5);
    recorder_close(&r);
    FILE *out = open_memstream(&page, &bytes);
    assert_int_equal(show_run(rig_path, "1", out), OK);
    fclose(out);
    static const char *const figures_shown[] = {"2.50 s", "40 updates", "1280 samples",
                                                "512 samples/s", "16.0 updates/s"};
    for (size_t i = 0; i < COUNT_OF(figures_shown); i++)
        assert_non_null(strstr(page, figures_shown[i]));
    free(page);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        RIG_TEST(counts_of_an_asynchronous_run_come_from_its_gradients),
        RIG_TEST(gradients_of_one_update_are_all_counted),
        RIG_TEST(without_gradients_the_last_progress_report_counts),
        RIG_TEST(counts_of_a_synchronous_run_come_from_steps_and_progress),
        RIG_TEST(a_step_counts_one_batch_per_rank),
        RIG_TEST(steps_of_a_growing_batch_are_not_counted),
        RIG_TEST(host_seconds_of_a_virtual_run_are_not_counted),
        RIG_TEST(a_run_that_was_killed_before_training_has_no_counts),
        RIG_TEST(a_run_that_was_killed_after_a_restart_has_new_counts),
        RIG_TEST(a_run_that_was_killed_in_a_restart_has_the_counts_of_its_checkpoint),
        RIG_TEST(counts_include_the_part_before_a_checkpoint),
        RIG_TEST(a_running_run_is_shown_with_its_last_progress),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
