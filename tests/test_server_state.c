/*
 * test_server_state.c — what the server's parts decide by the clock alone, on a server that talks
 * to nobody: its training clock, and whom it takes for hanging.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_pause_within_another_is_part_of_it),
        cmocka_unit_test(a_pause_after_some_training_is_another_one),
        cmocka_unit_test(the_clock_never_goes_back),
        cmocka_unit_test(a_worker_hangs_after_ten_of_its_longest_steps),
        cmocka_unit_test(a_server_that_follows_is_half_again_as_patient),
        cmocka_unit_test(a_worker_is_called_slow_only_where_the_others_go_on),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
