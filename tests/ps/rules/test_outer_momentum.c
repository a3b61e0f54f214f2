/*
 * Outer rules with a state of the server: values worked out by hand from the papers' equations (the
 * arithmetic is in the comments).
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <string.h>

#include "tests/ps/rules/outer_bench.h"

enum { D = BENCH_COUNT };

static void outer_nesterov_accumulates_differences(void **state)
{
    (void)state;
    struct outer_bench c;
    /* β = ½, ε = 1, d = 4: m = 4, θ = 0 − (4 + 2) = −6;  d = 2: m = 2 + 2 = 4, θ = −6 − (2 + 2) */
    outer_bench_open(&c, 1, 0, RIG("outer=nesterov", "outer.momentum=0.5", "outer.lr=1"));
    outer_bench_push_of(&c, 0, 4);
    outer_bench_expect(&c, -6, 0);
    outer_bench_push_of(&c, 0, 2);
    outer_bench_expect(&c, -10, 0);
    outer_bench_close(&c);
    /* A barrier: the mean of 4 and 2 is one difference. m = 3, θ = −(3 + 1.5) */
    outer_bench_open(&c, 2, 0,
                     RIG("outer=nesterov", "outer.momentum=0.5", "outer.lr=1", "consistency=bsp"));
    outer_bench_push_of(&c, 0, 4);
    outer_bench_push_of(&c, 1, 2);
    outer_bench_expect(&c, -4.5, 0);
    outer_bench_close(&c);
}

static void delayed_nesterov_delays_only_the_momentum(void **state)
{
    (void)state;
    struct outer_bench c;
    /* N = 2 (of 2 workers), β = ½, ε = 1:
     *   d = 4:  Δ = 4;                          θ = 0 − 4/2 = −2
     *   d = 2:  Δ = 6, m = 3;                   θ = −2 − (2/2 + ½ · 3) = −4.5
     *   d = −2: Δ = −2;                         θ = −4.5 + 1 = −3.5
     *   d = 8:  Δ = 6, m = ½ · 3 + 3 = 4.5;     θ = −3.5 − (8/2 + ½ · 4.5) = −9.75 */
    static const float d[] = {4, 2, -2, 8};
    static const double theta[] = {-2, -4.5, -3.5, -9.75};
    const char *const everies[] = {"outer.every=0", "outer.every=2"};
    for (size_t e = 0; e < COUNT_OF(everies); e++) {
        outer_bench_open(
            &c, 2, 0,
            RIG("outer=delayed-nesterov", "outer.momentum=0.5", "outer.lr=1", everies[e]));
        for (unsigned t = 0; t < COUNT_OF(d); t++) {
            outer_bench_push_of(&c, t % 2, d[t]);
            outer_bench_expect(&c, theta[t], 0);
        }
        outer_bench_close(&c);
    }
}

static void delayed_nesterov_does_not_count_dropped_differences(void **state)
{
    (void)state;
    struct outer_bench c;
    /* N = 3. Worker 1 has staleness 2 and is dropped, so the next push is the third.
     * 3: θ = −1;  3: θ = −2;  (3);  6: Δ = 12, m = 4, θ = −2 − (2 + ½ · 4) = −6 */
    outer_bench_open(&c, 2, 0,
                     RIG("outer=delayed-nesterov", "outer.momentum=0.5", "outer.lr=1",
                         "outer.every=3", "damping=cutoff", "damping.after=1"));
    outer_bench_push_of(&c, 0, 3);
    outer_bench_push_of(&c, 0, 3);
    outer_bench_expect(&c, -2, 0);
    outer_bench_push_of(&c, 1, 3);
    outer_bench_expect(&c, -2, 0);
    assert_int_equal(c.b.record[0].outcome, PUSH_DROPPED_STALE);
    outer_bench_push_of(&c, 0, 6);
    outer_bench_expect(&c, -6, 0);
    outer_bench_close(&c);
}

/* Adam-Decay: ε = 1, β₁ = β₂ = ½, e = 0.001, s = exp(−τ/2).
 *   d = 4, s = 1:         m = 2, v = 8:          θ = −4 / (4 + e) = −0.999750062
 *   d = 2, s = 0.606531:  m = 1.606531, v = 4.735759:  m̂ = 2.142041, v̂ = 6.314345
 *   d = −1, s = 1:        m = 0.303265, v = 2.867879:  m̂ = 0.346589, v̂ = 3.277577
 * If s scaled the rate instead, θ would be −1.571 after the second step. */
static void adam_damps_a_difference_before_both_moments(void **state)
{
    (void)state;
    struct outer_bench c;
    static const double theta[] = {-0.999750062, -1.85185052, -2.04318731};
    outer_bench_open(&c, 2, 0,
                     RIG("outer=adam", "outer.lr=1", "outer.beta1=0.5", "outer.beta2=0.5",
                         "damping=exponential", "damping.rate=0.5"));
    outer_bench_push_of(&c, 0, 4);
    outer_bench_expect(&c, theta[0], 2e-7);
    outer_bench_push_of(&c, 1, 2);
    outer_bench_expect(&c, theta[1], 4e-7);
    assert_int_equal(c.b.record[0].staleness, 1);
    outer_bench_push_of(&c, 1, -1);
    outer_bench_expect(&c, theta[2], 4e-7);
    outer_bench_close(&c);
}

/* Two tensors of which two elements each are not 0; θ̄ is what workers read. */
enum { FIRST = 18 };

static void open_with_two_tensors(struct core_bench *b, const char *const *settings)
{
    static const struct optimizer_layer layers[] = {{.count = FIRST},
                                                    {.count = D - FIRST, .excluded = true}};
    bench_open(b,
               (struct server_core_options){.workers = 1,
                                            .total_samples = OUTER_TOTAL,
                                            .layers = {layers, COUNT_OF(layers)}},
               settings);
    memset(b->rig.slots[0], 0, D * sizeof(float));
    bench_hello_all(b);
}

static void push_four(struct core_bench *b, const float d[4])
{
    memset(b->gradient[0], 0, D * sizeof(float));
    for (size_t i = 0; i < 4; i++)
        b->gradient[0][i < 2 ? i : FIRST + i - 2] = d[i];
    bench_push(b, 0);
}

static void expect_four(const struct core_bench *b, const double value[4])
{
    for (size_t i = 0; i < 4; i++) {
        double is = (double)bench_latest(b)[i < 2 ? i : FIRST + i - 2];
        if (!(fabs(is - value[i]) < 1e-6))
            fail_msg("element %zu is %.9g, not %.9g", i, is, value[i]);
    }
}

/* μ = ½, ε = 1, ρ = 1. The values of θ, m and θ̄ = θ − ½ m are from a program in float64.
 *   (4, 0 | 0, 2):    m = 0: d̂ = d.  m = (2, 0 | 0, 1), θ = (−5, 0 | 0, −2.5)
 *   (−3, 4 | 2, 0):   first tensor: ‖d‖ = 5, ‖m‖ = 2, c = −0.6, conf = 5/(5 + 3·2) = 5/11,
 *                     β = ½ · 0.6 · 5/11 = 3/22, d̂ = (−3 + 3/22 · 0.6 · 5, 4) = (−57/22, 4),
 *                     m = 1 − 57/44 = −13/44, θ = −5 + 57/22 + 13/88 = −2.261364;
 *                     second: c = 0, conf = 2/5, λ = 2/5, d̂ = 2 (0.6, 0.4)/√0.52
 *   (1, 1 | 1, 1):    c = 0.596 and 0.993: d̂ = d */
static void heloco_turns_each_tensor_towards_the_momentum(void **state)
{
    (void)state;
    struct core_bench b;
    static const float d[][4] = {{4, 0, 0, 2}, {-3, 4, 2, 0}, {1, 1, 1, 1}};
    static const double start[][4] = {{-6, 0, 0, -3},
                                      {-2.11363636, -6, -2.49615089, -4.66410058},
                                      {-3.61363636, -7.5, -3.99615089, -6.16410058}};
    open_with_two_tensors(
        &b, RIG("outer=heloco", "outer.momentum=0.5", "outer.lr=1", "outer.weight=1"));
    for (size_t t = 0; t < COUNT_OF(d); t++) {
        push_four(&b, d[t]);
        expect_four(&b, start[t]);
    }
    core_rig_close(&b.rig);
    /* Look-ahead alone: m = (−½, 2 | 1, ½), θ = (−5 + 3 + ¼, −4 − 1 | −2 − ½, −2.5 − ¼) */
    open_with_two_tensors(&b, RIG("outer=heloco", "outer.momentum=0.5", "outer.lr=1",
                                  "outer.weight=1", "outer.keep=-1"));
    push_four(&b, d[0]);
    push_four(&b, d[1]);
    expect_four(&b, (const double[]){-1.5, -6, -3, -3});
    core_rig_close(&b.rig);
}

/* The correction compares the whole difference with m; the damping's scale s = ½ and the weight
 * 1/√4 multiply its result. d = (4, 0) with s = 1: G = 2, m = 1, θ = −2.5, θ̄ = −3. Then d = −3 with
 * s = ½: c = −1, conf = 3/(3 + 3) = ½, β = ¼, d̂ = −3 + ¾ = −2.25, G = ½ · ½ · d̂ = −0.5625,
 * m = ½ − 0.28125 = 0.21875, θ = −2.5 + 0.5625 − 0.109375 = −2.046875, θ̄ = θ − 0.109375 */
static void heloco_scales_what_it_has_corrected(void **state)
{
    (void)state;
    struct outer_bench c;
    outer_bench_open(&c, 4, 0,
                     RIG("outer=heloco", "outer.momentum=0.5", "outer.lr=1", "damping=polynomial",
                         "damping.power=1"));
    float d[] = {4, -3};
    for (unsigned w = 0; w < 2; w++) {
        memset(c.b.gradient[w], 0, sizeof c.b.gradient[w]);
        c.b.gradient[w][D - 1] = d[w];
        bench_push(&c.b, w);
    }
    assert_true(c.b.record[0].scale == 0.5);
    assert_true(fabs((double)bench_latest(&c.b)[D - 1] + 2.15625) < 1e-6);
    assert_true(bench_latest(&c.b)[0] == 0);
    outer_bench_close(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(outer_nesterov_accumulates_differences),
        cmocka_unit_test(delayed_nesterov_delays_only_the_momentum),
        cmocka_unit_test(delayed_nesterov_does_not_count_dropped_differences),
        cmocka_unit_test(adam_damps_a_difference_before_both_moments),
        cmocka_unit_test(heloco_turns_each_tensor_towards_the_momentum),
        cmocka_unit_test(heloco_scales_what_it_has_corrected),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
