/* core_model.c — see core_model.h. */
#include "tests/core_model.h"

#include <math.h>
#include <string.h>

static struct server_action *expect(struct model *m, enum server_action_kind kind, unsigned worker)
{
    REQUIRE(m->expected_count < MODEL_ACTIONS);
    struct server_action *a = &m->expected[m->expected_count++];
    memset(a, 0, sizeof *a);
    a->kind = kind;
    a->worker = worker;
    a->version = m->version;
    return a;
}

static double root_mean_square(const float *a, const float *b, size_t count)
{
    double sum = 0;
    for (size_t i = 0; i < count; i++) {
        sum += ((double)a[i] - (double)b[i]) * ((double)a[i] - (double)b[i]);
    }
    return sqrt(sum / (double)count);
}

/* The gap is NaN where nobody had a reason to measure it. */
static void expect_record(struct model *m, unsigned worker, enum push_outcome outcome,
                          uint64_t update_version, double scale, double gap)
{
    const struct model_worker *w = &m->worker[worker];
    double squares = 0;
    for (size_t i = 0; i < m->count; i++) {
        squares += (double)w->gradient[i] * (double)w->gradient[i];
    }
    expect(m, SERVER_RECORD, worker)->record =
        (struct push_record){.update_version = update_version,
                             .worker = worker,
                             .sequence = w->push.sequence,
                             .read_version = w->push.read_version,
                             .staleness = m->version - w->push.read_version,
                             .scale = scale,
                             .gap = gap,
                             .gradient_norm = sqrt(squares),
                             .loss = w->push.loss,
                             .outcome = outcome,
                             .pull_us = w->push.pull_us,
                             .compute_us = w->push.compute_us,
                             .queue_us = w->push.queue_us,
                             .at_seconds = w->push.at_seconds};
}

static void release(struct model *m, unsigned worker)
{
    struct model_worker *w = &m->worker[worker];
    if (!w->computing) {
        w->computing = true;
        w->version = m->version;
        memcpy(w->read, m->theta, sizeof w->read);
    }
    expect(m, SERVER_RELEASE, worker)->version = w->version;
}

static void release_whoever_may(struct model *m)
{
    for (unsigned i = 0; i < m->workers; i++) {
        struct model_worker *w = &m->worker[i];
        if (!m->evaluating && !m->ended && w->here && !w->computing && !w->held) {
            release(m, i);
        }
    }
}

/* s(τ) with the defaults of every rule of staleness alone, or −1: dropped. */
static double scale_of(const struct model *m, uint64_t staleness)
{
    double t = (double)staleness;
    const char *rule = m->damping;
    if (strcmp(rule, "inverse") == 0) {
        return t < 1 ? 1 : 1 / t;
    } else if (strcmp(rule, "polynomial") == 0) {
        return pow(1 + t, -0.5);
    } else if (strcmp(rule, "exponential") == 0) {
        return exp(-0.1 * t);
    } else if (strcmp(rule, "hinge") == 0) {
        return t <= 4 ? 1 : 1 / (10 * (t - 4) + 1);
    } else if (strcmp(rule, "generation") == 0) {
        return t <= 8 ? 1 : 0.125;
    } else if (strcmp(rule, "cutoff") == 0) {
        return t <= 8 ? 1 : -1;
    } else if (strcmp(rule, "mishchenko") == 0) {
        return m->workers / fmax(m->workers, t);
    } else if (strcmp(rule, "koloskova") == 0) {
        double here = 0;
        for (unsigned i = 0; i < m->workers; i++) {
            here += m->worker[i].here;
        }
        return here / fmax(here, t);
    } else if (strcmp(rule, "fedbuff") == 0) {
        return 1 / sqrt(1 + t);
    }
    return 1;
}

static void step(struct model *m, const float *gradient, double scale, uint64_t after)
{
    float lr = (float)schedule_rate(&m->schedule, m->used, after);
    for (size_t i = 0; i < m->count; i++) {
        float g = (float)scale * gradient[i] + m->weight_decay * m->theta[i];
        float direction = g;
        if (strcmp(m->optimizer, "sgd") != 0) {
            m->velocity[i] = m->momentum * m->velocity[i] + g;
            direction = m->velocity[i];
        }
        if (strcmp(m->optimizer, "nesterov") == 0) {
            direction = g + m->momentum * m->velocity[i];
        }
        m->theta[i] = m->theta[i] - lr * direction;
    }
}

static bool finite_vector(const float *a, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        if (!isfinite(a[i])) {
            return false;
        }
    }
    return true;
}

static void diverge(struct model *m, unsigned culprit)
{
    m->worker[culprit].held = false;
    expect_record(m, culprit, PUSH_NOT_FINITE, m->version, 0, NAN);
    for (unsigned i = 0; i < m->workers; i++) {
        if (m->worker[i].held) {
            m->worker[i].held = false;
            expect_record(m, i, PUSH_DROPPED_LATE, m->version, 0, NAN);
        }
    }
    m->ended = true;
    expect(m, SERVER_DIVERGED, culprit);
}

static void after_update(struct model *m, uint64_t before)
{
    expect(m, SERVER_APPLIED, 0);
    m->complete = m->used >= m->total;
    bool crossed = false;
    for (uint64_t s = before + 1; m->every > 0 && s <= m->used; s++) {
        crossed = crossed || s % m->every == 0;
    }
    if (m->complete || crossed) {
        m->evaluating = true;
        expect(m, SERVER_EVALUATE, 0);
    }
}

static void apply_one(struct model *m, unsigned worker)
{
    struct model_worker *w = &m->worker[worker];
    uint64_t before = m->used;
    w->held = false;
    double scale = scale_of(m, m->version - w->push.read_version);
    double gap = root_mean_square(m->theta, w->read, m->count);
    if (scale < 0) {
        expect_record(m, worker, PUSH_DROPPED_STALE, m->version, 0, gap);
        return;
    }
    step(m, w->gradient, scale, m->used + w->push.samples);
    m->used += w->push.samples;
    expect_record(m, worker, PUSH_APPLIED, m->version + 1, scale, gap);
    m->version++;
    after_update(m, before);
}

static void apply_barrier(struct model *m)
{
    unsigned n = 0;
    float mean[MODEL_COUNT] = {0};
    uint64_t before = m->used, samples = 0;
    for (unsigned i = 0; i < m->workers; i++) {
        const struct model_worker *w = &m->worker[i];
        if (w->held) {
            for (size_t k = 0; k < m->count; k++) {
                mean[k] = n == 0 ? w->gradient[k] : mean[k] + w->gradient[k];
            }
            n++;
            samples += w->push.samples;
        }
    }
    for (size_t k = 0; k < m->count; k++) {
        mean[k] *= 1.0f / (float)n;
    }
    step(m, mean, 1, m->used + samples);
    m->used += samples;
    for (unsigned i = 0; i < m->workers; i++) {
        if (m->worker[i].held) {
            m->worker[i].held = false;
            expect_record(m, i, n == 1 ? PUSH_APPLIED : PUSH_AGGREGATED, m->version + 1, 1, 0);
        }
    }
    m->version++;
    after_update(m, before);
}

static bool barrier_is_full(const struct model *m)
{
    unsigned held = 0, missing = 0;
    for (unsigned i = 0; i < m->workers; i++) {
        held += m->worker[i].held;
        missing += !m->worker[i].held && !m->worker[i].lost;
    }
    return held > 0 && missing == 0;
}

void model_hello(struct model *m, unsigned worker)
{
    m->expected_count = 0;
    struct model_worker *w = &m->worker[worker];
    if (w->here) {
        if (w->computing) {
            release(m, worker);
        }
        return;
    }
    memset(w, 0, sizeof *w);
    w->here = true;
    release_whoever_may(m);
}

void model_lost(struct model *m, unsigned worker)
{
    m->expected_count = 0;
    struct model_worker *w = &m->worker[worker];
    if (w->held) {
        expect_record(m, worker, PUSH_DROPPED_LATE, m->version, 0, NAN);
    }
    memset(w, 0, sizeof *w);
    w->lost = true;
    if (!m->ended && m->bsp && barrier_is_full(m)) {
        apply_barrier(m);
    }
    release_whoever_may(m);
}

void model_evaluated(struct model *m)
{
    m->expected_count = 0;
    m->evaluating = false;
    if (m->complete) {
        m->ended = true;
        expect(m, SERVER_FINISHED, 0);
    }
    release_whoever_may(m);
}

bool model_push(struct model *m, const struct server_push *push)
{
    m->expected_count = 0;
    if (push->worker >= m->workers || !m->worker[push->worker].here) {
        return false;
    }
    struct model_worker *w = &m->worker[push->worker];
    if (push->sequence < w->next) {
        if (w->computing) {
            release(m, push->worker);
        }
        return true;
    }
    if (push->sequence != w->next || !w->computing || push->read_version != w->version ||
        push->samples == 0) {
        return false;
    }
    w->next++;
    w->computing = false;
    w->push = *push;
    memcpy(w->gradient, push->gradient, m->count * sizeof(float));
    m->computed += push->samples;
    if (m->ended) {
        expect_record(m, push->worker, PUSH_DROPPED_LATE, m->version, 0, NAN);
    } else if (!isfinite(push->loss) || !finite_vector(w->gradient, m->count)) {
        diverge(m, push->worker);
    } else {
        w->held = true;
        if (!m->bsp) {
            apply_one(m, push->worker);
        } else if (barrier_is_full(m)) {
            apply_barrier(m);
        }
    }
    release_whoever_may(m);
    return true;
}
