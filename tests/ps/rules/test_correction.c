/*
 * Corrections: values worked out by hand from the papers' equations (the arithmetic is in the
 * comments), invariants of all corrections, and trainings of one worker. Whole trainings are
 * compared with a second implementation in tests/ps/rules/test_rules_training.c.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "ps/core/aggregate.h"
#include "ps/rules/correction/correction.h"
#include "ps/core/total_momentum.h"
#include "tests/ps/core/core_bench.h"

static void open_correction(struct correction *out, unsigned workers, unsigned together,
                            size_t count, const char *const *assignments)
{
    options *o = NULL;
    if (core_rig_settings(&o, assignments) != OK || correction_open(out, o) != OK ||
        correction_allocate(out, workers, together, count) != OK)
        fail_msg("%s", error_message());
    options_close(&o);
}

/* ---- one parameter, by hand ---- */

static float corrected(struct correction *c, struct correction_context context, float gradient,
                       float now, float read_at)
{
    float scratch = NAN;
    struct correction_call call;
    correction_begin(c, &context, &gradient, &now, &read_at, &call);
    float out = *correction_block(c, &call, 0, 1, &scratch);
    correction_commit(c);
    return out;
}

static void expect_close(double observed, double expected)
{
    if (fabs(observed - expected) > 2e-6 * fmax(1, fabs(expected)))
        fail_msg("%.9g, expected %.9g", observed, expected);
}

static void dc_asgd_c_adds_lambda_times_the_squared_gradient_times_the_distance(void **state)
{
    (void)state;
    struct correction c;
    open_correction(&c, 1, 1, 1, RIG("correction=dc-asgd-c", "correction.lambda=0.5"));
    const struct correction_context any = {.scale = 1};
    /* 2 + 0.5 · 2² · (1.5 − 1) = 3;   −2 + 0.5 · 2² · (1 − 2) = −4 */
    assert_true(corrected(&c, any, 2, 1.5f, 1) == 3);
    assert_true(corrected(&c, any, -2, 1, 2) == -4);
    assert_true(corrected(&c, any, 2, 1, 1) == 2);
    correction_close(&c);
    open_correction(&c, 1, 1, 1, RIG("correction=dc-asgd-c"));
    /* 10 + 0.04 · 100 · 1 = 14 */
    expect_close(corrected(&c, any, 10, 1, 0), 14);
    correction_close(&c);
}

static void dc_asgd_a_divides_lambda_by_the_root_of_the_mean_square(void **state)
{
    (void)state;
    struct correction c;
    open_correction(&c, 1, 1, 1,
                    RIG("correction=dc-asgd-a", "correction.lambda=2", "correction.memory=0.5"));
    const struct correction_context any = {.scale = 1};
    /* M = ½ · 0 + ½ · 16 = 8, nothing has moved: 4 */
    assert_true(corrected(&c, any, 4, 1, 1) == 4);
    /* M = ½ · 8 + ½ · 16 = 12;  4 + 2/√12 · 16 · 0.25 = 4 + 8/√12 = 4 + 2.3094011 */
    expect_close(corrected(&c, any, 4, 1.25f, 1), 6.3094011);
    /* M = ½ · 12 + ½ · 4 = 8;   2 + 2/√8 · 4 · (−0.5) = 2 − 4/√8 = 2 − 1.4142136 */
    expect_close(corrected(&c, any, 2, 0.5f, 1), 0.5857864);
    correction_close(&c);
    open_correction(&c, 1, 1, 1, RIG("correction=dc-asgd-a"));
    /* M = 0.05 · 16 = 0.8;   4 + 2/√0.8 · 16 · 0.25 = 4 + 8/√0.8 */
    expect_close(corrected(&c, any, 4, 1.25f, 1), 12.944271);
    correction_close(&c);
}

static void gap_aware_divides_by_1_plus_the_distance_in_typical_steps(void **state)
{
    (void)state;
    struct correction c;
    open_correction(&c, 1, 1, 1, RIG("correction=gap-aware", "correction.memory=0.5"));
    struct correction_context at = {.scale = 1};
    /* Version 0, θ = 1: no step yet. */
    assert_true(corrected(&c, at, 3, 1, 1) == 3);
    /* Version 1, θ = 0.6 at η = ½: velocity 0.4 / ½ = 0.8, V = ½ · 0.64 = 0.32; two calls: over
     * 1 − ¼: 0.4266667. C = ½ · √0.4266667 = 0.3265986;   G = 1 + |0.6 − 1| / C = 2.2247449 */
    correction_updated(&c, 0.5);
    at.version = 1;
    expect_close(corrected(&c, at, 3, 0.6f, 1), 1.3484692);
    /* The same version again: no step in between, so G is the same. */
    expect_close(corrected(&c, at, 5, 0.6f, 1), 2.2474487);
    /* Version 2, θ = 0.8 at η = ¼: velocity 0.2 / ¼ = 0.8 still, V = ½ · 0.32 + ½ · 0.64 = 0.48,
     * over 1 − ⅛: 0.5485714. The largest rate was ½: C = ½ · 0.7406561 = 0.3703280; read at version
     * 0: G = 1 + 0.2 / C = 1.5400617; at version 1 the same distance in the other direction. */
    correction_updated(&c, 0.25);
    at.version = 2;
    expect_close(corrected(&c, at, 3, 0.8f, 1), 1.9479739);
    expect_close(corrected(&c, at, -3, 0.8f, 0.6f), -1.9479739);
    assert_true(corrected(&c, at, 7, 0.8f, 0.8f) == 7);
    /* Version 3, θ = 1.2 at η = ¼: velocity 1.6, V = ½ · 0.48 + ½ · 2.56 = 1.52, over
     * 15/16: 1.6213333. C = ½ · 1.2733159 = 0.6366579;   read at version 2: G = 1 + 0.4 / C
     * = 1.6282809 */
    correction_updated(&c, 0.25);
    at.version = 3;
    expect_close(corrected(&c, at, 2, 1.2f, 0.8f), 1.2282893);
    /* Version 4 at η = 0: nothing moved, V = ½ · 1.52 = 0.76, over 31/32: 0.7845161.
     * C = ½ · 0.8857292 = 0.4428646;   read at version 2: G = 1 + 0.4 / C = 1.9032106 */
    correction_updated(&c, 0);
    at.version = 4;
    expect_close(corrected(&c, at, 2, 1.2f, 0.8f), 1.0508558);
    correction_close(&c);
}

/* The previous test after one step, with the default β: V = 0.001 · 0.64, over 1 − 0.999²,
 * C = 0.2829134, G = 2.4138599. */
static void gap_aware_has_a_default_memory_of_0_999(void **state)
{
    (void)state;
    struct correction c;
    open_correction(&c, 1, 1, 1, RIG("correction=gap-aware"));
    struct correction_context at = {.scale = 1};
    assert_true(corrected(&c, at, 3, 1, 1) == 3);
    correction_updated(&c, 0.5);
    at.version = 1;
    /* 1 − β² in float32 has four significant digits */
    double g = (double)corrected(&c, at, 3, 0.6f, 1);
    assert_true(fabs(g - 1.2428227) < 2e-5);
    correction_close(&c);
}

/* λ = 0.1, θ = 0.6, G = 2.2247449: the total must be (3 + 0.06) / G = 1.3754386, of which the
 * optimizer adds 0.06. With scale ½: (1.5 + 0.06) / G = 0.7012040. */
static void gap_aware_divides_weight_decay(void **state)
{
    (void)state;
    static const double scales[] = {1, 0.5}, expected[] = {1.3754386, 0.7012040};
    for (size_t i = 0; i < COUNT_OF(scales); i++) {
        struct correction c;
        open_correction(&c, 1, 1, 1,
                        RIG("correction=gap-aware", "correction.memory=0.5", "weight_decay=0.1"));
        struct correction_context at = {.scale = scales[i]};
        assert_true(c.scales);
        assert_true(corrected(&c, at, 3, 1, 1) == 3 * (float)scales[i]);
        correction_updated(&c, 0.5);
        at.version = 1;
        expect_close((double)corrected(&c, at, 3, 0.6f, 1) + 0.06, expected[i]);
        correction_close(&c);
    }
    const char *const apart[] = {"optimizer=adamw", "optimizer=lars"};
    for (size_t i = 0; i < COUNT_OF(apart); i++) {
        struct correction c;
        open_correction(&c, 1, 1, 1, RIG("correction=gap-aware", "weight_decay=0.1", apart[i]));
        assert_true(!c.scales && c.decay == 0);
        correction_close(&c);
    }
}

/* Parameter by parameter, with α = ½:
 *   x₀ = (0, 0, 0, 0)   x₁ = (1, 2, −1, 0)   x₂ = (1.5, 3, −3, 5)   g = (−1, 2, 1, 9), read at 1
 *   (0.5 − 0.5) / 1 = 0;   (1 + 1) / 2 = 1;   (−2 + 0.5) / −1 = 1.5;   the last did not move */
static void total_momentum_is_the_median_over_parameters(void **state)
{
    (void)state;
    static const float x[][4] = {{0, 0, 0, 0}, {1, 2, -1, 0}, {1.5f, 3, -3, 5}};
    static const float g[] = {-1, 2, 1, 9};
    struct total_momentum t;
    assert_int_equal(total_momentum_open(&t, 1, 4), OK);
    for (unsigned v = 0; v < 3; v++)
        total_momentum_add_version(&t, v, x[v]);
    assert_true(total_momentum_measure(&t, 1, g, 0.5) == 1);
    assert_true(isnan(total_momentum_measure(&t, 0, g, 0.5))); /* no version before it */
    assert_true(isnan(total_momentum_measure(&t, 2, g, 0.5))); /* no version after it yet */
    for (unsigned v = 3; v < 13; v++)
        total_momentum_add_version(&t, v, x[v % 3]);
    assert_false(isnan(total_momentum_measure(&t, 2, g, 0.5))); /* versions 1 to 12 are in memory */
    assert_true(isnan(total_momentum_measure(&t, 1, g, 0.5)));
    for (unsigned v = 13; v < 16; v++)
        total_momentum_add_version(&t, v, x[1]);
    assert_true(isnan(total_momentum_measure(&t, 14, g, 0.5))); /* no parameter moved */
    total_momentum_close(&t);
    /* An even number: the mean of the two in the middle, 0 and 1 */
    assert_int_equal(total_momentum_open(&t, 1, 2), OK);
    for (unsigned v = 0; v < 3; v++)
        total_momentum_add_version(&t, v, x[v]);
    assert_true(total_momentum_measure(&t, 1, g, 0.5) == 0.5);
    total_momentum_close(&t);
}

/* At every sample size. */
static void the_median_by_selection_equals_the_median_by_sorting(void **state)
{
    (void)state;
    enum { MOST = TOTAL_MOMENTUM_SAMPLE };
    static float x[3][MOST], g[MOST];
    for (unsigned n = 1; n <= MOST; n++) {
        struct total_momentum t;
        float sorted[MOST];
        assert_int_equal(total_momentum_open(&t, 1, n), OK);
        for (unsigned i = 0; i < n; i++) {
            x[1][i] = 1;
            core_rig_fill(&sorted[i], 1, n % 3 == 0 ? i % 5 : i + 1000 * n); /* some with ties */
            x[2][i] = 1 + sorted[i];
            sorted[i] = x[2][i] - 1;
            for (unsigned k = i; k > 0 && sorted[k - 1] > sorted[k]; k--) {
                float swapped = sorted[k];
                sorted[k] = sorted[k - 1];
                sorted[k - 1] = swapped;
            }
        }
        for (unsigned v = 0; v < 3; v++)
            total_momentum_add_version(&t, v, x[v]);
        double expected = 0.5 * ((double)sorted[n / 2] + (double)sorted[(n - 1) / 2]);
        assert_true(total_momentum_measure(&t, 1, g, 1) == expected);
        total_momentum_close(&t);
    }
}

static void the_closed_loop_lowers_a_momentum_measured_too_high(void **state)
{
    (void)state;
    struct correction c;
    open_correction(&c, 4, 1, 1, RIG("correction=closed-loop-momentum", "correction.gain=0.1"));
    /* 0.9 + 0.1 · (0.9 − 1.4) = 0.85;   −0.45 + 0.1 · (0.9 − 9) = −1.26, at least −0.5 */
    assert_true(c.rule->momentum(c.parameters, 4, 0.9) == 0.9);
    expect_close(c.rule->adjust(c.parameters, 0.9, 0.9, 1.4), 0.85);
    expect_close(c.rule->adjust(c.parameters, 0.9, -0.45, 9), -0.5);
    expect_close(c.rule->adjust(c.parameters, 0.9, 0.99, -9), 0.999);
    correction_close(&c);
}

/* x_{r+1} − x_r = −α v_{r+1} = μ (x_r − x_{r−1}) − α g. */
static void with_one_worker_the_measured_momentum_is_the_optimizers(void **state)
{
    (void)state;
    struct core_bench b;
    bench_open(&b, (struct server_core_options){.workers = 2},
               RIG("correction=closed-loop-momentum", "correction.gain=0", "momentum=0.75"));
    bench_hello(&b, 0);
    bench_hello(&b, 1);
    unsigned measured = 0;
    for (unsigned i = 0; i < 60; i++) {
        core_rig_fill(b.gradient[i % 2], BENCH_COUNT, i);
        bench_push(&b, i % 2); /* staleness 1: the next version is known */
        assert_true(b.record[0].momentum == 0.75);
        if (!isnan(b.record[0].total_momentum))
            measured++;
    }
    assert_true(measured >= 55);
    core_rig_close(&b.rig);
    /* Staleness 0: measured after the own update; equals the optimizer's momentum. */
    bench_open(&b, (struct server_core_options){.workers = 1},
               RIG("correction=closed-loop-momentum", "momentum=0.75"));
    bench_hello(&b, 0);
    for (unsigned i = 0; i < 60; i++) {
        core_rig_fill(b.gradient[0], BENCH_COUNT, i);
        bench_push(&b, 0);
        assert_true(i == 0 || fabs(b.record[0].total_momentum - 0.75) < 1e-4);
        assert_true(fabs(b.record[0].momentum - 0.75) < 1e-4);
    }
    core_rig_close(&b.rig);
}

static void dana_slim_keeps_a_velocity_for_each_worker(void **state)
{
    (void)state;
    struct correction c;
    open_correction(&c, 2, 1, 1,
                    RIG("optimizer=sgd", "correction=dana-slim", "correction.momentum=0.5"));
    struct correction_context w0 = {.worker = 0, .scale = 1}, w1 = {.worker = 1, .scale = 1};
    /* v₀ = 4, u = 4 + ½ · 4 = 6;   v₁ = 2, u = 2 + ½ · 2 = 3 */
    assert_true(corrected(&c, w0, 4, 0, 0) == 6);
    assert_true(corrected(&c, w1, 2, 0, 0) == 3);
    /* v₀ = ½ · 4 − 2 = 0, u = −2 */
    assert_true(corrected(&c, w0, -2, 0, 0) == -2);
    /* Damped to a quarter: v₁ = ½ · 2 + ¼ · 8 = 3, u = ¼ · 8 + ½ · 3 = 3.5 */
    w1.scale = 0.25;
    assert_true(corrected(&c, w1, 8, 0, 0) == 3.5f);
    correction_close(&c);
}

static void dana_zero_looks_ahead_of_all_velocities(void **state)
{
    (void)state;
    struct correction c;
    open_correction(&c, 2, 1, 1,
                    RIG("optimizer=sgd", "correction=dana-zero", "correction.momentum=0.5"));
    struct correction_context w0 = {.worker = 0, .scale = 1, .lr = 0.1};
    struct correction_context w1 = {.worker = 1, .scale = 1, .lr = 0.05};
    /* θ = 1 = θ̂.  v₀ = 4, θ = 1 − 0.1 · 4 = 0.6, θ̂ = 0.6 − 0.1 · ½ · 4 = 0.4:
     * u = (1 − 0.4) / 0.1 = 6 */
    expect_close(corrected(&c, w0, 4, 1, 1), 6);
    /* η = 0.05.  v₁ = 2, θ = 0.6 − 0.05 · 2 = 0.5, θ̂ = 0.5 − 0.05 · ½ · (4 + 2) = 0.35:
     * u = (0.4 − 0.35) / 0.05 = 1 */
    expect_close(corrected(&c, w1, 2, 0.4f, 1), 1);
    /* v₀ = ½ · 4 − 2 = 0, θ = 0.5, θ̂ = 0.5 − 0.05 · ½ · (0 + 2) = 0.45:
     * u = (0.35 − 0.45) / 0.05 = −2 */
    w0.lr = 0.05;
    expect_close(corrected(&c, w0, -2, 0.35f, 0.4f), -2);
    w0.lr = 0;
    assert_true(corrected(&c, w0, 9, 0.45f, 0.35f) == 0); /* at rate 0 nothing moves */
    /* θ = 0.5.  v₀ = ½ · 9, θ = 0.5 − 0.05 · 4.5 = 0.275, θ̂ = 0.275 − 0.05 · ½ · (4.5 + 2)
     * = 0.1125: u = (0.45 − 0.1125) / 0.05 = 6.75 */
    w0.lr = 0.05;
    expect_close(corrected(&c, w0, 0, 0.45f, 0.45f), 6.75);
    correction_close(&c);
}

static double momentum_with(unsigned workers, const char *const *assignments)
{
    options *o = NULL;
    struct correction c;
    assert_int_equal(core_rig_settings(&o, assignments), OK);
    assert_int_equal(correction_open(&c, o), OK);
    double momentum = correction_momentum(&c, workers, o);
    options_close(&o);
    return momentum;
}

static void implicit_momentum_is_subtracted_from_key_momentum(void **state)
{
    (void)state;
    /* 0.9 − (1 − 1/W): W = 1: 0.9, W = 4: 0.15, W = 16: −0.0375 */
    assert_true(momentum_with(1, RIG("correction=implicit-momentum")) == 0.9);
    expect_close(momentum_with(4, RIG("correction=implicit-momentum")), 0.15);
    expect_close(momentum_with(16, RIG("correction=implicit-momentum")), -0.0375);
    assert_true(momentum_with(16, RIG("correction=implicit-momentum", "correction.least=0")) == 0);
    assert_true(momentum_with(16, RIG("correction=dc-asgd-c")) == 0.9);
}

static void a_correction_whose_momentum_the_optimizer_does_not_fit_is_refused(void **state)
{
    (void)state;
    static const char *const wrong[][3] = {
        {"correction=dana-slim", "optimizer=momentum", "optimizer=sgd"},
        {"correction=dana-zero", "optimizer=nesterov", "optimizer=sgd"},
        {"correction=implicit-momentum", "optimizer=sgd", "optimizer=momentum"}};
    for (size_t i = 0; i < COUNT_OF(wrong); i++) {
        options *o = NULL;
        assert_int_equal(core_rig_settings(&o, RIG(wrong[i][0], wrong[i][1])), OK);
        assert_int_equal(correction_check(o), ERROR_USAGE);
        assert_non_null(strstr(error_message(), wrong[i][0]));
        options_close(&o);
        assert_int_equal(core_rig_settings(&o, RIG(wrong[i][0], wrong[i][2])), OK);
        assert_int_equal(correction_check(o), OK);
        options_close(&o);
    }
}

/* ---- all corrections ---- */

enum { COUNT = 1031, WORKERS = 3, ROUNDS = 9 };

struct corrected_rounds { /* the corrected gradients of ROUNDS calls */
    float out[ROUNDS][COUNT];
};

static const char *optimizer_for(const struct correction_rule *rule)
{
    return rule->own_momentum ? "optimizer=sgd" : "optimizer=momentum";
}

static const struct correction_rule *rule_at(size_t i)
{
    return (const struct correction_rule *)correction_registry.entries[i];
}

static void open_nth(struct correction *c, size_t i)
{
    char chosen[64];
    snprintf(chosen, sizeof chosen, "correction=%s", rule_at(i)->about.name);
    open_correction(c, WORKERS, WORKERS, COUNT,
                    RIG(chosen, optimizer_for(rule_at(i)), "weight_decay=0.01"));
}

/* Corrects gradients of all workers in turn at changing parameters, with a commit after every
 * `together` gradients. */
static void pass(size_t rule, size_t block, unsigned together, struct corrected_rounds *into)
{
    static float gradient[COUNT], now[COUNT], read_at[COUNT], scratch[COUNT];
    struct correction c;
    struct correction_call call;
    open_nth(&c, rule);
    for (unsigned r = 0; r < ROUNDS; r++) {
        struct correction_context context = {r % WORKERS, r / together, 1.0 / (1 + r % 4),
                                             0.1 + 0.01 * (r / together)};
        core_rig_fill(gradient, COUNT, 50 + r);
        core_rig_fill(now, COUNT, 10 + r / together);
        core_rig_fill(read_at, COUNT, r / together == 0 ? 10 : 9 + r / together);
        correction_begin(&c, &context, gradient, now, read_at, &call);
        for (size_t at = 0; at < COUNT; at += block) {
            size_t count = COUNT - at < block ? COUNT - at : block;
            memcpy(into->out[r] + at, correction_block(&c, &call, at, count, scratch),
                   count * sizeof(float));
        }
        if (r % together == together - 1) {
            correction_commit(&c);
            correction_updated(&c, context.lr);
        }
    }
    correction_close(&c);
}

static void corrections_do_not_depend_on_block_boundaries(void **state)
{
    (void)state;
    static struct corrected_rounds whole, parts;
    for (size_t i = 0; i < correction_registry.count; i++) {
        for (unsigned together = 1; together <= WORKERS; together += 2) {
            pass(i, COUNT, together, &whole);
            pass(i, 113, together, &parts);
            assert_memory_equal(&whole, &parts, sizeof whole);
            for (size_t k = 0; k < (size_t)ROUNDS * COUNT; k++)
                assert_true(isfinite(whole.out[k / COUNT][k % COUNT]));
        }
    }
}

/* One gradient, then 2 500 gradients of 0. */
static void states_decay_to_0(void **state)
{
    (void)state;
    enum { FEW = 19 };
    for (size_t i = 0; i < correction_registry.count; i++) {
        const struct correction_rule *rule = rule_at(i);
        const bool has_memory = strcmp(rule->about.name, "gap-aware") == 0;
        struct correction c;
        struct correction_call call;
        char chosen[64];
        float gradient[FEW], now[FEW], read_at[FEW], scratch[FEW];
        snprintf(chosen, sizeof chosen, "correction=%s", rule->about.name);
        open_correction(
            &c, 1, 1, FEW,
            RIG(chosen, optimizer_for(rule), has_memory ? "correction.memory=0.9" : NULL));
        for (unsigned r = 0; r < 2500; r++) {
            const struct correction_context context = {0, r, 1, 0.1};
            for (size_t k = 0; k < FEW; k++) {
                gradient[k] = r == 0;
                now[k] = r == 0 ? 0 : 1;
                read_at[k] = now[k];
            }
            correction_begin(&c, &context, gradient, now, read_at, &call);
            (void)correction_block(&c, &call, 0, FEW, scratch);
            correction_commit(&c);
            correction_updated(&c, context.lr);
        }
        for (unsigned s = 0; s < rule->shared; s++)
            for (size_t k = 0; k < FEW; k++)
                assert_int_not_equal(fpclassify(c.shared[s][c.current][k]), FP_SUBNORMAL);
        for (size_t k = 0; rule->own && k < FEW; k++)
            assert_true(c.own[0][k] == 0);
        correction_close(&c);
    }
}

/* ---- in the core ---- */

static void train_alone(struct core_bench *b, const char *const *settings)
{
    bench_open(b, (struct server_core_options){.workers = 1}, settings);
    bench_hello(b, 0);
    for (unsigned k = 0; k < 50; k++) {
        core_rig_fill(b->gradient[0], BENCH_COUNT, 1000 + k);
        bench_push(b, 0);
        assert_int_equal(b->record[0].outcome, PUSH_APPLIED);
    }
}

static void expect_equal_training(const char *const *settings, const char *const *others)
{
    static struct core_bench a, b;
    train_alone(&a, settings);
    train_alone(&b, others);
    assert_memory_equal(bench_latest(&a), bench_latest(&b), BENCH_COUNT * sizeof(float));
    core_rig_close(&a.rig);
    core_rig_close(&b.rig);
}

static void corrections_do_not_change_one_worker(void **state)
{
    (void)state;
    static const char *const fresh[] = {"correction=dc-asgd-c", "correction=dc-asgd-a",
                                        "correction=gap-aware", "correction=implicit-momentum"};
    for (size_t i = 0; i < COUNT_OF(fresh); i++)
        expect_equal_training(RIG(fresh[i]), RIG("correction=none"));
}

static void one_worker_with_dana_slim_is_nesterov(void **state)
{
    (void)state;
    expect_equal_training(RIG("correction=dana-slim", "optimizer=sgd"), RIG("optimizer=nesterov"));
}

static void dana_zero_needs_updates_of_one_gradient(void **state)
{
    (void)state;
    options *o = NULL;
    struct aggregate a;
    assert_int_equal(core_rig_settings(&o, RIG("correction=dana-zero", "optimizer=sgd")), OK);
    assert_int_equal(aggregate_open(&a, o, 4, 10, true), ERROR_USAGE);
    assert_non_null(strstr(error_message(), "correction=dana-zero"));
    aggregate_close(&a);
    assert_int_equal(aggregate_open(&a, o, 4, 10, false), OK);
    aggregate_close(&a);
    options_close(&o);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(dc_asgd_c_adds_lambda_times_the_squared_gradient_times_the_distance),
        cmocka_unit_test(dc_asgd_a_divides_lambda_by_the_root_of_the_mean_square),
        cmocka_unit_test(gap_aware_divides_by_1_plus_the_distance_in_typical_steps),
        cmocka_unit_test(gap_aware_has_a_default_memory_of_0_999),
        cmocka_unit_test(gap_aware_divides_weight_decay),
        cmocka_unit_test(total_momentum_is_the_median_over_parameters),
        cmocka_unit_test(the_median_by_selection_equals_the_median_by_sorting),
        cmocka_unit_test(the_closed_loop_lowers_a_momentum_measured_too_high),
        cmocka_unit_test(with_one_worker_the_measured_momentum_is_the_optimizers),
        cmocka_unit_test(dana_slim_keeps_a_velocity_for_each_worker),
        cmocka_unit_test(dana_zero_looks_ahead_of_all_velocities),
        cmocka_unit_test(implicit_momentum_is_subtracted_from_key_momentum),
        cmocka_unit_test(a_correction_whose_momentum_the_optimizer_does_not_fit_is_refused),
        cmocka_unit_test(corrections_do_not_depend_on_block_boundaries),
        cmocka_unit_test(states_decay_to_0),
        cmocka_unit_test(corrections_do_not_change_one_worker),
        cmocka_unit_test(one_worker_with_dana_slim_is_nesterov),
        cmocka_unit_test(dana_zero_needs_updates_of_one_gradient),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
