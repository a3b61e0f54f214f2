/*
 * test_server_state.c — what the server's parts decide by the clock alone, on a server that talks
 * to nobody: its training clock, whom it takes for hanging, and how long it may evaluate.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdatomic.h>
#include <string.h>

#include "tests/core_bench.h"

#include "ps/server_state.h"

enum { MS = 1000000 };

/* ---- pauses -------------------------------------------------------------------------------------
 */

static uint64_t trained(const struct server *s)
{
    return training_ns_at(s, clock_ns());
}

static void start_and_train(struct server *s, uint64_t ms)
{
    *s = (struct server){0};
    training_start_clock(s);
    clock_sleep_until_ns(clock_ns() + ms * MS);
}

/* A gradient that came during an evaluation came when that began, also if a checkpoint follows. */
static void a_pause_within_another_is_part_of_it(void **state UNUSED)
{
    struct server s;
    start_and_train(&s, 2);
    training_hold_clock(&s);
    const uint64_t held = trained(&s);
    clock_sleep_until_ns(clock_ns() + 5 * MS);
    const uint64_t in_first = clock_ns();
    clock_sleep_until_ns(clock_ns() + 5 * MS);
    training_hold_clock(&s); /* the checkpoint's */
    assert_int_equal(trained(&s), held);
    training_run_clock(&s);
    const uint64_t goes_on = trained(&s);
    clock_sleep_until_ns(clock_ns() + 2 * MS);
    training_run_clock(&s); /* the evaluation's */
    assert_true(held >= 2 * MS);
    assert_true(trained(&s) >= goes_on + 2 * MS);
    assert_int_equal(training_ns_at(&s, in_first), held);
}

static void a_pause_after_some_training_is_another_one(void **state UNUSED)
{
    struct server s;
    start_and_train(&s, 2);
    uint64_t held[2], within[2];
    for (int i = 0; i < 2; i++) {
        training_hold_clock(&s);
        clock_sleep_until_ns(clock_ns() + 5 * MS);
        held[i] = trained(&s);
        within[i] = clock_ns();
        clock_sleep_until_ns(clock_ns() + 5 * MS);
        training_run_clock(&s);
        clock_sleep_until_ns(clock_ns() + 3 * MS);
    }
    assert_true(held[1] >= held[0] + 3 * MS);
    assert_true(trained(&s) >= held[1] + 3 * MS);
    assert_true(s.paused_ns >= 10 * MS);
    /* A gradient may have come in either, and be looked at after both. */
    assert_int_equal(training_ns_at(&s, within[0]), held[0]);
    assert_int_equal(training_ns_at(&s, within[1]), held[1]);
}

/* As with a probe of every gradient: many pauses, and hardly anything between them. */
static void the_clock_never_goes_back(void **state UNUSED)
{
    struct server s;
    start_and_train(&s, 1);
    uint64_t last = trained(&s);
    for (int i = 0; i < 10000; i++) {
        training_hold_clock(&s);
        assert_true(trained(&s) >= last);
        last = trained(&s);
        training_run_clock(&s);
        assert_true(trained(&s) >= last);
        last = trained(&s);
    }
}

/* ---- who hangs ----------------------------------------------------------------------------------
 */

enum { WORKERS = 2, HANGS = 1 };

/* Both workers give signs of life. One has been computing since it was released; the other one's
 * gradient came `moved_s` later, and is the last that happened before `waited_s`. 10 steps of the
 * longest are 3 s, and so long the limit is. */
static struct peer what_becomes_of(unsigned number, unsigned servers, double moved_s,
                                   double waited_s)
{
    const uint64_t released = clock_ns(), now = released + (uint64_t)(waited_s * 1e9);
    struct ps_server_options o = {.workers = WORKERS, .server = number};
    struct peer peers[WORKERS] = {{0}};
    struct event queue[2 * WORKERS];
    struct bench b;
    bench_open(&b, (struct server_core_options){.workers = WORKERS}, RIG("damping=none"));
    bench_hello_all(&b);
    for (unsigned w = 0; w < WORKERS; w++) {
        peers[w] = (struct peer){.state = PEER_READY,
                                 .pidfd = -1,
                                 .former_pidfd = -1,
                                 .heard_ns = now,
                                 .released = w == HANGS};
    }
    struct server s = {.o = &o,
                       .servers = servers,
                       .core = b.rig.core,
                       .timeout_ms = 1000,
                       .lost_ends_run = true,
                       .peers = peers,
                       .queue = queue,
                       .queue_size = COUNT_OF(queue),
                       .begun = true,
                       .began_ns = released,
                       .moved_ns = released + (uint64_t)(moved_s * 1e9),
                       .longest_step_ns = 300 * MS};
    peers_tick(&s, now);
    core_rig_close(&b.rig);
    assert_int_equal(peers[1 - HANGS].state, PEER_READY);
    return peers[HANGS];
}

static bool is_lost_after(unsigned number, unsigned servers, double waited_s)
{
    return what_becomes_of(number, servers, 0, waited_s).state != PEER_READY;
}

static void a_worker_hangs_after_ten_of_its_longest_steps(void **state UNUSED)
{
    assert_false(is_lost_after(0, 1, 2.99));
    assert_true(is_lost_after(0, 1, 3.01));
}

/* Server 0 knows more, and is to be the one that says it. */
static void a_server_that_follows_is_half_again_as_patient(void **state UNUSED)
{
    assert_false(is_lost_after(1, 2, 4.49));
    assert_true(is_lost_after(1, 2, 4.51));
}

/* With a barrier the other one came in a little later, and waits. */
static void a_worker_is_called_slow_only_where_the_others_go_on(void **state UNUSED)
{
    assert_false(what_becomes_of(0, 1, 0.3, 3.1).slow_named);
    assert_false(what_becomes_of(0, 1, 2.9, 2.99).slow_named);
    assert_true(what_becomes_of(0, 1, 2.9, 3.01).slow_named);
}

/* ---- evaluations --------------------------------------------------------------------------------
 */

static atomic_bool let_go;
static atomic_uint began, ended;

static status hang(void *context UNUSED, const float *parameters UNUSED, struct evaluation *out)
{
    *out = (struct evaluation){0};
    atomic_fetch_add(&began, 1);
    while (!atomic_load(&let_go))
        clock_sleep_until_ns(clock_ns() + MS);
    atomic_fetch_add(&ended, 1);
    return OK;
}

static evaluator *begin_to_hang(void)
{
    static const float parameters[] = {1};
    evaluator *e;
    atomic_store(&let_go, false);
    const unsigned before = atomic_load(&began);
    assert_int_equal(evaluator_open(&e, &(struct training_hooks){.evaluate = hang}), OK);
    assert_true(evaluator_busy_ns(e) == 0);
    evaluator_begin(e, parameters);
    while (atomic_load(&began) == before)
        clock_sleep_until_ns(clock_ns() + MS);
    return e;
}

static void an_evaluation_may_take_twenty_times_the_timeout(void **state UNUSED)
{
    struct ps_server_options o = {0};
    struct server s = {.o = &o, .evaluator = begin_to_hang(), .begun = true, .evaluating = true};
    s.timeout_ms = 10000;
    peers_tick(&s, clock_ns());
    assert_int_equal(s.result, OK);
    clock_sleep_until_ns(clock_ns() + 25 * MS);
    s.timeout_ms = 1;
    const uint64_t since = clock_ns();
    server_was_away(&s, 3600000ULL * MS, since);
    const uint64_t busy_ns = evaluator_busy_ns(s.evaluator);
    assert_true(busy_ns <= clock_ns() - since + 1);
    clock_sleep_until_ns(clock_ns() + 25 * MS);
    peers_tick(&s, clock_ns());
    assert_int_equal(s.result, ERROR_PEER);
    assert_non_null(strstr(s.message, "the evaluation has not ended for"));
    atomic_store(&let_go, true);
    evaluator_close(&s.evaluator);
}

/* What another one took is known to be possible. */
static void an_evaluation_may_take_twenty_times_the_longest(void **state UNUSED)
{
    struct ps_server_options o = {0};
    struct server s = {.o = &o, .evaluator = begin_to_hang(), .begun = true, .evaluating = true};
    struct evaluation out;
    status code;
    clock_sleep_until_ns(clock_ns() + 50 * MS);
    atomic_store(&let_go, true);
    while (!evaluator_take(s.evaluator, &out, &code))
        clock_sleep_until_ns(clock_ns() + MS);
    assert_true(evaluator_longest_ns(s.evaluator) >= 50 * MS);
    assert_true(evaluator_busy_ns(s.evaluator) == 0);
    const uint64_t limit_ns = 20 * evaluator_longest_ns(s.evaluator);
    atomic_store(&let_go, false);
    static const float again[] = {1};
    const uint64_t since = clock_ns();
    evaluator_begin(s.evaluator, again);
    s.timeout_ms = 1;
    while (s.result == OK && clock_ns() - since < 20 * limit_ns) {
        clock_sleep_until_ns(clock_ns() + 5 * MS);
        peers_tick(&s, clock_ns());
    }
    assert_true(clock_ns() - since >= limit_ns - 20 * MS); /* it counts whole ms */
    assert_int_equal(s.result, ERROR_PEER);
    atomic_store(&let_go, true);
    evaluator_close(&s.evaluator);
}

static void one_that_hangs_does_not_hold_up_the_end(void **state UNUSED)
{
    evaluator *e = begin_to_hang();
    const unsigned before = atomic_load(&ended);
    assert_int_equal(threads_abandoned(), 0);
    evaluator_close(&e);
    assert_null(e);
    assert_int_equal(threads_abandoned(), 1);
    assert_int_equal(atomic_load(&ended), before);
    atomic_store(&let_go, true);
    while (atomic_load(&ended) == before)
        clock_sleep_until_ns(clock_ns() + MS);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_pause_within_another_is_part_of_it),
        cmocka_unit_test(a_pause_after_some_training_is_another_one),
        cmocka_unit_test(the_clock_never_goes_back),
        cmocka_unit_test(a_worker_hangs_after_ten_of_its_longest_steps),
        cmocka_unit_test(a_server_that_follows_is_half_again_as_patient),
        cmocka_unit_test(a_worker_is_called_slow_only_where_the_others_go_on),
        cmocka_unit_test(an_evaluation_may_take_twenty_times_the_timeout),
        cmocka_unit_test(an_evaluation_may_take_twenty_times_the_longest),
        cmocka_unit_test(one_that_hangs_does_not_hold_up_the_end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
