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

struct pauses {
    uint64_t in_first; /* a moment of the first pause */
    double apart_ms;   /* between the two, at most */
};

static struct pauses pause_twice(struct server *s, uint64_t apart_ms)
{
    struct pauses p;
    *s = (struct server){0};
    training_start_clock(s);
    clock_sleep_until_ns(clock_ns() + 2 * MS);
    training_hold_clock(s);
    clock_sleep_until_ns(clock_ns() + 5 * MS);
    p.in_first = clock_ns();
    clock_sleep_until_ns(clock_ns() + 5 * MS);
    uint64_t before = clock_ns();
    training_run_clock(s);
    if (apart_ms > 0) {
        clock_sleep_until_ns(clock_ns() + apart_ms * MS);
    }
    training_hold_clock(s);
    p.apart_ms = (double)(clock_ns() - before) / MS;
    return p;
}

/* A gradient that came during an evaluation came when that began, also if a checkpoint follows. */
static void a_pause_at_once_upon_another_goes_on_with_it(void **state UNUSED)
{
    struct server s;
    struct pauses p = {.apart_ms = 2};
    for (int i = 0; i < 100 && p.apart_ms >= 1; i++) { /* a busy machine may come between */
        p = pause_twice(&s, 0);
    }
    assert_true(p.apart_ms < 1);
    const uint64_t held = training_ns_at(&s, s.pause_from_ns);
    assert_true(held >= 2 * MS);
    assert_int_equal(training_ns_at(&s, p.in_first), held);
    assert_int_equal(training_ns_at(&s, clock_ns()), held);
}

static void a_pause_after_some_training_is_another_one(void **state UNUSED)
{
    struct server s;
    (void)pause_twice(&s, 3);
    assert_true(training_ns_at(&s, clock_ns()) >= 5 * MS);
    assert_true(s.paused_ns >= 10 * MS);
}

/* ---- who hangs ----------------------------------------------------------------------------------
 */

enum { WORKERS = 2, HANGS = 1 };

/* Both workers give signs of life; one has been computing since `moved`, 10 steps of the longest
 * are 3 s, and so long the limit is. */
static bool is_lost_after(unsigned number, unsigned servers, double waited_s)
{
    const uint64_t moved = clock_ns(), now = moved + (uint64_t)(waited_s * 1e9);
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
                       .began_ns = moved,
                       .moved_ns = moved,
                       .longest_step_ns = 300 * MS};
    peers_tick(&s, now);
    core_rig_close(&b.rig);
    assert_int_equal(peers[1 - HANGS].state, PEER_READY);
    return peers[HANGS].state != PEER_READY;
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_pause_at_once_upon_another_goes_on_with_it),
        cmocka_unit_test(a_pause_after_some_training_is_another_one),
        cmocka_unit_test(a_worker_hangs_after_ten_of_its_longest_steps),
        cmocka_unit_test(a_server_that_follows_is_half_again_as_patient),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
