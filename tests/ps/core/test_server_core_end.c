/* How training on the core ends or pauses: evaluation, the last sample, divergence. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/ps/core/core_bench.h"

/* ---- divergence ---- */

static void a_gradient_that_is_not_finite_changes_nothing_and_ends_the_run(void **state)
{
    (void)state;
    static const float bad[] = {NAN, INFINITY, -INFINITY};
    for (size_t i = 0; i < COUNT_OF(bad) * BENCH_COUNT; i++) {
        struct core_bench b;
        bench_open(&b, (struct server_core_options){.workers = 2}, RIG("damping=none"));
        bench_hello_all(&b);
        bench_push(&b, 0);
        bench_push(&b, 0);
        float before[BENCH_COUNT], velocity[BENCH_COUNT];
        size_t states;
        memcpy(before, bench_latest(&b), sizeof before);
        memcpy(velocity, server_core_optimizer_state(b.rig.core, &states), sizeof velocity);
        b.gradient[1][i % BENCH_COUNT] = bad[i / BENCH_COUNT];
        bench_push(&b, 1);
        assert_int_equal(b.records, 1);
        assert_int_equal(b.record[0].outcome, PUSH_NOT_FINITE);
        assert_int_equal(b.diverged, 1);
        assert_int_equal(b.applied + b.releases, 0);
        assert_true(server_core_ended(b.rig.core));
        assert_int_equal(server_core_version(b.rig.core), 2);
        assert_memory_equal(bench_latest(&b), before, sizeof before);
        assert_memory_equal(server_core_optimizer_state(b.rig.core, &states), velocity,
                            sizeof velocity);
        bench_push(&b, 0);
        assert_int_equal(b.record[0].outcome, PUSH_DROPPED_LATE);
        core_rig_close(&b.rig);
    }
}

/* The gradient is finite but its square is not. This holds for optimizers with and without squares.
 */
static void a_gradient_that_cannot_be_squared_ends_the_run(void **state)
{
    (void)state;
    static const char *const optimizers[] = {"optimizer=adamw", "optimizer=rmsprop-warmup",
                                             "optimizer=momentum", "optimizer=sgd"};
    for (size_t i = 0; i < COUNT_OF(optimizers); i++) {
        struct core_bench b;
        bench_open(&b, (struct server_core_options){.workers = 1},
                   RIG("damping=none", optimizers[i]));
        bench_hello(&b, 0);
        bench_push(&b, 0);
        float before[BENCH_COUNT];
        memcpy(before, bench_latest(&b), sizeof before);
        b.gradient[0][3] = 1e25f;
        bench_push(&b, 0);
        assert_true(b.diverged);
        assert_int_equal(b.record[0].outcome, PUSH_NOT_FINITE);
        assert_true(isfinite(b.record[0].gradient_norm));
        assert_memory_equal(bench_latest(&b), before, sizeof before);
        core_rig_close(&b.rig);
    }
}

static void a_loss_that_is_not_finite_ends_the_run(void **state)
{
    (void)state;
    struct core_bench b;
    bench_open(&b, (struct server_core_options){.workers = 1}, RIG("damping=none"));
    bench_hello(&b, 0);
    struct server_push wrong = bench_push_of(&b, 0);
    wrong.loss = NAN;
    bench_feed(&b, wrong);
    assert_int_equal(b.diverged, 1);
    assert_int_equal(b.record[0].outcome, PUSH_NOT_FINITE);
    assert_int_equal(server_core_version(b.rig.core), 0);
    core_rig_close(&b.rig);
}

/* `value`: 0: none. */
static void corrupt_by(struct core_bench *b, unsigned w, float value)
{
    core_rig_fill(b->gradient[w], BENCH_COUNT, w + 1);
    b->gradient[w][5] = value != 0 ? value : b->gradient[w][5];
}

static void corrupt(struct core_bench *b, unsigned w, bool bad)
{
    corrupt_by(b, w, bad ? NAN : 0);
}

/* The run with skipped gradients gives the same bits as the run without them. */
static void a_skipped_gradient_does_not_change_the_result(void **state)
{
    (void)state;
    const char *const rules[][2] = {{"consistency=asp", "correction=none"},
                                    {"consistency=asp", "correction=gap-aware"},
                                    {"consistency=asp", "damping=tail"},
                                    {"consistency=ringmaster", "correction=dc-asgd-a"}};
    for (size_t i = 0; i < COUNT_OF(rules); i++) {
        static struct core_bench b[2];
        for (unsigned skips = 0; skips < 2; skips++) {
            bench_open(&b[skips], (struct server_core_options){.workers = 3},
                       RIG("on_nonfinite=skip", rules[i][0], rules[i][1]));
            bench_hello_all(&b[skips]);
            for (unsigned push = 0; push < 20; push++) {
                corrupt(&b[skips], push % 2, false);
                bench_push(&b[skips], push % 2);
                if (skips == 1 && push > 3) {
                    corrupt(&b[skips], 2, true);
                    bench_push(&b[skips], 2);
                    assert_int_equal(b[skips].record[0].outcome, PUSH_NOT_FINITE);
                    assert_int_equal(b[skips].releases, 1);
                }
            }
            assert_int_equal(b[skips].diverged, 0);
        }
        assert_memory_equal(bench_latest(&b[0]), bench_latest(&b[1]), BENCH_COUNT * sizeof(float));
        core_rig_close(&b[0].rig);
        core_rig_close(&b[1].rig);
    }
}

/* A barrier waits for the worker's next gradient; a running sum continues without this one. 1e25 is
 * finite, but no update takes its square. */
static void an_update_of_several_gradients_waits_for_a_finite_one(void **state)
{
    (void)state;
    static const float values[] = {NAN, 1e25f};
    for (unsigned i = 0; i < 6; i++) {
        const unsigned culprit = i / 2;
        const float value = values[i % 2];
        struct core_bench b;
        bench_open(&b, (struct server_core_options){.workers = 3},
                   RIG("consistency=bsp", "on_nonfinite=skip"));
        bench_hello_all(&b);
        for (unsigned w = 0; w < 3; w++) {
            corrupt_by(&b, w, w == culprit ? value : 0);
            bench_push(&b, w);
            assert_int_equal(b.applied, 0);
        }
        corrupt(&b, culprit, false);
        bench_push(&b, culprit);
        assert_int_equal(b.applied, 1);
        assert_int_equal(b.releases, 3);
        core_rig_close(&b.rig);
        bench_open(&b, (struct server_core_options){.workers = 3},
                   RIG("consistency=buffered", "consistency.size=3", "on_nonfinite=skip"));
        bench_hello_all(&b);
        for (unsigned push = 0; push < 4; push++) {
            corrupt_by(&b, push % 3, push == culprit ? value : 0);
            bench_push(&b, push % 3);
            assert_int_equal(b.applied, push == 3);
        }
        core_rig_close(&b.rig);
    }
}

static void the_eleventh_skipped_gradient_in_a_row_ends_the_run(void **state)
{
    (void)state;
    struct core_bench b;
    bench_open(&b, (struct server_core_options){.workers = 2}, RIG("on_nonfinite=skip"));
    bench_hello_all(&b);
    for (unsigned i = 0; i < 10; i++) {
        struct server_push wrong = bench_push_of(&b, 0);
        wrong.loss = NAN;
        bench_feed(&b, wrong);
        assert_int_equal(b.releases, 1);
        bench_push(&b, 1); /* an update in between resets the count */
    }
    for (unsigned i = 0; i < 11; i++) {
        assert_int_equal(b.diverged, 0);
        corrupt(&b, 0, true);
        bench_push(&b, 0);
    }
    assert_int_equal(b.diverged, 1);
    assert_true(server_core_ended(b.rig.core));
    core_rig_close(&b.rig);
}

static void a_barrier_names_the_worker_whose_gradient_is_not_finite(void **state)
{
    (void)state;
    for (unsigned culprit = 0; culprit < 3; culprit++) {
        struct core_bench b;
        bench_open(&b, (struct server_core_options){.workers = 3}, RIG("consistency=bsp"));
        bench_hello_all(&b);
        b.gradient[culprit][5] = NAN;
        for (unsigned w = 0; w < 3 && !server_core_ended(b.rig.core); w++)
            bench_push(&b, w);
        assert_int_equal(b.diverged, 1);
        assert_int_equal(b.records, culprit + 1);
        assert_int_equal(b.record[0].worker, culprit);
        assert_int_equal(b.record[0].outcome, PUSH_NOT_FINITE);
        for (unsigned w = 0; w < culprit; w++)
            assert_int_equal(b.record[w + 1].outcome, PUSH_DROPPED_LATE);
        assert_int_equal(server_core_version(b.rig.core), 0);
        core_rig_close(&b.rig);
    }
}

/* ---- evaluation and the end ---- */

static void pushes_held_at_the_end_are_dropped_and_recorded(void **state)
{
    (void)state;
    struct core_bench b;
    bench_open(&b, (struct server_core_options){.workers = 3}, RIG("consistency=bsp"));
    bench_hello_all(&b);
    bench_push(&b, 0);
    bench_push(&b, 2);
    assert_int_equal(b.records, 0);
    bench_absorb(&b, server_core_end(b.rig.core));
    assert_true(server_core_ended(b.rig.core));
    assert_int_equal(b.records, 2);
    assert_int_equal(b.record[0].outcome, PUSH_DROPPED_LATE);
    assert_int_equal(b.record[1].worker, 2);
    assert_int_equal(b.releases + b.applied + b.finished, 0);
    bench_push(&b, 1);
    assert_int_equal(b.record[0].outcome, PUSH_DROPPED_LATE);
    assert_int_equal(server_core_version(b.rig.core), 0);
    assert_int_equal(server_core_samples_computed(b.rig.core), 30);
    bench_absorb(&b, server_core_end(b.rig.core));
    assert_int_equal(b.records + b.releases, 0);
    core_rig_close(&b.rig);
}

static void a_run_can_end_during_an_evaluation(void **state)
{
    (void)state;
    struct core_bench b;
    bench_open(
        &b, (struct server_core_options){.workers = 2, .total_samples = 1000, .evaluate_every = 10},
        RIG("damping=none"));
    bench_hello_all(&b);
    bench_push(&b, 0);
    assert_int_equal(b.evaluations, 1);
    bench_absorb(&b, server_core_end(b.rig.core));
    assert_int_equal(b.records + b.releases, 0);
    bench_push(&b, 1);
    assert_int_equal(b.record[0].outcome, PUSH_DROPPED_LATE);
    assert_int_equal(server_core_version(b.rig.core), 1);
    core_rig_close(&b.rig);
}

static void an_evaluation_is_due_at_every_multiple_and_its_end_releases_the_worker(void **state)
{
    (void)state;
    struct core_bench b;
    bench_open(
        &b, (struct server_core_options){.workers = 2, .total_samples = 1000, .evaluate_every = 25},
        RIG("damping=none"));
    bench_hello_all(&b);
    static const unsigned expected[] = {0, 0, 1, 0, 1, 0, 0, 1}; /* crossing 25, 50, 75 */
    for (unsigned i = 0; i < COUNT_OF(expected); i++) {
        bench_push(&b, 0);
        assert_int_equal(b.applied, 1);
        assert_int_equal(b.evaluations, expected[i]);
        assert_int_equal(b.releases, 1 - expected[i]);
        if (expected[i]) {
            assert_false(server_core_awaits(b.rig.core, 0));
            bench_evaluated(&b);
            assert_int_equal(b.releases, 1);
            assert_int_equal(b.finished, 0);
        }
    }
    core_rig_close(&b.rig);
}

static void push_at(struct core_bench *b, double seconds)
{
    struct server_push push = bench_push_of(b, 0);
    push.at_seconds = seconds;
    bench_feed(b, push);
}

/* Seconds 0 to 3; a push at or after second 3 is not used and ends training. */
static void training_ends_at_its_time(void **state)
{
    (void)state;
    static const uint64_t every[] = {0, 10, 30}; /* samples; 30: after the last update */
    for (size_t i = 0; i < COUNT_OF(every); i++) {
        struct core_bench b;
        bench_open(&b,
                   (struct server_core_options){.workers = 2,
                                                .total_samples = 1000,
                                                .total_seconds = 3,
                                                .evaluate_every = every[i]},
                   RIG("damping=none", "seconds=3"));
        bench_hello_all(&b);
        for (unsigned n = 0; n < 3; n++) {
            push_at(&b, n);
            assert_int_equal(b.applied, 1);
            if (b.evaluations)
                bench_evaluated(&b);
            assert_false(server_core_complete(b.rig.core));
        }
        push_at(&b, 3);
        assert_int_equal(b.record[0].outcome, PUSH_DROPPED_LATE);
        assert_int_equal(b.applied, 0);
        assert_true(server_core_complete(b.rig.core));
        assert_int_equal(b.evaluations, every[i] == 0); /* else this version was evaluated */
        if (b.evaluations)
            bench_evaluated(&b);
        assert_int_equal(b.finished, 1);
        assert_int_equal(server_core_version(b.rig.core), 3);
        core_rig_close(&b.rig);
    }
}

static void the_end_is_evaluated_once(void **state)
{
    (void)state;
    static const uint64_t every[] = {0, 10, 20, 25, 40, 100};
    for (size_t i = 0; i < COUNT_OF(every); i++) {
        struct core_bench b;
        bench_open(&b,
                   (struct server_core_options){
                       .workers = 2, .total_samples = 40, .evaluate_every = every[i]},
                   RIG("damping=none"));
        bench_hello_all(&b);
        unsigned evaluations = 0;
        for (unsigned n = 0; n < 4; n++) {
            bench_push(&b, 0);
            assert_true(b.evaluations <= 1);
            evaluations += b.evaluations;
            assert_int_equal(n == 3 && b.evaluations == 0, false);
            if (b.evaluations) {
                bench_evaluated(&b);
                assert_int_equal(b.finished, n == 3);
                assert_int_equal(b.releases, n != 3);
            }
        }
        unsigned inner = every[i] == 0 ? 0 : (unsigned)(39 / every[i]);
        assert_int_equal(evaluations, inner + 1);
        assert_true(server_core_ended(b.rig.core));
        assert_int_equal(server_core_samples_used(b.rig.core), 40);

        bench_push(&b, 1); /* arrives after the end */
        assert_int_equal(b.records, 1);
        assert_int_equal(b.record[0].outcome, PUSH_DROPPED_LATE);
        assert_int_equal(b.record[0].staleness, 4);
        assert_int_equal(b.releases + b.applied, 0);
        assert_int_equal(server_core_samples_used(b.rig.core), 40);
        assert_int_equal(server_core_samples_computed(b.rig.core), 50);
        bench_hello(&b, 0);
        assert_int_equal(b.releases, 0);
        bench_lost(&b, 0);
        assert_int_equal(b.releases + b.records, 0);
        core_rig_close(&b.rig);
    }
}

static void a_push_during_an_evaluation_breaks_the_contract(void **state)
{
    (void)state;
    struct core_bench b;
    bench_open(&b, (struct server_core_options){.workers = 2, .evaluate_every = 5},
               RIG("damping=none"));
    bench_hello_all(&b);
    bench_push(&b, 0);
    assert_int_equal(b.evaluations, 1);
    pid_t child = fork();
    if (child == 0) {
        signal(SIGABRT, SIG_DFL);
        fclose(stderr);
        bench_push(&b, 1);
        _exit(0);
    }
    int how;
    assert_int_equal(waitpid(child, &how, 0), child);
    assert_true(WIFSIGNALED(how) && WTERMSIG(how) == SIGABRT);
    core_rig_close(&b.rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_gradient_that_is_not_finite_changes_nothing_and_ends_the_run),
        cmocka_unit_test(a_gradient_that_cannot_be_squared_ends_the_run),
        cmocka_unit_test(a_loss_that_is_not_finite_ends_the_run),
        cmocka_unit_test(a_skipped_gradient_does_not_change_the_result),
        cmocka_unit_test(an_update_of_several_gradients_waits_for_a_finite_one),
        cmocka_unit_test(the_eleventh_skipped_gradient_in_a_row_ends_the_run),
        cmocka_unit_test(a_barrier_names_the_worker_whose_gradient_is_not_finite),
        cmocka_unit_test(pushes_held_at_the_end_are_dropped_and_recorded),
        cmocka_unit_test(a_run_can_end_during_an_evaluation),
        cmocka_unit_test(an_evaluation_is_due_at_every_multiple_and_its_end_releases_the_worker),
        cmocka_unit_test(the_end_is_evaluated_once),
        cmocka_unit_test(training_ends_at_its_time),
        cmocka_unit_test(a_push_during_an_evaluation_breaks_the_contract),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
