/*
 * Random event sequences under every valid combination of consistency × damping × (correction or
 * outer rule) with every optimizer. After each event the core's actions, counters and parameters
 * must equal those of the naive model in core_model.c, bit for bit, and its invariants C1 … C6 must
 * hold. Workers join, crash and join again; in some episodes there are late workers, too (key
 * workers.max). Pushes are repeated, out of order, malformed, not
 * finite or very large. A new rule takes part as soon as it is in its registry. A third of the
 * episodes split the parameters over several cores, which get the same events in one order, as
 * servers with read=snapshot do. Together they must equal the model, which has all parameters.
 *
 *   GRADLAG_PROPERTY_EVENTS=n   number of events (default 1 500 000, a tenth under sanitizers);
 *                               `make nightly` has 300 million, in two million sequences, with
 *                               another seed each time
 *   GRADLAG_PROPERTY_SEED=n     the first episode's seed; a failure prints the seed to use here
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/ps/core/core_episode.h"
#include "worker/optimizer/optimizer.h"

#ifdef GRADLAG_SANITIZE
enum { EVENTS = 150000 };
#else
enum { EVENTS = 1500000 };
#endif

#define CHECK(e, condition)                                                                        \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fail_msg("GRADLAG_PROPERTY_SEED=%" PRIu64 ", event %" PRIu64 ": %s", (e)->seed,        \
                     (e)->events, #condition);                                                     \
        }                                                                                          \
    } while (0)

static bool same(double a, double b)
{
    return a == b || (isnan(a) && isnan(b));
}

/* Parameters may become infinite: a gradient of 1e25 is finite, but a rule's result may not be. In
 * training the next gradient would end the run; here gradients are random. */
static bool close_to(double a, double b)
{
    return same(a, b) || fabs(a - b) <= 1e-5 * fmax(1e-3, fabs(b));
}

static void compare_record(struct episode *e, const struct push_record *a,
                           const struct push_record *b)
{
    CHECK(e, a->outcome == b->outcome);
    CHECK(e, a->worker == b->worker);
    CHECK(e, a->sequence == b->sequence);
    CHECK(e, a->read_version == b->read_version);
    CHECK(e, a->staleness == b->staleness);
    CHECK(e, a->update_version == b->update_version);
    CHECK(e, a->scale == b->scale);
    CHECK(e, a->arrival == b->arrival && a->batch == b->batch);
    CHECK(e, a->waited_for == b->waited_for && a->reason == b->reason);
    CHECK(e, same(a->rate, b->rate) && same(a->loss, b->loss));
    CHECK(e, a->pull_us == b->pull_us && a->compute_us == b->compute_us);
    CHECK(e, same(a->momentum, b->momentum) && same(a->total_momentum, b->total_momentum));
    CHECK(e, a->data_us == b->data_us && a->forward_us == b->forward_us);
    CHECK(e, a->backward_us == b->backward_us);
    CHECK(e, a->queue_us == b->queue_us && a->at_seconds == b->at_seconds);
    if (e->model.policy->even) /* C6 */
        CHECK(e, a->staleness == 0);
}

static bool is_measured(const struct push_record *r)
{
    return r->outcome != PUSH_DROPPED_LATE && r->outcome != PUSH_NOT_FINITE;
}

/* The measures of all slices add up to the measure of the whole vector. */
static void compare_measures(struct episode *e)
{
    const struct core_model *m = &e->model;
    size_t record = 0;
    for (size_t i = 0; i < m->expected_count; i++) {
        const struct push_record *b = &m->expected[i].record;
        bool counts = m->expected[i].kind == SERVER_RECORD;
        if (counts && is_measured(b)) {
            CHECK(e, close_to(sqrt(e->squares[record]), b->gradient_norm));
            CHECK(e, close_to(sqrt(e->gaps[record] / (double)m->count), b->gap));
        }
        record += counts;
    }
}

static void compare_action(struct episode *e, struct episode_host *h, const struct server_action *a,
                           const struct server_action *b, size_t *records)
{
    const struct core_model *m = &e->model;
    double norm = a->record.gradient_norm, gap = a->record.gap;
    CHECK(e, a->kind == b->kind);
    switch (a->kind) {
    case SERVER_RELEASE:
        CHECK(e, a->worker == b->worker && a->version == b->version);
        CHECK(e, a->samples == b->samples);
        CHECK(e, a->record.waited_for == b->record.waited_for);
        CHECK(e, a->slot < h->rig.slot_count);
        h->slot[a->worker] = a->slot;
        break;
    case SERVER_RECORD:
        CHECK(e, a->taken == b->taken);
        compare_record(e, &a->record, &b->record);
        CHECK(e, !is_measured(&a->record) || a->record.staleness > 0 || gap == 0);
        e->squares[*records] += norm * norm;
        e->gaps[(*records)++] += gap * gap * (double)h->count;
        break;
    case SERVER_APPLIED:
        CHECK(e, a->version == m->version); /* C1 */
        break;
    case SERVER_EVALUATE:
        CHECK(e, a->version == m->version);
        CHECK(e, a->slot == server_core_latest_slot(h->rig.core));
        break;
    case SERVER_DIVERGED:
        CHECK(e, a->worker == b->worker && a->record.worker == b->worker);
        break;
    case SERVER_FINISHED:
        break;
    }
}

static bool is_first(const struct episode *e, const struct episode_host *h)
{
    return h == e->host;
}

/* Index of the next expected action of this server. Only the first server evaluates. */
static size_t next_of(const struct episode *e, const struct episode_host *h, size_t next)
{
    const struct core_model *m = &e->model;
    while (!is_first(e, h) && next < m->expected_count &&
           (m->expected[next].kind == SERVER_EVALUATE || m->expected[next].kind == SERVER_FINISHED))
        next++;
    return next;
}

static void compare_actions(struct episode *e, struct episode_host *h,
                            struct server_actions actions)
{
    const struct core_model *m = &e->model;
    size_t next = next_of(e, h, 0), records = 0;
    h->released_count = 0;
    for (size_t i = 0; i < actions.count; i++) {
        const struct server_action *a = &actions.at[i];
        bool early = m->evaluating && a->kind == SERVER_RELEASE && !is_first(e, h);
        CHECK(e, early || next < m->expected_count);
        if (early) {
            h->slot[a->worker] = a->slot;
            h->released[h->released_count++] = *a;
        } else {
            compare_action(e, h, a, &m->expected[next], &records);
            next = next_of(e, h, next + 1);
        }
    }
    CHECK(e, next == m->expected_count);
}

/* Followers release workers before the first server's evaluation ends. The first server then
 * releases the same workers. */
static void compare_early_releases(struct episode *e, const struct episode_host *h)
{
    const struct core_model *m = &e->model;
    CHECK(e, h->released_count == m->expected_count);
    for (size_t i = 0; i < h->released_count; i++) {
        const struct server_action *a = &h->released[i], *b = &m->expected[i];
        CHECK(e, b->kind == SERVER_RELEASE && a->worker == b->worker);
        CHECK(e, a->version == b->version && a->record.waited_for == b->record.waited_for);
    }
}

/* C1, C3, C5: parameters and optimizer state equal those of the model after every event. */
static void compare_vectors(struct episode *e, const struct episode_host *h)
{
    const struct core_model *m = &e->model;
    const float *states[] = {m->optimizer.velocity, m->optimizer.squares};
    size_t count, bytes = h->count * sizeof(float);
    const float *state = server_core_optimizer_state(h->rig.core, &count);
    unsigned latest = server_core_latest_slot(h->rig.core);
    CHECK(e, memcmp(h->rig.slots[latest], m->theta + h->begin, bytes) == 0);
    CHECK(e, count <= 2 * h->count);
    for (size_t k = 0; k < count / h->count; k++)
        CHECK(e, memcmp(state + k * h->count, states[k] + h->begin, bytes) == 0);
    for (unsigned i = 0; i < m->workers_max; i++)
        if (m->worker[i].computing) /* C4 */
            CHECK(e, memcmp(h->rig.slots[h->slot[i]], m->worker[i].read + h->begin, bytes) == 0);
}

static void compare_states(struct episode *e, const struct episode_host *h)
{
    const struct core_model *m = &e->model;
    const server_core *c = h->rig.core;
    CHECK(e, server_core_version(c) == m->version);
    CHECK(e, server_core_samples_used(c) == m->used);
    CHECK(e, server_core_samples_computed(c) == m->computed);
    CHECK(e, server_core_ended(c) == m->ended);
    CHECK(e, server_core_arrivals(c) == e->accepted);
    for (unsigned i = 0; i < m->workers_max && (is_first(e, h) || !m->evaluating); i++)
        CHECK(e, server_core_awaits(c, i) == m->worker[i].computing);
    compare_vectors(e, h);
}

/* C1 and C2 of the model; every server equals it. */
static void count_records(struct episode *e)
{
    const struct core_model *m = &e->model;
    uint64_t held = 0;
    for (size_t i = 0; i < m->expected_count; i++) {
        e->records += m->expected[i].kind == SERVER_RECORD;
        e->applied += m->expected[i].kind == SERVER_APPLIED;
    }
    for (unsigned i = 0; i < m->workers_max; i++)
        held += m->worker[i].held;
    CHECK(e, m->version == e->applied);
    CHECK(e, e->accepted == e->records + held + m->taken_count);
}

/* True if a gradient was not finite in one slice only: then servers differ, and the run ends. */
static bool slices_disagree(const struct episode *e)
{
    const struct core_model *m = &e->model;
    for (size_t i = 0; e->servers > 1 && i < m->expected_count; i++) {
        const struct push_record *b = &m->expected[i].record;
        if (m->expected[i].kind == SERVER_RECORD && b->outcome == PUSH_NOT_FINITE &&
            b->reason != PUSH_BAD_LOSS)
            return true;
    }
    return false;
}

static struct server_push valid_push(struct episode *e, unsigned worker)
{
    const struct model_worker *w = &e->model.worker[worker];
    struct server_push push = {.worker = worker,
                               .sequence = w->next,
                               .read_version = w->version,
                               .batch = below(e, 1000),
                               .gradient = e->gradient[worker],
                               .samples = 1 + (uint32_t)below(e, 9),
                               .loss = (double)below(e, 1000) / 100,
                               .pull_us = (double)below(e, 1000),
                               .compute_us = (double)below(e, 1000),
                               .queue_us = (double)below(e, 1000),
                               .data_us = (double)e->events,
                               .forward_us = (double)e->events + 1,
                               .backward_us = (double)e->events + 2,
                               .at_seconds = (double)e->events};
    if (w->computing)
        core_rig_fill(e->gradient[worker], e->model.count, core_rig_random(&e->random));
    return push;
}

static void corrupt(struct episode *e, struct server_push *push)
{
    switch (below(e, 6)) {
    case 0:
        push->sequence -= 1 + below(e, 3); /* a duplicate; from 0 it wraps around */
        break;
    case 1:
        push->sequence += 1 + below(e, 3);
        break;
    case 2:
        push->read_version += 1 + below(e, 3);
        break;
    case 3:
        push->read_version -= 1 + below(e, 3);
        break;
    case 4:
        push->worker = (unsigned)(e->model.workers_max + below(e, 3));
        break;
    case 5:
        push->samples = 0;
        break;
    }
}

static void push_event(struct episode *e, bool right)
{
    unsigned worker = (unsigned)below(e, e->model.workers_max);
    for (unsigned i = 0; right && i < e->model.workers_max; i++) { /* a worker that computes */
        if (e->model.worker[worker].computing)
            break;
        worker = (worker + 1) % e->model.workers_max;
    }
    struct server_push push = valid_push(e, worker);
    if (!right) {
        corrupt(e, &push);
    } else if (e->servers == 1 && below(e, 3000) == 0 && e->model.worker[worker].computing) {
        static const float bad[] = {NAN, INFINITY, -INFINITY};
        e->gradient[worker][below(e, e->model.count)] = bad[below(e, 3)];
    } else if (below(e, 6000) == 0) {
        push.loss = NAN;
    } else if (e->servers == 1 && below(e, 2000) == 0 && e->model.worker[worker].computing) {
        e->gradient[worker][below(e, e->model.count)] = 1e25f; /* finite; its square is not */
    }
    bool fresh =
        push.worker < e->model.workers_max && push.sequence == e->model.worker[push.worker].next;
    bool allowed = model_push(&e->model, &push);
    e->accepted += allowed && fresh;
    e->accepted_late += allowed && fresh && push.worker >= e->model.workers;
    e->over = slices_disagree(e);
    for (unsigned i = e->servers; i-- > 0 && !e->over;) {
        struct episode_host *h = &e->host[i];
        struct server_push part = push;
        struct server_actions actions;
        part.gradient += push.worker < e->model.workers_max ? h->begin : 0;
        CHECK(e, server_core_push(h->rig.core, &part, &actions) == (allowed ? OK : ERROR_PROTOCOL));
        compare_actions(e, h, actions);
    }
}

/* Followers do not get this event, except at the end of training. */
static void evaluated(struct episode *e)
{
    model_evaluated(&e->model);
    compare_actions(e, e->host, server_core_evaluated(e->host[0].rig.core));
    e->over = e->servers > 1 && e->model.complete;
    for (unsigned i = 1; i < e->servers && !e->over; i++)
        compare_early_releases(e, &e->host[i]);
}

typedef struct server_actions worker_event(server_core *core, unsigned worker);

static struct server_actions end(server_core *core, unsigned worker UNUSED)
{
    return server_core_end(core);
}

/* Contract: the model has had the event. The first server is last, as in ps/virtual/. */
static void feed_all(struct episode *e, worker_event *event, unsigned worker)
{
    e->over = slices_disagree(e);
    for (unsigned i = e->servers; i-- > 0 && !e->over;)
        compare_actions(e, &e->host[i], event(e->host[i].rig.core, worker));
}

static void random_event(struct episode *e)
{
    unsigned worker = (unsigned)below(e, e->model.workers_max);
    uint64_t random_number = below(e, 100);
    e->events++;
    memset(e->squares, 0, sizeof e->squares);
    memset(e->gaps, 0, sizeof e->gaps);
    if (e->model.evaluating) {
        evaluated(e);
    } else if (random_number < 80) {
        push_event(e, true);
    } else if (random_number < 90) {
        push_event(e, false);
    } else if (random_number < 97 || (random_number == 99 && below(e, 40) > 0)) {
        model_hello(&e->model, worker);
        feed_all(e, server_core_hello, worker);
    } else if (random_number < 99) {
        model_lost(&e->model, worker);
        feed_all(e, server_core_lost, worker);
    } else {
        model_end(&e->model);
        feed_all(e, end, worker);
    }
    count_records(e);
    if (!e->over)
        compare_measures(e);
    for (unsigned i = 0; i < e->servers && !e->over; i++)
        compare_states(e, &e->host[i]);
}

/* Late workers count as lost until their first hello. */
static void lose_late_workers(struct episode *e)
{
    for (unsigned w = e->model.workers; w < e->model.workers_max; w++) {
        model_lost(&e->model, w);
        feed_all(e, server_core_lost, w);
    }
}

static uint64_t from_environment(const char *name, uint64_t otherwise)
{
    const char *text = getenv(name);
    return text != NULL ? strtoull(text, NULL, 10) : otherwise;
}

/* Totals of all episodes; updates by policy, damping and so on. */
struct totals {
    uint64_t events, episodes, finished, ended, cut, late, policy[32], damping[32], correction[32];
    uint64_t outer[32], optimizer[32];
};

static size_t index_of(const struct registry *r, const char *name)
{
    size_t i = 0;
    while (strcmp(r->entries[i]->name, name) != 0)
        i++;
    REQUIRE(i < 32);
    return i;
}

static void add_updates(uint64_t *updates, const struct registry *r, const char *name,
                        const struct episode *e)
{
    updates[index_of(r, name)] += e->applied;
}

static void run_episode(struct totals *t, uint64_t seed, const struct combination *c)
{
    static struct episode e;
    uint64_t late = 0;
    /* Most episodes are short, to test many starts; a quarter are long. */
    const uint64_t longest = seed * 0x9e3779b97f4a7c15u >> 62 == 0 ? 3000 : 60;
    open_episode(&e, seed, c);
    lose_late_workers(&e);
    while (e.events < longest && late < 20 && !e.over) {
        random_event(&e);
        late += e.model.ended;
    }
    t->events += e.events;
    t->episodes++;
    t->finished += e.model.ended && e.model.complete;
    t->ended += e.model.ended && !e.model.complete;
    t->cut += e.servers > 1 && e.applied > 10;
    t->late += e.accepted_late;
    add_updates(t->policy, &consistency_registry, c->policy->about.name, &e);
    add_updates(t->damping, &damping_registry, c->damping->about.name, &e);
    add_updates(t->correction, &correction_registry, c->correction->about.name, &e);
    add_updates(t->outer, &outer_registry, c->outer != NULL ? c->outer->about.name : "none", &e);
    add_updates(t->optimizer, &optimizer_registry,
                options_text(e.host[0].rig.settings, "optimizer"), &e);
    close_episode(&e);
}

static void expect_coverage(const struct registry *r, const uint64_t *updates, uint64_t least)
{
    for (size_t i = 0; i < r->count; i++) {
        print_message("%s=%s: %" PRIu64 " updates\n", r->kind, r->entries[i]->name, updates[i]);
        assert_true(updates[i] >= least);
    }
}

static void the_core_equals_the_naive_model_under_random_events(void **state)
{
    (void)state;
    struct totals t = {0};
    uint64_t wanted = from_environment("GRADLAG_PROPERTY_EVENTS", EVENTS);
    uint64_t first = from_environment("GRADLAG_PROPERTY_SEED", 1), seed = first;
    for (; t.events < wanted; seed++) {
        struct combination c = combination_of(seed);
        if (combination_is_valid(&c))
            run_episode(&t, seed, &c);
    }
    print_message(
        "%" PRIu64 " events in %" PRIu64 " episodes, every one of %" PRIu64
        " combinations %.1f times: %" PRIu64 " on several servers, %" PRIu64 " finished, %" PRIu64
        " diverged or stopped, %" PRIu64 " gradients of late workers\n",
        t.events, t.episodes, combinations(), (double)(seed - first) / (double)combinations(),
        t.cut, t.finished, t.ended, t.late);
    /* Every rule must have had enough updates. */
    uint64_t least = wanted >= 1000000 ? 3000 : 0;
    expect_coverage(&consistency_registry, t.policy, least);
    expect_coverage(&damping_registry, t.damping, least);
    expect_coverage(&correction_registry, t.correction, least);
    expect_coverage(&outer_registry, t.outer, least);
    expect_coverage(&optimizer_registry, t.optimizer, least);
    if (wanted >= 1000000) {
        assert_true(seed - first > combinations());
        assert_true(t.finished > 100 && t.ended > 10 && t.cut > 100 && t.late > 10000);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_core_equals_the_naive_model_under_random_events),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
