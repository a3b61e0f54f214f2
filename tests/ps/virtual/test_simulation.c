/*
 * Several servers in one process (ps/virtual/simulation.h) with events in random orders. Each
 * server must do the same as the naive model of a core with its slice. A worker's gradient must be
 * that of its next batch at the parameters of the servers' releases, torn or not. Workers are lost
 * and join again, at each server at another time. So do late workers (key workers.max). Also
 * replays whose events do not fit their rules.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "base/sha256.h"
#include "experiments/config/config.h"
#include "ps/virtual/replay.h"
#include "ps/core/slices.h"
#include "tests/ps/core/core_model.h"
#include "tests/ps/core/core_rig.h"
#include "tests/ps/rules/rule_combinations.h"

enum { SERVERS = 3, ROWS = 64, EVENTS = 1500 };

#ifdef GRADLAG_SANITIZE
enum { EPISODES = 10 };
#else
enum { EPISODES = 60 };
#endif

/* The expected state of a worker. */
struct expected_worker {
    bool computing; /* all servers have released the worker; then these are valid: */
    float read[MODEL_COUNT], gradient[MODEL_COUNT];
    struct step_stats stats;
    uint64_t sequence, batch;
    bool may_push[SERVERS], handed[SERVERS];
    bool lost[SERVERS];
};

struct simulation_episode {
    uint64_t seed, random, events;
    unsigned servers, workers, workers_max; /* with late workers */
    size_t count, begin[SERVERS];
    options *settings;
    gradient_pool *pool;
    worker *own;
    worker_shard *shard[MODEL_WORKERS];
    simulation *simulation;
    struct core_model model[SERVERS];
    struct expected_worker worker[MODEL_WORKERS];
    struct push_record row[ROWS];
    size_t rows;
    uint64_t torn, updates;
};

static uint64_t below(struct simulation_episode *e, uint64_t bound)
{
    return core_rig_random(&e->random) % bound;
}

#define CHECK(e, condition)                                                                        \
    do {                                                                                           \
        if (!(condition))                                                                          \
            fail_msg("seed %llu, event %llu: %s", (unsigned long long)(e)->seed,                   \
                     (unsigned long long)(e)->events, #condition);                                 \
    } while (0)

/* ---- callbacks of the simulation---- */

static void released(void *context, unsigned server, unsigned w, bool everywhere)
{
    (void)context;
    (void)server;
    (void)w;
    (void)everywhere;
}

static void record(void *context, struct push_record *row)
{
    struct simulation_episode *e = context;
    REQUIRE(e->rows < ROWS);
    e->row[e->rows++] = *row;
}

/* ---- the expected state---- */

static bool close_to(double a, double b)
{
    return (isnan(a) && isnan(b)) || fabs(a - b) <= 1e-5 * fmax(1e-3, fabs(b));
}

static void compare_rows(struct simulation_episode *e, unsigned server)
{
    const struct core_model *m = &e->model[server];
    size_t next = 0;
    for (size_t i = 0; i < m->expected_count; i++) {
        const struct push_record *b = &m->expected[i].record, *a = &e->row[next];
        if (m->expected[i].kind != SERVER_RECORD)
            continue;
        CHECK(e, next < e->rows && a->server == server);
        CHECK(e, a->worker == b->worker && a->sequence == b->sequence && a->batch == b->batch);
        CHECK(e, a->read_version == b->read_version && a->staleness == b->staleness);
        CHECK(e, a->outcome == b->outcome && a->update_version == b->update_version);
        CHECK(e, a->arrival == b->arrival && a->scale == b->scale && a->loss == b->loss);
        CHECK(e, b->outcome == PUSH_DROPPED_LATE || close_to(a->gradient_norm, b->gradient_norm));
        CHECK(e, b->outcome == PUSH_DROPPED_LATE || close_to(a->gap, b->gap));
        next++;
    }
    CHECK(e, next == e->rows);
    e->rows = 0;
}

/* In this test a worker computes as soon as all servers have released it. */
static void begin_computing(struct simulation_episode *e, unsigned w)
{
    struct expected_worker *x = &e->worker[w];
    uint64_t least = UINT64_MAX, most = 0;
    for (unsigned i = 0; i < e->servers; i++) {
        const struct model_worker *v = &e->model[i].worker[w];
        if (!v->computing || v->next != x->sequence || x->lost[i])
            return;
        memcpy(x->read + e->begin[i], v->read, e->model[i].count * sizeof(float));
        least = v->version < least ? v->version : least;
        most = v->version > most ? v->version : most;
    }
    assert_int_equal(
        worker_gradient_as(e->own, e->shard[w], x->read, x->batch, x->gradient, &x->stats), OK);
    x->computing = true;
    memset(x->handed, 0, sizeof x->handed);
    e->torn += most > least;
}

static void end_computing(struct simulation_episode *e, unsigned w)
{
    struct expected_worker *x = &e->worker[w];
    for (unsigned i = 0; i < e->servers; i++)
        if (!x->handed[i] && !x->lost[i])
            return;
    x->computing = false;
    x->sequence++;
    x->batch++;
}

static void after_event(struct simulation_episode *e, unsigned server)
{
    struct core_model *m = &e->model[server];
    for (size_t i = 0; i < m->expected_count; i++)
        e->updates += m->expected[i].kind == SERVER_APPLIED;
    compare_rows(e, server);
    if (m->evaluating)
        model_evaluated(m);
    for (unsigned w = 0; w < e->workers_max && !m->ended; w++)
        if (!e->worker[w].computing)
            begin_computing(e, w);
}

/* ---- events ---- */

static void hello(struct simulation_episode *e, unsigned w)
{
    e->worker[w].sequence = 0;
    for (unsigned i = e->servers; i-- > 0;) {
        e->worker[w].lost[i] = false;
        model_hello(&e->model[i], w);
        assert_int_equal(simulation_hello(e->simulation, i, w, (double)e->events), OK);
        after_event(e, i);
    }
}

static void lose(struct simulation_episode *e, unsigned server, unsigned w)
{
    struct expected_worker *x = &e->worker[w];
    bool everywhere = true, handed = false;
    x->lost[server] = true;
    for (unsigned i = 0; i < e->servers; i++) {
        everywhere = everywhere && x->lost[i];
        handed = handed || (x->computing && x->handed[i]);
    }
    if (everywhere) {
        x->batch += handed;
        x->computing = false;
    }
    model_lost(&e->model[server], w);
    assert_int_equal(simulation_lost(e->simulation, server, w, (double)e->events), OK);
    after_event(e, server);
}

static void push(struct simulation_episode *e, unsigned server, unsigned w)
{
    struct expected_worker *x = &e->worker[w];
    struct simulation_times times = {.at_seconds = (double)e->events, .compute_us = 10 + w};
    struct server_push given = {.worker = w,
                                .sequence = x->sequence,
                                .read_version = e->model[server].worker[w].version,
                                .batch = x->batch,
                                .gradient = x->gradient + e->begin[server],
                                .samples = x->stats.samples,
                                .loss = (double)x->stats.loss,
                                .compute_us = times.compute_us,
                                .at_seconds = times.at_seconds};
    CHECK(e, model_push(&e->model[server], &given));
    x->handed[server] = true;
    end_computing(e, w);
    assert_int_equal(simulation_push(e->simulation, server, w, &times), OK);
    after_event(e, server);
}

static bool can_push(const struct simulation_episode *e, unsigned server, unsigned w)
{
    const struct expected_worker *x = &e->worker[w];
    return x->computing && !x->handed[server] && !x->lost[server];
}

static bool is_lost_everywhere(const struct simulation_episode *e, unsigned w)
{
    bool all = true;
    for (unsigned i = 0; i < e->servers; i++)
        all = all && e->worker[w].lost[i];
    return all;
}

static bool is_lost_somewhere(const struct simulation_episode *e, unsigned w)
{
    bool any = false;
    for (unsigned i = 0; i < e->servers; i++)
        any = any || e->worker[w].lost[i];
    return any;
}

/* If one server has lost a worker, the others soon lose it, too. */
static void one_event(struct simulation_episode *e)
{
    unsigned w = (unsigned)below(e, e->workers_max), server = (unsigned)below(e, e->servers);
    uint64_t dice = below(e, 100);
    e->events++;
    for (unsigned i = 0; i < e->servers; i++)
        for (unsigned v = 0; v < e->workers_max; v++)
            CHECK(e, simulation_may_push(e->simulation, i, v) == can_push(e, i, v));
    if (dice < 20) {
        (void)simulation_prepare(e->simulation, w);
    } else if (is_lost_everywhere(e, w)) {
        if (w < e->workers || below(e, 30) == 0)
            hello(e, w);
    } else if (dice < 25 || (dice < 60 && is_lost_somewhere(e, w))) {
        if (!e->worker[w].lost[server])
            lose(e, server, w);
    } else if (can_push(e, server, w)) {
        push(e, server, w);
    }
}

/* ---- episodes ---- */

static options *composed(const char *const *settings)
{
    struct settings s = {0};
    options *o = NULL;
    for (; *settings != NULL; settings++) {
        char key[64];
        const char *equals = strchr(*settings, '=');
        snprintf(key, sizeof key, "%.*s", (int)(equals - *settings), *settings);
        settings_add(&s, key, equals + 1, "test");
    }
    status code = config_compose(&o, &s);
    settings_free(&s);
    return code == OK ? o : NULL;
}

#define SMALL                                                                                      \
    "dataset=gaussian", "dataset.size=2", "dataset.channels=1", "dataset.classes=3",               \
        "dataset.samples=300", "model=softmax", "batch=4", "samples=1200", "engine=virtual",       \
        "pace=constant", "lr=0.05"

/* Returns NULL if the rules do not fit together. Key read has no effect here: the test decides the
 * order of events. */
static options *any_settings(struct simulation_episode *e, const struct combination *c)
{
    char workers[24], servers[24];
    struct combination_settings s = settings_of(c);
    snprintf(workers, sizeof workers, "workers=%u", e->workers);
    snprintf(servers, sizeof servers, "servers=%u", e->servers);
    return composed((const char *const[]){SMALL, workers, servers, s.text[0], s.text[1], s.text[2],
                                          s.text[4], NULL});
}

static void open_models(struct simulation_episode *e)
{
    float initial[MODEL_COUNT];
    e->own = gradient_pool_own(e->pool);
    e->count = worker_parameter_count(e->own);
    assert_in_range(e->count, SERVERS, MODEL_COUNT);
    assert_int_equal(worker_initial_parameters(e->own, initial, e->count), OK);
    for (unsigned w = 0; w < e->workers_max; w++)
        assert_int_equal(worker_shard_open(&e->shard[w], e->own, e->settings, w, e->workers), OK);
    struct slices slices;
    slices_cut(&slices, e->servers, e->count, NULL);
    for (unsigned i = 0; i < e->servers; i++) {
        struct core_model *m = &e->model[i];
        e->begin[i] = slices.begin[i];
        m->workers = e->workers;
        m->workers_max = e->workers_max;
        m->count = slice_count(&slices, i);
        m->total = 1200;
        m->follows = i > 0;
        m->optimizer.layers = 1;
        m->optimizer.layer[0] = (struct optimizer_layer){.count = m->count};
        model_begin(m, e->settings, initial + e->begin[i], worker_epoch_samples(e->own));
    }
}

static bool open_episode(struct simulation_episode *e, uint64_t seed)
{
    struct combination c = combination_of(seed * 37);
    memset(e, 0, sizeof *e);
    e->seed = e->random = seed;
    e->workers = e->workers_max = 2 + (unsigned)below(e, 5);
    if (!c.policy->holds) /* late_workers_check() */
        e->workers_max += (unsigned)below(e, 3);
    e->servers = 2 + (unsigned)below(e, SERVERS - 1);
    e->settings = c.outer == NULL && combination_is_valid(&c) ? any_settings(e, &c) : NULL;
    if (e->settings == NULL)
        return false;
    assert_int_equal(gradient_pool_open(&e->pool, e->settings, e->workers, e->workers_max, 2, NULL),
                     OK);
    open_models(e);
    struct simulation_options setup = {.settings = e->settings,
                                       .pool = e->pool,
                                       .workers = e->workers,
                                       .workers_max = e->workers_max,
                                       .length = {.total_samples = 1200},
                                       .context = e,
                                       .released = released,
                                       .record = record};
    assert_int_equal(simulation_open(&e->simulation, &setup), OK);
    return true;
}

static void close_episode(struct simulation_episode *e)
{
    struct training_outcome outcome;
    struct sha256 sum;
    char expected[sizeof outcome.parameters_sha256];
    simulation_outcome(e->simulation, 0, &outcome);
    sha256_begin(&sum);
    for (unsigned i = 0; i < e->servers; i++)
        sha256_add(&sum, e->model[i].theta, e->model[i].count * sizeof(float));
    sha256_end(&sum, expected);
    CHECK(e, strcmp(outcome.parameters_sha256, expected) == 0);
    simulation_close(&e->simulation);
    for (unsigned w = 0; w < e->workers_max; w++)
        worker_shard_close(&e->shard[w]);
    gradient_pool_close(&e->pool);
    options_close(&e->settings);
}

/* Late workers count as lost until they join. */
static void begin(struct simulation_episode *e)
{
    for (unsigned w = 0; w < e->workers; w++)
        hello(e, w);
    for (unsigned w = e->workers; w < e->workers_max; w++)
        for (unsigned i = 0; i < e->servers; i++)
            lose(e, i, w);
}

static void each_server_does_the_same_as_a_core_with_its_slice(void **state)
{
    (void)state;
    static struct simulation_episode e;
    uint64_t updates = 0, torn = 0, played = 0;
    for (uint64_t seed = 1; played < EPISODES; seed++) {
        if (!open_episode(&e, seed))
            continue;
        begin(&e);
        while (e.events < EVENTS && !e.model[0].ended)
            one_event(&e);
        updates += e.updates;
        torn += e.torn;
        played++;
        close_episode(&e);
    }
    print_message("%llu updates, %llu gradients at torn reads\n", (unsigned long long)updates,
                  (unsigned long long)torn);
    assert_true(updates > 50 * EPISODES && torn > 10 * EPISODES);
}

/* ---- a replay under a rule that lets workers wait ---------------------------------------------
 */

/* A sum of the evaluated parameters that depends on their order. */
enum { SEEN_MOST = 8 };
struct simulation_seen {
    size_t count, parameters;
    double sum[SEEN_MOST];
};

static status evaluate(void *context, const float *parameters, unsigned threads UNUSED,
                       struct evaluation *out)
{
    struct simulation_seen *s = context;
    assert_true(s->count < SEEN_MOST);
    s->sum[s->count] = 0;
    for (size_t i = 0; i < s->parameters; i++)
        s->sum[s->count] += (double)(i + 1) * (double)parameters[i];
    s->count++;
    *out = (struct evaluation){0};
    return OK;
}

/* Under consistency=bsp some pushes, such as worker 0's second one, come from blocked workers. */
static void replay_under(const char *consistency, const char *servers, struct simulation_seen *seen,
                         struct training_outcome *out)
{
    static const unsigned pushes[] = {0, 0, 1, 0, 1, 1, 0, 0, 1};
    enum { WORKERS = 2, COUNT = COUNT_OF(pushes) };
    struct push_record rows[COUNT];
    struct replay_event events[WORKERS + COUNT];
    struct replay_events of[SERVERS];
    struct replay_difference difference;
    options *o = composed(
        (const char *const[]){SMALL, consistency, "momentum=0.9", "workers=2", servers, NULL});
    gradient_pool *pool = NULL;
    assert_non_null(o);
    assert_int_equal(gradient_pool_open(&pool, o, WORKERS, 0, 1, NULL), OK);
    *seen = (struct simulation_seen){.parameters = worker_parameter_count(gradient_pool_own(pool))};
    for (unsigned i = 0; i < WORKERS; i++)
        events[i] = (struct replay_event){.kind = REPLAY_JOINED, .worker = i};
    for (unsigned i = 0; i < COUNT; i++) {
        rows[i] = (struct push_record){.worker = pushes[i], .at_seconds = i};
        events[WORKERS + i] = (struct replay_event){
            .kind = REPLAY_PUSH, .worker = pushes[i], .number = i, .recorded = &rows[i]};
    }
    for (unsigned i = 0; i < SERVERS; i++)
        of[i] = (struct replay_events){events, COUNT_OF(events)};
    struct replay_options asked = {.settings = o,
                                   .pool = pool,
                                   .workers = WORKERS,
                                   .length = {.total_samples = 1200, .evaluate_every = 8},
                                   .hooks = {.context = seen, .evaluate = evaluate},
                                   .servers = of,
                                   .server_count = servers_of(o),
                                   .lockstep = true};
    assert_int_equal(replay_run(&asked, out, &difference), OK);
    gradient_pool_close(&pool);
    options_close(&o);
}

static void a_skipped_arrival_is_skipped_at_every_server(void **state)
{
    (void)state;
    struct training_outcome one, several;
    struct simulation_seen seen;
    replay_under("consistency=bsp", "servers=1", &seen, &one);
    assert_int_equal(one.updates, 4);
    replay_under("consistency=bsp", "servers=3", &seen, &several);
    assert_int_equal(several.updates, one.updates);
    assert_string_equal(several.parameters_sha256, one.parameters_sha256);
}

/* If each gradient is an update, no server has a gradient that server 0 does not have. */
static void at_an_evaluation_all_servers_had_the_same_events(void **state)
{
    (void)state;
    struct training_outcome outcome;
    struct simulation_seen one, several;
    replay_under("consistency=asp", "servers=1", &one, &outcome);
    assert_int_equal(one.count, 5); /* of 9 updates every second, and the end */
    replay_under("consistency=asp", "servers=3", &several, &outcome);
    assert_int_equal(several.count, one.count);
    for (size_t i = 0; i < one.count; i++)
        assert_true(several.sum[i] == one.sum[i]);
}

/* ---- the order of events --------------------------------------------------------------------- */

/* A worker that was there when training began has one event: its first joining. */
static void a_worker_that_rejoined_before_training_began_takes_part(void **state)
{
    (void)state;
    static const struct replay_member_event member_events[] = {{.worker = 0, .joined = true},
                                                               {.worker = 1, .joined = true},
                                                               {.worker = 1, .joined = false},
                                                               {.worker = 1, .joined = true}};
    struct replay_recording recording = {.member_events = member_events,
                                         .member_event_count = COUNT_OF(member_events),
                                         .workers_max = 2,
                                         .finished = true};
    struct replay_event *events = NULL;
    size_t count = 0;
    bool here[2] = {false, false};
    assert_int_equal(replay_order(&recording, &events, &count), OK);
    assert_int_equal(count, COUNT_OF(member_events));
    for (size_t i = 0; i < count; i++) {
        assert_true(here[events[i].worker] == (events[i].kind == REPLAY_LOST));
        here[events[i].worker] = events[i].kind == REPLAY_JOINED;
    }
    assert_true(here[0] && here[1]);
    memory_free(events);
}

/* Worker 1 may join later but does not, so it begins as lost. Worker 2 joins after two pushes. */
static void a_late_worker_begins_as_lost(void **state)
{
    (void)state;
    static const struct replay_row rows[] = {{.record = {.arrival = 0}},
                                             {.record = {.arrival = 1}},
                                             {.record = {.arrival = 2, .worker = 2}}};
    static const struct replay_member_event member_events[] = {
        {.worker = 0, .joined = true}, {.push_number = 2, .worker = 2, .joined = true}};
    static const struct {
        enum replay_kind kind;
        unsigned worker;
    } expected[] = {{REPLAY_JOINED, 0}, {REPLAY_LOST, 1},   {REPLAY_LOST, 2}, {REPLAY_PUSH, 0},
                    {REPLAY_PUSH, 0},   {REPLAY_JOINED, 2}, {REPLAY_PUSH, 2}};
    struct replay_recording recording = {.rows = rows,
                                         .row_count = COUNT_OF(rows),
                                         .member_events = member_events,
                                         .member_event_count = COUNT_OF(member_events),
                                         .workers_max = 3,
                                         .finished = true};
    struct replay_event *events = NULL;
    size_t count = 0;
    assert_int_equal(replay_order(&recording, &events, &count), OK);
    assert_int_equal(count, COUNT_OF(expected));
    for (size_t i = 0; i < count; i++) {
        assert_int_equal(events[i].kind, expected[i].kind);
        assert_int_equal(events[i].worker, expected[i].worker);
    }
    memory_free(events);
    recording.workers_max = 2;
    assert_int_equal(replay_order(&recording, &events, &count), ERROR_DATA);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_server_does_the_same_as_a_core_with_its_slice),
        cmocka_unit_test(a_skipped_arrival_is_skipped_at_every_server),
        cmocka_unit_test(at_an_evaluation_all_servers_had_the_same_events),
        cmocka_unit_test(a_worker_that_rejoined_before_training_began_takes_part),
        cmocka_unit_test(a_late_worker_begins_as_lost),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
