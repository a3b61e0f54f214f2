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

bool model_holds(const struct model *m)
{
    return strcmp(m->policy, "bsp") == 0 || strcmp(m->policy, "backup") == 0;
}

/* How many gradients the next update takes from the sum. 1: none are summed, as with asp. */
static unsigned taken_per_update(const struct model *m)
{
    if (strcmp(m->policy, "softsync") == 0) {
        unsigned c = m->workers / m->parameter;
        return c == 0 ? 1 : c;
    }
    bool sized = strcmp(m->policy, "buffered") == 0 || strcmp(m->policy, "rennala") == 0;
    return sized ? m->parameter : 1;
}

bool model_takes(const struct model *m)
{
    return taken_per_update(m) > 1;
}

static struct push_record record_of(const struct model *m, unsigned worker)
{
    const struct model_worker *w = &m->worker[worker];
    double squares = 0;
    for (size_t i = 0; i < m->count; i++) {
        squares += (double)w->gradient[i] * (double)w->gradient[i];
    }
    return (struct push_record){.arrival = w->arrival,
                                .worker = worker,
                                .waited_for = w->waited_for,
                                .batch = w->push.batch,
                                .sequence = w->push.sequence,
                                .read_version = w->push.read_version,
                                .staleness = m->version - w->push.read_version,
                                .gap = NAN,
                                .gradient_norm = sqrt(squares),
                                .loss = w->push.loss,
                                .pull_us = w->push.pull_us,
                                .compute_us = w->push.compute_us,
                                .queue_us = w->push.queue_us,
                                .at_seconds = w->push.at_seconds};
}

static struct server_action *expect_fate(struct model *m, struct push_record record,
                                         enum push_outcome outcome, enum push_reason reason)
{
    struct server_action *a = expect(m, SERVER_RECORD, record.worker);
    record.outcome = outcome;
    record.reason = reason;
    record.update_version = m->version;
    if (reason != PUSH_USED) {
        record.scale = 0;
        record.rate = NAN;
    }
    a->record = record;
    return a;
}

/* The gap is NaN where nobody had a reason to measure it. */
static void expect_drop(struct model *m, unsigned worker, enum push_outcome outcome,
                        enum push_reason reason)
{
    struct push_record record = record_of(m, worker);
    if (outcome == PUSH_DROPPED_STALE) {
        record.gap = root_mean_square(m->theta, m->worker[worker].read, m->count);
    }
    expect_fate(m, record, outcome, reason);
}

static void release(struct model *m, unsigned worker)
{
    struct model_worker *w = &m->worker[worker];
    if (!w->computing) {
        w->computing = true;
        w->version = m->version;
        w->waited_for = worker == m->about ? NO_WORKER : (int)m->about;
        memcpy(w->read, m->theta, sizeof w->read);
    }
    struct server_action *a = expect(m, SERVER_RELEASE, worker);
    a->version = w->version;
    a->record.waited_for = w->waited_for;
}

static bool is_too_far_ahead(const struct model *m, unsigned worker)
{
    for (unsigned i = 0; strcmp(m->policy, "ssp") == 0 && i < m->workers; i++) {
        if (!m->worker[i].lost && m->worker[worker].clock > m->worker[i].clock + m->parameter) {
            return true;
        }
    }
    return false;
}

static void release_whoever_may(struct model *m)
{
    for (unsigned i = 0; i < m->workers; i++) {
        struct model_worker *w = &m->worker[i];
        if (!m->evaluating && !m->ended && w->here && !w->computing && !w->held &&
            !is_too_far_ahead(m, i)) {
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

/* The learning rate, also for records. */
static double step(struct model *m, const float *gradient, double scale, uint64_t samples)
{
    double rate = schedule_rate(&m->schedule, m->used, m->used + samples);
    float lr = (float)rate;
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
    return rate;
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

static void drop_what_waits(struct model *m, enum push_reason reason)
{
    for (unsigned i = 0; i < m->workers; i++) {
        if (m->worker[i].held) {
            m->worker[i].held = false;
            expect_drop(m, i, PUSH_DROPPED_LATE, reason);
        }
    }
    for (unsigned i = 0; i < m->taken_count; i++) {
        expect_fate(m, m->taken[i].record, PUSH_DROPPED_LATE, reason)->taken = true;
    }
    m->taken_count = 0;
}

static void diverge(struct model *m, unsigned culprit, enum push_reason reason)
{
    m->worker[culprit].held = false;
    expect_drop(m, culprit, PUSH_NOT_FINITE, reason);
    drop_what_waits(m, PUSH_RUN_DIVERGED);
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
    struct push_record record = record_of(m, worker);
    record.scale = scale_of(m, record.staleness);
    record.gap = root_mean_square(m->theta, w->read, m->count);
    if (record.scale < 0) {
        expect_drop(m, worker, PUSH_DROPPED_STALE, PUSH_BY_DAMPING);
        return;
    }
    record.rate = record.scale * step(m, w->gradient, record.scale, w->push.samples);
    m->used += w->push.samples;
    m->version++;
    expect_fate(m, record, PUSH_APPLIED, PUSH_USED);
    after_update(m, before);
}

static void apply_barrier(struct model *m)
{
    unsigned n = 0;
    float mean[MODEL_COUNT] = {0};
    uint64_t before = m->used, samples = 0;
    struct push_record record[MODEL_WORKERS];
    for (unsigned i = 0; i < m->workers; i++) {
        struct model_worker *w = &m->worker[i];
        if (w->held) {
            for (size_t k = 0; k < m->count; k++) {
                mean[k] = n == 0 ? w->gradient[k] : mean[k] + w->gradient[k];
            }
            w->held = false;
            record[n] = record_of(m, i);
            record[n].scale = 1;
            record[n].gap = 0;
            n++;
            samples += w->push.samples;
        }
    }
    for (size_t k = 0; k < m->count; k++) {
        mean[k] *= 1.0f / (float)n;
    }
    double rate = step(m, mean, 1, samples);
    m->used += samples;
    m->version++;
    for (unsigned i = 0; i < n; i++) {
        record[i].rate = rate;
        expect_fate(m, record[i], n == 1 ? PUSH_APPLIED : PUSH_AGGREGATED, PUSH_USED);
    }
    after_update(m, before);
}

static void apply_taken(struct model *m)
{
    float mean[MODEL_COUNT];
    uint64_t before = m->used, samples = 0;
    unsigned n = m->taken_count;
    for (size_t k = 0; k < m->count; k++) {
        mean[k] = m->taken[0].gradient[k];
        for (unsigned i = 1; i < n; i++) {
            mean[k] += m->taken[i].gradient[k];
        }
        mean[k] *= 1.0f / (float)n;
    }
    for (unsigned i = 0; i < n; i++) {
        samples += m->taken[i].samples;
    }
    double rate = step(m, mean, 1, samples);
    m->used += samples;
    m->version++;
    for (unsigned i = 0; i < n; i++) {
        m->taken[i].record.rate = rate * m->taken[i].record.scale;
        expect_fate(m, m->taken[i].record, PUSH_AGGREGATED, PUSH_USED)->taken = true;
    }
    m->taken_count = 0;
    after_update(m, before);
}

static void take(struct model *m, unsigned worker)
{
    struct model_worker *w = &m->worker[worker];
    w->held = false;
    double scale = scale_of(m, m->version - w->push.read_version);
    if (scale < 0) {
        expect_drop(m, worker, PUSH_DROPPED_STALE, PUSH_BY_DAMPING);
        return;
    }
    struct push_record record = record_of(m, worker);
    record.scale = scale;
    record.gap = root_mean_square(m->theta, w->read, m->count);
    m->taken[m->taken_count].record = record;
    m->taken[m->taken_count].samples = w->push.samples;
    for (size_t k = 0; k < m->count; k++) {
        m->taken[m->taken_count].gradient[k] = (float)scale * w->gradient[k];
    }
    m->taken_count++;
    if (m->taken_count == taken_per_update(m)) {
        apply_taken(m);
    }
}

static bool barrier_is_full(const struct model *m)
{
    unsigned held = 0, missing = 0;
    for (unsigned i = 0; i < m->workers; i++) {
        held += m->worker[i].held;
        missing += !m->worker[i].held && !m->worker[i].lost;
    }
    return held > 0 && missing <= (strcmp(m->policy, "backup") == 0 ? m->parameter : 0);
}

static bool drops(const struct model *m, uint64_t staleness)
{
    bool only_fresh = strcmp(m->policy, "backup") == 0 || strcmp(m->policy, "rennala") == 0;
    return (only_fresh && staleness > 0) ||
           (strcmp(m->policy, "ringmaster") == 0 && staleness >= m->parameter);
}

/* Of a push that is in order. */
static void decide(struct model *m, unsigned worker)
{
    struct model_worker *w = &m->worker[worker];
    if (drops(m, m->version - w->push.read_version)) {
        w->held = false;
        expect_drop(m, worker, PUSH_DROPPED_STALE, PUSH_BY_CONSISTENCY);
    } else if (model_takes(m)) {
        take(m, worker);
    } else if (!model_holds(m)) {
        apply_one(m, worker);
    } else if (barrier_is_full(m)) {
        apply_barrier(m);
    }
}

void model_hello(struct model *m, unsigned worker)
{
    m->expected_count = 0;
    m->about = worker;
    struct model_worker *w = &m->worker[worker];
    uint64_t own = w->clock;
    if (w->here) {
        if (w->computing) {
            release(m, worker);
        }
        return;
    }
    bool back = w->lost;
    memset(w, 0, sizeof *w);
    w->here = true;
    w->lost = true; /* does not count yet */
    uint64_t slowest = UINT64_MAX;
    for (unsigned i = 0; i < m->workers; i++) {
        if (!m->worker[i].lost && m->worker[i].clock < slowest) {
            slowest = m->worker[i].clock;
        }
    }
    w->lost = false;
    w->clock = back && slowest != UINT64_MAX ? slowest : own;
    release_whoever_may(m);
}

void model_lost(struct model *m, unsigned worker)
{
    m->expected_count = 0;
    m->about = worker;
    struct model_worker *w = &m->worker[worker];
    uint64_t own = w->clock;
    if (w->held) {
        expect_drop(m, worker, PUSH_DROPPED_LATE, PUSH_WORKER_LOST);
    }
    memset(w, 0, sizeof *w);
    w->lost = true;
    w->clock = own;
    if (!m->ended && model_holds(m) && barrier_is_full(m)) {
        apply_barrier(m);
    }
    release_whoever_may(m);
}

void model_end(struct model *m)
{
    m->expected_count = 0;
    m->evaluating = false;
    m->ended = true;
    drop_what_waits(m, PUSH_RUN_ENDED);
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
    m->about = push->worker;
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
    w->clock++;
    w->arrival = m->arrivals++;
    w->computing = false;
    w->push = *push;
    memcpy(w->gradient, push->gradient, m->count * sizeof(float));
    m->computed += push->samples;
    w->held = true;
    if (m->ended) {
        w->held = false;
        expect_drop(m, push->worker, PUSH_DROPPED_LATE, PUSH_AFTER_END);
    } else if (!isfinite(push->loss)) {
        diverge(m, push->worker, PUSH_BAD_LOSS);
    } else if (!finite_vector(w->gradient, m->count)) {
        diverge(m, push->worker, PUSH_BAD_GRADIENT);
    } else {
        decide(m, push->worker);
    }
    release_whoever_may(m);
    return true;
}
