/* How training on the server's core ends, or pauses: evaluation, the last sample, divergence. */
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

#include "tests/core_bench.h"

/* ---- divergence ---- */

static void a_gradient_that_is_not_finite_changes_nothing_and_ends_the_run(void **state)
{
    (void)state;
    static const float bad[] = {NAN, INFINITY, -INFINITY};
    for (size_t i = 0; i < COUNT_OF(bad) * BENCH_COUNT; i++) {
        struct bench b;
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

/* It is finite; whether the optimizer keeps squares of it is all one. */
static void a_gradient_that_cannot_be_squared_ends_the_run(void **state)
{
    (void)state;
    static const char *const optimizers[] = {"optimizer=adamw", "optimizer=rmsprop-warmup",
                                             "optimizer=momentum", "optimizer=sgd"};
    for (size_t i = 0; i < COUNT_OF(optimizers); i++) {
        struct bench b;
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
    struct bench b;
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

static void a_barrier_names_the_worker_whose_gradient_is_not_finite(void **state)
{
    (void)state;
    for (unsigned culprit = 0; culprit < 3; culprit++) {
        struct bench b;
        bench_open(&b, (struct server_core_options){.workers = 3}, RIG("consistency=bsp"));
        bench_hello_all(&b);
        b.gradient[culprit][5] = NAN;
        for (unsigned w = 0; w < 3 && !server_core_ended(b.rig.core); w++) {
            bench_push(&b, w);
        }
        assert_int_equal(b.diverged, 1);
        assert_int_equal(b.records, culprit + 1);
        assert_int_equal(b.record[0].worker, culprit);
        assert_int_equal(b.record[0].outcome, PUSH_NOT_FINITE);
        for (unsigned w = 0; w < culprit; w++) {
            assert_int_equal(b.record[w + 1].outcome, PUSH_DROPPED_LATE);
        }
        assert_int_equal(server_core_version(b.rig.core), 0);
        core_rig_close(&b.rig);
    }
}

/* ---- evaluation and the end ---- */

static void what_is_held_when_the_run_is_ended_is_dropped_and_recorded(void **state)
{
    (void)state;
    struct bench b;
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

static void the_run_may_be_ended_in_an_evaluation(void **state)
{
    (void)state;
    struct bench b;
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

static void evaluation_comes_at_every_multiple_and_lets_the_worker_go_on_after_it(void **state)
{
    (void)state;
    struct bench b;
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

static void the_end_is_evaluated_once_also_when_it_falls_on_a_multiple(void **state)
{
    (void)state;
    static const uint64_t every[] = {0, 10, 20, 25, 40, 100};
    for (size_t i = 0; i < COUNT_OF(every); i++) {
        struct bench b;
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

        bench_push(&b, 1); /* was on its way */
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
    struct bench b;
    bench_open(&b, (struct server_core_options){.workers = 2, .evaluate_every = 5},
               RIG("damping=none"));
    bench_hello_all(&b);
    bench_push(&b, 0);
    assert_int_equal(b.evaluations, 1);
    pid_t child = fork();
    if (child == 0) {
        signal(SIGABRT, SIG_DFL);
        log_set_level(LOG_ERROR);
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
        cmocka_unit_test(a_barrier_names_the_worker_whose_gradient_is_not_finite),
        cmocka_unit_test(what_is_held_when_the_run_is_ended_is_dropped_and_recorded),
        cmocka_unit_test(the_run_may_be_ended_in_an_evaluation),
        cmocka_unit_test(evaluation_comes_at_every_multiple_and_lets_the_worker_go_on_after_it),
        cmocka_unit_test(the_end_is_evaluated_once_also_when_it_falls_on_a_multiple),
        cmocka_unit_test(a_push_during_an_evaluation_breaks_the_contract),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
