/*
 * Whole trainings under every damping rule and every correction. Four workers drive the core in a
 * fixed, uneven order. The final parameters must equal those of a second, plain implementation in
 * double precision below, which shares no code with ps/ or the optimizer. The model is a logistic
 * regression that separates two normal distributions.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ps/rules/correction/correction.h"
#include "ps/rules/damping/damping.h"
#include "tests/ps/core/core_bench.h"

enum { D = BENCH_COUNT, W = 4, PUSHES = 80, BATCH = 8, SAMPLES = 10, TOTAL = 1000 };
#define RATE  0.2
#define GAMMA 0.9

/* A sum of uniform numbers approximates a normal one. */
static void sample(uint64_t seed, double label, double x[D])
{
    float u[4];
    for (unsigned i = 0; i < D - 1; i++) {
        core_rig_fill(u, 4, seed * 64 + i);
        x[i] = u[0] + u[1] + u[2] + u[3] + label * 0.5;
    }
    x[D - 1] = 1;
}

/* Of the mean of ln(1 + exp(−y θ·x)) over batch `k` of worker `w`. */
static void gradient_at(const float *theta, unsigned w, unsigned k, float out[D])
{
    double sum[D] = {0};
    for (unsigned b = 0; b < BATCH; b++) {
        double x[D], label = b % 2 == 0 ? 1 : -1, product = 0;
        sample(1 + b + BATCH * (k + (uint64_t)PUSHES * w), label, x);
        for (unsigned i = 0; i < D; i++)
            product += (double)theta[i] * x[i];
        for (unsigned i = 0; i < D; i++)
            sum[i] -= label * x[i] / (1 + exp(label * product)) / BATCH;
    }
    for (unsigned i = 0; i < D; i++)
        out[i] = (float)sum[i];
}

/* Worker 3 is slow: its gradients are stale. */
static unsigned worker_of(unsigned push)
{
    uint64_t state = push;
    return core_rig_random(&state) % 10 == 0 ? 3 : (unsigned)(core_rig_random(&state) % 3);
}

static double compute_us_of(unsigned worker)
{
    return worker == 3 ? 900 : 100 + worker;
}

/* ---- the core ---- */

static void train_core(const char *const *settings, float out[D])
{
    static struct core_bench b;
    unsigned next[W] = {0};
    bench_open(&b, (struct server_core_options){.workers = W, .total_samples = TOTAL}, settings);
    bench_hello_all(&b);
    for (unsigned p = 0; p < PUSHES; p++) {
        unsigned w = worker_of(p);
        gradient_at(b.rig.slots[b.slot[w]], w, next[w]++, b.gradient[w]);
        struct server_push push = bench_push_of(&b, w);
        push.compute_us = compute_us_of(w);
        bench_feed(&b, push);
        assert_int_equal(b.releases, 1);
    }
    memcpy(out, bench_latest(&b), D * sizeof(float));
    core_rig_close(&b.rig);
}

/* ---- the plain implementation ---- */

struct rules_training_plain {
    const char *damping, *correction;
    double momentum, decay;
    double gap[D]; /* G of gap-aware, else 1 */
    double theta[D], velocity[D], own[W][D], square[D], mean[D];
    double largest_rate;
    float history[PUSHES + 1][D]; /* parameters of each version */
    unsigned version, read[W], next[W], used;
    unsigned ages[PUSHES], seen, computed[W];
    double time[W];
};

static bool is(const char *a, const char *b)
{
    return strcmp(a, b) == 0;
}

/* Negative: dropped. */
static double plain_scale(const struct rules_training_plain *t, unsigned w, double tau, double norm)
{
    double older = 0, times = 0, senders = 0;
    for (unsigned i = 0; i < t->seen; i++)
        older += t->ages[i] >= tau;
    for (unsigned i = 0; i < W; i++) {
        times += t->computed[i] > 0 ? t->time[i] / t->computed[i] : 0;
        senders += t->computed[i] > 0;
    }
    const struct {
        const char *rule;
        double scale;
    } table[] = {
        {"none", 1},
        {"inverse", 1 / fmax(1, tau)},
        {"polynomial", 1 / sqrt(1 + tau)},
        {"exponential", exp(-tau / 10)},
        {"hinge", tau <= 4 ? 1 : 1 / (10 * (tau - 4) + 1)},
        {"generation", tau <= 8 ? 1 : 0.125},
        {"cutoff", tau <= 8 ? 1 : -1},
        {"mishchenko", W / fmax(W, tau + 1)},
        {"koloskova", tau <= W ? 1 : 1 / tau},
        {"fedbuff", pow(1 + tau, -0.5)},
        {"tail", older / t->seen},
        {"rescaled", t->time[w] / t->computed[w] / (times / senders)},
        {"trim", fmin(1, 0.5 / norm)},
    };
    for (size_t i = 0; i < COUNT_OF(table); i++)
        if (is(table[i].rule, t->damping))
            return table[i].scale;
    fail_msg("%s has no plain counterpart", t->damping);
    return 0;
}

/* g ← corrected g; t->mean holds the mean square velocity up to this version. */
static void plain_correct(struct rules_training_plain *t, double g[D], const float *now,
                          const float *read_at)
{
    for (unsigned i = 0; i < D; i++) {
        double moved = (double)now[i] - (double)read_at[i];
        t->gap[i] = 1;
        t->square[i] = 0.95 * t->square[i] + 0.05 * g[i] * g[i];
        if (is(t->correction, "dc-asgd-c")) {
            g[i] += 5 * g[i] * g[i] * moved;
        } else if (is(t->correction, "dc-asgd-a")) {
            g[i] += 2 / sqrt(t->square[i] + 1e-7) * g[i] * g[i] * moved;
        } else if (is(t->correction, "gap-aware") && moved != 0) {
            double velocity = sqrt(t->mean[i] / (1 - pow(0.9, t->version + 1)));
            t->gap[i] = 1 + fabs(moved) / (t->largest_rate * (velocity + 1e-8));
            g[i] /= t->gap[i];
        }
    }
}

static void plain_update(struct rules_training_plain *t, unsigned w, const double g[D],
                         double scale)
{
    bool slim = is(t->correction, "dana-slim"), zero = is(t->correction, "dana-zero");
    double lr = RATE * (1 - (t->used + SAMPLES / 2.0) / TOTAL);
    t->used += SAMPLES;
    t->version++;
    t->largest_rate = fmax(t->largest_rate, lr);
    for (unsigned i = 0; i < D; i++) {
        double ahead = 0, *v = slim || zero ? &t->own[w][i] : &t->velocity[i];
        double decay = t->decay * (double)t->history[t->version - 1][i] / t->gap[i];
        *v = t->momentum * *v + scale * g[i] + decay;
        t->theta[i] -= lr * (slim ? scale * g[i] + t->momentum * *v : *v);
        for (unsigned j = 0; zero && j < W; j++)
            ahead += lr * t->momentum * t->own[j][i];
        t->history[t->version][i] = (float)(t->theta[i] - ahead);
        double step = (double)t->history[t->version][i] - (double)t->history[t->version - 1][i];
        t->mean[i] = 0.9 * t->mean[i] + 0.1 * step * step / (lr * lr);
    }
}

static int by_size(const void *a, const void *b)
{
    const double *x = a, *y = b;
    return (*x > *y) - (*x < *y);
}

/* The median over parameters of (x_{r+1} − x_r + α g) / (x_r − x_{r−1}); D is odd. */
static void plain_adjust(struct rules_training_plain *t, unsigned r, const float *g, double rate)
{
    double ratio[D];
    bool forgotten = t->version - (r - 1) >= 4 * W + 8;
    if (!is(t->correction, "closed-loop-momentum") || r == 0 || forgotten)
        return;
    for (unsigned i = 0; i < D; i++) {
        double before = (double)t->history[r - 1][i], at = (double)t->history[r][i];
        ratio[i] = ((double)t->history[r + 1][i] - at + rate * (double)g[i]) / (at - before);
    }
    qsort(ratio, D, sizeof *ratio, by_size);
    t->momentum = fmax(-0.5, fmin(0.999, t->momentum + 0.05 * (GAMMA - ratio[D / 2])));
}

static void plain_push(struct rules_training_plain *t, unsigned w)
{
    float raw[D];
    double g[D], squares = 0;
    const float *now = t->history[t->version], *read_at = t->history[t->read[w]];
    gradient_at(read_at, w, t->next[w]++, raw);
    for (unsigned i = 0; i < D; i++) {
        g[i] = (double)raw[i];
        squares += g[i] * g[i];
    }
    unsigned tau = t->version - t->read[w];
    t->ages[t->seen++] = tau;
    t->computed[w]++;
    t->time[w] += compute_us_of(w);
    double scale = plain_scale(t, w, tau, sqrt(squares));
    if (scale >= 0) {
        plain_correct(t, g, now, read_at);
        double lr = RATE * (1 - (t->used + SAMPLES / 2.0) / TOTAL);
        plain_update(t, w, g, scale);
        plain_adjust(t, t->read[w], raw, lr * scale);
    }
    t->read[w] = t->version;
}

static void train_plainly(const char *damping, const char *correction, double decay, float out[D])
{
    static struct rules_training_plain t;
    memset(&t, 0, sizeof t);
    t.damping = damping;
    t.correction = correction;
    t.decay = decay;
    t.momentum = is(correction, "implicit-momentum") ? GAMMA - (1 - 1.0 / W) : GAMMA;
    core_rig_fill(t.history[0], D, 7); /* as core_rig_open() begins */
    for (unsigned i = 0; i < D; i++)
        t.theta[i] = (double)t.history[0][i];
    for (unsigned p = 0; p < PUSHES; p++)
        plain_push(&t, worker_of(p));
    memcpy(out, t.history[t.version], D * sizeof(float));
}

/* ---- the comparison ---- */

static double distance(const float a[D], const float b[D])
{
    double most = 0;
    for (unsigned i = 0; i < D; i++)
        most = fmax(most, fabs((double)a[i] - (double)b[i]));
    return most;
}

/* Options with which the rule has an effect in this short training. */
static const char *parameter_for(const char *damping, const char *correction)
{
    return is(damping, "trim")                      ? "damping.norm=0.5"
           : is(correction, "dc-asgd-c")            ? "correction.lambda=5"
           : is(correction, "gap-aware")            ? "correction.memory=0.9"
           : is(correction, "closed-loop-momentum") ? "correction.gain=0.05"
                                                    : "lr=0.2";
}

static void compare(const char *damping, const char *correction, float core[D])
{
    char damped[64], corrected[64];
    float plain[D];
    bool own = is(correction, "dana-slim") || is(correction, "dana-zero");
    double decay = own ? 0 : 0.02; /* dana-* applies weight decay to other parameters */
    const char *decayed = own ? "weight_decay=0" : "weight_decay=0.02";
    snprintf(damped, sizeof damped, "damping=%s", damping);
    snprintf(corrected, sizeof corrected, "correction=%s", correction);
    train_core(RIG(damped, corrected, own ? "optimizer=sgd" : "optimizer=momentum",
                   "schedule=linear", "lr=0.2", parameter_for(damping, correction), decayed),
               core);
    train_plainly(damping, correction, decay, plain);
    if (!(distance(core, plain) <= 5e-5)) {
        fail_msg("%s with %s: %g from the plain training", damping, correction,
                 distance(core, plain));
    }
}

static void every_damping_rule_equals_its_plain_implementation(void **state)
{
    (void)state;
    float undamped[D], damped[D];
    compare("none", "none", undamped);
    for (size_t i = 0; i < damping_registry.count; i++) {
        const char *name = damping_registry.entries[i]->name;
        compare(name, "none", damped);
        assert_true(is(name, "none") || distance(damped, undamped) > 1e-3);
    }
}

static void every_correction_equals_its_plain_implementation(void **state)
{
    (void)state;
    static const char *const dampings[] = {"none", "polynomial", "cutoff", "tail"};
    float uncorrected[D], corrected[D];
    for (size_t d = 0; d < COUNT_OF(dampings); d++) {
        compare(dampings[d], "none", uncorrected);
        for (size_t i = 0; i < correction_registry.count; i++) {
            const char *name = correction_registry.entries[i]->name;
            compare(dampings[d], name, corrected);
            assert_true(is(name, "none") || distance(corrected, uncorrected) > 1e-3);
        }
    }
}

/* ---- optimizers that divide by the gradient's size --------------------------------------------
 */

/* The step that a gradient of staleness `TAU` makes. */
enum { TAU = 3 };
static void stale_step(const char *const *settings, double out[D])
{
    static struct core_bench b;
    float before[D];
    bench_open(&b, (struct server_core_options){.workers = 2, .total_samples = TOTAL}, settings);
    bench_hello_all(&b);
    for (unsigned k = 0; k <= TAU; k++) {
        const unsigned w = k == TAU;
        gradient_at(b.rig.slots[b.slot[w]], w, k, b.gradient[w]);
        memcpy(before, bench_latest(&b), sizeof before);
        bench_push(&b, w);
    }
    assert_int_equal(b.record[0].staleness, TAU);
    for (unsigned i = 0; i < D; i++)
        out[i] = (double)bench_latest(&b)[i] - (double)before[i];
    core_rig_close(&b.rig);
}

static void damping_scales_the_step_of_every_layer_of_lars(void **state)
{
    (void)state;
    double damped[D], undamped[D];
#define LARS "optimizer=lars", "optimizer.trust=0.5", "momentum=0", "weight_decay=0", "lr=0.2"
    stale_step(RIG(LARS, "damping=inverse"), damped);
    stale_step(RIG(LARS, "damping=none"), undamped);
    for (unsigned i = 0; i < D; i++)
        assert_true(fabs(damped[i] - undamped[i] / TAU) < 1e-6);
    assert_true(fabs(undamped[0]) > 1e-4);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_damping_rule_equals_its_plain_implementation),
        cmocka_unit_test(every_correction_equals_its_plain_implementation),
        cmocka_unit_test(damping_scales_the_step_of_every_layer_of_lars),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
