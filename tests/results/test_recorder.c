/* Recorded rows, special numbers, the figures of a run, several processes. */
#include "base/clock.h"
#include "base/log.h"
#include "tests/results/results_rig.h"

#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- rows --------------------------------------------------------------------------------------
 */

static void every_recorded_row_is_in_the_file(void **state)
{
    (void)state;
    int64_t id;
    recorder *r = rig_begin(&rig_run, &id);
    for (uint64_t i = 0; i < 50000; i++) {
        struct push_record p = rig_push(i);
        recorder_push(r, &p);
    }
    recorder_step(r, &(struct step_record){.update_version = 1, .worker = 1, .loss = 2});
    recorder_event(r, 0.5, SEVERITY_WARNING, "slow-worker", 3, "worker 3 is 10 times slower");
    recorder_event(r, 0.6, SEVERITY_INFO, "evaluated", -1, NULL);
    recorder_checkpoint(r, 100, "a.safetensors", "beef");
    rig_finish(r, &rig_outcome);
    assert_string_equal(rig_ask("SELECT count(*) || ' ' || sum(update_version) FROM push"),
                        "50000 1250025000");
    assert_string_equal(rig_ask("SELECT count(*) FROM push WHERE update_version <> number + 1"),
                        "0");
    assert_string_equal(
        rig_ask("SELECT outcome || pull_us || compute_us FROM push WHERE number = 7"),
        "applied12.01035.0");
    assert_string_equal(
        rig_ask("SELECT printf('%g %g %g %g ', gradient_norm, gap, loss, at_seconds) "
                "|| worker || sequence || read_version || staleness FROM push "
                "WHERE number = 7"),
        "7.5 0.01 2.3 0.7 3143");
    assert_string_equal(
        rig_ask("SELECT severity || code || worker || detail FROM event WHERE at_seconds = 0.5"),
        "warningslow-worker3worker 3 is 10 times slower");
    assert_string_equal(rig_ask("SELECT worker FROM event WHERE code = 'evaluated'"), "NULL");
    assert_string_equal(rig_ask("SELECT version || path || sha256 FROM checkpoint"),
                        "100a.safetensorsbeef");
    assert_string_equal(rig_ask("SELECT count(*) FROM step"), "1");
}

static void rows_are_visible_during_the_run(void **state)
{
    (void)state;
    int64_t id;
    recorder *r = rig_begin(&rig_run, &id);
    struct push_record p = rig_push(0);
    recorder_push(r, &p);
    const char *count = "0";
    for (int i = 0; i < 100 && strcmp(count, "0") == 0; i++) {
        clock_sleep_until_ns(clock_ns() + 50000000);
        count = rig_ask("SELECT count(*) FROM push");
    }
    assert_string_equal(count, "1");
    rig_finish(r, &rig_outcome);
}

static void rows_are_there_after_a_flush(void **state)
{
    (void)state;
    int64_t id;
    recorder *r = rig_begin(&rig_run, &id);
    for (uint64_t i = 1; i <= 8; i++) {
        struct push_record p = rig_push(i);
        char number[24];
        recorder_push(r, &p);
        recorder_flush(r);
        snprintf(number, sizeof number, "%llu", (unsigned long long)i);
        assert_string_equal(rig_ask("SELECT count(*) FROM push"), number);
    }
    recorder_flush(r); /* no row waits */
    rig_finish(r, &rig_outcome);
}

static void outcomes_are_stored_as_text(void **state)
{
    (void)state;
    int64_t id;
    static const struct {
        enum push_outcome outcome;
        const char *name;
    } all[] = {
        {PUSH_APPLIED, "applied"},
        {PUSH_AGGREGATED, "aggregated"},
        {PUSH_DROPPED_STALE, "dropped_stale"},
        {PUSH_DROPPED_LATE, "dropped_late"},
        {PUSH_NOT_FINITE, "not_finite"},
    };
    recorder *r = rig_begin(&rig_run, &id);
    for (size_t i = 0; i < COUNT_OF(all); i++) {
        struct push_record p = rig_push(i);
        p.outcome = all[i].outcome;
        recorder_push(r, &p);
    }
    rig_finish(r, &rig_outcome);
    for (size_t i = 0; i < COUNT_OF(all); i++) {
        char sql[80];
        snprintf(sql, sizeof sql, "SELECT outcome FROM push WHERE number = %zu", i);
        assert_string_equal(rig_ask(sql), all[i].name);
    }
    assert_string_equal(rig_ask("SELECT sum(pushes) || ' ' || sum(dropped) FROM run_staleness"),
                        "2 2");
}

static void reasons_are_stored_as_text(void **state)
{
    (void)state;
    int64_t id;
    recorder *r = rig_begin(&rig_run, &id);
    for (uint64_t i = 0; i <= PUSH_BAD_UPDATE; i++) {
        struct push_record p = rig_push(i);
        p.reason = (enum push_reason)i;
        recorder_push(r, &p);
    }
    rig_finish(r, &rig_outcome);
    assert_string_equal(
        rig_ask("SELECT group_concat(number || coalesce(reason, '-'), ' ') FROM push"),
        "0- 1damping 2consistency 3after_end 4worker_lost 5run_ended 6run_diverged "
        "7gradient 8loss 9update");
}

static void waited_for_and_the_position_of_events_are_recorded(void **state)
{
    (void)state;
    int64_t id;
    recorder *r = rig_begin(&rig_run, &id);
    struct push_record p = rig_push(0);
    p.waited_for = 0;
    p.arrival = 7;
    p.batch = 11;
    p.rate = 0.25;
    recorder_push(r, &p);
    p.waited_for = NO_WORKER;
    p.rate = NOT_MEASURED;
    recorder_push(r, &p);
    recorder_event_between(r, 1, 5, SEVERITY_INFO, "worker_joined", 2, NULL);
    recorder_event(r, 1, SEVERITY_INFO, "other", NO_WORKER, NULL);
    rig_finish(r, &rig_outcome);
    assert_string_equal(
        rig_ask("SELECT waited_for || ' ' || arrival || ' ' || batch || ' ' || rate "
                "FROM push WHERE number = 0"),
        "0 7 11 0.25");
    assert_string_equal(rig_ask("SELECT (waited_for IS NULL) || (rate IS NULL) || "
                                "(not_a_number IS NULL) FROM push WHERE number = 1"),
                        "111");
    assert_string_equal(rig_ask("SELECT group_concat(code || coalesce(push_number, '-')) FROM "
                                "event"),
                        "worker_joined5,other-");
}

static void nan_infinity_and_not_measured_are_stored_differently(void **state)
{
    (void)state;
    int64_t id;
    recorder *r = rig_begin(&rig_run, &id);
    struct push_record p = rig_push(0);
    p.loss = NAN;
    p.gap = -NAN;
    p.gradient_norm = INFINITY;
    p.scale = -INFINITY;
    p.pull_us = NOT_MEASURED;
    p.compute_us = INFINITY;
    recorder_push(r, &p);
    p = rig_push(1);
    recorder_push(r, &p);
    rig_finish(r, &rig_outcome);
    assert_string_equal(rig_ask("SELECT loss IS NULL AND gap IS NULL AND pull_us IS NULL "
                                "FROM push WHERE number = 0"),
                        "1");
    assert_string_equal(rig_ask("SELECT not_a_number FROM push WHERE number = 0"), "gap,loss");
    assert_string_equal(rig_ask("SELECT gradient_norm = 9e999 AND scale = -9e999 AND "
                                "compute_us = 9e999 FROM push WHERE number = 0"),
                        "1");
    assert_string_equal(rig_ask("SELECT not_a_number FROM push WHERE number = 1"), "NULL");
}

static void every_measured_column_can_be_nan_at_once(void **state)
{
    (void)state;
    int64_t id;
    recorder *r = rig_begin(&rig_run, &id);
    struct push_record p = rig_push(0);
    p.scale = p.gap = p.gradient_norm = p.loss = p.pull_us = NAN;
    p.compute_us = p.queue_us = p.apply_us = p.at_seconds = NAN;
    recorder_push(r, &p);
    rig_finish(r, &rig_outcome);
    assert_string_equal(rig_ask("SELECT not_a_number FROM push"),
                        "scale,gap,gradient_norm,loss,pull_us,compute_us,queue_us,apply_us,"
                        "at_seconds");
}

static void an_empty_split_is_not_measured_and_a_nan_loss_is_nan(void **state)
{
    (void)state;
    int64_t id;
    recorder *r = rig_begin(&rig_run, &id);
    recorder_evaluation(r, &(struct evaluation_record){.updates = 10,
                                                       .samples = 320,
                                                       .train_loss = NOT_MEASURED,
                                                       .validation_loss = NOT_MEASURED,
                                                       .validation_accuracy = NAN,
                                                       .test_loss = NAN,
                                                       .test_accuracy = 0.1});
    rig_finish(r, &rig_outcome);
    assert_string_equal(rig_ask("SELECT not_a_number FROM evaluation"), "test_loss");
    assert_string_equal(rig_ask("SELECT train_loss IS NULL AND validation_accuracy IS NULL AND "
                                "validation_loss IS NULL FROM evaluation"),
                        "1");
    assert_string_equal(rig_ask("SELECT final_loss IS NULL AND not_a_number = 'final_loss' "
                                "FROM run"),
                        "1");
}

/* Data without classes: every accuracy is NaN. */
static void a_nan_loss_without_an_accuracy_is_the_last_one(void **state)
{
    (void)state;
    int64_t id;
    recorder *r = rig_begin(&rig_run, &id);
    for (unsigned u = 1; u <= 2; u++)
        recorder_evaluation(r, &(struct evaluation_record){.updates = u,
                                                           .validation_loss = u == 1 ? 0.5 : NAN,
                                                           .validation_accuracy = NAN,
                                                           .test_loss = u == 1 ? 0.5 : NAN,
                                                           .test_accuracy = NAN});
    rig_finish(r, &rig_outcome);
    assert_string_equal(rig_ask("SELECT not_a_number FROM evaluation WHERE updates = 2"),
                        "validation_loss,test_loss");
    assert_string_equal(rig_ask("SELECT final_loss IS NULL AND not_a_number = 'final_loss' "
                                "FROM run"),
                        "1");
}

static void a_repeated_step_replaces_the_first(void **state)
{
    (void)state;
    int64_t id;
    recorder *r = rig_begin(&rig_run, &id);
    recorder_step(r, &(struct step_record){.update_version = 5, .worker = 2, .loss = 1});
    recorder_step(r, &(struct step_record){.update_version = 5, .worker = 2, .loss = 7});
    recorder_step(r, &(struct step_record){.update_version = 5, .worker = 3, .loss = 3});
    rig_finish(r, &rig_outcome);
    assert_string_equal(rig_ask("SELECT group_concat(loss, ' ') FROM step"), "7.0 3.0");
}

#if !defined(GRADLAG_SANITIZE)
/* Replaces the C library's function, which memory_allocate() calls, to count the calls of each
 * thread. */
static _Thread_local unsigned allocations;

void *aligned_alloc(size_t alignment, size_t bytes)
{
    void *p = NULL;
    allocations++;
    return posix_memalign(&p, alignment, bytes) == 0 ? p : NULL;
}
#endif

static void recording_allocates_nothing_while_the_writer_keeps_up(void **state)
{
    (void)state;
#if defined(GRADLAG_SANITIZE)
    skip();
#else
    int64_t id;
    recorder *r = rig_begin(&rig_run, &id);
    struct push_record p = rig_push(0);
    unsigned before = allocations;
    assert_true(before > 0);
    for (uint64_t i = 0; i < 3000; i++) {
        recorder_push(r, &p);
        recorder_step(r, &(struct step_record){.update_version = i});
    }
    assert_int_equal(allocations, before);
    rig_finish(r, &rig_outcome);
#endif
}

/* ---- the run's row -----------------------------------------------------------------------------
 */

static void figures_of_a_run_are_computed_from_its_rows(void **state)
{
    (void)state;
    int64_t id;
    recorder *r = rig_begin(&rig_run, &id);
    const double accuracies[] = {0.5, 0.9, 0.8};
    for (uint64_t i = 0; i < 3; i++) {
        recorder_evaluation(r, &(struct evaluation_record){.updates = 10 * i,
                                                           .test_accuracy = accuracies[i],
                                                           .test_loss = 0.25 * (double)i,
                                                           .validation_accuracy = 0.25,
                                                           .validation_loss = 1});
    }
    for (uint64_t i = 0; i < 4; i++) { /* staleness 0, 1, 2, 3 */
        struct push_record p = rig_push(i);
        recorder_push(r, &p);
    }
    struct push_record dropped = rig_push(4);
    dropped.staleness = 100;
    dropped.outcome = PUSH_DROPPED_STALE;
    recorder_push(r, &dropped);
    rig_finish(r, &rig_outcome);
    assert_string_equal(rig_ask("SELECT final_accuracy || ' ' || best_accuracy || ' ' || "
                                "final_loss || ' ' || validation_accuracy FROM run"),
                        "0.8 0.9 0.5 0.25");
    assert_string_equal(rig_ask("SELECT mean_staleness || ' ' || max_staleness || ' ' || "
                                "samples_per_second FROM run"),
                        "1.5 3 1600.0");
    assert_string_equal(rig_ask("SELECT status || ' ' || updates || ' ' || samples_used || ' ' || "
                                "samples_computed FROM run"),
                        "finished 100 3200 3232");
    assert_string_equal(rig_ask("SELECT finished_at >= started_at AND length(uuid) = 36 FROM run"),
                        "1");
}

/* The last evaluation counts; the limit is 99 %; NULL for data without classes. */
static void a_run_that_predicts_one_class_is_collapsed(void **state)
{
    (void)state;
    static const double shares[][2] = {{1, 0.98}, {0.2, 0.99}, {0.2, NAN}};
    for (size_t i = 0; i < COUNT_OF(shares); i++) {
        int64_t id;
        recorder *r = rig_begin(&rig_run, &id);
        for (uint64_t k = 0; k < 2; k++) {
            recorder_evaluation(r, &(struct evaluation_record){.updates = 10 * k,
                                                               .test_accuracy = 0.5,
                                                               .top_class_share = shares[i][k]});
        }
        rig_finish(r, &rig_outcome);
    }
    assert_string_equal(rig_ask("SELECT group_concat(coalesce(collapsed, '-'), ' ') FROM run"),
                        "0 1 -");
    assert_string_equal(rig_ask("SELECT group_concat(coalesce(top_class_share, '-'), ' ') "
                                "FROM evaluation"),
                        "1.0 0.98 0.2 0.99 0.2 -");
}

static void a_synchronous_run_has_staleness_0(void **state)
{
    (void)state;
    int64_t id;
    struct run_description run = rig_run;
    run.mode = "sync";
    rig_finish(rig_begin(&run, &id), &rig_outcome);
    assert_string_equal(rig_ask("SELECT mean_staleness || ' ' || max_staleness FROM run"), "0.0 0");
}

static void a_run_without_recorded_pushes_has_no_staleness(void **state)
{
    (void)state;
    int64_t id;
    rig_finish(rig_begin(&rig_run, &id), &rig_outcome);
    assert_string_equal(rig_ask("SELECT mean_staleness FROM run"), "NULL");
}

static void a_process_resumes_a_run_that_another_process_began(void **state)
{
    (void)state;
    int64_t id;
    recorder *r = NULL;
    assert_int_equal(recorder_open(&r, rig_path), OK);
    assert_int_equal(recorder_begin(r, &rig_run, "queued", &id), OK);
    struct push_record p = rig_push(0);
    recorder_push(r, &p);
    recorder_close(&r);
    assert_string_equal(rig_ask("SELECT status || (started_at IS NULL) FROM run"), "queued1");

    assert_int_equal(recorder_open(&r, rig_path), OK);
    assert_int_equal(recorder_resume(r, id), OK);
    assert_string_equal(rig_ask("SELECT status || (started_at IS NULL) FROM run"), "running0");
    recorder_push(r, &p);
    rig_finish(r, &rig_outcome);
    assert_string_equal(rig_ask("SELECT group_concat(number, ' ') FROM push"), "0 1");
}

static void an_ended_or_missing_run_cannot_be_resumed(void **state)
{
    (void)state;
    int64_t id;
    recorder *r = rig_begin(&rig_run, &id);
    rig_finish(r, &rig_outcome);
    assert_int_equal(recorder_open(&r, rig_path), OK);
    assert_int_equal(recorder_resume(r, id), ERROR_RESULTS);
    rig_assert_error_names("finished");
    assert_int_equal(recorder_resume(r, 77), ERROR_RESULTS);
    rig_assert_error_names("77");
    recorder_close(&r);
}

static void rows_recorded_after_the_end_are_written_at_close(void **state)
{
    (void)state;
    int64_t id;
    recorder *r = rig_begin(&rig_run, &id);
    assert_int_equal(recorder_finish(r, &rig_outcome), OK);
    recorder_event(r, 9, SEVERITY_INFO, "goodbye", -1, NULL);
    recorder_close(&r);
    assert_string_equal(rig_ask("SELECT code FROM event"), "goodbye");
}

static void closing_an_unused_recorder_works(void **state)
{
    (void)state;
    recorder *r = NULL;
    recorder_close(&r);
    assert_int_equal(recorder_open(&r, rig_path), OK);
    recorder_close(&r);
    recorder_close(&r);
    assert_string_equal(rig_ask("SELECT count(*) FROM run"), "0");
}

/* ---- several processes -------------------------------------------------------------------------
 */

static void write_one_run(void)
{
    int64_t id;
    recorder *r = NULL;
    if (recorder_open(&r, rig_path) != OK || recorder_begin(r, &rig_run, "running", &id) != OK) {
        log_error("%s", error_message());
        _exit(1);
    }
    for (uint64_t i = 0; i < 5000; i++) {
        struct push_record p = rig_push(i);
        p.sequence = (uint64_t)id * 100000 + i;
        recorder_push(r, &p);
    }
    status ended = recorder_finish(r, &rig_outcome);
    recorder_close(&r);
    _exit(ended == OK ? 0 : 1);
}

static void eight_processes_write_one_file_and_lose_no_row(void **state)
{
    (void)state;
    enum { WRITERS = 8 };
    pid_t writers[WRITERS];
    for (int i = 0; i < WRITERS; i++) {
        writers[i] = fork();
        assert_true(writers[i] >= 0);
        if (writers[i] == 0)
            write_one_run();
    }
    for (int i = 0; i < WRITERS; i++) {
        int how;
        assert_int_equal(waitpid(writers[i], &how, 0), writers[i]);
        assert_true(WIFEXITED(how));
        assert_int_equal(WEXITSTATUS(how), 0);
    }
    assert_false(rig_exists("-wal"));
    assert_string_equal(rig_ask("SELECT count(*) || ' ' || count(DISTINCT sequence) FROM push"),
                        "40000 40000");
    assert_string_equal(rig_ask("SELECT count(*) FROM run WHERE status = 'finished'"), "8");
    assert_string_equal(rig_ask("SELECT count(*) FROM (SELECT run_id FROM push GROUP BY run_id "
                                "HAVING count(*) = 5000 AND max(number) = 4999)"),
                        "8");
}

static void the_file_is_a_single_file_after_the_last_close(void **state)
{
    (void)state;
    int64_t id;
    recorder *r = rig_begin(&rig_run, &id);
    assert_true(rig_exists("-wal"));
    rig_finish(r, &rig_outcome);
    assert_true(rig_exists(""));
    assert_false(rig_exists("-wal"));
    assert_false(rig_exists("-shm"));
}

/* Begins a run, records a push, waits until it is committed, and kills itself. */
static void die_while_recording(void)
{
    int64_t id;
    recorder *r = rig_begin(&rig_run, &id);
    struct push_record p = rig_push(41);
    recorder_push(r, &p);
    recorder_evaluation(r, &(struct evaluation_record){.updates = 40, .test_accuracy = 0.5});
    for (int i = 0; i < 200 && strcmp(rig_ask("SELECT count(*) FROM push"), "1") != 0; i++)
        clock_sleep_until_ns(clock_ns() + 20000000);
    kill(getpid(), SIGKILL);
}

static void a_killed_run_keeps_its_rows_and_is_settled_by_its_parent(void **state)
{
    (void)state;
    int how;
    bool changed;
    pid_t writer = fork();
    assert_true(writer >= 0);
    if (writer == 0)
        die_while_recording();
    assert_int_equal(waitpid(writer, &how, 0), writer);
    assert_true(WIFSIGNALED(how) && WTERMSIG(how) == SIGKILL);
    assert_true(rig_exists("-wal"));

    assert_int_equal(recorder_settle(rig_path, 1, "failed", "killed by signal 9", &changed), OK);
    assert_true(changed);
    assert_false(rig_exists("-wal"));
    assert_string_equal(rig_ask("SELECT count(*) FROM push"), "1");
    assert_string_equal(rig_ask("SELECT status || ' ' || error || ' ' || updates || ' ' || "
                                "final_accuracy FROM run"),
                        "failed killed by signal 9 42 0.5");

    assert_int_equal(recorder_settle(rig_path, 1, "stopped", NULL, &changed), OK);
    assert_false(changed);
    assert_string_equal(rig_ask("SELECT status FROM run"), "failed");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        RIG_TEST(every_recorded_row_is_in_the_file),
        RIG_TEST(rows_are_visible_during_the_run),
        RIG_TEST(rows_are_there_after_a_flush),
        RIG_TEST(outcomes_are_stored_as_text),
        RIG_TEST(reasons_are_stored_as_text),
        RIG_TEST(waited_for_and_the_position_of_events_are_recorded),
        RIG_TEST(nan_infinity_and_not_measured_are_stored_differently),
        RIG_TEST(every_measured_column_can_be_nan_at_once),
        RIG_TEST(an_empty_split_is_not_measured_and_a_nan_loss_is_nan),
        RIG_TEST(a_nan_loss_without_an_accuracy_is_the_last_one),
        RIG_TEST(a_repeated_step_replaces_the_first),
        RIG_TEST(recording_allocates_nothing_while_the_writer_keeps_up),
        RIG_TEST(figures_of_a_run_are_computed_from_its_rows),
        RIG_TEST(a_run_that_predicts_one_class_is_collapsed),
        RIG_TEST(a_synchronous_run_has_staleness_0),
        RIG_TEST(a_run_without_recorded_pushes_has_no_staleness),
        RIG_TEST(a_process_resumes_a_run_that_another_process_began),
        RIG_TEST(an_ended_or_missing_run_cannot_be_resumed),
        RIG_TEST(rows_recorded_after_the_end_are_written_at_close),
        RIG_TEST(closing_an_unused_recorder_works),
        RIG_TEST(eight_processes_write_one_file_and_lose_no_row),
        RIG_TEST(the_file_is_a_single_file_after_the_last_close),
        RIG_TEST(a_killed_run_keeps_its_rows_and_is_settled_by_its_parent),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
