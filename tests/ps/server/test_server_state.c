/*
 * test_server_state.c — decisions of the server that depend only on the clock: the training clock
 * in each state, the limit for a worker's gradient, and the limit for the server's own work. The
 * server has no connections.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdatomic.h>
#include <string.h>

#include "base/clock.h"
#include "base/memory.h"
#include "base/thread.h"
#include "tests/ps/core/core_bench.h"

#include "ps/server/server_state.h"

enum { MS = 1000000 };

/* ---- pauses --------------------------------------------------------------------------------- */

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

/* A gradient that arrives during an evaluation has the training time at which the evaluation began,
 * also if a checkpoint follows. */
static void a_pause_within_another_is_part_of_it(void **state UNUSED)
{
    struct server s;
    start_and_train(&s, 2);
    training_hold_clock(&s);
    const uint64_t held = trained(&s);
    clock_sleep_until_ns(clock_ns() + 5 * MS);
    const uint64_t in_first = clock_ns();
    clock_sleep_until_ns(clock_ns() + 5 * MS);
    training_hold_clock(&s); /* for the checkpoint */
    assert_int_equal(trained(&s), held);
    training_run_clock(&s);
    const uint64_t goes_on = trained(&s);
    clock_sleep_until_ns(clock_ns() + 2 * MS);
    training_run_clock(&s); /* for the evaluation */
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
    /* A gradient may arrive in one pause and be handled after both. */
    assert_int_equal(training_ns_at(&s, within[0]), held[0]);
    assert_int_equal(training_ns_at(&s, within[1]), held[1]);
}

/* Many pauses with almost no time between them, as with probe_every=1. */
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

/* ---- hanging workers ------------------------------------------------------------------------ */

enum { WORKERS = 2, HANGS = 1 };

/* Both workers give signs of life. Worker HANGS has been computing since its release. The last
 * gradient of the other worker came `gradient_s` after this release. Returns the state of worker
 * HANGS `waited_s` after its release. 20 times the timeout is 20 s. */
static struct peer hanging_worker_after(unsigned number, unsigned servers, double gradient_s,
                                        double waited_s, uint64_t longest_ms)
{
    const uint64_t released = clock_ns(), now = released + (uint64_t)(waited_s * 1e9);
    struct ps_server_options o = {.workers = WORKERS, .server = number};
    struct peer peers[WORKERS] = {{0}};
    struct event queue[2 * WORKERS];
    struct core_bench b;
    bench_open(&b, (struct server_core_options){.workers = WORKERS}, RIG("damping=none"));
    bench_hello_all(&b);
    for (unsigned w = 0; w < WORKERS; w++) {
        peers[w] = (struct peer){.state = PEER_READY,
                                 .life = {.pidfd = -1, .heard_ns = now},
                                 .former_pidfd = -1,
                                 .entered = true,
                                 .released = w == HANGS};
    }
    struct server s = {.o = &o,
                       .workers = WORKERS,
                       .servers = servers,
                       .core = b.rig.core,
                       .timeout_ms = 1000,
                       .lost_ends_run = true,
                       .peers = peers,
                       .queue = queue,
                       .queue_size = COUNT_OF(queue),
                       .begun = true,
                       .state = STATE_TRAINING,
                       .began_ns = released,
                       .gradient_training_ns = (uint64_t)(gradient_s * 1e9),
                       .longest_step_ns = longest_ms * MS};
    peers_tick(&s, now);
    core_rig_close(&b.rig);
    assert_int_equal(peers[1 - HANGS].state, PEER_READY);
    return peers[HANGS];
}

static bool is_lost_after(unsigned number, unsigned servers, double waited_s, uint64_t longest_ms)
{
    return hanging_worker_after(number, servers, 0, waited_s, longest_ms).state != PEER_READY;
}

static void a_worker_hangs_after_twenty_times_the_timeout(void **state UNUSED)
{
    assert_false(is_lost_after(0, 1, 19.99, 300));
    assert_true(is_lost_after(0, 1, 20.01, 300));
    assert_true(is_lost_after(0, 1, 20.01, 0)); /* no step has been seen yet */
}

static void a_worker_hangs_after_twenty_of_the_longest_steps(void **state UNUSED)
{
    assert_false(is_lost_after(0, 1, 39.99, 2000));
    assert_true(is_lost_after(0, 1, 40.01, 2000));
}

static bool is_lost_while_joining(enum peer_state state, bool begun, double waited_s)
{
    const uint64_t came = clock_ns(), now = came + (uint64_t)(waited_s * 1e9);
    const struct ps_server_options o = {.workers = 1};
    struct peer peer = {.state = state,
                        .joining_ns = came,
                        .life = {.pidfd = -1, .heard_ns = now},
                        .former_pidfd = -1};
    struct server s = {.o = &o,
                       .workers = 1,
                       .servers = 1,
                       .timeout_ms = 1000,
                       .lost_ends_run = true,
                       .peers = &peer,
                       .begun = begun,
                       .state = STATE_EVALUATING};
    peers_tick(&s, now);
    return peer.state != state;
}

static void after_the_begin_a_worker_may_take_twenty_times_the_timeout_to_join(void **state UNUSED)
{
    static const enum peer_state joining[] = {PEER_WELCOMED, PEER_READY};
    for (size_t i = 0; i < COUNT_OF(joining); i++) {
        assert_false(is_lost_while_joining(joining[i], true, 19.99));
        assert_true(is_lost_while_joining(joining[i], true, 20.01));
        assert_false(is_lost_while_joining(joining[i], false, 20.01));
    }
}

static void a_follower_does_not_judge_hanging_workers(void **state UNUSED)
{
    assert_false(is_lost_after(1, 2, 100, 300));
}

static void a_late_gradient_is_named_after_the_timeout(void **state UNUSED)
{
    assert_false(hanging_worker_after(0, 1, 0, 0.99, 300).slow_named);
    assert_true(hanging_worker_after(0, 1, 0, 1.01, 300).slow_named);
    assert_true(hanging_worker_after(0, 1, 0, 1.01, 5000).slow_named);
}

/* ---- states --------------------------------------------------------------------------------- */

/* S3 */
static void the_training_clock_stops_during_the_servers_own_work(void **state UNUSED)
{
    static const enum server_state works[] = {STATE_PROBING, STATE_GATHERING, STATE_EVALUATING,
                                              STATE_SAVING, STATE_PAUSED};
    for (size_t i = 0; i < COUNT_OF(works); i++) {
        struct server s = {.state = STATE_JOINING};
        server_begin(&s);
        assert_int_equal(s.state, STATE_TRAINING);
        server_enter(&s, works[i] == STATE_EVALUATING ? STATE_GATHERING : works[i]);
        if (works[i] == STATE_EVALUATING)
            server_enter(&s, works[i]);
        const uint64_t held = trained(&s);
        clock_sleep_until_ns(clock_ns() + 2 * MS);
        assert_int_equal(trained(&s), held);
        server_enter(&s, works[i] == STATE_GATHERING ? STATE_LEAVING : STATE_TRAINING);
        clock_sleep_until_ns(clock_ns() + 2 * MS);
        assert_true(trained(&s) >= held + 2 * MS);
    }
}

/* ---- the server's own work ------------------------------------------------------------------ */

static atomic_bool let_go;
static atomic_uint began, ended;

static status hang(void *context UNUSED, const float *parameters UNUSED, unsigned threads UNUSED,
                   struct evaluation *out)
{
    *out = (struct evaluation){0};
    atomic_fetch_add(&began, 1);
    while (!atomic_load(&let_go))
        clock_sleep_until_ns(clock_ns() + MS);
    atomic_fetch_add(&ended, 1);
    return OK;
}

static background *begin_to_hang(void)
{
    static const float parameters[] = {1};
    background *e;
    atomic_store(&let_go, false);
    const unsigned before = atomic_load(&began);
    assert_int_equal(background_open(&e, &(struct training_hooks){.evaluate = hang}), OK);
    assert_false(background_is_busy(e));
    background_evaluate(e, parameters, 1);
    while (atomic_load(&began) == before)
        clock_sleep_until_ns(clock_ns() + MS);
    assert_true(background_is_busy(e));
    return e;
}

static struct server working(const struct ps_server_options *o, struct peer *peer,
                             enum server_state state, uint64_t since_ns, uint64_t longest_ms)
{
    struct server s = {.o = o,
                       .workers = o->workers,
                       .servers = 1,
                       .peers = peer,
                       .timeout_ms = 1000,
                       .state = state,
                       .since_ns = since_ns};
    s.longest_ns[state] = longest_ms * MS;
    return s;
}

static void the_servers_own_work_may_take_twenty_times_the_timeout(void **state UNUSED)
{
    static const struct {
        enum server_state state;
        status code;
        const char *names;
    } works[] = {{STATE_EVALUATING, ERROR_PEER, "timeout_s"},
                 {STATE_PROBING, ERROR_PEER, "probe_every"},
                 {STATE_SAVING, ERROR_OTHER, "timeout_s"}};
    const struct ps_server_options o = {0};
    struct peer none;
    for (size_t i = 0; i < COUNT_OF(works); i++) {
        const uint64_t since = clock_ns();
        struct server s = working(&o, &none, works[i].state, since, 100);
        server_check_state(&s, since + 999 * MS);
        assert_false(s.late_named);
        server_check_state(&s, since + 1001 * MS);
        assert_true(s.late_named);
        server_check_state(&s, since + 19999ULL * MS);
        assert_int_equal(s.state, works[i].state);
        server_check_state(&s, since + 20001ULL * MS);
        assert_int_equal(s.state, STATE_LEAVING);
        assert_int_equal(s.result, works[i].code);
        assert_non_null(strstr(s.message, works[i].names));
    }
}

static void the_servers_own_work_may_take_twenty_times_the_longest_so_far(void **state UNUSED)
{
    const struct ps_server_options o = {0};
    const uint64_t since = clock_ns();
    struct peer none;
    struct server s = working(&o, &none, STATE_EVALUATING, since, 3000);
    server_check_state(&s, since + 59999ULL * MS);
    assert_int_equal(s.result, OK);
    server_check_state(&s, since + 60001ULL * MS);
    assert_int_equal(s.result, ERROR_PEER);
}

/* The follower gives signs of life, but no part of its slice comes. */
static void a_follower_owes_its_slice_for_twenty_times_the_timeout(void **state UNUSED)
{
    const struct ps_server_options o = {0};
    const uint64_t since = clock_ns();
    struct peer none;
    struct follower at[2] = {{0}, {.joined = true, .life = {.pidfd = -1}, .pid = 77}};
    struct server s = working(&o, &none, STATE_GATHERING, since, 0);
    s.servers = COUNT_OF(at);
    s.followers = (struct followers){.at = at, .vectors = 1};
    server_check_state(&s, since + 19999ULL * MS);
    assert_int_equal(s.result, OK);
    server_check_state(&s, since + 20001ULL * MS);
    assert_int_equal(s.result, ERROR_PEER);
    assert_true(at[1].lost);
    assert_non_null(strstr(s.message, "server 1"));
}

/* The end of a failed run does not wait so long for a slice. */
static void after_a_failure_a_slice_is_awaited_for_two_seconds(void **state UNUSED)
{
    const struct ps_server_options o = {0};
    const uint64_t since = clock_ns();
    struct peer none;
    struct follower at[2] = {{0}, {.joined = true, .life = {.pidfd = -1}}};
    struct server s = working(&o, &none, STATE_GATHERING, since, 0);
    s.servers = COUNT_OF(at);
    s.followers = (struct followers){.at = at, .vectors = 1};
    s.result = ERROR_DIVERGED;
    server_check_state(&s, since + 1999ULL * MS);
    assert_false(at[1].lost);
    server_check_state(&s, since + 2001ULL * MS);
    assert_true(at[1].lost);
    assert_int_equal(s.result, ERROR_DIVERGED);
}

/* A paused container. */
static void time_in_which_the_process_did_not_run_does_not_count(void **state UNUSED)
{
    const struct ps_server_options o = {.workers = 1};
    const uint64_t since = clock_ns(), now = since + 3600000ULL * MS;
    struct peer one = {.state = PEER_READY, .life = {.pidfd = -1, .heard_ns = since}};
    struct server s = working(&o, &one, STATE_EVALUATING, since, 100);
    server_was_away(&s, 3600000ULL * MS, now);
    server_check_state(&s, now + 500 * MS);
    peers_tick(&s, now + 500 * MS);
    assert_int_equal(s.result, OK);
    assert_int_equal(one.state, PEER_READY);
    s.lost_ends_run = true;
    peers_tick(&s, now + 1001 * MS);
    assert_int_equal(s.result, ERROR_PEER);
}

/* A push that waited during a pause of an hour may be handled before or after the next tick. */
static void a_step_is_not_longer_by_a_pause_of_the_server(void **state UNUSED)
{
    const struct ps_server_options o = {.workers = 1};
    const struct channel_received r = {.message = {.type = WIRE_PUSH, .push.samples = 1}};
    for (int ticks = 0; ticks < 2; ticks++) {
        const uint64_t now = clock_ns(), pause_ns = 3600000ULL * MS;
        struct event queue[1];
        struct peer one = {.state = PEER_READY,
                           .life = {.pidfd = -1},
                           .shared = true,
                           .released = true,
                           .released_ns = now - pause_ns - 100 * MS};
        struct server s = working(&o, &one, STATE_TRAINING, now, 0);
        s.queue = queue;
        s.queue_size = s.push_samples = 1;
        s.ticked_ns = now - pause_ns;
        if (ticks == 1) {
            server_was_away(&s, pause_ns, now);
            s.ticked_ns = now;
        }
        peers_handle(&s, CHANNEL_MESSAGE, &r);
        assert_int_equal(s.queue_count, 1);
        assert_true(s.longest_step_ns < pause_ns);
        assert_true((s.longest_step_ns >= 100 * MS) == (ticks == 1));
    }
}

/* An evaluation takes 8 core seconds. Beside training it may last as long as the training until the
 * next evaluation plus a pause for an evaluation on all cores. */
static void an_evaluation_goes_beside_training_if_that_is_shorter(void **state UNUSED)
{
    const double all = processor_count();
    const struct {
        unsigned free;
        double since_last; /* training seconds */
        bool cpu, expected;
        int pause;
    } cases[] = {
        {0, 100, true, false, PAUSE_AUTO},          {1, 100, true, true, PAUSE_AUTO},
        {1, 100, false, false, PAUSE_AUTO},         {1, 7.9 - 8 / all, true, false, PAUSE_AUTO},
        {1, 8.1 - 8 / all, true, true, PAUSE_AUTO}, {4, 2, true, true, PAUSE_AUTO},
        {1, 100, true, false, PAUSE_YES},           {0, 0, false, true, PAUSE_NO},
    };
    struct core_bench b;
    bench_open(&b, (struct server_core_options){.workers = 1}, RIG("damping=none"));
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        const struct ps_server_options o = {.count = 10, .evaluates_on_cores = cases[i].cpu};
        struct server s = {.o = &o, .core = b.rig.core, .threads = 1, .evaluation_work = 8};
        s.evaluation_pause = cases[i].pause;
        s.before_ns = (uint64_t)(1e9 * (50 + cases[i].since_last)); /* the training clock */
        s.evaluated.seconds = 50;
        if (server_may_evaluate_beside(&s, cases[i].free) != cases[i].expected)
            fail_msg("case %zu", i);
        s.evaluation_work = 0; /* the first evaluation measures the work */
        assert_int_equal(server_may_evaluate_beside(&s, cases[i].free), cases[i].pause == PAUSE_NO);
        memory_free(s.copy);
    }
    core_rig_close(&b.rig);
}

static void a_hanging_evaluation_does_not_delay_the_end(void **state UNUSED)
{
    background *e = begin_to_hang();
    const unsigned before = atomic_load(&ended);
    assert_int_equal(threads_abandoned(), 0);
    background_close(&e);
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
        cmocka_unit_test(a_worker_hangs_after_twenty_times_the_timeout),
        cmocka_unit_test(a_worker_hangs_after_twenty_of_the_longest_steps),
        cmocka_unit_test(after_the_begin_a_worker_may_take_twenty_times_the_timeout_to_join),
        cmocka_unit_test(a_follower_does_not_judge_hanging_workers),
        cmocka_unit_test(a_late_gradient_is_named_after_the_timeout),
        cmocka_unit_test(the_training_clock_stops_during_the_servers_own_work),
        cmocka_unit_test(the_servers_own_work_may_take_twenty_times_the_timeout),
        cmocka_unit_test(the_servers_own_work_may_take_twenty_times_the_longest_so_far),
        cmocka_unit_test(a_follower_owes_its_slice_for_twenty_times_the_timeout),
        cmocka_unit_test(after_a_failure_a_slice_is_awaited_for_two_seconds),
        cmocka_unit_test(time_in_which_the_process_did_not_run_does_not_count),
        cmocka_unit_test(a_step_is_not_longer_by_a_pause_of_the_server),
        cmocka_unit_test(an_evaluation_goes_beside_training_if_that_is_shorter),
        cmocka_unit_test(a_hanging_evaluation_does_not_delay_the_end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
