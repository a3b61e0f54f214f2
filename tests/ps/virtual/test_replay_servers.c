/*
 * Replays of several servers that ended at different places of their orders: a replay repeats the
 * events of each server until it learned of the end.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#include "experiments/config/config.h"
#include "ps/virtual/replay.h"

enum { SERVERS = 2, WORKERS = 2, PUSHES = 3, EVENTS = 16 };

/* ---- a run --------------------------------------------------------------------------------------
 */

struct replay_servers_event {
    unsigned server;
    enum replay_kind kind;
    unsigned worker;
};

struct replay_servers_run {
    options *settings;
    gradient_pool *pool;
    struct push_record row[SERVERS][WORKERS][PUSHES];
    unsigned rows[SERVERS][WORKERS];
    struct training_outcome outcome;
};

static void open_run(struct replay_servers_run *r, uint64_t samples)
{
    static const char *const own[][2] = {
        {"dataset", "gaussian"},  {"dataset.size", "2"}, {"dataset.channels", "1"},
        {"dataset.classes", "3"}, {"model", "softmax"},  {"dataset.samples", "300"},
        {"batch", "4"},           {"workers", "2"},      {"servers", "2"},
        {"read", "torn"},         {"engine", "virtual"}, {"pace", "constant"},
        {"consistency", "bsp"}};
    struct settings s = {0};
    char total[24];
    memset(r, 0, sizeof *r);
    for (size_t i = 0; i < COUNT_OF(own); i++)
        settings_add(&s, own[i][0], own[i][1], "test");
    snprintf(total, sizeof total, "%llu", (unsigned long long)samples);
    settings_add(&s, "samples", total, "test");
    if (config_compose(&r->settings, &s) != OK)
        fail_msg("%s", error_message());
    settings_free(&s);
    assert_int_equal(gradient_pool_open(&r->pool, r->settings, WORKERS, 0, 1, NULL), OK);
}

static void close_run(struct replay_servers_run *r)
{
    gradient_pool_close(&r->pool);
    options_close(&r->settings);
}

static void released(void *context UNUSED, unsigned server UNUSED, unsigned w UNUSED,
                     bool everywhere UNUSED)
{
}

static void record(void *context, struct push_record *row)
{
    struct replay_servers_run *r = context;
    unsigned *count = &r->rows[row->server][row->worker];
    assert_true(*count < PUSHES);
    r->row[row->server][row->worker][(*count)++] = *row;
}

static status one(simulation *s, const struct replay_servers_event *e)
{
    const struct simulation_times none = {0};
    switch (e->kind) {
    case REPLAY_JOINED:
        return simulation_hello(s, e->server, e->worker, 0);
    case REPLAY_LOST:
        return simulation_lost(s, e->server, e->worker, 0);
    case REPLAY_END:
        return simulation_end(s, e->server);
    case REPLAY_PUSH:
        break;
    }
    assert_true(simulation_may_push(s, e->server, e->worker));
    return simulation_push(s, e->server, e->worker, &none);
}

static void make_run(struct replay_servers_run *r, const struct replay_servers_event *events,
                     size_t count, uint64_t samples)
{
    simulation *s = NULL;
    open_run(r, samples);
    struct simulation_options how = {.settings = r->settings,
                                     .pool = r->pool,
                                     .workers = WORKERS,
                                     .length = {.total_samples = samples},
                                     .context = r,
                                     .released = released,
                                     .record = record};
    assert_int_equal(simulation_open(&s, &how), OK);
    for (size_t i = 0; i < count; i++)
        assert_int_equal(one(s, &events[i]), OK);
    assert_true(simulation_ended(s));
    simulation_outcome(s, 0, &r->outcome);
    simulation_close(&s);
}

/* ---- and its replay ------------------------------------------------------------------------ */

static void expect_replayed(struct replay_servers_run *r, const struct replay_servers_event *events,
                            size_t count, uint64_t samples)
{
    struct replay_event room[SERVERS][EVENTS];
    struct replay_events of[SERVERS];
    struct replay_difference difference;
    struct training_outcome outcome;
    for (unsigned server = 0; server < SERVERS; server++) {
        unsigned pushes[WORKERS] = {0};
        size_t n = 0;
        for (size_t i = 0; i < count; i++) {
            const struct replay_servers_event *e = &events[i];
            if (e->server != server)
                continue;
            assert_true(n < EVENTS);
            room[server][n] =
                (struct replay_event){.kind = e->kind, .worker = e->worker, .number = i};
            if (e->kind == REPLAY_PUSH)
                room[server][n].recorded = &r->row[server][e->worker][pushes[e->worker]++];
            n++;
        }
        of[server] = (struct replay_events){room[server], n};
    }
    struct replay_options how = {.settings = r->settings,
                                 .pool = r->pool,
                                 .workers = WORKERS,
                                 .length = {.total_samples = samples},
                                 .servers = of,
                                 .server_count = SERVERS,
                                 .compares = true};
    assert_int_equal(replay_run(&how, &outcome, &difference), OK);
    if (difference.found)
        fail_msg("%s", difference.text);
    assert_string_equal(outcome.parameters_sha256, r->outcome.parameters_sha256);
}

/* Worker 1 was lost, so the last update at server 0 has worker 0's gradient alone, and ends the
 * run. Worker 1 joins server 1 again, which does not know the end yet and so holds worker 0's
 * gradient. */
static void a_worker_that_joined_after_the_end_at_server_0_joins_in_the_replay(void **state UNUSED)
{
    static const struct replay_servers_event events[] = {
        {0, REPLAY_JOINED, 0}, {0, REPLAY_JOINED, 1}, {1, REPLAY_JOINED, 0}, {1, REPLAY_JOINED, 1},
        {0, REPLAY_PUSH, 0},   {0, REPLAY_PUSH, 1},   {1, REPLAY_PUSH, 0},   {1, REPLAY_PUSH, 1},
        {1, REPLAY_LOST, 1},   {0, REPLAY_PUSH, 0},   {0, REPLAY_LOST, 1},   {1, REPLAY_JOINED, 1},
        {1, REPLAY_PUSH, 0},   {1, REPLAY_END, 0}};
    static struct replay_servers_run r;
    make_run(&r, events, COUNT_OF(events), 12);
    assert_int_equal(r.row[0][0][1].outcome, PUSH_APPLIED);
    assert_int_equal(r.row[1][0][1].outcome, PUSH_DROPPED_LATE);
    expect_replayed(&r, events, COUNT_OF(events), 12);
    close_run(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_worker_that_joined_after_the_end_at_server_0_joins_in_the_replay),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
