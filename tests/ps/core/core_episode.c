/* core_episode.c — see core_episode.h. */
#include "tests/ps/core/core_episode.h"

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ps/core/slices.h"
#include "worker/optimizer/optimizer.h"

uint64_t below(struct episode *e, uint64_t bound)
{
    return core_rig_random(&e->random) % bound;
}

/* ---- rules ---- */

/* True if no rule needs whole vectors; see slices_check(). */
static bool can_be_cut(const struct combination *c)
{
    return c->outer == NULL && !c->damping->needs_norm && c->correction->adjust == NULL;
}

static bool goes_with(const struct combination *c, const struct optimizer_kind *kind)
{
    bool plain = strcmp(kind->about.name, "sgd") == 0;
    bool local = kind->form != OPTIMIZER_HOST_ONLY || kind->local_steps;
    if (c->outer != NULL && !local)
        return false;
    if (c->outer != NULL && c->outer->elastic && !plain &&
        strcmp(kind->about.name, "nesterov") != 0)
        return false;
    if (c->correction->adjust != NULL && strcmp(kind->about.name, "momentum") != 0)
        return false;
    return (plain || !c->correction->own_momentum) &&
           (kind->has_momentum || c->correction->momentum == NULL);
}

static const struct optimizer_kind *any_optimizer(struct episode *e, const struct combination *c)
{
    const struct registry *r = &optimizer_registry;
    const struct optimizer_kind *kind;
    do {
        kind = (const struct optimizer_kind *)r->entries[below(e, r->count)];
    } while (!goes_with(c, kind));
    return kind;
}

/* ---- settings ---- */

struct core_episode_settings {
    char text[28][56];
    const char *list[29];
    unsigned count;
};

static void add(struct core_episode_settings *s, const char *key, const char *value)
{
    REQUIRE(s->count < COUNT_OF(s->text));
    snprintf(s->text[s->count], sizeof s->text[0], "%s=%s", key, value);
    s->list[s->count] = s->text[s->count];
    s->count++;
    s->list[s->count] = NULL;
}

/* Each option of a rule: its default, or a random value in its range, not far above the default. */
static void add_options(struct episode *e, struct core_episode_settings *s,
                        const struct option *option, double bound)
{
    for (; option != NULL && option->key != NULL; option++) {
        double usual = strtod(option->initial, NULL), least = option->minimum;
        double most = fmin(option->maximum, fmin(bound, 2 * fabs(usual) + 2));
        double value = least + (most - least) * (double)below(e, 1000) / 1000;
        char text[32];
        snprintf(text, sizeof text, option->type == OPTION_INTEGER ? "%.0f" : "%.17g", value);
        if (option->type == OPTION_FLAG)
            snprintf(text, sizeof text, below(e, 2) ? "true" : "false");
        if (below(e, 3) > 0)
            add(s, option->key, text);
    }
}

static void choose_settings(struct episode *e, const struct combination *c,
                            const struct optimizer_kind *kind, struct core_episode_settings *s)
{
    static const char *const schedules[] = {"constant", "linear", "cosine"};
    add(s, "consistency", c->policy->about.name);
    add(s, "damping", c->damping->about.name);
    add(s, "correction", c->correction->about.name);
    add(s, "outer", c->outer != NULL ? c->outer->about.name : "none");
    add(s, "optimizer", kind->about.name);
    add(s, "weight_decay", below(e, 2) ? "0" : "0.01");
    add(s, "schedule", schedules[below(e, 3)]);
    /* A barrier needs a worker to wait for; MODEL_TAKEN bounds the running sum. */
    add_options(e, s, c->policy->about.options,
                c->policy->holds ? e->model.workers - 1 : MODEL_TAKEN / 2);
    add_options(e, s, c->damping->about.options, INFINITY);
    add_options(e, s, c->correction->about.options, INFINITY);
    if (c->outer == NULL || !c->outer->elastic) /* excludes optimizer.momentum_correction=false */
        add_options(e, s, kind->about.options, INFINITY);
    if (c->outer != NULL)
        add_options(e, s, c->outer->about.options, INFINITY);
}

/* Layers of random sizes and kinds. */
static void cut_layers(struct episode *e)
{
    struct model_optimizer *o = &e->model.optimizer;
    size_t left = e->model.count;
    while (left > 0) {
        bool last = o->layers + 1 == MODEL_LAYERS;
        size_t count = last ? left : 1 + (size_t)below(e, left);
        struct optimizer_layer *l = &o->layer[o->layers++];
        *l = (struct optimizer_layer){.count = count, .excluded = below(e, 3) == 0};
        if (!l->excluded && below(e, 3) > 0) {
            l->rows = 1 + (uint32_t)below(e, count);
            while (count % l->rows != 0)
                l->rows--;
            l->columns = (uint32_t)(count / l->rows);
        }
        left -= count;
    }
}

static void cut_slices(struct episode *e, const struct optimizer_kind *kind)
{
    const struct optimizer_layers layers = {e->model.optimizer.layer, e->model.optimizer.layers};
    const bool whole = kind->layer_factor != NULL || kind->matrix != NULL;
    if (whole && e->servers > layers.count)
        e->servers = 1;
    slices_cut(&e->slices, e->servers, e->model.count, whole && e->servers > 1 ? &layers : NULL);
}

static void open_host(struct episode *e, unsigned server, const struct core_episode_settings *s)
{
    const struct core_model *m = &e->model;
    struct episode_host *h = &e->host[server];
    struct optimizer_layers layers = {m->optimizer.layer, m->optimizer.layers};
    h->begin = e->slices.begin[server];
    h->count = slice_count(&e->slices, server);
    core_rig_open(
        &h->rig,
        (struct server_core_options){.workers = m->workers,
                                     .workers_max = m->workers_max,
                                     .slot_count = m->workers_max + 2 + (unsigned)below(e, 3),
                                     .count = h->count,
                                     .layers = slice_layers(&e->slices, &layers, server),
                                     .initial = e->initial + h->begin,
                                     .total_samples = m->total,
                                     .total_seconds = m->seconds,
                                     .evaluate_every = m->every,
                                     .follows = server > 0},
        s->list);
}

/* The time of a push is the number of events before it. */
static void end_by_time(struct episode *e, struct core_episode_settings *s)
{
    char text[32];
    e->model.seconds = 1 + (double)below(e, 600);
    e->model.total = UINT64_MAX;
    snprintf(text, sizeof text, "%.0f", e->model.seconds);
    add(s, "seconds", text);
    add(s, "warmup_seconds", below(e, 2) ? "20" : "0");
}

/* Policies that hold wait for a fixed number of workers; see late_workers_check(). */
static void draw_late_workers(struct episode *e, const struct combination *c)
{
    struct core_model *m = &e->model;
    m->workers_max = m->workers;
    if (!c->policy->holds && below(e, 2) == 0)
        m->workers_max += (unsigned)below(e, MODEL_WORKERS - m->workers + 1);
}

void open_episode(struct episode *e, uint64_t seed, const struct combination *c)
{
    struct core_model *m = &e->model;
    struct core_episode_settings s = {.count = 0};
    memset(e, 0, sizeof *e);
    e->seed = seed;
    e->random = seed;
    /* backup needs more workers than backups, of which the default is 1. */
    m->workers = 1 + (unsigned)below(e, MODEL_WORKERS);
    m->workers += m->workers == 1 && c->policy->holds;
    draw_late_workers(e, c);
    m->count = 1 + (size_t)below(e, MODEL_COUNT);
    m->total = 1 + below(e, below(e, 2) ? 4000 : 400);
    m->every = below(e, 3) == 0 ? 0 : 1 + below(e, 200);
    m->calls_rules = below(e, 2) == 0;
    const struct optimizer_kind *kind = any_optimizer(e, c);
    bool cut = can_be_cut(c) && m->count >= SERVERS && below(e, 2) == 0;
    core_rig_fill(e->initial, m->count, 7);
    cut_layers(e);
    e->servers = cut ? 2 + (unsigned)below(e, SERVERS - 1) : 1;
    cut_slices(e, kind);
    choose_settings(e, c, kind, &s);
    if (e->servers == 1 && c->outer == NULL && below(e, 3) == 0)
        end_by_time(e, &s);
    for (unsigned i = 0; i < e->servers; i++)
        open_host(e, i, &s);
    model_begin(m, e->host[0].rig.settings, e->initial, 1000);
}

void close_episode(struct episode *e)
{
    for (unsigned i = 0; i < e->servers; i++)
        core_rig_close(&e->host[i].rig);
}
