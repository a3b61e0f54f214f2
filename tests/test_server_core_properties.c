/*
 * Random event sequences: after each event the core's actions, counters and parameters must be
 * those of the naive model in core_model.c, bit for bit, and its invariants C1 … C6 must hold.
 *
 *   GRADLAG_PROPERTY_EVENTS=n   how many events (default 1 500 000, a tenth under sanitizers)
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

#include "ps/consistency.h"
#include "ps/damping.h"
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
    CHECK(e, a->rate == b->rate || (isnan(a->rate) && isnan(b->rate)));
    CHECK(e, a->loss == b->loss || (isnan(a->loss) && isnan(b->loss)));
    CHECK(e, a->pull_us == b->pull_us && a->compute_us == b->compute_us);
    CHECK(e, a->queue_us == b->queue_us && a->at_seconds == b->at_seconds);
    if (a->outcome != PUSH_DROPPED_LATE && a->outcome != PUSH_NOT_FINITE) {
        CHECK(e, close_to(a->gradient_norm, b->gradient_norm));
        CHECK(e, close_to(a->gap, b->gap));
        CHECK(e, a->staleness > 0 || a->gap == 0);
    }
    if (strcmp(e->model.policy, "bsp") == 0) { /* C6 */
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

/* One that the model knows: of staleness alone. */
static const char *any_damping(struct episode *e)
{
    const struct damping_rule *rule = NULL;
    do {
        size_t i = (size_t)below(e, damping_registry.count);
        rule = (const struct damping_rule *)damping_registry.entries[i];
    } while (rule->needs_norm || rule->needs_history);
    return rule->about.name;
}

/* Draws the policy and its parameter. */
static void choose_policy(struct episode *e, char policy[40], char parameter[40])
{
    struct model *m = &e->model;
    const struct about *about = consistency_registry.entries[below(e, consistency_registry.count)];
    uint64_t bound = strcmp(about->name, "backup") == 0 ? m->workers : 12;
    snprintf(m->policy, sizeof m->policy, "%s", about->name);
    snprintf(policy, 40, "consistency=%s", about->name);
    snprintf(parameter, 40, "lr=0.05");
    if (about->options != NULL) {
        m->parameter = (unsigned)(below(e, bound));
        if (about->options[0].minimum > 0 && m->parameter == 0) {
            m->parameter = 1;
        }
        snprintf(parameter, 40, "%s=%u", about->options[0].key, m->parameter);
    }
}

static void open_episode(struct episode *e, uint64_t seed)
{
    static const char *const schedules[] = {"constant", "linear", "cosine"};
    struct model *m = &e->model;
    memset(e, 0, sizeof *e);
    e->seed = seed;
    e->random = seed;
    m->workers = 1 + (unsigned)below(e, MODEL_WORKERS);
    m->count = 1 + (size_t)below(e, MODEL_COUNT);
    m->total = 1 + below(e, below(e, 2) ? 4000 : 400);
    m->every = below(e, 3) == 0 ? 0 : 1 + below(e, 200);
    const char *damping = any_damping(e);
    const char *kind = optimizer_registry.entries[below(e, optimizer_registry.count)]->name;
    char settings[6][40];
    choose_policy(e, settings[0], settings[5]);
    snprintf(settings[1], sizeof settings[1], "damping=%s", damping);
    snprintf(settings[2], sizeof settings[2], "optimizer=%s", kind);
    snprintf(settings[3], sizeof settings[3], "weight_decay=%s", below(e, 2) ? "0" : "0.01");
    snprintf(settings[4], sizeof settings[4], "schedule=%s", schedules[below(e, 3)]);
    core_rig_open(
        &e->rig,
        (struct server_core_options){.workers = m->workers,
                                     .slot_count = m->workers + 2 + (unsigned)below(e, 3),
                                     .count = m->count,
                                     .total_samples = m->total,
                                     .evaluate_every = m->every},
        RIG(settings[0], settings[1], settings[2], settings[3], settings[4], settings[5]));
    snprintf(m->damping, sizeof m->damping, "%s", damping);
    snprintf(m->optimizer, sizeof m->optimizer, "%s", kind);
    m->momentum = (float)options_real(e->rig.settings, "momentum");
    m->weight_decay = (float)options_real(e->rig.settings, "weight_decay");
    assert_int_equal(schedule_open(&m->schedule, e->rig.settings, m->workers, m->total, 1000), OK);
    memcpy(m->theta, e->rig.initial, m->count * sizeof(float));
}

static uint64_t from_environment(const char *name, uint64_t otherwise)
{
    const char *text = getenv(name);
    return text != NULL ? strtoull(text, NULL, 10) : otherwise;
}

static void the_core_does_what_the_naive_model_does_whatever_happens(void **state)
{
    (void)state;
    static struct episode e;
    uint64_t wanted = from_environment("GRADLAG_PROPERTY_EVENTS", EVENTS), events = 0;
    uint64_t finished = 0, diverged = 0, episodes = 0, applied[16] = {0};
    for (uint64_t seed = from_environment("GRADLAG_PROPERTY_SEED", 1); events < wanted; seed++) {
        open_episode(&e, seed);
        uint64_t late = 0;
        while (e.events < 3000 && late < 20) {
            one_event(&e);
            late += e.model.ended;
        }
        events += e.events;
        episodes++;
        finished += e.model.ended && e.model.complete;
        diverged += e.model.ended && !e.model.complete;
        size_t policy = 0;
        while (strcmp(consistency_registry.entries[policy]->name, e.model.policy) != 0) {
            policy++;
        }
        REQUIRE(policy < COUNT_OF(applied));
        applied[policy] += e.applied;
        core_rig_close(&e.rig);
    }
    print_message("%" PRIu64 " events in %" PRIu64 " episodes: %" PRIu64 " finished, %" PRIu64
                  " diverged or stopped\n",
                  events, episodes, finished, diverged);
    for (size_t i = 0; i < consistency_registry.count; i++) {
        print_message("%s: %" PRIu64 " updates\n", consistency_registry.entries[i]->name,
                      applied[i]);
        if (wanted >= 1000000) { /* or the test looks at less than it seems to */
            assert_true(applied[i] > 3000);
        }
    }
    if (wanted >= 1000000) {
        assert_true(finished > 100 && diverged > 10);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_core_does_what_the_naive_model_does_whatever_happens),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
