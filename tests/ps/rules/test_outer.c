/*
 * Local steps and outer rules: values worked out by hand from the papers' equations (the arithmetic
 * is in the comments), invariants of all rules, and settings that exclude each other. Rules with a
 * state of the server are in test_outer_momentum.c. Whole trainings are compared with the papers'
 * algorithms in test_outer_training.c.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "tests/ps/rules/outer_bench.h"

enum { D = BENCH_COUNT };

/* ---- values worked out by hand ---- */

static void local_steps_are_summed_and_applied(void **state)
{
    (void)state;
    struct outer_bench c;
    /* η = ½, g = x, from 8: 8 → 4 → 2, d = 6.  ε = ½: 8 − 3 = 5.  Then 5 → 2.5 → 1.25, d = 3.75,
     * 5 − 1.875 = 3.125 */
    outer_bench_open(&c, 1, 8,
                     RIG("outer=sgd", "outer.steps=2", "outer.lr=0.5", "optimizer=sgd", "lr=0.5"));
    outer_bench_round(&c, 0);
    outer_bench_expect(&c, 5, 0);
    assert_true(c.b.record[0].rate == 0.5);
    assert_true(fabs(c.b.record[0].gradient_norm - 6 * sqrt(D)) < 1e-5);
    outer_bench_round(&c, 0);
    outer_bench_expect(&c, 3.125, 0);
    outer_bench_close(&c);
    /* μ = ½: v = 8, x = 8 − 4 = 4; v = 4 + 4 = 8, x = 4 − 4 = 0; d = 8, and v begins at 0 again:
     * from 0 nothing moves. */
    outer_bench_open(
        &c, 1, 8,
        RIG("outer=sgd", "outer.steps=2", "optimizer=momentum", "momentum=0.5", "lr=0.5"));
    outer_bench_round(&c, 0);
    outer_bench_expect(&c, 0, 0);
    outer_bench_round(&c, 0);
    outer_bench_expect(&c, 0, 0);
    outer_bench_close(&c);
    /* Weight decay ½ applies to local steps: g = 1.5 x. 8 → 2 → 0.5 */
    outer_bench_open(
        &c, 1, 8, RIG("outer=sgd", "outer.steps=2", "optimizer=sgd", "lr=0.5", "weight_decay=0.5"));
    outer_bench_round(&c, 0);
    outer_bench_expect(&c, 0.5, 0);
    outer_bench_close(&c);
}

/* g = x, two steps from 8 with η = ½, λ = 0.2:
 *   adamw, β₁ = β₂ = ½:  m = 4, v = 32, x = 8 − 0.8 − ½ · 8/8 = 6.7;
 *                        m = 5.35, v = 38.445, x = 6.7 − 0.67 − ½ · 7.133333/√51.26 = 5.531834
 *   lion:                8 − 0.8 − ½ = 6.7;  6.7 − 0.67 − ½ = 5.53
 * The next round starts at m = 0 again: −1 + 0.1 + ½ = −0.4;  −0.4 + 0.04 + ½ = 0.14. */
static void local_steps_may_be_of_adamw_or_lion(void **state)
{
    (void)state;
    struct outer_bench c;
    outer_bench_open(&c, 1, 8,
                     RIG("outer=sgd", "outer.steps=2", "optimizer=adamw", "lr=0.5",
                         "weight_decay=0.2", "optimizer.beta1=0.5", "optimizer.beta2=0.5"));
    outer_bench_round(&c, 0);
    outer_bench_expect(&c, 5.531834, 1e-6);
    outer_bench_close(&c);
    outer_bench_open(
        &c, 1, 8,
        RIG("outer=sgd", "outer.steps=2", "optimizer=lion", "lr=0.5", "weight_decay=0.2"));
    outer_bench_round(&c, 0);
    outer_bench_expect(&c, 5.53, 1e-6);
    for (size_t i = 0; i < D; i++)
        c.b.rig.slots[c.b.slot[0]][i] = -1;
    outer_bench_round(&c, 0); /* with the m of the first round, 0.146, the first sign would be 1 */
    outer_bench_expect(&c, 0.14, 1e-6);
    outer_bench_close(&c);
}

static void damping_scales_a_difference(void **state)
{
    (void)state;
    struct outer_bench c;
    /* ε = 1: 0 − 4 = −4; the other has staleness 1, s = 1/(1 + 1): −4 − 2 */
    outer_bench_open(&c, 2, 0, RIG("outer=sgd", "damping=polynomial", "damping.power=1"));
    outer_bench_push_of(&c, 0, 4);
    outer_bench_push_of(&c, 1, 4);
    outer_bench_expect(&c, -6, 0);
    assert_true(c.b.record[0].scale == 0.5 && c.b.record[0].rate == 0.5);
    assert_int_equal(c.b.record[0].staleness, 1);
    outer_bench_close(&c);
}

/* g = x, η = ½, τ = 2, α = ½, two workers; x̃ = 8 and x = 8:
 *   1: 8 → 4 → 2.     α (2 − 8) = −3:       x̃ = 5, x = 5; then 5 − ½ · 2 = 4 → 2
 *   2: 8 → 4 → 2.     α (2 − 5) = −1.5:     x̃ = 3.5, x = 3.5; then 3.5 − ½ · 2 = 2.5 → 1.25
 *   1: x = 2.         α (2 − 3.5) = −0.75:  x̃ = 2.75, x = 2.75; then 2.75 − 1 = 1.75 → 0.875
 *   2: x = 1.25.      α (1.25 − 2.75) = −0.75:   x̃ = 2, x = 2; …
 *   1: x = 0.875.     α (0.875 − 2) = −0.5625:   x̃ = 1.4375
 * The gradient after an exchange is computed at the x before the exchange: ½ · 2, not ½ · 5. */
static void an_elastic_exchange_moves_worker_and_center(void **state)
{
    (void)state;
    struct outer_bench c;
    static const double center_of[] = {5, 3.5, 2.75, 2, 1.4375};
    outer_bench_open(
        &c, 2, 8,
        RIG("outer=easgd", "outer.steps=2", "outer.moving_rate=0.5", "optimizer=sgd", "lr=0.5"));
    for (unsigned t = 0; t < COUNT_OF(center_of); t++) {
        outer_bench_round(&c, t % 2);
        outer_bench_expect(&c, center_of[t], 0);
    }
    outer_bench_close(&c);
    /* α = ¼:  1: ¼ (2 − 8) = −1.5, x̃ = 6.5, x = 3.5 → 3.5 − 1 = 2.5 → 1.25
     *         2: ¼ (2 − 6.5) = −1.125, x̃ = 5.375
     *         1: ¼ (1.25 − 5.375) = −1.03125, x̃ = 4.34375 */
    static const double slower[] = {6.5, 5.375, 4.34375};
    outer_bench_open(
        &c, 2, 8,
        RIG("outer=easgd", "outer.steps=2", "outer.moving_rate=0.25", "optimizer=sgd", "lr=0.5"));
    for (unsigned t = 0; t < COUNT_OF(slower); t++) {
        outer_bench_round(&c, t % 2);
        outer_bench_expect(&c, slower[t], 2e-6);
    }
    outer_bench_close(&c);
}

/* g = x, η = ½, δ = ½, τ = 2, α = ½, one worker:
 *   v = −½ · 8 = −4, x = 4;  x + δ v = 2: v = −2 − 1 = −3, x = 1
 *   α (1 − 8) = −3.5: x̃ = 4.5, x = 4.5
 *   x + δ v before the exchange = 1 − 1.5 = −0.5: v = −1.5 + 0.25 = −1.25, x = 4.5 − 1.25 = 3.25
 *   x + δ v = 3.25 − 0.625 = 2.625: v = −0.625 − 1.3125 = −1.9375, x = 1.3125
 *   α (1.3125 − 4.5) = −1.59375: x̃ = 2.90625 */
static void elastic_workers_can_have_momentum(void **state)
{
    (void)state;
    struct outer_bench c;
    outer_bench_open(&c, 1, 8,
                     RIG("outer=easgd", "outer.steps=2", "outer.moving_rate=0.5",
                         "optimizer=nesterov", "momentum=0.5", "lr=0.5"));
    outer_bench_round(&c, 0);
    outer_bench_expect(&c, 4.5, 0);
    outer_bench_round(&c, 0);
    outer_bench_expect(&c, 2.90625, 0);
    outer_bench_close(&c);
}

/* One exchange of EASGD, algorithm 1, from x = 2, x̃ = 1 with α = 0.9/4, η g = 0.1 (g = x = 2):
 *   x̃ = 1 + 0.225 · 1 = 1.225;   x = 2 − 0.225 · 1 − 0.1 = 1.675
 * EAMSGD, algorithm 2, where x = x̃ = 2: δ = 0.9, v = 0.2, η g = 0.1 (g = x + δ v = 2.18):
 *   v = 0.18 − 0.1 = 0.08;   x = 2.08 */
static void elastic_steps_equal_the_papers_algorithms(void **state)
{
    (void)state;
    struct outer_bench c;
    outer_bench_open(&c, 4, 1, RIG("outer=easgd", "outer.steps=1", "optimizer=sgd", "lr=0.05"));
    struct local_steps *l = &c.local[0];
    (void)outer_bench_compute(&c, 0); /* initializes x */
    for (size_t i = 0; i < D; i++)
        l->parameters[i] = 2;
    outer_bench_push_of(&c, 0, 1 - 2);
    outer_bench_expect(&c, 1.225, 1e-7);
    (void)outer_bench_compute(&c, 0);
    for (size_t i = 0; i < D; i++)
        assert_true(fabs((double)l->parameters[i] - 1.675) < 5e-7);
    outer_bench_close(&c);
    char lr[64];
    snprintf(lr, sizeof lr, "lr=%.9f", 0.1 / 2.18);
    outer_bench_open(&c, 4, 2,
                     RIG("outer=easgd", "outer.steps=1", "optimizer=nesterov", "momentum=0.9", lr));
    l->started = true;
    for (size_t i = 0; i < D; i++) {
        l->parameters[i] = i > 0 ? 2 : 0;
        l->velocity[i] = i > 0 ? 0.2f : FLT_MIN;
    }
    (void)outer_bench_compute(&c, 0);
    assert_true(l->velocity[0] == 0); /* not the subnormal 0.9 · FLT_MIN − η g */
    for (size_t i = 1; i < D; i++) {
        assert_true(fabs((double)l->velocity[i] - 0.08) < 5e-7);
        assert_true(fabs((double)l->parameters[i] - 2.08) < 5e-7);
    }
    outer_bench_close(&c);
}

/* K = 2, η_g = ½, w = 1: Δ = 1.2 has staleness 3, s = ½; Δ = 0.4 has staleness 0:
 * w = 1 − ½ · (0.6 + 0.4) / 2 = 0.75 */
static void fedbuff_is_a_buffer_of_damped_differences(void **state)
{
    (void)state;
    struct outer_bench c;
    outer_bench_open(&c, 2, 1,
                     RIG("outer=sgd", "outer.lr=0.5", "consistency=buffered", "consistency.size=2",
                         "damping=fedbuff"));
    for (unsigned i = 0; i < 6; i++)
        outer_bench_push_of(&c, 1, 0);
    outer_bench_push_of(&c, 0, 1.2f);
    outer_bench_push_of(&c, 1, 0.4f);
    assert_int_equal(c.b.record[0].staleness, 3);
    outer_bench_expect(&c, 0.75, 1e-7);
    outer_bench_close(&c);
}

static void the_default_moving_rate_is_0_9_over_workers(void **state)
{
    (void)state;
    struct outer_bench c;
    /* 8 → 4; x̃ = 8 + 0.9/3 · (4 − 8) = 6.8 */
    outer_bench_open(&c, 3, 8, RIG("outer=easgd", "outer.steps=1", "optimizer=sgd", "lr=0.5"));
    outer_bench_round(&c, 0);
    outer_bench_expect(&c, 6.8, 1e-6);
    assert_true(fabs(c.b.record[0].rate - 0.3) < 1e-12);
    outer_bench_close(&c);
}

/* Worker 0 reads 0.6. Worker 1 moves the server to 1, then pushes 0 `missed` − 1 times. Then worker
 * 0 pushes its model, 0.2. */
static void expect_mixing(unsigned missed, const char *damping, double expected, double weight)
{
    struct outer_bench c;
    outer_bench_open(&c, 2, 0.6f, RIG("outer=fedasync", damping, "outer.rho=0"));
    for (unsigned i = 0; i < missed; i++)
        outer_bench_push_of(&c, 1, i == 0 ? -0.4f / 0.6f : 0);
    outer_bench_expect(&c, 1, 1e-7);
    outer_bench_push_of(&c, 0, 0.6f - 0.2f);
    assert_int_equal(c.b.record[0].staleness, missed);
    assert_true(fabs(c.b.record[0].rate - weight) < 1e-12);
    outer_bench_expect(&c, expected, 5e-7);
    outer_bench_close(&c);
}

/* α = 0.6, θ = 1, x = 0.2:
 *   polynomial ½, τ = 3: α_t = 0.6 / √4 = 0.3:              0.7 · 1 + 0.3 · 0.2 = 0.76
 *   hinge a = 10, b = 4, τ = 6: α_t = 0.6 / 21 = 0.0285714:  1 − 0.0285714 · 0.8 = 0.977143
 *   constant, τ = 3:                                         0.4 · 1 + 0.6 · 0.2 = 0.52 */
static void fedasync_mixes_the_current_model_with_the_workers(void **state)
{
    (void)state;
    expect_mixing(3, "damping=polynomial", 0.76, 0.3);
    expect_mixing(6, "damping=hinge", 0.9771428571, 0.6 / 21);
    expect_mixing(3, "damping=none", 0.52, 0.6);
}

/* g = x, η = ½, ρ = 1, two steps from 8: 8 → 4, then g = 4 + 1 · (4 − 8) = 0, x = 4.
 * α = ½: θ = ½ · 8 + ½ · 4 = 6. Without ρ: 8 → 4 → 2, θ = 5. */
static void fedasync_adds_a_proximal_term(void **state)
{
    (void)state;
    const struct {
        const char *rho;
        double theta;
    } cases[] = {{"outer.rho=1", 6}, {"outer.rho=0", 5}};
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct outer_bench c;
        outer_bench_open(&c, 1, 8,
                         RIG("outer=fedasync", "outer.steps=2", "outer.alpha=0.5", cases[i].rho,
                             "optimizer=sgd", "lr=0.5"));
        outer_bench_round(&c, 0);
        outer_bench_expect(&c, cases[i].theta, 0);
        outer_bench_close(&c);
    }
}

/* Two workers, batches of 10, H = 2: an update has 20 samples, and so has a step of both workers.
 * From version 3, S = 60: steps are read at 70 and 90 of 200 samples, lr = 1 falls to 0.65, 0.55.
 */
static void the_rate_of_a_step_follows_from_the_version_read(void **state)
{
    (void)state;
    options *o = NULL;
    struct local_steps_plan plan;
    struct local_steps l;
    struct outer_bench c = {0};
    assert_int_equal(core_rig_settings(&o, RIG("outer=sgd", "outer.steps=2", "schedule=linear",
                                               "lr=1", "optimizer=sgd")),
                     OK);
    assert_int_equal(local_steps_plan_open(&plan, o, 2, D, 200, 1000), OK);
    assert_int_equal(local_steps_open(&l, &plan), OK);
    float from[D], difference[D];
    core_rig_fill(from, D, 3);
    struct local_steps_push push = {
        .parameters = from, .samples = 60, .difference = difference, .scratch = c.scratch};
    assert_int_equal(local_steps_run(&l, outer_bench_gradient, &c, &push), OK);
    for (size_t i = 0; i < D; i++) {
        double x = (double)from[i];
        assert_true(fabs((double)difference[i] - x * (1 - 0.35 * 0.45)) < 1e-6);
    }
    local_steps_close(&l);
    options_close(&o);
}

/* ---- all outer rules ---- */

static const struct outer_rule *rule_at(size_t i)
{
    return (const struct outer_rule *)outer_registry.entries[i];
}

static void setting(char out[64], const char *key, const char *value)
{
    snprintf(out, 64, "%s=%s", key, value);
}

static void a_push_counts_all_its_local_steps(void **state)
{
    (void)state;
    for (size_t i = 1; i < outer_registry.count; i++) {
        char outer[64];
        struct outer_bench c;
        setting(outer, "outer", rule_at(i)->about.name);
        outer_bench_open(&c, 2, 1, RIG(outer, "outer.steps=3", "optimizer=sgd"));
        outer_bench_round(&c, 0);
        outer_bench_round(&c, 1);
        outer_bench_round(&c, 1);
        assert_int_equal(c.batches[0], 3);
        assert_int_equal(c.batches[1], 6);
        assert_int_equal(server_core_samples_used(c.b.rig.core), 90);
        assert_int_equal(server_core_samples_computed(c.b.rig.core), 90);
        assert_true(c.b.record[0].loss == 4); /* the mean of 3, 4, 5 */
        outer_bench_close(&c);
    }
}

/* Local steps are a function of the parameters read, except for the state of elastic workers. */
static void the_same_parameters_and_batches_give_the_same_bits(void **state)
{
    (void)state;
    for (size_t i = 1; i < outer_registry.count; i++) {
        char outer[64];
        struct outer_bench c;
        float first[D];
        setting(outer, "outer", rule_at(i)->about.name);
        outer_bench_open(&c, 1, NAN,
                         RIG(outer, "outer.steps=3", "optimizer=nesterov", "weight_decay=0.1"));
        c.centered = true;
        (void)outer_bench_compute(&c, 0);
        memcpy(first, c.b.gradient[0], sizeof first);
        if (rule_at(i)->elastic)
            local_steps_reset(&c.local[0]);
        c.batches[0] = 0;
        (void)outer_bench_compute(&c, 0);
        assert_memory_equal(first, c.b.gradient[0], sizeof first);
        outer_bench_close(&c);
    }
}

static void a_diverged_local_step_ends_the_run_and_changes_nothing(void **state)
{
    (void)state;
    for (size_t i = 1; i < outer_registry.count; i++) {
        for (uint64_t corrupted = 1; corrupted <= 3; corrupted++) {
            char outer[64];
            struct outer_bench c;
            float before[D];
            setting(outer, "outer", rule_at(i)->about.name);
            outer_bench_open(&c, 2, NAN, RIG(outer, "outer.steps=3", "optimizer=sgd"));
            c.corrupted = corrupted;
            outer_bench_round(&c, 1);
            memcpy(before, bench_latest(&c.b), sizeof before);
            outer_bench_round(&c, 0);
            assert_int_equal(c.b.diverged, 1);
            assert_int_equal(c.b.record[0].outcome, PUSH_NOT_FINITE);
            assert_memory_equal(before, bench_latest(&c.b), sizeof before);
            outer_bench_close(&c);
        }
    }
}

/* One local step with outer.lr=1 equals one update of the server. */
static void one_worker_with_one_local_step_equals_plain_training_bit_for_bit(void **state)
{
    (void)state;
    const char *const optimizers[] = {"optimizer=sgd", "optimizer=momentum"};
    for (size_t i = 0; i < COUNT_OF(optimizers); i++) {
        struct outer_bench plain, stepping;
        /* The velocity starts at 0 at every pull: with momentum only the first push is equal. */
        unsigned pushes = i == 0 ? 50 : 1;
        outer_bench_open(&plain, 1, NAN,
                         RIG(optimizers[i], "weight_decay=0.01", "schedule=cosine", "lr=0.3"));
        outer_bench_open(&stepping, 1, NAN,
                         RIG(optimizers[i], "weight_decay=0.01", "schedule=cosine", "lr=0.3",
                             "outer=sgd", "outer.steps=1"));
        plain.centered = stepping.centered = true;
        for (unsigned p = 0; p < pushes; p++) {
            outer_bench_round(&plain, 0);
            outer_bench_round(&stepping, 0);
            assert_memory_equal(bench_latest(&plain.b), bench_latest(&stepping.b),
                                D * sizeof(float));
        }
        outer_bench_close(&plain);
        outer_bench_close(&stepping);
    }
}

static void fedasync_of_fresh_models_equals_outer_sgd_bit_for_bit(void **state)
{
    (void)state;
    struct outer_bench mixed, plain;
    outer_bench_open(&mixed, 1, NAN, RIG("outer=fedasync", "outer.alpha=0.6", "outer.rho=0"));
    outer_bench_open(&plain, 1, NAN, RIG("outer=sgd", "outer.lr=0.6"));
    mixed.centered = plain.centered = true;
    for (unsigned p = 0; p < 30; p++) {
        outer_bench_round(&mixed, 0);
        outer_bench_round(&plain, 0);
        assert_memory_equal(bench_latest(&mixed.b), bench_latest(&plain.b), D * sizeof(float));
    }
    outer_bench_close(&mixed);
    outer_bench_close(&plain);
}

static void delayed_nesterov_with_every_1_equals_nesterov_bit_for_bit(void **state)
{
    (void)state;
    struct outer_bench delayed, plain;
    outer_bench_open(&delayed, 3, NAN, RIG("outer=delayed-nesterov", "outer.every=1"));
    outer_bench_open(&plain, 3, NAN, RIG("outer=nesterov"));
    delayed.centered = plain.centered = true;
    for (unsigned p = 0; p < 30; p++) {
        outer_bench_round(&delayed, p * p % 3);
        outer_bench_round(&plain, p * p % 3);
        assert_memory_equal(bench_latest(&delayed.b), bench_latest(&plain.b), D * sizeof(float));
    }
    outer_bench_close(&delayed);
    outer_bench_close(&plain);
}

static void an_elastic_worker_that_joins_again_starts_from_the_center(void **state)
{
    (void)state;
    struct outer_bench c;
    outer_bench_open(
        &c, 2, 8,
        RIG("outer=easgd", "outer.steps=1", "outer.moving_rate=0.5", "optimizer=sgd", "lr=0.5"));
    outer_bench_round(&c, 0); /* 8 → 4, x̃ = 6 */
    bench_lost(&c.b, 0);
    bench_hello(&c.b, 0);
    local_steps_reset(&c.local[0]);
    c.batches[0] = 0;         /* the new incarnation's sequence starts at 0 */
    outer_bench_round(&c, 0); /* x = 6 → 3, x̃ = 4.5; without the reset: x = 6 − 2 = 4, x̃ = 5 */
    outer_bench_expect(&c, 4.5, 0);
    outer_bench_close(&c);
}

static void expect_refused(const char *rule, const char *wrong)
{
    options *o = NULL;
    struct outer outer;
    assert_int_equal(core_rig_settings(&o, RIG("optimizer=sgd", rule)), OK);
    assert_int_equal(outer_open(&outer, o, 2), OK);
    options_close(&o);
    assert_int_equal(core_rig_settings(&o, RIG("optimizer=sgd", rule, wrong)), OK);
    assert_int_equal(outer_open(&outer, o, 2), ERROR_USAGE);
    assert_non_null(strstr(error_message(), rule));
    assert_non_null(strstr(error_message(), wrong));
    options_close(&o);
}

static void settings_that_an_outer_rule_excludes_are_refused_by_name(void **state)
{
    (void)state;
    for (size_t i = 1; i < outer_registry.count; i++) {
        char outer[64];
        setting(outer, "outer", rule_at(i)->about.name);
        expect_refused(outer, "correction=gap-aware");
    }
    expect_refused("outer=easgd", "consistency=bsp");
    expect_refused("outer=easgd", "consistency=ssp");
    expect_refused("outer=easgd", "damping=inverse");
    expect_refused("outer=easgd", "optimizer=momentum");
    expect_refused("outer=easgd", "optimizer=adamw");
    expect_refused("outer=sgd", "optimizer=lars");
    struct outer outer;
    options *o = NULL;
    assert_int_equal(core_rig_settings(&o, RIG("optimizer=nesterov", "outer=easgd",
                                               "optimizer.momentum_correction=false")),
                     OK);
    assert_int_equal(outer_open(&outer, o, 2), ERROR_USAGE);
    assert_non_null(strstr(error_message(), "optimizer.momentum_correction"));
    options_close(&o);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(local_steps_are_summed_and_applied),
        cmocka_unit_test(local_steps_may_be_of_adamw_or_lion),
        cmocka_unit_test(damping_scales_a_difference),
        cmocka_unit_test(an_elastic_exchange_moves_worker_and_center),
        cmocka_unit_test(elastic_workers_can_have_momentum),
        cmocka_unit_test(fedasync_mixes_the_current_model_with_the_workers),
        cmocka_unit_test(fedasync_adds_a_proximal_term),
        cmocka_unit_test(elastic_steps_equal_the_papers_algorithms),
        cmocka_unit_test(fedbuff_is_a_buffer_of_damped_differences),
        cmocka_unit_test(the_default_moving_rate_is_0_9_over_workers),
        cmocka_unit_test(the_rate_of_a_step_follows_from_the_version_read),
        cmocka_unit_test(a_push_counts_all_its_local_steps),
        cmocka_unit_test(the_same_parameters_and_batches_give_the_same_bits),
        cmocka_unit_test(a_diverged_local_step_ends_the_run_and_changes_nothing),
        cmocka_unit_test(one_worker_with_one_local_step_equals_plain_training_bit_for_bit),
        cmocka_unit_test(fedasync_of_fresh_models_equals_outer_sgd_bit_for_bit),
        cmocka_unit_test(delayed_nesterov_with_every_1_equals_nesterov_bit_for_bit),
        cmocka_unit_test(an_elastic_worker_that_joins_again_starts_from_the_center),
        cmocka_unit_test(settings_that_an_outer_rule_excludes_are_refused_by_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
