/*
 * test_delay.c — training with key delay, under mpirun: the bits of its definition, its rules
 * against references in double precision, its records, and a stop while gradients wait.
 */
#include "base/memory.h"
#include "base/sha256.h"
#include "tests/sync/trainer_rig.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { UPDATES = 13, RANKS_MOST = 3 };

#define DELAYED(...)                                                                               \
    SETTINGS("updates=13", "schedule=constant", "warmup_epochs=0", "lr_scaling=none",              \
             "bucket_kib=4", "model=mlp" __VA_OPT__(, ) __VA_ARGS__)

static void *zeros(size_t count, size_t size)
{
    void *out = memory_allocate(count * size);
    REQUIRE(out != NULL);
    return out;
}

/* ---- a second implementation -------------------------------------------------------------------
 */

/* The workers of all ranks, in this process. */
struct peers {
    options *settings;
    worker *at[RANKS_MOST];
    unsigned count;
    size_t parameters;
    float *theta, *gradient; /* [parameters] */
};

static status peers_open(struct peers *p, const char *const *settings, unsigned ranks)
{
    status result = OK;
    *p = (struct peers){.count = ranks};
    TRY(sync_rig_training(&p->settings, settings));
    for (unsigned i = 0; i < ranks; i++)
        TRY(worker_open(&p->at[i], &(struct worker_options){
                                       .settings = p->settings, .index = i, .count = ranks}));
    p->parameters = worker_parameter_count(p->at[0]);
    p->theta = zeros(p->parameters, sizeof(float));
    p->gradient = zeros(p->parameters, sizeof(float));
done:
    return result;
}

static void peers_close(struct peers *p)
{
    for (unsigned i = 0; i < p->count; i++)
        worker_close(&p->at[i]);
    options_close(&p->settings);
    memory_free(p->theta);
    memory_free(p->gradient);
}

/* mean ← the mean over ranks of their gradients of `batch` at p->theta, summed in rank order. */
static status mean_gradient(struct peers *p, uint64_t batch, float *mean)
{
    status result = OK;
    struct step_stats stats;
    for (unsigned i = 0; i < p->count; i++) {
        TRY(worker_gradient(p->at[i], p->theta, batch, p->gradient, &stats));
        for (size_t k = 0; k < p->parameters; k++)
            mean[k] = i == 0 ? p->gradient[k] : mean[k] + p->gradient[k];
    }
    for (size_t k = 0; k < p->parameters; k++)
        mean[k] *= 1.0f / (float)p->count;
done:
    return result;
}

/* ---- the definition, in float32 ----------------------------------------------------------------
 */

#define WITH_MOMENTUM(...)                                                                         \
    DELAYED("optimizer=momentum", "momentum=0.9", "weight_decay=0",                                \
            "lr=0.05" __VA_OPT__(, ) __VA_ARGS__)

/* hex ← the digest of θ_13: θ after update n is made of θ after n − 1 updates and the gradient of
 * batch n at θ after max(0, n − delay) updates; n counts from 0. */
static status reference(unsigned ranks, unsigned delay, char hex[65])
{
    status result = OK;
    struct peers p;
    struct sha256 digest;
    float *means = NULL, *theta = NULL, *velocity = NULL;
    TRY(peers_open(&p, WITH_MOMENTUM("overlap=no"), ranks));
    const size_t count = p.parameters;
    means = zeros(UPDATES * count, sizeof(float));
    theta = p.theta;
    velocity = zeros(count, sizeof(float));
    TRY(worker_initial_parameters(p.at[0], theta, count));
    for (unsigned step = 0; step < UPDATES + delay; step++) {
        if (step < UPDATES)
            TRY(mean_gradient(&p, step, means + step * count));
        for (size_t k = 0; step >= delay && k < count; k++) {
            velocity[k] = 0.9f * velocity[k] + means[(step - delay) * count + k];
            theta[k] -= 0.05f * velocity[k];
        }
    }
    sha256_begin(&digest);
    sha256_add(&digest, theta, count * sizeof(float));
    sha256_end(&digest, hex);
done:
    memory_free(means);
    memory_free(velocity);
    peers_close(&p);
    return result;
}

/* A run with checkpoints stops at its first checkpoint. */
static status train(const char *const *settings, unsigned rank, unsigned size, recorder *rows,
                    struct training_outcome *out)
{
    status result = OK;
    struct run r = {.recorder = rows, .seen.stop_after_checkpoints = 1};
    TRY(run_open(&r, settings, rank, size));
    TRY(run_train(&r));
done:
    *out = r.outcome;
    run_close(&r);
    return result;
}

static status expect_bits(const char *const *settings, const char *hex, unsigned rank,
                          unsigned size)
{
    status result = OK;
    struct training_outcome outcome;
    TRY(train(settings, rank, size, NULL, &outcome));
    if (strcmp(hex, outcome.parameters_sha256) != 0 || outcome.updates != UPDATES ||
        outcome.samples_used != outcome.samples_computed)
        FAIL(ERROR_OTHER, "%s %s: %.12s… after %llu updates, not %.12s…", settings[10],
             settings[11], outcome.parameters_sha256, (unsigned long long)outcome.updates, hex);
done:
    return result;
}

static status case_bits(unsigned rank, unsigned size)
{
    status result = OK;
    static const unsigned delays[] = {0, 1, 4, 20};
    static const char *const ways[][3] = {
        {"communicator=shared", "overlap=yes", "evaluate_every=0"},
        {"communicator=shared", "overlap=no", "evaluate_every=0"},
        {"communicator=mpi", "overlap=yes", "evaluate_every=0"},
        {"communicator=mpi", "overlap=auto", "evaluate_every=0"},
        {"communicator=ring", "overlap=auto", "evaluate_every=0"},
        {"communicator=hierarchical", "overlap=auto", "evaluate_every=0"},
        {"communicator=naive", "overlap=no", "evaluate_every=0.01"},
    };
    char hex[65], delay[16];
    for (size_t d = 0; d < COUNT_OF(delays); d++) {
        TRY(reference(size, delays[d], hex));
        snprintf(delay, sizeof delay, "delay=%u", delays[d]);
        for (size_t i = 0; i < COUNT_OF(ways); i++)
            TRY(expect_bits(
                WITH_MOMENTUM(delay, ways[i][0], ways[i][1], ways[i][2], "reduction=ordered"), hex,
                rank, size));
    }
done:
    return result;
}

/* ---- rules, against float64 --------------------------------------------------------------------
 */

/* Parameters at each version, and the update's own state. */
struct exact {
    struct peers peers;
    unsigned delay;
    double *at;    /* [UPDATES + 1][parameters] */
    double *state; /* [UPDATES + 1][2][parameters]: what the rule keeps of each version */
    float *gradient;
};

/* next ← the rule's parameters after update n (0, 1, …) at `now` with gradient g. */
typedef void exact_rule(struct exact *e, unsigned n, size_t k, double now, double g, double *next);

static double *state_of(struct exact *e, unsigned version, unsigned which, size_t k)
{
    return e->state + (version * 2 + which) * e->peers.parameters + k;
}

static status exact_run(struct exact *e, exact_rule *rule)
{
    status result = OK;
    const size_t count = e->peers.parameters;
    TRY(worker_initial_parameters(e->peers.at[0], e->peers.theta, count));
    for (size_t k = 0; k < count; k++)
        e->at[k] = (double)e->peers.theta[k];
    for (unsigned n = 0; n < UPDATES; n++) {
        const double *read = e->at + (n > e->delay ? n - e->delay : 0) * count;
        for (size_t k = 0; k < count; k++)
            e->peers.theta[k] = (float)read[k];
        TRY(mean_gradient(&e->peers, n, e->gradient));
        for (size_t k = 0; k < count; k++)
            rule(e, n, k, e->at[n * count + k], (double)e->gradient[k],
                 &e->at[(n + 1) * count + k]);
    }
done:
    return result;
}

static const double RATE = 0.02, DECAY = 0.1, BETA1 = 0.9, BETA2 = 0.999, EPSILON = 0.01;

/* AdamW's whole update, which the caller subtracts. */
static double adamw_update(struct exact *e, unsigned n, size_t k, double now, double g)
{
    const double m = BETA1 * *state_of(e, n, 0, k) + (1 - BETA1) * g;
    const double v = BETA2 * *state_of(e, n, 1, k) + (1 - BETA2) * g * g;
    *state_of(e, n + 1, 0, k) = m;
    *state_of(e, n + 1, 1, k) = v;
    const double unbiased = m / (1 - pow(BETA1, n + 1)), square = v / (1 - pow(BETA2, n + 1));
    return RATE * (unbiased / (sqrt(square) + EPSILON) + DECAY * now);
}

static void adamw_alone(struct exact *e, unsigned n, size_t k, double now, double g, double *next)
{
    *next = now - adamw_update(e, n, k, now, g);
}

static double *kept_updates; /* [UPDATES][parameters] */
static void error_feedback(struct exact *e, unsigned n, size_t k, double now, double g,
                           double *next)
{
    const size_t count = e->peers.parameters;
    const double u = adamw_update(e, n, k, now, g);
    kept_updates[n * count + k] = u;
    *next = now - u;
    if (n >= e->delay)
        *next -= u - kept_updates[(n - e->delay) * count + k];
}

static void sgd_alone(struct exact *e UNUSED, unsigned n UNUSED, size_t k UNUSED, double now,
                      double g, double *next)
{
    *next = now - RATE * g;
}

/* 8 updates of annealing: the rate is divided by d^p with p = 7/8, 6/8, …, 0, 0. */
static void annealed(struct exact *e, unsigned n, size_t k UNUSED, double now, double g,
                     double *next)
{
    const double p = n + 1 < 8 ? 1 - (n + 1) / 8.0 : 0;
    *next = now - RATE / pow(e->delay, p) * g;
}

/* Ajanthan et al. 2025 (arXiv:2505.01099), equation 10, with a constant γ: d_t = γ (w_t − w_{t−1})
 * and w_{t+1} = w_t + d_t − η (1 − γ) ∇f(w̄_t + d̄_t). The run's parameters are w_t + d_t. */
static const double GAMMA = 0.95;
static void look_ahead(struct exact *e, unsigned n, size_t k, double now, double g, double *next)
{
    double *w = state_of(e, n, 0, k), *w_next = state_of(e, n + 1, 0, k);
    if (n == 0)
        *w = now; /* d_0 = 0 */
    *w_next = now - RATE * (1 - GAMMA) * g;
    *next = *w_next + GAMMA * (*w_next - *w);
}

static void nesterov_undiscounted(struct exact *e, unsigned n, size_t k, double now, double g,
                                  double *next)
{
    look_ahead(e, n, k, now, g / (1 - GAMMA), next);
}

/* The largest distance of the run's last parameters from those of the rule. */
static status distance(struct exact *e, exact_rule *rule, const float *last, double *out)
{
    status result = OK;
    const size_t count = e->peers.parameters;
    memset(e->state, 0, (UPDATES + 1) * 2 * count * sizeof *e->state);
    TRY(exact_run(e, rule));
    *out = 0;
    for (size_t k = 0; k < count; k++)
        *out = fmax(*out, fabs(e->at[UPDATES * count + k] - (double)last[k]));
done:
    return result;
}

/* A run with these settings has the parameters of `rule`, and not those of `other`. */
static status expect_rule(const char *const *settings, unsigned delay, exact_rule *rule,
                          exact_rule *other, unsigned rank, unsigned size)
{
    status result = OK;
    struct run r = {0};
    struct exact e = {.delay = delay};
    double near = NAN, far = NAN;
    TRY(run_open(&r, settings, rank, size));
    TRY(run_train(&r));
    if (rank != 0)
        goto done;
    TRY(peers_open(&e.peers, settings, size));
    const size_t count = e.peers.parameters;
    e.at = zeros((UPDATES + 1) * count, sizeof *e.at);
    e.state = zeros((UPDATES + 1) * 2 * count, sizeof *e.state);
    kept_updates = zeros(UPDATES * count, sizeof *kept_updates);
    e.gradient = zeros(count, sizeof *e.gradient);
    TRY(distance(&e, rule, r.seen.kept.parameters, &near));
    TRY(distance(&e, other, r.seen.kept.parameters, &far));
    if (!(near < 2e-6) || !(far > 1e-3))
        FAIL(ERROR_OTHER, "%s delay %u: %g from its rule, %g from the other", settings[6], delay,
             near, far);
done:
    memory_free(kept_updates);
    kept_updates = NULL;
    memory_free(e.at);
    memory_free(e.state);
    memory_free(e.gradient);
    peers_close(&e.peers);
    run_close(&r);
    return result;
}

static status case_rules(unsigned rank, unsigned size)
{
    status result = OK;
    static const unsigned delays[] = {1, 3};
    char delay[16];
    for (size_t i = 0; i < COUNT_OF(delays); i++) {
        snprintf(delay, sizeof delay, "delay=%u", delays[i]);
        TRY(expect_rule(DELAYED("delay_correction=error-feedback", delay, "checkpoint=x",
                                "optimizer=adamw", "optimizer.epsilon=0.01", "weight_decay=0.1",
                                "lr=0.02"),
                        delays[i], error_feedback, adamw_alone, rank, size));
        TRY(expect_rule(DELAYED("optimizer=nesterov", delay, "checkpoint=x", "momentum=0.95",
                                "weight_decay=0", "lr=0.001"),
                        delays[i], look_ahead, nesterov_undiscounted, rank, size));
    }
    TRY(expect_rule(DELAYED("delay_annealing=8", "delay=3", "checkpoint=x", "optimizer=sgd",
                            "weight_decay=0", "lr=0.02"),
                    3, annealed, sgd_alone, rank, size));
done:
    return result;
}

/* ---- records, and a stop -----------------------------------------------------------------------
 */

static status case_records(unsigned rank, unsigned size)
{
    status result = OK;
    static const struct fact facts[] = {
        {"SELECT count(*) || ' ' || sum(staleness) || ' ' || max(staleness) FROM step", "26 84 4"},
        {"SELECT group_concat(staleness, '') FROM step WHERE worker = 1", "0123444444444"},
        {"SELECT round(mean_staleness, 4) || ' ' || max_staleness FROM run", "3.2308 4"},
        {"SELECT count(DISTINCT loss) FROM step WHERE worker = 1", "13"},
    };
    struct training_outcome outcome;
    int64_t id;
    recorder *r = NULL;
    if (rank == 0 && rig_make_folder(NULL) == 0)
        r = rig_begin(&(struct run_description){.mode = "sync", .workers = 2}, &id);
    TRY(train(WITH_MOMENTUM("delay=4", "communicator=auto"), rank, size, r, &outcome));
    if (rank == 0)
        rig_finish(r, &rig_outcome);
    if (rank == 0)
        TRY(expect_facts(facts, COUNT_OF(facts)));
done:
    if (rank == 0)
        rig_remove_folder(NULL);
    return result;
}

/* A request to stop comes while gradients wait: they stay for the resumed run. */
static status expect_stop(const char *delay, unsigned waiting, unsigned updates, unsigned rank,
                          unsigned size)
{
    status result = OK;
    struct training_outcome outcome;
    status ended =
        train(WITH_MOMENTUM(delay, "communicator=auto", "checkpoint=x", "checkpoint_every=0.04"),
              rank, size, NULL, &outcome);
    if (ended != STOPPED || outcome.updates != updates ||
        outcome.samples_used + waiting * 10 * size != outcome.samples_computed)
        FAIL(ERROR_OTHER, "%s ended as %s after %llu updates, %llu of %llu samples used", delay,
             status_name(ended), (unsigned long long)outcome.updates,
             (unsigned long long)outcome.samples_used,
             (unsigned long long)outcome.samples_computed);
done:
    return result;
}

/* Update 4 reaches the 80 samples of the checkpoint at which rank 0 gets the request. The gradient
 * that is computed next carries the request to all ranks in the following step. The gradient
 * computed in that step waits. */
static status case_stop(unsigned rank, unsigned size)
{
    status result = OK;
    TRY(expect_stop("delay=1", 1, 6, rank, size));
    TRY(expect_stop("delay=4", 4, 6, rank, size));
done:
    return result;
}

static const struct sync_case CASES[] = {
    {"bits", case_bits}, {"rules", case_rules}, {"records", case_records},
    {"stop", case_stop}, {NULL, NULL},
};

/* ---- tests --------------------------------------------------------------------------------------
 */

static void a_delay_has_the_bits_of_its_definition(void **state UNUSED)
{
    for (unsigned ranks = 1; ranks <= RANKS_MOST; ranks++)
        sync_rig_expect_ok(ranks, "bits");
}

static void rules_of_a_delay_are_those_of_their_papers(void **state UNUSED)
{
    sync_rig_expect_ok(1, "rules");
    sync_rig_expect_ok(2, "rules");
}

static void the_staleness_of_a_delay_is_recorded(void **state UNUSED)
{
    sync_rig_expect_ok(2, "records");
}

static void a_stopped_run_keeps_its_waiting_gradients(void **state UNUSED)
{
    sync_rig_expect_ok(2, "stop");
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_delay_has_the_bits_of_its_definition),
        cmocka_unit_test(rules_of_a_delay_are_those_of_their_papers),
        cmocka_unit_test(the_staleness_of_a_delay_is_recorded),
        cmocka_unit_test(a_stopped_run_keeps_its_waiting_gradients),
    };
    int code;
    if (sync_rig_is_rank(argc, argv, CASES, &code))
        return code;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
