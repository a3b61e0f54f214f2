/*
 * Random event sequences under every consistency × damping × correction of the registries that goes
 * together: after each event the core's actions, counters and parameters must be those of the naive
 * model in core_model.c, bit for bit, and its invariants C1 … C6 must hold. Workers come, crash and
 * come back; pushes are repeated, come from the past and the future, are malformed, not finite or
 * enormous. A new rule takes part once its line is in the registry.
 *
 *   GRADLAG_PROPERTY_EVENTS=n   how many events (default 1 500 000, a tenth under sanitizers);
 *                               `make nightly` has 100 million, and another seed each time
 *   GRADLAG_PROPERTY_SEED=n     the first episode's seed; a failure names the one to give here
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

#include "tests/core_model.h"
#include "tests/core_rig.h"
#include "worker/optimizer.h"

#ifdef GRADLAG_SANITIZE
enum { EVENTS = 150000 };
#else
enum { EVENTS = 1500000 };
#endif

struct episode {
    uint64_t seed, random, events;
    struct core_rig rig;
    struct model model;
    unsigned slot[MODEL_WORKERS]; /* what the core released each worker with */
    /* Each worker's gradient stays where it is until the worker is released. */
    float gradient[MODEL_WORKERS][MODEL_COUNT];
    uint64_t applied, accepted, records;
};

static uint64_t below(struct episode *e, uint64_t bound)
{
    return core_rig_random(&e->random) % bound;
}

#define CHECK(e, condition)                                                                        \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fail_msg("GRADLAG_PROPERTY_SEED=%" PRIu64 ", event %" PRIu64 ": %s", (e)->seed,        \
                     (e)->events, #condition);                                                     \
        }                                                                                          \
    } while (0)

static bool close_to(double a, double b)
{
    return fabs(a - b) <= 1e-5 * fmax(1e-3, fabs(b));
}

static bool same(double a, double b)
{
    return a == b || (isnan(a) && isnan(b));
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
    CHECK(e, a->queue_us == b->queue_us && a->at_seconds == b->at_seconds);
    if (a->outcome != PUSH_DROPPED_LATE && a->outcome != PUSH_NOT_FINITE) {
        CHECK(e, close_to(a->gradient_norm, b->gradient_norm));
        CHECK(e, close_to(a->gap, b->gap));
        CHECK(e, a->staleness > 0 || a->gap == 0);
    }
    if (e->model.policy->even) { /* C6 */
        CHECK(e, a->staleness == 0);
    }
}

static void compare_actions(struct episode *e, struct server_actions actions)
{
    const struct model *m = &e->model;
    CHECK(e, actions.count == m->expected_count);
    for (size_t i = 0; i < actions.count; i++) {
        const struct server_action *a = &actions.at[i], *b = &m->expected[i];
        CHECK(e, a->kind == b->kind);
        switch (a->kind) {
        case SERVER_RELEASE:
            CHECK(e, a->worker == b->worker && a->version == b->version);
            CHECK(e, a->record.waited_for == b->record.waited_for);
            CHECK(e, a->slot < e->rig.slot_count);
            e->slot[a->worker] = a->slot;
            break;
        case SERVER_RECORD:
            e->records++;
            CHECK(e, a->taken == b->taken);
            compare_record(e, &a->record, &b->record);
            break;
        case SERVER_APPLIED:
            e->applied++;
            CHECK(e, a->version == e->applied); /* C1 */
            break;
        case SERVER_EVALUATE:
            CHECK(e, a->version == m->version);
            CHECK(e, a->slot == server_core_latest_slot(e->rig.core));
            break;
        case SERVER_DIVERGED:
            CHECK(e, a->worker == b->worker && a->record.worker == b->worker);
            break;
        case SERVER_FINISHED:
            break;
        }
    }
}

static void compare_states(struct episode *e)
{
    const struct model *m = &e->model;
    const server_core *c = e->rig.core;
    size_t bytes = m->count * sizeof(float);
    CHECK(e, server_core_version(c) == m->version && m->version == e->applied);
    CHECK(e, server_core_samples_used(c) == m->used);
    CHECK(e, server_core_samples_computed(c) == m->computed);
    CHECK(e, server_core_ended(c) == m->ended);
    /* C1, C3, C5: parameters and optimizer state are those of the model, after whatever event */
    CHECK(e, memcmp(e->rig.slots[server_core_latest_slot(c)], m->theta, bytes) == 0);
    size_t states;
    const float *velocity = server_core_optimizer_state(c, &states);
    CHECK(e, states == 0 || memcmp(velocity, m->velocity, bytes) == 0);
    uint64_t held = 0;
    for (unsigned i = 0; i < m->workers; i++) {
        const struct model_worker *w = &m->worker[i];
        held += w->held;
        CHECK(e, server_core_awaits(c, i) == w->computing);
        if (w->computing) { /* C4 */
            CHECK(e, memcmp(e->rig.slots[e->slot[i]], w->read, bytes) == 0);
        }
    }
    CHECK(e, e->accepted == e->records + held + m->taken_count); /* C2 */
    CHECK(e, server_core_arrivals(c) == e->accepted);
}

static struct server_push right_push(struct episode *e, unsigned worker)
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
                               .at_seconds = (double)e->events};
    if (w->computing) {
        core_rig_fill(e->gradient[worker], e->model.count, core_rig_random(&e->random));
    }
    return push;
}

static void spoil(struct episode *e, struct server_push *push)
{
    switch (below(e, 6)) {
    case 0:
        push->sequence -= 1 + below(e, 3); /* a duplicate; from 0 it wraps to the far future */
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
        push->worker = (unsigned)(e->model.workers + below(e, 3));
        break;
    case 5:
        push->samples = 0;
        break;
    }
}

static void push_event(struct episode *e, bool right)
{
    unsigned worker = (unsigned)below(e, e->model.workers);
    for (unsigned i = 0; right && i < e->model.workers; i++) { /* one that has something to push */
        if (e->model.worker[worker].computing) {
            break;
        }
        worker = (worker + 1) % e->model.workers;
    }
    struct server_push push = right_push(e, worker);
    if (!right) {
        spoil(e, &push);
    } else if (below(e, 3000) == 0 && e->model.worker[worker].computing) {
        static const float bad[] = {NAN, INFINITY, -INFINITY};
        e->gradient[worker][below(e, e->model.count)] = bad[below(e, 3)];
    } else if (below(e, 6000) == 0) {
        push.loss = NAN;
    } else if (below(e, 2000) == 0 && e->model.worker[worker].computing) {
        e->gradient[worker][below(e, e->model.count)] = 1e25f; /* finite; its square is not */
    }
    struct server_actions actions;
    bool fresh = push.worker < e->model.workers && push.sequence == e->model.worker[worker].next;
    bool allowed = model_push(&e->model, &push);
    status said = server_core_push(e->rig.core, &push, &actions);
    CHECK(e, said == (allowed ? OK : ERROR_PROTOCOL));
    e->accepted += allowed && fresh;
    compare_actions(e, actions);
}

static void one_event(struct episode *e)
{
    unsigned worker = (unsigned)below(e, e->model.workers);
    uint64_t dice = below(e, 100);
    e->events++;
    if (e->model.evaluating) {
        model_evaluated(&e->model);
        compare_actions(e, server_core_evaluated(e->rig.core));
    } else if (dice < 80) {
        push_event(e, true);
    } else if (dice < 90) {
        push_event(e, false);
    } else if (dice < 97 || (dice == 99 && below(e, 40) > 0)) {
        model_hello(&e->model, worker);
        compare_actions(e, server_core_hello(e->rig.core, worker));
    } else if (dice < 99) {
        model_lost(&e->model, worker);
        compare_actions(e, server_core_lost(e->rig.core, worker));
    } else {
        model_end(&e->model);
        compare_actions(e, server_core_end(e->rig.core));
    }
    compare_states(e);
}

/* ---- which rules ---- */

/* The episode's rules: one combination after the other, so that each gets its share. */
struct combination {
    const struct consistency_policy *policy;
    const struct damping_rule *damping;
    const struct correction_rule *correction;
};

static struct combination combination_of(uint64_t number)
{
    const struct registry *c = &consistency_registry, *d = &damping_registry;
    const struct registry *r = &correction_registry;
    return (struct combination){
        (const struct consistency_policy *)c->entries[number % c->count],
        (const struct damping_rule *)d->entries[number / c->count % d->count],
        (const struct correction_rule *)r->entries[number / c->count / d->count % r->count]};
}

static uint64_t combinations(void)
{
    return consistency_registry.count * damping_registry.count * correction_registry.count;
}

/* The core refuses what has no meaning, by these very marks (tests/test_correction.c). */
static bool goes_together(const struct combination *c)
{
    return !(c->correction->alone && (c->policy->holds || c->policy->takes));
}

/* ---- settings ---- */

struct settings {
    char text[16][56];
    const char *list[17];
    unsigned count;
};

static void add(struct settings *s, const char *key, const char *value)
{
    REQUIRE(s->count < COUNT_OF(s->text));
    snprintf(s->text[s->count], sizeof s->text[0], "%s=%s", key, value);
    s->list[s->count] = s->text[s->count];
    s->count++;
    s->list[s->count] = NULL;
}

/* Each option of a rule as it is, or anything that it allows, but not far beyond the usual. */
static void add_options(struct episode *e, struct settings *s, const struct option *option,
                        double bound)
{
    for (; option != NULL && option->key != NULL; option++) {
        double usual = strtod(option->initial, NULL), least = option->minimum;
        double most = fmin(option->maximum, fmin(bound, 2 * fabs(usual) + 2));
        double value = least + (most - least) * (double)below(e, 1000) / 1000;
        char text[32];
        snprintf(text, sizeof text, option->type == OPTION_INTEGER ? "%.0f" : "%.17g", value);
        if (below(e, 3) > 0) {
            add(s, option->key, text);
        }
    }
}

/* An optimizer that the correction goes with. */
static const char *any_optimizer(struct episode *e, const struct correction_rule *correction)
{
    static const char *const kinds[] = {"sgd", "momentum", "nesterov"}; /* the model's */
    const char *kind;
    do {
        kind = kinds[below(e, COUNT_OF(kinds))];
    } while ((correction->momentum_of_its_own && strcmp(kind, "sgd") != 0) ||
             (correction->momentum != NULL && strcmp(kind, "sgd") == 0));
    return kind;
}

static void choose_settings(struct episode *e, const struct combination *c, struct settings *s)
{
    static const char *const schedules[] = {"constant", "linear", "cosine"};
    const char *kind = any_optimizer(e, c->correction);
    snprintf(e->model.optimizer, sizeof e->model.optimizer, "%s", kind);
    add(s, "consistency", c->policy->about.name);
    add(s, "damping", c->damping->about.name);
    add(s, "correction", c->correction->about.name);
    add(s, "optimizer", kind);
    add(s, "weight_decay", below(e, 2) ? "0" : "0.01");
    add(s, "schedule", schedules[below(e, 3)]);
    /* A barrier needs somebody to wait for; the sum of a taker is bounded by MODEL_TAKEN. */
    add_options(e, s, c->policy->about.options,
                c->policy->holds ? e->model.workers - 1 : MODEL_TAKEN / 2);
    add_options(e, s, c->damping->about.options, INFINITY);
    add_options(e, s, c->correction->about.options, INFINITY);
}

static void read_settings(struct episode *e, const struct combination *c)
{
    struct model *m = &e->model;
    const options *o = e->rig.settings;
    m->policy = c->policy;
    m->damping = c->damping;
    m->correction = c->correction;
    registry_parameters(&c->policy->about, o, m->policy_parameters, CONSISTENCY_PARAMETERS);
    registry_parameters(&c->damping->about, o, m->damping_parameters, DAMPING_PARAMETERS);
    registry_parameters(&c->correction->about, o, m->correction_parameters, CORRECTION_PARAMETERS);
    m->momentum_set = m->momentum_now = options_real(o, "momentum");
    if (c->correction->momentum != NULL) {
        m->momentum_now =
            c->correction->momentum(m->correction_parameters, m->workers, m->momentum_set);
    }
    m->momentum = (float)m->momentum_now;
    m->weight_decay = (float)options_real(o, "weight_decay");
    assert_int_equal(schedule_open(&m->schedule, o, m->workers, m->total, 1000), OK);
    memcpy(m->theta, e->rig.initial, m->count * sizeof(float));
    memcpy(m->past[0], m->theta, sizeof m->theta);
}

static void open_episode(struct episode *e, uint64_t seed, const struct combination *c)
{
    struct model *m = &e->model;
    struct settings s = {.count = 0};
    memset(e, 0, sizeof *e);
    e->seed = seed;
    e->random = seed;
    /* backup needs one worker more than it can spare, and spares one by default. */
    m->workers = 1 + (unsigned)below(e, MODEL_WORKERS);
    m->workers += m->workers == 1 && c->policy->holds;
    m->count = 1 + (size_t)below(e, MODEL_COUNT);
    m->total = 1 + below(e, below(e, 2) ? 4000 : 400);
    m->every = below(e, 3) == 0 ? 0 : 1 + below(e, 200);
    m->asks = below(e, 2) == 0;
    choose_settings(e, c, &s);
    core_rig_open(&e->rig,
                  (struct server_core_options){.workers = m->workers,
                                               .slot_count = m->workers + 2 + (unsigned)below(e, 3),
                                               .count = m->count,
                                               .total_samples = m->total,
                                               .evaluate_every = m->every},
                  s.list);
    read_settings(e, c);
}

static uint64_t from_environment(const char *name, uint64_t otherwise)
{
    const char *text = getenv(name);
    return text != NULL ? strtoull(text, NULL, 10) : otherwise;
}

/* What all episodes came to, by policy, damping and correction. */
struct totals {
    uint64_t events, episodes, finished, ended, policy[32], damping[32], correction[32];
};

static size_t index_of(const struct registry *r, const struct about *about)
{
    size_t i = 0;
    while (r->entries[i] != about) {
        i++;
    }
    REQUIRE(i < 32);
    return i;
}

static void play(struct totals *t, uint64_t seed, const struct combination *c)
{
    static struct episode e;
    uint64_t late = 0;
    open_episode(&e, seed, c);
    while (e.events < 3000 && late < 20) {
        one_event(&e);
        late += e.model.ended;
    }
    t->events += e.events;
    t->episodes++;
    t->finished += e.model.ended && e.model.complete;
    t->ended += e.model.ended && !e.model.complete;
    t->policy[index_of(&consistency_registry, &c->policy->about)] += e.applied;
    t->damping[index_of(&damping_registry, &c->damping->about)] += e.applied;
    t->correction[index_of(&correction_registry, &c->correction->about)] += e.applied;
    core_rig_close(&e.rig);
}

static void tell(const struct registry *r, const uint64_t *updates, uint64_t least)
{
    for (size_t i = 0; i < r->count; i++) {
        print_message("%s=%s: %" PRIu64 " updates\n", r->kind, r->entries[i]->name, updates[i]);
        assert_true(updates[i] >= least);
    }
}

static void the_core_does_what_the_naive_model_does_whatever_happens(void **state)
{
    (void)state;
    struct totals t = {0};
    uint64_t wanted = from_environment("GRADLAG_PROPERTY_EVENTS", EVENTS);
    uint64_t first = from_environment("GRADLAG_PROPERTY_SEED", 1), seed = first;
    for (; t.events < wanted; seed++) {
        struct combination c = combination_of(seed);
        if (goes_together(&c)) {
            play(&t, seed, &c);
        }
    }
    print_message("%" PRIu64 " events in %" PRIu64 " episodes, every one of %" PRIu64
                  " combinations %.1f times: %" PRIu64 " finished, %" PRIu64
                  " diverged or stopped\n",
                  t.events, t.episodes, combinations(),
                  (double)(seed - first) / (double)combinations(), t.finished, t.ended);
    /* Or the test looks at less than it seems to. */
    uint64_t least = wanted >= 1000000 ? 3000 : 0;
    tell(&consistency_registry, t.policy, least);
    tell(&damping_registry, t.damping, least);
    tell(&correction_registry, t.correction, least);
    if (wanted >= 1000000) {
        assert_true(seed - first > combinations());
        assert_true(t.finished > 100 && t.ended > 10);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_core_does_what_the_naive_model_does_whatever_happens),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
