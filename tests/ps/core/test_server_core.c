/* The server core: one invariant per test. test_server_core_properties.c covers random events, and
 * test_server_core_memory.c covers allocations. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <string.h>

#include "tests/ps/core/core_bench.h"
#include "worker/optimizer/optimizer.h"
#include "worker/optimizer/schedule.h"

/* ---- arithmetic ---- */

static void one_worker_is_a_plain_loop_of_the_optimizer_bit_for_bit(void **state)
{
    (void)state;
    for (size_t kind = 0; kind < optimizer_registry.count; kind++) {
        char chosen[64] = "optimizer=";
        strcat(chosen, optimizer_registry.entries[kind]->name);
        struct core_bench b;
        bench_open(&b, (struct server_core_options){.workers = 1, .total_samples = 1000},
                   RIG(chosen, "schedule=linear", "weight_decay=0.01"));
        optimizer *plain = NULL;
        struct schedule schedule;
        float theta[2][BENCH_COUNT];
        assert_int_equal(optimizer_open(&plain, b.rig.settings, BENCH_COUNT), OK);
        assert_int_equal(schedule_open(&schedule, b.rig.settings, 1, 1000, 1000), OK);
        memcpy(theta[0], b.rig.initial, sizeof theta[0]);

        bench_hello(&b, 0);
        for (unsigned i = 0; i < 100; i++) {
            struct optimizer_pass pass;
            double rate = schedule_rate(&schedule, 10 * i, 10 * i + 10);
            core_rig_fill(b.gradient[0], BENCH_COUNT, i);
            optimizer_set_epoch(plain, schedule_epoch(&schedule, 10 * i, 10 * i + 10));
            optimizer_apply(plain, theta[i % 2], b.gradient[0], 1, rate, NULL, theta[(i + 1) % 2],
                            &pass);
            bench_push(&b, 0);
            assert_memory_equal(bench_latest(&b), theta[(i + 1) % 2], sizeof theta[0]);
            assert_true(b.record[0].gradient_norm == pass.gradient_norm);
            assert_true(b.record[0].staleness == 0 && b.record[0].gap == 0);
        }
        size_t states;
        const float *velocity = server_core_optimizer_state(b.rig.core, &states);
        assert_int_equal(states, optimizer_state_count(plain));
        if (states > 0)
            assert_memory_equal(velocity, optimizer_state(plain), states * sizeof(float));
        optimizer_close(&plain);
        core_rig_close(&b.rig);
    }
}

static void bsp_is_the_ordered_mean_whatever_the_order_of_arrival(void **state)
{
    (void)state;
    enum { WORKERS = 5 };
    struct core_bench b;
    uint64_t seed = 11;
    bench_open(&b, (struct server_core_options){.workers = WORKERS}, RIG("consistency=bsp"));
    optimizer *plain = NULL;
    assert_int_equal(optimizer_open(&plain, b.rig.settings, BENCH_COUNT), OK);
    float theta[2][BENCH_COUNT], mean[BENCH_COUNT];
    memcpy(theta[0], b.rig.initial, sizeof theta[0]);
    bench_hello_all(&b);
    for (unsigned i = 0; i < 50; i++) {
        const float *gradients[WORKERS];
        unsigned order[WORKERS];
        for (unsigned w = 0; w < WORKERS; w++) {
            core_rig_fill(b.gradient[w], BENCH_COUNT, i * WORKERS + w);
            gradients[w] = b.gradient[w];
            unsigned at = (unsigned)(core_rig_random(&seed) % (w + 1));
            order[w] = order[at];
            order[at] = w;
        }
        struct optimizer_pass pass;
        reduce_mean_ordered(gradients, WORKERS, BENCH_COUNT, mean);
        optimizer_apply(plain, theta[i % 2], mean, 1, 0.05, NULL, theta[(i + 1) % 2], &pass);
        for (unsigned w = 0; w < WORKERS; w++) {
            assert_int_equal(server_core_version(b.rig.core), i);
            bench_push(&b, order[w]);
            assert_int_equal(b.releases, w + 1 < WORKERS ? 0 : WORKERS);
        }
        assert_memory_equal(bench_latest(&b), theta[(i + 1) % 2], sizeof theta[0]);
        assert_int_equal(b.records, WORKERS);
        for (unsigned w = 0; w < WORKERS; w++) {
            assert_int_equal(b.record[w].worker, w);
            assert_int_equal(b.record[w].outcome, PUSH_AGGREGATED);
            assert_int_equal(b.record[w].staleness, 0);
            assert_true(b.record[w].gap == 0 && b.record[w].gradient_norm > 0);
        }
    }
    optimizer_close(&plain);
    core_rig_close(&b.rig);
}

/* Gradients of norm 10, 0.5 and 4, clipped to 2: scales ⅕, 1 and ½. */
static void a_barrier_clips_each_gradient_by_itself(void **state)
{
    (void)state;
    static const float length[] = {10, 0.5f, 4}, scale[] = {0.2f, 1, 0.5f};
    struct core_bench b;
    bench_open(&b, (struct server_core_options){.workers = 3},
               RIG("consistency=bsp", "damping=trim", "damping.norm=2", "optimizer=sgd", "lr=0.5"));
    bench_hello_all(&b);
    for (unsigned w = 0; w < 3; w++) {
        memset(b.gradient[w], 0, sizeof b.gradient[w]);
        b.gradient[w][w] = length[w];
        bench_push(&b, w);
    }
    for (unsigned w = 0; w < 3; w++) {
        double moved = (double)bench_latest(&b)[w] - (double)b.rig.initial[w];
        assert_true(fabs(moved + 0.5 * (double)(scale[w] * length[w]) / 3) < 1e-6);
        assert_true((float)b.record[w].scale == scale[w]);
        assert_true(b.record[w].gradient_norm == (double)length[w]);
    }
    assert_true(bench_latest(&b)[3] == b.rig.initial[3]);
    core_rig_close(&b.rig);
}

static void a_damped_push_is_scaled_before_it_enters_the_velocity(void **state)
{
    (void)state;
    struct core_bench b;
    bench_open(&b, (struct server_core_options){.workers = 4}, RIG("damping=inverse"));
    optimizer *plain = NULL;
    assert_int_equal(optimizer_open(&plain, b.rig.settings, BENCH_COUNT), OK);
    float theta[5][BENCH_COUNT];
    memcpy(theta[0], b.rig.initial, sizeof theta[0]);
    bench_hello_all(&b);
    for (unsigned w = 0; w < 4; w++) { /* staleness 0, 1, 2, 3 */
        struct optimizer_pass pass;
        double scale = w < 2 ? 1 : 1 / (double)w;
        optimizer_apply(plain, theta[w], b.gradient[w], scale, 0.05, theta[0], theta[w + 1], &pass);
        bench_push(&b, w);
        assert_int_equal(b.record[0].staleness, w);
        assert_true(b.record[0].scale == scale);
        assert_memory_equal(bench_latest(&b), theta[w + 1], sizeof theta[0]);
    }
    optimizer_close(&plain);
    core_rig_close(&b.rig);
}

static void the_gap_is_the_rms_distance_to_what_the_worker_read(void **state)
{
    (void)state;
    struct core_bench b;
    bench_open(&b, (struct server_core_options){.workers = 3}, RIG("damping=none"));
    bench_hello_all(&b);
    bench_push(&b, 0);
    bench_push(&b, 0);
    double squares = 0;
    for (unsigned i = 0; i < BENCH_COUNT; i++) {
        double d = (double)bench_latest(&b)[i] - (double)b.rig.initial[i];
        squares += d * d;
    }
    bench_push(&b, 1);
    assert_int_equal(b.record[0].staleness, 2);
    assert_true(fabs(b.record[0].gap - sqrt(squares / BENCH_COUNT)) < 1e-7);
    assert_true(b.record[0].gap > 0.01);
    core_rig_close(&b.rig);
}

static void in_a_regular_round_robin_mean_staleness_is_workers_less_1(void **state)
{
    (void)state;
    for (unsigned workers = 1; workers <= BENCH_WORKERS; workers *= 2) {
        struct core_bench b;
        bench_open(&b, (struct server_core_options){.workers = workers}, RIG("damping=none"));
        bench_hello_all(&b);
        uint64_t sum = 0;
        for (unsigned i = 0; i < 100 * workers; i++) {
            bench_push(&b, i % workers);
            if (i >= workers)
                sum += b.record[0].staleness;
        }
        assert_int_equal(sum, 99 * workers * (workers - 1));
        core_rig_close(&b.rig);
    }
}

/* ---- slots ---- */

static void the_parameters_of_a_release_do_not_change_while_others_push(void **state)
{
    (void)state;
    struct core_bench b;
    float read[BENCH_COUNT];
    bench_open(&b, (struct server_core_options){.workers = 3}, RIG("damping=none"));
    bench_hello_all(&b);
    bench_push(&b, 2);
    memcpy(read, b.rig.slots[b.slot[2]], sizeof read);
    for (unsigned i = 0; i < 100; i++) {
        bench_push(&b, i % 2);
        assert_true(server_core_latest_slot(b.rig.core) != b.slot[2]);
        assert_memory_equal(b.rig.slots[b.slot[2]], read, sizeof read);
    }
    bench_push(&b, 2);
    assert_int_equal(b.record[0].staleness, 100);
    core_rig_close(&b.rig);
}

static void a_slot_without_other_readers_is_overwritten(void **state)
{
    (void)state;
    struct core_bench b;
    bench_open(&b, (struct server_core_options){.workers = 3}, RIG("damping=none"));
    optimizer *plain = NULL;
    float theta[4][BENCH_COUNT];
    struct optimizer_pass pass;
    assert_int_equal(optimizer_open(&plain, b.rig.settings, BENCH_COUNT), OK);
    memcpy(theta[0], b.rig.initial, sizeof theta[0]);
    bench_hello_all(&b);
    for (unsigned w = 0; w < 3; w++) {
        unsigned read = b.slot[w];
        optimizer_apply(plain, theta[w], b.gradient[w], 1, 0.05, theta[0], theta[w + 1], &pass);
        bench_push(&b, w);
        assert_memory_equal(bench_latest(&b), theta[w + 1], sizeof theta[0]);
        assert_true(b.record[0].gap == pass.gap);
        /* worker 2 is the last reader of version 0 */
        assert_int_equal(server_core_latest_slot(b.rig.core) == read, w == 2);
    }
    optimizer_close(&plain);
    core_rig_close(&b.rig);
}

static void a_lost_workers_slot_is_freed(void **state)
{
    (void)state;
    struct core_bench b;
    bench_open(&b, (struct server_core_options){.workers = 2}, RIG("damping=none"));
    bench_hello_all(&b);
    for (unsigned i = 0; i < 100; i++) {
        bench_push(&b, 0);
        bench_lost(&b, 1);
        bench_lost(&b, 1);
        assert_int_equal(b.releases + b.records + b.applied, 0);
        bench_hello(&b, 1);
        assert_int_equal(b.version[1], i + 1);
    }
    core_rig_close(&b.rig);
}

/* ---- sequences ---- */

static void a_duplicate_repeats_the_reply_and_changes_nothing(void **state)
{
    (void)state;
    struct core_bench b;
    bench_open(&b, (struct server_core_options){.workers = 2}, RIG("damping=none"));
    bench_hello_all(&b);
    struct server_push first = bench_push_of(&b, 0);
    bench_feed(&b, first);
    unsigned slot = b.slot[0];
    bench_push(&b, 1);
    bench_feed(&b, first);
    assert_int_equal(b.releases, 1);
    assert_int_equal(b.records + b.applied, 0);
    assert_int_equal(b.version[0], 1);
    assert_int_equal(b.slot[0], slot);
    assert_int_equal(server_core_version(b.rig.core), 2);
    assert_int_equal(server_core_samples_computed(b.rig.core), 20);
    bench_push(&b, 0);
    assert_int_equal(b.record[0].sequence, 1);
    assert_int_equal(b.record[0].staleness, 1);
    core_rig_close(&b.rig);
}

static void a_duplicate_of_a_held_push_is_ignored(void **state)
{
    (void)state;
    struct core_bench b;
    bench_open(&b, (struct server_core_options){.workers = 2}, RIG("consistency=bsp"));
    bench_hello_all(&b);
    struct server_push first = bench_push_of(&b, 0);
    bench_feed(&b, first);
    bench_feed(&b, first);
    assert_int_equal(b.releases + b.records + b.applied, 0);
    bench_push(&b, 1);
    assert_int_equal(b.records, 2);
    assert_int_equal(b.releases, 2);
    core_rig_close(&b.rig);
}

/* Each push differs in one field or state from a push that the core accepts afterwards. */
static void a_push_that_breaks_the_protocol_is_refused(void **state)
{
    (void)state;
    struct core_bench b;
    bench_open(&b, (struct server_core_options){.workers = 9}, RIG("consistency=bsp"));
    bench_hello(&b, 6);
    bench_hello(&b, 7);
    struct server_push wrong = bench_push_of(&b, 6);
    wrong.worker = 33;
    bench_expect_refused(&b, wrong, "33");
    bench_expect_refused(&b, bench_push_of(&b, 8), "8"); /* has not joined */
    wrong = bench_push_of(&b, 6);
    wrong.sequence = 41;
    bench_expect_refused(&b, wrong, "41");
    wrong = bench_push_of(&b, 6);
    wrong.read_version = 52;
    bench_expect_refused(&b, wrong, "52");
    wrong = bench_push_of(&b, 6);
    wrong.samples = 0;
    bench_expect_refused(&b, wrong, "6");
    bench_push(&b, 6);
    bench_expect_refused(&b, bench_push_of(&b, 6), "6"); /* its last push is held */
    bench_lost(&b, 7);
    bench_expect_refused(&b, bench_push_of(&b, 7), "7");
    for (unsigned w = 7; w < 9; w++) {
        bench_hello(&b, w);
        bench_push(&b, w);
    }
    assert_int_equal(server_core_samples_computed(b.rig.core), 30);
    core_rig_close(&b.rig);
}

static void a_repeated_hello_gets_the_same_answer(void **state)
{
    (void)state;
    struct core_bench b;
    bench_open(&b, (struct server_core_options){.workers = 2}, RIG("damping=none"));
    bench_hello_all(&b);
    bench_push(&b, 1);
    b.version[0] = 99;
    bench_hello(&b, 0);
    assert_int_equal(b.releases, 1);
    assert_int_equal(b.version[0], 0);
    bench_push(&b, 0);
    assert_int_equal(b.record[0].staleness, 1);
    core_rig_close(&b.rig);
}

/* ---- drops and losses ---- */

static void a_push_beyond_the_cutoff_is_recorded_but_not_applied(void **state)
{
    (void)state;
    struct core_bench b;
    bench_open(&b, (struct server_core_options){.workers = 2},
               RIG("damping=cutoff", "damping.after=2"));
    bench_hello_all(&b);
    bench_push(&b, 0);
    bench_push(&b, 0);
    bench_push(&b, 0);
    bench_push(&b, 1);
    assert_int_equal(b.applied, 0);
    assert_int_equal(b.record[0].outcome, PUSH_DROPPED_STALE);
    assert_int_equal(b.record[0].staleness, 3);
    assert_int_equal(b.record[0].update_version, 3);
    assert_true(b.record[0].scale == 0 && b.record[0].gap > 0 && b.record[0].gradient_norm > 0);
    assert_int_equal(b.releases, 1);
    assert_int_equal(b.version[1], 3);
    assert_int_equal(server_core_samples_used(b.rig.core), 30);
    assert_int_equal(server_core_samples_computed(b.rig.core), 40);
    bench_push(&b, 1);
    assert_int_equal(b.record[0].outcome, PUSH_APPLIED);
    core_rig_close(&b.rig);
}

static void a_barrier_waits_for_workers_that_have_not_joined(void **state)
{
    (void)state;
    struct core_bench b;
    bench_open(&b, (struct server_core_options){.workers = 3}, RIG("consistency=bsp"));
    bench_hello(&b, 0);
    bench_push(&b, 0);
    bench_hello(&b, 1);
    bench_push(&b, 1);
    assert_int_equal(b.applied, 0);
    bench_lost(&b, 2); /* will never join */
    assert_int_equal(b.applied, 1);
    assert_int_equal(b.records, 2);
    assert_int_equal(b.releases, 2);
    core_rig_close(&b.rig);
}

static void a_held_gradient_is_dropped_with_its_worker(void **state)
{
    (void)state;
    struct core_bench b;
    bench_open(&b, (struct server_core_options){.workers = 3}, RIG("consistency=bsp"));
    bench_hello_all(&b);
    bench_push(&b, 1);
    bench_lost(&b, 1);
    assert_int_equal(b.records, 1);
    assert_int_equal(b.record[0].outcome, PUSH_DROPPED_LATE);
    assert_int_equal(b.applied, 0);
    bench_push(&b, 0);
    bench_push(&b, 2);
    assert_int_equal(b.applied, 1);
    assert_int_equal(b.records, 2);
    assert_int_equal(server_core_samples_used(b.rig.core), 20);
    assert_int_equal(server_core_samples_computed(b.rig.core), 30);
    core_rig_close(&b.rig);
}

static void a_worker_that_joins_again_starts_a_new_sequence(void **state)
{
    (void)state;
    struct core_bench b;
    bench_open(&b, (struct server_core_options){.workers = 2}, RIG("damping=none"));
    bench_hello_all(&b);
    bench_push(&b, 0);
    bench_push(&b, 1);
    bench_lost(&b, 0);
    assert_false(server_core_awaits(b.rig.core, 0));
    bench_hello(&b, 0);
    assert_true(server_core_awaits(b.rig.core, 0));
    assert_int_equal(b.version[0], 2);
    bench_push(&b, 0);
    assert_int_equal(b.record[0].sequence, 0);
    assert_int_equal(b.applied, 1);
    core_rig_close(&b.rig);
}

/* ---- late workers ---- */

/* A core for two workers and two late ones, as a server begins: the late ones are lost. */
static void open_with_late_workers(struct core_bench *b, const char *const *settings)
{
    bench_open(b, (struct server_core_options){.workers = 2, .workers_max = 4, .slot_count = 6},
               settings);
    bench_hello_all(b);
    bench_lost(b, 2);
    bench_lost(b, 3);
}

static void late_workers_change_neither_the_rate_nor_the_size_of_an_update(void **state)
{
    (void)state;
    static const unsigned order[] = {2, 3, 0, 1, 3, 2};
    struct core_bench b;
    open_with_late_workers(&b, RIG("consistency=softsync", "lr_scaling=linear"));
    bench_hello(&b, 2);
    assert_int_equal(b.releases, 1);
    bench_hello(&b, 3);
    for (size_t i = 0; i < COUNT_OF(order); i++) {
        bench_push(&b, order[i]);
        assert_int_equal(b.applied, i % 2);
        for (unsigned k = 0; k < b.records; k++)
            assert_true(b.record[k].rate == 2 * 0.05);
    }
    struct server_push beyond = bench_push_of(&b, 0);
    beyond.worker = 4;
    bench_expect_refused(&b, beyond, "worker 4");
    core_rig_close(&b.rig);
}

static void expect_step(struct core_bench *b, unsigned worker, double gradients)
{
    float before[BENCH_COUNT];
    memcpy(before, bench_latest(b), sizeof before);
    bench_push(b, worker);
    for (size_t i = 0; i < BENCH_COUNT; i++) {
        const double moved = (double)bench_latest(b)[i] - (double)before[i];
        assert_true(fabs(moved + 0.05 * gradients * (double)b->gradient[worker][i]) < 1e-5);
    }
}

/* With γ = ½ the first step is (1 + γ) g, the second (1 + γ + γ²) g. */
static void the_state_of_a_late_worker_begins_at_0_and_stays_while_it_is_away(void **state)
{
    (void)state;
    struct core_bench b;
    open_with_late_workers(&b,
                           RIG("correction=dana-slim", "optimizer=sgd", "correction.momentum=0.5"));
    bench_push(&b, 0);
    bench_hello(&b, 3);
    expect_step(&b, 3, 1.5);
    bench_lost(&b, 3);
    bench_push(&b, 1);
    bench_hello(&b, 3);
    expect_step(&b, 3, 1.75);
    core_rig_close(&b.rig);
}

static void a_late_worker_begins_at_the_slowest_clock(void **state)
{
    (void)state;
    struct core_bench b;
    open_with_late_workers(&b, RIG("consistency=ssp", "consistency.slack=1"));
    for (unsigned i = 0; i < 6; i++)
        bench_push(&b, i % 2);
    bench_hello(&b, 2);
    assert_int_equal(b.version[2], 6);
    bench_push(&b, 0);
    assert_int_equal(b.releases, 1); /* the worker is one clock ahead */
    bench_push(&b, 0);
    assert_int_equal(b.releases, 0); /* the worker is two clocks ahead */
    core_rig_close(&b.rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_worker_is_a_plain_loop_of_the_optimizer_bit_for_bit),
        cmocka_unit_test(bsp_is_the_ordered_mean_whatever_the_order_of_arrival),
        cmocka_unit_test(a_barrier_clips_each_gradient_by_itself),
        cmocka_unit_test(a_damped_push_is_scaled_before_it_enters_the_velocity),
        cmocka_unit_test(the_gap_is_the_rms_distance_to_what_the_worker_read),
        cmocka_unit_test(in_a_regular_round_robin_mean_staleness_is_workers_less_1),
        cmocka_unit_test(the_parameters_of_a_release_do_not_change_while_others_push),
        cmocka_unit_test(a_slot_without_other_readers_is_overwritten),
        cmocka_unit_test(a_lost_workers_slot_is_freed),
        cmocka_unit_test(a_duplicate_repeats_the_reply_and_changes_nothing),
        cmocka_unit_test(a_duplicate_of_a_held_push_is_ignored),
        cmocka_unit_test(a_push_that_breaks_the_protocol_is_refused),
        cmocka_unit_test(a_repeated_hello_gets_the_same_answer),
        cmocka_unit_test(a_push_beyond_the_cutoff_is_recorded_but_not_applied),
        cmocka_unit_test(a_barrier_waits_for_workers_that_have_not_joined),
        cmocka_unit_test(a_held_gradient_is_dropped_with_its_worker),
        cmocka_unit_test(a_worker_that_joins_again_starts_a_new_sequence),
        cmocka_unit_test(late_workers_change_neither_the_rate_nor_the_size_of_an_update),
        cmocka_unit_test(the_state_of_a_late_worker_begins_at_0_and_stays_while_it_is_away),
        cmocka_unit_test(a_late_worker_begins_at_the_slowest_clock),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
