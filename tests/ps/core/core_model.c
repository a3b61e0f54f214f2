/* core_model.c — see core_model.h. */
#include "tests/ps/core/core_model.h"

#include <float.h>
#include <math.h>
#include <string.h>

static struct server_action *expect(struct core_model *m, enum server_action_kind kind,
                                    unsigned worker)
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
    /* The same version has distance 0 even if it is not finite. */
    if (memcmp(a, b, count * sizeof *a) == 0)
        return 0;
    double sum = 0;
    for (size_t i = 0; i < count; i++)
        sum += ((double)a[i] - (double)b[i]) * ((double)a[i] - (double)b[i]);
    return sqrt(sum / (double)count);
}

static struct push_record record_of(const struct core_model *m, unsigned worker)
{
    const struct model_worker *w = &m->worker[worker];
    double squares = 0;
    for (size_t i = 0; i < m->count; i++)
        squares += (double)w->gradient[i] * (double)w->gradient[i];
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
                                .data_us = w->push.data_us,
                                .forward_us = w->push.forward_us,
                                .backward_us = w->push.backward_us,
                                .at_seconds = w->push.at_seconds,
                                .momentum = NAN,
                                .total_momentum = NAN};
}

static struct server_action *expect_outcome(struct core_model *m, struct push_record record,
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

/* The gap is NaN if the core does not measure it. */
static void expect_drop(struct core_model *m, unsigned worker, enum push_outcome outcome,
                        enum push_reason reason)
{
    struct push_record record = record_of(m, worker);
    if (outcome == PUSH_DROPPED_STALE)
        record.gap = root_mean_square(m->theta, m->worker[worker].read, m->count);
    expect_outcome(m, record, outcome, reason);
}

static void release(struct core_model *m, unsigned worker)
{
    struct model_worker *w = &m->worker[worker];
    if (!w->computing) {
        w->computing = true;
        w->version = m->version;
        w->used = m->used;
        w->waited_for = worker == m->about ? NO_WORKER : (int)m->about;
        memcpy(w->read, m->theta, sizeof w->read);
    }
    struct server_action *a = expect(m, SERVER_RELEASE, worker);
    a->version = w->version;
    a->samples = w->used;
    a->record.waited_for = w->waited_for;
}

static void release_ready(struct core_model *m)
{
    for (unsigned i = 0; i < m->workers_max; i++) {
        struct model_worker *w = &m->worker[i];
        if (!m->evaluating && !m->ended && w->here && !w->computing && !w->held &&
            model_may_go(m, i))
            release(m, i);
    }
}

static double rate_of(const struct core_model *m, uint64_t samples)
{
    return m->outer ? m->outer_rate : schedule_rate(&m->schedule, m->used, m->used + samples);
}

static bool finite_vector(const float *a, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (!isfinite(a[i]))
            return false;
    return true;
}

static bool is_usable(const struct core_model *m, const float *gradient, double scale)
{
    double squares = 0;
    for (size_t i = 0; i < m->count; i++)
        squares += (double)gradient[i] * (double)gradient[i];
    return isfinite(squares) && fabs(scale) * sqrt(squares) <= sqrt((double)FLT_MAX);
}

static void drop_all(struct core_model *m, enum push_reason reason)
{
    for (unsigned i = 0; i < m->workers_max; i++) {
        if (m->worker[i].held) {
            m->worker[i].held = false;
            expect_drop(m, i, PUSH_DROPPED_LATE, reason);
        }
    }
    for (unsigned i = 0; i < m->taken_count; i++)
        expect_outcome(m, m->taken[i].record, PUSH_DROPPED_LATE, reason)->taken = true;
    m->taken_count = 0;
}

static void diverge(struct core_model *m, unsigned culprit, enum push_reason reason)
{
    m->worker[culprit].held = false;
    expect_drop(m, culprit, PUSH_NOT_FINITE, reason);
    drop_all(m, PUSH_RUN_DIVERGED);
    m->ended = true;
    expect(m, SERVER_DIVERGED, culprit);
}

static void after_update(struct core_model *m, uint64_t before)
{
    expect(m, SERVER_APPLIED, 0);
    if (m->follows)
        return;
    m->complete = m->used >= m->total;
    bool crossed = false;
    for (uint64_t s = before + 1; m->every > 0 && s <= m->used; s++)
        crossed = crossed || s % m->every == 0;
    if (m->complete || crossed) {
        m->evaluating = true;
        m->evaluated = m->version + 1;
        expect(m, SERVER_EVALUATE, 0);
    }
}

/* No version is evaluated twice. */
static void end_by_time(struct core_model *m, unsigned worker)
{
    m->worker[worker].held = false;
    expect_drop(m, worker, PUSH_DROPPED_LATE, PUSH_AFTER_END);
    drop_all(m, PUSH_RUN_ENDED);
    m->complete = true;
    m->evaluating = m->evaluated != m->version + 1;
    m->ended = !m->evaluating;
    expect(m, m->ended ? SERVER_FINISHED : SERVER_EVALUATE, 0);
}

/* out ← the mean of weighted gradients */
static void mean_of(size_t count, unsigned n, float gradient[][MODEL_COUNT], const double *weight,
                    float *out)
{
    for (size_t k = 0; k < count; k++) {
        out[k] = (float)weight[0] * gradient[0][k];
        for (unsigned i = 1; i < n; i++)
            out[k] += (float)weight[i] * gradient[i][k];
        out[k] *= 1.0f / (float)n;
    }
}

/* One update of held gradients. */
struct model_update {
    unsigned n, worker[MODEL_WORKERS];
    struct push_record record[MODEL_WORKERS];
    uint64_t samples;
    struct model_states states;
};

static struct model_update choose(struct core_model *m)
{
    struct model_update u = {.states = m->states};
    bool dropped[MODEL_WORKERS] = {false};
    for (unsigned i = 0; i < m->workers_max; i++)
        if (model_waits(m, i))
            model_observe(m, i);
    for (unsigned i = 0; i < m->workers_max; i++) {
        double scale = model_waits(m, i) ? model_scale(m, i) : 0;
        dropped[i] = scale < 0;
        if (model_waits(m, i) && !dropped[i]) {
            u.record[u.n] = record_of(m, i);
            u.record[u.n].scale = scale;
            u.record[u.n].gap = root_mean_square(m->theta, m->worker[i].read, m->count);
            u.samples += m->worker[i].push.samples;
            u.worker[u.n++] = i;
        }
    }
    for (unsigned i = 0; i < m->workers_max; i++) {
        if (dropped[i]) {
            m->worker[i].held = false;
            expect_drop(m, i, PUSH_DROPPED_STALE, PUSH_BY_DAMPING);
        }
    }
    return u;
}

/* A scale-free optimizer scales its rate by the mean scale, and its gradient by the inverse. */
static double gradient_scale(const struct core_model *m, double left)
{
    if (!model_scale_free(m))
        return left;
    return m->mean_scale < (double)FLT_MIN ? 1 : left / m->mean_scale;
}

/* If all scales are equal, or there is only one gradient, the optimizer applies the scale. */
static double combine(struct core_model *m, struct model_update *u, double rate, float *mean)
{
    float gradient[MODEL_WORKERS][MODEL_COUNT];
    double weight[MODEL_WORKERS] = {1}, left;
    bool equal = true;
    for (unsigned i = 0; i < u->n; i++) {
        weight[i] = m->correction_scales ? 1 : u->record[i].scale;
        equal = equal && weight[i] == weight[0];
        model_correct(m, &u->states, u->worker[i], u->record[i].scale, rate, gradient[i]);
    }
    left = equal ? weight[0] : 1;
    m->mean_scale = 0;
    for (unsigned i = 0; i < u->n; i++)
        m->mean_scale += weight[i];
    m->mean_scale = equal ? left : m->mean_scale / u->n;
    for (unsigned i = 0; equal && i < u->n; i++)
        weight[i] = 1;
    mean_of(m->count, u->n, gradient, weight, mean);
    return gradient_scale(m, left);
}

static void apply_held(struct core_model *m)
{
    struct model_update u = choose(m);
    float mean[MODEL_COUNT];
    uint64_t before = m->used;
    if (u.n == 0)
        return;
    double rate = rate_of(m, u.samples);
    double left = combine(m, &u, rate, mean);
    if (!is_usable(m, mean, left)) {
        bool direct = u.n == 1 && m->correction->block == NULL && !m->from_now;
        diverge(m, u.worker[0], direct ? PUSH_BAD_GRADIENT : PUSH_BAD_UPDATE);
        return;
    }
    m->states = u.states;
    model_step(m, mean, left, rate, m->used, m->used + u.samples);
    m->used += u.samples;
    m->version++;
    for (unsigned i = 0; i < u.n; i++) {
        m->worker[u.worker[i]].held = false;
        u.record[i].rate = rate * u.record[i].scale;
        model_adjust(m, u.worker[i], &u.record[i]);
        expect_outcome(m, u.record[i], u.n == 1 ? PUSH_APPLIED : PUSH_AGGREGATED, PUSH_USED);
    }
    after_update(m, before);
}

static void diverge_taken(struct core_model *m)
{
    struct push_record last = m->taken[--m->taken_count].record;
    expect_outcome(m, last, PUSH_NOT_FINITE, PUSH_BAD_UPDATE)->taken = true;
    drop_all(m, PUSH_RUN_DIVERGED);
    m->ended = true;
    expect(m, SERVER_DIVERGED, last.worker);
}

static void apply_taken(struct core_model *m)
{
    static float gradient[MODEL_TAKEN][MODEL_COUNT];
    float mean[MODEL_COUNT];
    double weight[MODEL_TAKEN];
    uint64_t before = m->used, samples = 0;
    unsigned n = m->taken_count;
    double scales = 0;
    for (unsigned i = 0; i < n; i++) {
        memcpy(gradient[i], m->taken[i].gradient, sizeof gradient[i]);
        weight[i] = 1; /* scaled on arrival */
        scales += m->correction_scales ? 1 : m->taken[i].record.scale;
        samples += m->taken[i].samples;
    }
    mean_of(m->count, n, gradient, weight, mean);
    m->mean_scale = scales / n;
    const double left = gradient_scale(m, 1);
    if (!is_usable(m, mean, left)) {
        diverge_taken(m);
        return;
    }
    double rate = rate_of(m, samples);
    model_step(m, mean, left, rate, m->used, m->used + samples);
    m->used += samples;
    m->version++;
    for (unsigned i = 0; i < n; i++) {
        m->taken[i].record.rate = rate * m->taken[i].record.scale;
        expect_outcome(m, m->taken[i].record, n == 1 ? PUSH_APPLIED : PUSH_AGGREGATED, PUSH_USED)
            ->taken = true;
    }
    m->taken_count = 0;
    after_update(m, before);
}

static void take(struct core_model *m, unsigned worker)
{
    struct model_worker *w = &m->worker[worker];
    model_observe(m, worker);
    double scale = model_scale(m, worker);
    w->held = false;
    if (scale < 0) {
        expect_drop(m, worker, PUSH_DROPPED_STALE, PUSH_BY_DAMPING);
        return;
    }
    REQUIRE(m->taken_count < MODEL_TAKEN);
    struct push_record record = record_of(m, worker);
    record.scale = scale;
    record.gap = root_mean_square(m->theta, w->read, m->count);
    m->taken[m->taken_count].record = record;
    m->taken[m->taken_count].samples = w->push.samples;
    float *gradient = m->taken[m->taken_count].gradient;
    model_correct(m, &m->states, worker, scale, 0, gradient);
    for (size_t k = 0; k < m->count && !m->correction_scales; k++)
        gradient[k] = (float)scale * gradient[k];
    m->taken_count++;
    if (model_is_due(m, model_held(m), m->taken_count))
        apply_taken(m);
}

/* Contract: the push is valid. A push that is an update by itself is applied at once. */
static void decide(struct core_model *m, unsigned worker)
{
    enum consistency_decision decision = model_decision(m, worker);
    if (decision == CONSISTENCY_DROP) {
        m->worker[worker].held = false;
        expect_drop(m, worker, PUSH_DROPPED_STALE, PUSH_BY_CONSISTENCY);
    } else if (decision == CONSISTENCY_TAKE &&
               (m->taken_count > 0 || !model_is_due(m, model_held(m) - 1, 1))) {
        take(m, worker);
    } else if (decision == CONSISTENCY_TAKE || model_is_due(m, model_held(m), m->taken_count)) {
        apply_held(m);
    }
}

void model_hello(struct core_model *m, unsigned worker)
{
    m->expected_count = 0;
    m->about = worker;
    struct model_worker *w = &m->worker[worker];
    uint64_t own = w->clock;
    if (w->here) {
        if (w->computing)
            release(m, worker);
        return;
    }
    bool returns = w->lost;
    memset(w, 0, sizeof *w);
    w->here = true;
    w->lost = true; /* excluded from `slowest` below */
    uint64_t slowest = UINT64_MAX;
    for (unsigned i = 0; i < m->workers_max; i++)
        if (!m->worker[i].lost && m->worker[i].clock < slowest)
            slowest = m->worker[i].clock;
    w->lost = false;
    w->clock = returns && slowest != UINT64_MAX ? slowest : own;
    release_ready(m);
}

void model_lost(struct core_model *m, unsigned worker)
{
    m->expected_count = 0;
    m->about = worker;
    struct model_worker *w = &m->worker[worker];
    uint64_t own = w->clock;
    if (w->held)
        expect_drop(m, worker, PUSH_DROPPED_LATE, PUSH_WORKER_LOST);
    memset(w, 0, sizeof *w);
    w->lost = true;
    w->clock = own;
    if (!m->ended && model_is_due(m, model_held(m), m->taken_count)) {
        if (m->taken_count > 0)
            apply_taken(m);
        else
            apply_held(m);
    }
    release_ready(m);
}

void model_end(struct core_model *m)
{
    m->expected_count = 0;
    m->evaluating = false;
    m->ended = true;
    drop_all(m, PUSH_RUN_ENDED);
}

void model_evaluated(struct core_model *m)
{
    m->expected_count = 0;
    m->evaluating = false;
    if (m->complete) {
        m->ended = true;
        expect(m, SERVER_FINISHED, 0);
    }
    release_ready(m);
}

bool model_push(struct core_model *m, const struct server_push *push)
{
    m->expected_count = 0;
    m->about = push->worker;
    if (push->worker >= m->workers_max || !m->worker[push->worker].here)
        return false;
    struct model_worker *w = &m->worker[push->worker];
    if (push->sequence < w->next) {
        if (w->computing)
            release(m, push->worker);
        return true;
    }
    if (push->sequence != w->next || !w->computing || push->read_version != w->version ||
        push->samples == 0)
        return false;
    w->next++;
    w->clock++;
    w->arrival = m->arrivals++;
    w->computing = false;
    w->push = *push;
    memcpy(w->gradient, push->gradient, m->count * sizeof(float));
    m->computed += push->samples;
    schedule_at(&m->schedule, push->at_seconds);
    w->held = true;
    if (m->ended) {
        w->held = false;
        expect_drop(m, push->worker, PUSH_DROPPED_LATE, PUSH_AFTER_END);
    } else if (m->seconds > 0 && push->at_seconds >= m->seconds) {
        end_by_time(m, push->worker);
    } else if (!isfinite(push->loss)) {
        diverge(m, push->worker, PUSH_BAD_LOSS);
    } else if (!finite_vector(w->gradient, m->count)) {
        diverge(m, push->worker, PUSH_BAD_GRADIENT);
    } else {
        decide(m, push->worker);
    }
    release_ready(m);
    return true;
}
