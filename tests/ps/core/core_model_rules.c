/* core_model_rules.c — policies and rules of the naive model; see core_model.h. */
#include "tests/ps/core/core_model.h"

#include "base/vector.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static bool is(const struct about *about, const char *name)
{
    return strcmp(about->name, name) == 0;
}

/* ---- policies ---- */

unsigned model_groups(const struct core_model *m)
{
    if (m->calls_rules && m->policy->groups != NULL)
        return m->policy->groups(m->policy_parameters, m->workers);
    return is(&m->policy->about, "groups") ? (unsigned)fmin(m->policy_parameters[0], m->workers)
                                           : 1;
}

/* Group g begins at worker ⌈g W / G⌉. Late workers exist only with one group. */
static unsigned group_of(const struct core_model *m, unsigned worker)
{
    unsigned group = 0;
    while (ceil((double)(group + 1) * m->workers_max / model_groups(m)) <= worker)
        group++;
    return group;
}

static bool in_group(const struct core_model *m, unsigned worker)
{
    return group_of(m, worker) == group_of(m, m->about);
}

bool model_waits(const struct core_model *m, unsigned worker)
{
    return m->worker[worker].held && in_group(m, worker);
}

unsigned model_held(const struct core_model *m)
{
    unsigned held = 0;
    for (unsigned i = 0; i < m->workers_max; i++)
        held += model_waits(m, i);
    return held;
}

static unsigned not_lost(const struct core_model *m)
{
    unsigned n = 0;
    for (unsigned i = 0; i < m->workers_max; i++)
        n += !m->worker[i].lost && in_group(m, i);
    return n;
}

static struct consistency_view view_of(const struct core_model *m, unsigned held, unsigned taken)
{
    return (struct consistency_view){
        .workers = m->workers, .expected = not_lost(m), .held = held, .taken = taken};
}

static uint64_t staleness_of(const struct core_model *m, unsigned worker)
{
    return m->version - m->worker[worker].push.read_version;
}

enum consistency_decision model_decision(const struct core_model *m, unsigned worker)
{
    const struct about *a = &m->policy->about;
    uint64_t staleness = staleness_of(m, worker);
    if (m->calls_rules) {
        struct consistency_view view = view_of(m, model_held(m) - 1, m->taken_count);
        view.staleness = staleness;
        return m->policy->arrive == NULL ? CONSISTENCY_HOLD
                                         : m->policy->arrive(m->policy_parameters, &view);
    }
    if (is(a, "backup"))
        return staleness > 0 ? CONSISTENCY_DROP : CONSISTENCY_HOLD;
    else if (is(a, "rennala"))
        return staleness > 0 ? CONSISTENCY_DROP : CONSISTENCY_TAKE;
    else if (is(a, "ringmaster"))
        return (double)staleness >= m->policy_parameters[0] ? CONSISTENCY_DROP : CONSISTENCY_HOLD;
    return is(a, "softsync") || is(a, "buffered") ? CONSISTENCY_TAKE : CONSISTENCY_HOLD;
}

bool model_is_due(const struct core_model *m, unsigned held, unsigned taken)
{
    const struct about *a = &m->policy->about;
    double parameter = m->policy_parameters[0], n = held + taken;
    if (n == 0) {
        return false;
    } else if (m->calls_rules) {
        struct consistency_view view = view_of(m, held, taken);
        return m->policy->apply_now == NULL || m->policy->apply_now(m->policy_parameters, &view);
    } else if (is(a, "bsp") || is(a, "groups")) {
        return n >= not_lost(m);
    } else if (is(a, "backup")) {
        return n + parameter >= not_lost(m);
    } else if (is(a, "softsync")) {
        return n >= floor(m->workers / parameter);
    }
    return is(a, "buffered") || is(a, "rennala") ? n >= parameter : true;
}

bool model_may_go(const struct core_model *m, unsigned worker)
{
    uint64_t slowest = UINT64_MAX;
    for (unsigned i = 0; i < m->workers_max; i++)
        if (!m->worker[i].lost && m->worker[i].clock < slowest)
            slowest = m->worker[i].clock;
    if (m->calls_rules && m->policy->may_go != NULL) {
        struct consistency_view view = view_of(m, model_held(m), m->taken_count);
        view.clock = m->worker[worker].clock;
        view.slowest = slowest;
        return m->policy->may_go(m->policy_parameters, &view);
    }
    return !is(&m->policy->about, "ssp") ||
           (double)(m->worker[worker].clock - slowest) <= m->policy_parameters[0];
}

/* ---- damping ---- */

void model_observe(struct core_model *m, unsigned worker)
{
    uint64_t age = staleness_of(m, worker);
    m->seen.count++;
    m->seen.ages[age < DAMPING_AGES ? age : DAMPING_AGES - 1]++;
    m->seen.computed[worker]++;
    m->seen.us[worker] += (uint64_t)m->worker[worker].push.compute_us; /* integers in this test */
}

static double norm_of(const struct core_model *m, unsigned worker)
{
    return sqrt(vector_sum_of_squares(m->count, m->worker[worker].gradient));
}

static unsigned joined_workers(const struct core_model *m)
{
    unsigned here = 0;
    for (unsigned i = 0; i < m->workers_max; i++)
        here += m->worker[i].here;
    return here;
}

static double rule_scale(const struct core_model *m, unsigned worker)
{
    struct damping_history history = {.workers = m->workers_max,
                                      .count = m->seen.count,
                                      .ages = (uint64_t *)m->seen.ages,
                                      .computed = (uint64_t *)m->seen.computed,
                                      .compute_us = (uint64_t *)m->seen.us};
    struct damping_input input = {.staleness = staleness_of(m, worker),
                                  .workers = m->workers,
                                  .worker = worker,
                                  .concurrency = joined_workers(m),
                                  .norm = m->damping->needs_norm ? norm_of(m, worker) : NAN,
                                  .history = m->damping->needs_history ? &history : NULL};
    bool drop = false;
    double scale =
        m->damping->scale == NULL ? 1 : m->damping->scale(m->damping_parameters, &input, &drop);
    return drop ? -1 : scale;
}

static double share_of_staleness(const struct core_model *m, uint64_t staleness)
{
    uint64_t older = 0;
    for (uint64_t age = staleness; age < DAMPING_AGES; age++)
        older += m->seen.ages[age];
    return (double)older / (double)m->seen.count;
}

static double relative_compute_time(const struct core_model *m, unsigned worker)
{
    double sum = 0, senders = 0, mean[MODEL_WORKERS] = {0};
    for (unsigned i = 0; i < m->workers_max; i++) {
        if (m->seen.computed[i] > 0) {
            mean[i] = (double)m->seen.us[i] / (double)m->seen.computed[i];
            sum += mean[i];
            senders++;
        }
    }
    return sum > 0 ? mean[worker] * senders / sum : 1;
}

double model_scale(const struct core_model *m, unsigned worker)
{
    const struct about *a = &m->damping->about;
    const double *p = m->damping_parameters;
    uint64_t staleness = staleness_of(m, worker);
    double t = (double)staleness, C = p[0] > 0 ? p[0] : joined_workers(m);
    const struct {
        const char *name;
        double scale;
    } known[] = {
        {"none", 1},
        {"inverse", t < 1 ? 1 : 1 / t},
        {"polynomial", pow(1 + t, -p[0])},
        {"exponential", exp(-p[0] * t)},
        {"hinge", t <= p[1] ? 1 : 1 / (p[0] * (t - p[1]) + 1)},
        {"generation", t <= p[1] ? 1 : p[0]},
        {"cutoff", t <= p[0] ? 1 : -1},
        {"mishchenko", m->workers / fmax(m->workers, t + 1)},
        {"koloskova", t <= C ? 1 : (p[1] == 0 ? 1 / t : -1)},
        {"fedbuff", 1 / sqrt(1 + t)},
        {"tail", pow(share_of_staleness(m, staleness), p[0])},
        {"rescaled", relative_compute_time(m, worker)},
        {"trim", norm_of(m, worker) <= p[0] ? 1 : p[0] / norm_of(m, worker)},
    };
    for (size_t i = 0; !m->calls_rules && i < COUNT_OF(known); i++)
        if (is(a, known[i].name))
            return known[i].scale;
    return rule_scale(m, worker);
}

/* ---- corrections ---- */

void model_correct(const struct core_model *m, struct model_states *states, unsigned worker,
                   double scale, double lr, float *out)
{
    const struct model_worker *w = &m->worker[worker];
    struct model_states before = *states;
    struct correction_vectors v = {.gradient = w->gradient,
                                   .now = m->theta,
                                   .read_at = w->read,
                                   .own_in = m->correction->own ? before.own[worker] : NULL,
                                   .own_out = m->correction->own ? states->own[worker] : NULL,
                                   .out = out};
    for (unsigned i = 0; i < m->correction->shared; i++) {
        v.shared_in[i] = before.shared[i];
        v.shared_out[i] = states->shared[i];
    }
    struct correction_call call = {
        .parameters = m->correction_parameters,
        .context = {.worker = worker, .version = m->version, .scale = scale, .lr = lr},
        .decay = m->decay,
        .parameters_changed = before.started && m->version > before.version,
        .rate = before.rate,
        .largest_rate = before.largest_rate,
        .whole = v};
    states->started = true;
    states->version = m->version;
    if (m->from_now) /* the difference to the current parameters */
        for (size_t k = 0; k < m->count; k++)
            out[k] = w->gradient[k] + (m->theta[k] - w->read[k]);
    else if (m->correction->block == NULL)
        memcpy(out, w->gradient, m->count * sizeof(float));
    else
        m->correction->block(&call, m->count, &v);
}

/* ---- momentum ---- */

static int by_size(const void *a, const void *b)
{
    const double *x = a, *y = b;
    return (*x > *y) - (*x < *y);
}

/* The median of ps/core/total_momentum.h by sorting. MODEL_COUNT is below TOTAL_MOMENTUM_SAMPLE, so
 * all parameters count. */
static double total_momentum_of(const struct core_model *m, unsigned worker, double rate)
{
    const struct model_worker *w = &m->worker[worker];
    uint64_t r = w->push.read_version;
    double ratio[MODEL_COUNT];
    size_t n = 0;
    if (r == 0 || r == m->version || m->version - r + 1 >= 4 * m->workers_max + 8)
        return NAN;
    for (size_t k = 0; k < m->count; k++) {
        double before = (double)m->past[r][k] - (double)m->past[r - 1][k];
        double after = (double)m->past[r + 1][k] - (double)m->past[r][k];
        double q = (after + rate * (double)w->gradient[k]) / before;
        if (isfinite(q))
            ratio[n++] = q;
    }
    qsort(ratio, n, sizeof *ratio, by_size);
    return n == 0 ? NAN : n % 2 == 1 ? ratio[n / 2] : 0.5 * (ratio[n / 2 - 1] + ratio[n / 2]);
}

void model_adjust(struct core_model *m, unsigned worker, struct push_record *record)
{
    if (m->correction->adjust == NULL)
        return;
    REQUIRE(m->version < MODEL_VERSIONS);
    memcpy(m->past[m->version], m->theta, sizeof m->theta);
    record->momentum = m->momentum_now;
    record->total_momentum = total_momentum_of(m, worker, record->rate);
    if (!isnan(record->total_momentum)) {
        m->momentum_now = m->correction->adjust(m->correction_parameters, m->momentum_set,
                                                m->momentum_now, record->total_momentum);
        m->optimizer.momentum = (float)m->momentum_now;
    }
}
