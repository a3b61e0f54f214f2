/* Evaluations during training, with pauses and beside it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "experiments/config/config.h"
#include "tests/ps/server/ps_rig.h"
#include "tests/rigs/patience.h"
#include "tests/rigs/scratch.h"

static void an_evaluation_longer_than_the_timeout_loses_no_worker_and_takes_no_training_time(
    void **state UNUSED)
{
    struct rig *r = rig_open(2, 1000);
    options *o = rig_settings();
    rig_set(o, "workers", "2");
    rig_set(o, "timeout_s", STRETCH > 1 ? "20" : "2");
    r->evaluation_ms = 3000 * STRETCH;
    const double began = clock_seconds();
    rig_train_all(r, o);
    assert_int_equal(r->evaluations, 1);
    assert_int_equal(r->outcome.updates, 100);
    rig_expect_apart(r->outcome.train_seconds, 3 * STRETCH, clock_seconds() - began);
    options_close(&o);
    rig_close(r);
}

/* 100 updates of 5 ms, with an evaluation of 20 ms after every tenth. */
static void the_time_between_evaluations_is_training_time(void **state UNUSED)
{
    struct rig *r = rig_open(1, 100);
    options *o = rig_settings();
    r->evaluate_every = 100;
    r->evaluation_ms = 20;
    const double began = clock_seconds();
    pid_t server = rig_serve(r, o), trainer = rig_train(r, o, 0, 5);
    assert_int_equal(rig_wait(server, 20), OK);
    assert_int_equal(rig_wait(trainer, 20), OK);
    assert_int_equal(r->evaluations, 10);
    assert_true(r->outcome.train_seconds >= 100 * 0.005);
    assert_true(r->outcome.train_seconds <= clock_seconds() - began - 10 * 0.02);
    options_close(&o);
    rig_close(r);
}

static void a_failed_evaluation_ends_the_run_for_server_and_workers(void **state UNUSED)
{
    struct rig *r = rig_open(1, 100);
    options *o = rig_settings();
    r->evaluation_fails = 1;
    pid_t server = rig_serve(r, o), trainer = rig_train(r, o, 0, 0);
    assert_int_equal(rig_wait(server, 10), ERROR_DATA);
    assert_int_equal(rig_wait(trainer, 10), ERROR_DATA);
    assert_non_null(strstr(r->message, "the test's evaluation fails"));
    assert_non_null(strstr(r->worker[0].message, "the test's evaluation fails"));
    options_close(&o);
    rig_close(r);
}

/* Four pushes arrive together and each causes an evaluation: the last push waits for three. */
static void several_evaluations_in_a_row_take_no_training_time(void **state UNUSED)
{
    char path[64];
    pid_t pids[4];
    snprintf(path, sizeof path, "%s/gradlag-test-%d.db", scratch_folder(), (int)getpid());
    struct rig *r = rig_open(4, 100);
    options *o = rig_settings();
    r->results = path;
    r->total_samples = 40;
    r->evaluate_every = 10;
    r->evaluation_ms = 300 * STRETCH;
    rig_set(o, "workers", "4");
    const double began = clock_seconds();
    pid_t server = rig_serve(r, o);
    for (unsigned w = 0; w < 4; w++)
        pids[w] = rig_train(r, o, w, 400 * STRETCH);
    for (unsigned w = 0; w < 4; w++)
        assert_int_equal(rig_wait(pids[w], 20), OK);
    assert_int_equal(rig_wait(server, 20), OK);
    assert_int_equal(r->evaluations, 4);
    /* Beside the longest wait, the run contains four evaluations and the step before the first
     * one. */
    rig_expect_apart(rig_longest_wait(path), (4 * 0.3 + 0.4) * STRETCH, clock_seconds() - began);
    unlink(path);
    options_close(&o);
    rig_close(r);
}

static void await_the_request(struct rig *r)
{
    (void)rig_until(&r->stop, 1, 10);
}

/* Otherwise the row is missing, and the next train_loss of a resumed run covers both intervals. */
static void an_evaluation_during_a_request_to_stop_is_recorded(void **state UNUSED)
{
    char path[64];
    snprintf(path, sizeof path, "%s/gradlag-test-%d.db", scratch_folder(), (int)getpid());
    static const unsigned evaluate_every[] = {200, 1000}; /* one during training; the last one */
    for (size_t i = 0; i < COUNT_OF(evaluate_every); i++) {
        struct rig *r = rig_open(1, 100);
        options *o = rig_settings();
        r->results = path;
        r->evaluate_every = evaluate_every[i];
        r->evaluation_ms = 300 * STRETCH;
        r->at_evaluation = await_the_request;
        pid_t server = rig_serve(r, o), trainer = rig_train(r, o, 0, 1);
        assert_true(rig_until(&r->evaluating, 1, 10));
        r->stop = 1;
        assert_int_equal(rig_wait(server, 10), i == 0 ? STOPPED : OK);
        assert_int_equal(rig_wait(trainer, 10), OK);
        assert_int_equal(r->outcome.samples_used, evaluate_every[i]);
        assert_int_equal(rig_number(path, "SELECT count(*) FROM evaluation"), 1);
        assert_int_equal(rig_number(path, "SELECT samples FROM evaluation"), evaluate_every[i]);
        unlink(path);
        options_close(&o);
        rig_close(r);
    }
}

/* The first evaluation begins after 20 gradients. If training waited for it, both workers would
 * have been released 22 times. */
static void await_training(struct rig *r)
{
    for (double until = clock_seconds() + 10 * PATIENCE;
         r->evaluations == 0 && r->noted[0] == 0 && clock_seconds() < until;) {
        r->noted[0] = r->worker[0].stage + r->worker[1].stage >= 30;
        clock_sleep_until_ns(clock_ns() + 1000000);
    }
}

/* An evaluation takes longer than the training between two evaluations. Training goes on beside the
 * first evaluation and waits for it before the second. The end of training waits for the last. Each
 * evaluation reads the parameters of one version. */
static void training_goes_on_beside_an_evaluation(void **state UNUSED)
{
    char path[64];
    snprintf(path, sizeof path, "%s/gradlag-test-%d.db", scratch_folder(), (int)getpid());
    struct rig *r = rig_open(2, 100);
    options *o = rig_settings();
    r->results = path;
    r->evaluate_every = 200;
    r->evaluation_ms = 300 * STRETCH;
    rig_set(o, "workers", "2");
    rig_set(o, "evaluation_pause", "no");
    r->at_evaluation = await_training;
    pid_t server = rig_serve(r, o), a = rig_train(r, o, 0, 1), b = rig_train(r, o, 1, 1);
    assert_int_equal(rig_wait(server, 20), OK);
    assert_int_equal(rig_wait(a, 10), OK);
    assert_int_equal(rig_wait(b, 10), OK);
    assert_int_equal(r->noted[0], 1);
    assert_int_equal(r->evaluations, 5);
    assert_int_equal(rig_number(path, "SELECT count(*) FROM evaluation WHERE samples % 200 = 0"),
                     5);
    assert_int_equal(rig_number(path, "SELECT count(*) FROM evaluation WHERE train_loss IS NULL"),
                     0);
    assert_int_equal(
        rig_number(path, "SELECT count(*) FROM event WHERE code = 'evaluation_beside'"), 1);
    /* The losses of a row are those of its 20 gradients, whenever its evaluation ended. */
    assert_int_equal(
        rig_number(
            path, "SELECT count(*) FROM evaluation e WHERE abs(train_loss - (SELECT avg(loss) FROM "
                  "push WHERE outcome = 'applied' AND update_version > e.updates - 20 AND "
                  "update_version <= e.updates)) < 1e-9"),
        5);
    unlink(path);
    options_close(&o);
    rig_close(r);
}

/* In the server's background thread. */
static void expect_no_evaluation(struct rig *r)
{
    clock_sleep_until_ns(clock_ns() + 20000000);
    r->noted[0] += (unsigned long)r->evaluating;
}

static void a_checkpoint_waits_for_the_evaluation_beside_training(void **state UNUSED)
{
    struct rig *r = rig_open(1, 100);
    options *o = rig_settings();
    rig_set(o, "evaluation_pause", "no");
    rig_set(o, "checkpoint", "x.safetensors");
    rig_set(o, "checkpoint_every", "3"); /* epochs of 100 samples; the run has 10 */
    r->evaluate_every = 200;
    r->evaluation_ms = 100 * STRETCH;
    r->at_checkpoint = expect_no_evaluation;
    rig_train_all(r, o);
    assert_int_equal(r->checkpoints, 4);
    assert_int_equal(r->evaluations, 5);
    assert_int_equal(r->noted[0], 0);
    options_close(&o);
    rig_close(r);
}

static void a_request_to_stop_waits_for_the_evaluation_beside_training(void **state UNUSED)
{
    char path[64];
    snprintf(path, sizeof path, "%s/gradlag-test-%d.db", scratch_folder(), (int)getpid());
    struct rig *r = rig_open(1, 100);
    options *o = rig_settings();
    r->results = path;
    r->total_samples = 1000000000;
    r->evaluate_every = 200000;
    r->evaluation_ms = 300 * STRETCH;
    rig_set(o, "evaluation_pause", "no");
    pid_t server = rig_serve(r, o), trainer = rig_train(r, o, 0, 0);
    assert_true(rig_until(&r->evaluating, 1, 20));
    r->stop = 1;
    assert_int_equal(rig_wait(server, 10), STOPPED);
    assert_int_equal(rig_wait(trainer, 10), OK);
    assert_int_equal(rig_number(path, "SELECT count(*) FROM evaluation WHERE samples = 200000"), 1);
    assert_true(r->outcome.samples_used > 200000);
    unlink(path);
    options_close(&o);
    rig_close(r);
}

/* A worker that is told to stop while the first evaluation runs. */
static status leave_during_an_evaluation(struct rig *r, const options *settings, unsigned w,
                                         unsigned unused UNUSED)
{
    status result = OK;
    ps_client *client = NULL;
    struct ps_release at;
    TRY(rig_join(r, settings, w, &client, &at));
    while (!at.finished && r->evaluating == 0) {
        memset(at.gradient, 0, r->count * sizeof(float));
        TRY(ps_client_push_pull(client, &(struct ps_push){.samples = 10}, &at));
    }
    ps_client_leave(client, STOPPED, "told to stop");
done:
    ps_client_close(&client);
    return result;
}

static void
an_evaluation_beside_training_outlives_a_worker_that_is_told_to_stop(void **state UNUSED)
{
    char path[64];
    snprintf(path, sizeof path, "%s/gradlag-test-%d.db", scratch_folder(), (int)getpid());
    struct rig *r = rig_open(1, 100);
    options *o = rig_settings();
    r->results = path;
    r->total_samples = 1000000000;
    r->evaluate_every = 200000;
    r->evaluation_ms = 300 * STRETCH;
    rig_set(o, "evaluation_pause", "no");
    pid_t server = rig_serve(r, o), leaves = rig_fork(r, o, 0, 0, leave_during_an_evaluation);
    assert_int_equal(rig_wait(server, 20), STOPPED);
    assert_int_equal(rig_wait(leaves, 10), OK);
    assert_int_equal(rig_number(path, "SELECT count(*) FROM evaluation WHERE samples = 200000"), 1);
    unlink(path);
    options_close(&o);
    rig_close(r);
}

static void an_evaluation_that_fails_beside_training_ends_the_run(void **state UNUSED)
{
    struct rig *r = rig_open(1, 100);
    options *o = rig_settings();
    r->total_samples = 1000000000;
    r->evaluate_every = 200;
    r->evaluation_fails = 1;
    rig_set(o, "evaluation_pause", "no");
    pid_t server = rig_serve(r, o), trainer = rig_train(r, o, 0, 0);
    assert_int_equal(rig_wait(server, 10), ERROR_DATA);
    assert_int_equal(rig_wait(trainer, 10), ERROR_DATA);
    assert_non_null(strstr(r->message, "the test's evaluation fails"));
    options_close(&o);
    rig_close(r);
}

static void let_the_first_take_longer_than_the_timeout(struct rig *r)
{
    if (r->evaluations == 0)
        clock_sleep_until_ns(clock_ns() + 3000 * STRETCH * 1000000ULL);
}

static void a_worker_lost_during_an_evaluation_is_replaced_after_it(void **state UNUSED)
{
    options *o;
    struct rig *r = rig_open_with(&o, 2, STRETCH > 1 ? "20" : "2");
    rig_set(o, "on_lost", "continue");
    rig_set(o, "evaluation_pause", "yes");
    r->total_samples = 1000000000;
    r->evaluate_every = 1000;
    r->at_evaluation = let_the_first_take_longer_than_the_timeout;
    pid_t server = rig_serve(r, o), a = rig_train(r, o, 0, 1), b = rig_train(r, o, 1, 1);
    assert_true(rig_until(&r->evaluating, 1, 10));
    kill(b, SIGKILL);
    assert_int_equal(rig_wait(b, 5), 128 + SIGKILL);
    const int before = r->worker[1].stage;
    pid_t again = rig_train(r, o, 1, 1);
    assert_true(rig_until(&r->worker[1].stage, before + 5, 20));
    r->stop = 1;
    assert_int_equal(rig_wait(server, 10), STOPPED);
    assert_int_equal(rig_wait(a, 10), OK);
    assert_int_equal(rig_wait(again, 10), OK);
    rig_close_with(r, o);
}

/* Worker 2 waits for worker 3 of its group while the first evaluation runs. The end of training
 * drops worker 2's gradient, and only then the core gets the loss. So the event of the loss has no
 * place among the gradients, and a replay ignores it. */
static void a_worker_lost_before_a_stop_was_there_until_the_end(void **state UNUSED)
{
    static const char *const settings[] = {"batch=10",
                                           "lr=0.001",
                                           "schedule=constant",
                                           "warmup_epochs=0",
                                           "consistency=groups",
                                           "workers=4",
                                           "on_lost=continue",
                                           "evaluation_pause=yes",
                                           NULL};
    char path[64];
    options *o;
    struct rig *r = rig_open(4, 1000);
    pid_t pids[4];
    assert_int_equal(config_compose_texts(&o, settings, NULL, "test"), OK);
    snprintf(path, sizeof path, "%s/gradlag-test-%d.db", scratch_folder(), (int)getpid());
    r->results = path;
    r->total_samples = 1000000000;
    r->evaluate_every = 2000;
    r->at_evaluation = await_the_request;
    pid_t server = rig_serve(r, o);
    for (unsigned w = 0; w < 4; w++)
        pids[w] = rig_train(r, o, w, w == 3 ? 2000 * STRETCH : 1);
    assert_true(rig_until(&r->evaluating, 1, 10));
    kill(pids[2], SIGKILL);
    assert_int_equal(rig_wait(pids[2], 5), 128 + SIGKILL);
    assert_true(rig_until(&r->lost, 1, 10));
    r->stop = 1;
    assert_int_equal(rig_wait(server, 10), STOPPED);
    for (unsigned w = 0; w < 4; w++)
        if (w != 2)
            assert_int_equal(rig_wait(pids[w], 10), OK);
    assert_int_equal(rig_number(path, "SELECT count(*) FROM push WHERE worker = 2 AND reason = "
                                      "'run_ended'"),
                     1);
    assert_int_equal(rig_number(path, "SELECT count(*) FROM event WHERE code = 'worker_lost' AND "
                                      "worker = 2 AND push_number IS NULL"),
                     1);
    unlink(path);
    options_close(&o);
    rig_close(r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(
            an_evaluation_longer_than_the_timeout_loses_no_worker_and_takes_no_training_time),
        cmocka_unit_test(the_time_between_evaluations_is_training_time),
        cmocka_unit_test(a_failed_evaluation_ends_the_run_for_server_and_workers),
        cmocka_unit_test(several_evaluations_in_a_row_take_no_training_time),
        cmocka_unit_test(an_evaluation_during_a_request_to_stop_is_recorded),
        cmocka_unit_test(training_goes_on_beside_an_evaluation),
        cmocka_unit_test(a_checkpoint_waits_for_the_evaluation_beside_training),
        cmocka_unit_test(a_request_to_stop_waits_for_the_evaluation_beside_training),
        cmocka_unit_test(an_evaluation_beside_training_outlives_a_worker_that_is_told_to_stop),
        cmocka_unit_test(an_evaluation_that_fails_beside_training_ends_the_run),
        cmocka_unit_test(a_worker_lost_during_an_evaluation_is_replaced_after_it),
        cmocka_unit_test(a_worker_lost_before_a_stop_was_there_until_the_end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
