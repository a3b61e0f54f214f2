/* test_recipes.c — optimizers, warm-ups and growing batches for large batches, against values
 * computed by hand from the papers' equations, and against PyTorch where it has the same formula.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "experiments/config/config.h"
#include "worker/optimizer/optimizer.h"
#include "worker/optimizer/schedule.h"

#define SET(...) ((const char *const[]){__VA_ARGS__ __VA_OPT__(, ) NULL})

static options *settings(const char *const *set)
{
    static const char *const base[] = {"lr=0.5", "warmup_epochs=0", "schedule=constant", NULL};
    options *o = NULL;
    assert_int_equal(config_compose_texts(&o, base, set, "test"), OK);
    return o;
}

static optimizer *opened(size_t count, const char *const *set)
{
    optimizer *p = NULL;
    options *o = settings(set);
    assert_int_equal(optimizer_open(&p, o, count), OK);
    options_close(&o);
    return p;
}

static void step(optimizer *p, float *theta, const float *gradient, double lr)
{
    struct optimizer_pass pass;
    optimizer_apply(p, theta, gradient, 1, lr, NULL, theta, &pass);
    assert_true(pass.finite);
}

static void expect(const float *theta, const double *expected, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (!(fabs((double)theta[i] - expected[i]) <= 2e-7 * (1 + fabs(expected[i]))))
            fail_msg("element %zu: %.9g instead of %.9g", i, (double)theta[i], expected[i]);
}

/* ---- optimizers ---------------------------------------------------------------------------- */

/* β₁ = ½, β₂ = ¾, ε = 2, λ = ½, η = ¼, θ = 1.
 * g = 2: m = 1, v = 1; m̂ = 1/½ = 2, √v̂ = √(1/¼) = 2; θ = 1 − ¼ (2/(2 + 2) + ½ · 1) = 0.75
 * g = −2: m = −½, v = 1.75; m̂ = −½/¾ = −⅔, √v̂ = √(1.75/0.4375) = 2;
 * θ = 0.75 − ¼ (−⅔/4 + ½ · 0.75) = 0.6979167 */
static void adamw_gives_values_computed_by_hand(void **state)
{
    (void)state;
    optimizer *p = opened(1, SET("optimizer=adamw", "optimizer.beta1=0.5", "optimizer.beta2=0.75",
                                 "optimizer.epsilon=2", "weight_decay=0.5"));
    float theta = 1;
    step(p, &theta, (const float[]){2}, 0.25);
    expect(&theta, (const double[]){0.75}, 1);
    step(p, &theta, (const float[]){-2}, 0.25);
    expect(&theta, (const double[]){0.697916667}, 1);
    optimizer_close(&p);
}

/* μ₁ = ½, μ₂ = ¾, ε = 1, η_RMSprop = 0.4, η_SGD = 0.1, β_center = 2, β_period = 4, θ = 1.
 * Epoch 0: α_SGD = ½ e⁻¹ = 0.1839397, α_RMSprop = 0.8160603 · 4 = 3.2642411;
 *   g = 2: m = 1; Δ = −(0.1839397 + 3.2642411/2) · 2 = −3.6321206; θ = 0.6367879
 * Epoch 3: α_SGD = ½ + ¼, α_RMSprop = ¼ · 4 = 1;
 *   g = −2: m = 1.75; Δ = ½ Δ + (0.75 + 1/(1.3228757 + 1)) · 2 = 0.5449415; θ = 0.6912821
 * Epoch 4: α_SGD = 1: Δ = ½ Δ − 1 = −0.7275293; θ = 0.6185292 */
static void rmsprop_warmup_gives_values_computed_by_hand(void **state)
{
    (void)state;
    optimizer *p = opened(1, SET("optimizer=rmsprop-warmup", "momentum=0.5", "optimizer.mu2=0.75",
                                 "optimizer.epsilon=1", "optimizer.rmsprop_lr=0.4",
                                 "optimizer.center=2", "optimizer.period=4"));
    float theta = 1;
    step(p, &theta, (const float[]){2}, 0.1);
    expect(&theta, (const double[]){0.636787944}, 1);
    optimizer_set_epoch(p, 3);
    step(p, &theta, (const float[]){-2}, 0.1);
    expect(&theta, (const double[]){0.691282095}, 1);
    optimizer_set_epoch(p, 4);
    step(p, &theta, (const float[]){1}, 0.1);
    expect(&theta, (const double[]){0.618529172}, 1);
    optimizer_close(&p);
}

static void rmsprop_warmup_ends_as_momentum_bit_for_bit(void **state)
{
    (void)state;
    enum { COUNT = 37 };
    optimizer *p = opened(COUNT, SET("optimizer=rmsprop-warmup", "weight_decay=0.01"));
    optimizer *q = opened(COUNT, SET("optimizer=momentum", "weight_decay=0.01"));
    float a[COUNT], b[COUNT], gradient[COUNT];
    for (int i = 0; i < COUNT; i++)
        a[i] = b[i] = sinf((float)i);
    optimizer_set_epoch(p, 12.5); /* the defaults: centre 10, period 5 */
    for (int k = 0; k < 5; k++) {
        for (int i = 0; i < COUNT; i++)
            gradient[i] = cosf((float)(i * (k + 1)));
        step(p, a, gradient, 0.1);
        step(q, b, gradient, 0.1);
        assert_memory_equal(a, b, sizeof a);
    }
    optimizer_close(&p);
    optimizer_close(&q);
}

/* η = ½, β = 0.2, m = ½, γ = 0.4; a layer (3, 4) and an excluded bias 1.
 * g = (0.6, 0.8 | 2): λ = ½ · 5/(1 + 0.2 · 5) = 1.25; v = 0.4 · 1.25 (1.2, 1.6) = (0.6, 0.8), 0.8;
 *   w = (2.4, 3.2 | 0.2)
 * g = (−0.6, −0.8 | 0): λ = ½ · 4/(1 + 0.2 · 4) = 1.1111111;
 *   v = ½ v + 0.4444444 (−0.12, −0.16) = (0.2466667, 0.3288889), 0.4;
 *   w = (2.1533333, 2.8711111 | −0.2) */
static void lars_gives_values_computed_by_hand(void **state)
{
    (void)state;
    static const struct optimizer_layer layers[] = {{.count = 2}, {.count = 1, .excluded = true}};
    optimizer *p =
        opened(3, SET("optimizer=lars", "optimizer.trust=0.5", "weight_decay=0.2", "momentum=0.5"));
    float theta[] = {3, 4, 1};
    assert_int_equal(optimizer_set_layers(p, &(struct optimizer_layers){layers, 2}), OK);
    step(p, theta, (const float[]){0.6f, 0.8f, 2}, 0.4);
    expect(theta, (const double[]){2.4, 3.2, 0.2}, 3);
    step(p, theta, (const float[]){-0.6f, -0.8f, 0}, 0.4);
    expect(theta, (const double[]){2.15333333, 2.87111111, -0.2}, 3);
    optimizer_close(&p);
}

/* The norm of a layer is that of the whole layer, for any number of helper threads and any cut into
 * parts. */
static void lars_takes_the_norm_of_a_whole_large_layer(void **state)
{
    (void)state;
    enum { FIRST = 5, LARGE = 100000, COUNT = FIRST + LARGE };
    static float theta[COUNT], gradient[COUNT];
    static const struct optimizer_layer layers[] = {{.count = FIRST}, {.count = LARGE}};
    optimizer *p = opened(COUNT, SET("optimizer=lars", "optimizer.trust=0.5", "momentum=0"));
    assert_int_equal(optimizer_set_layers(p, &(struct optimizer_layers){layers, 2}), OK);
    for (size_t i = 0; i < COUNT; i++) {
        theta[i] = i < FIRST ? 8 : 2; /* λ = ½ · 8/4 = 1 and ½ · 2/1 = 1 */
        gradient[i] = i < FIRST ? 4 : 1;
    }
    gradient[COUNT - 1] = -1;
    step(p, theta, gradient, 0.5);
    expect(theta, (const double[]){6, 6, 6, 6, 6, 1.5, 1.5}, 7);
    expect(theta + COUNT - 2, (const double[]){1.5, 2.5}, 2);
    optimizer_close(&p);
}

static void lars_uses_the_plain_rate_for_a_layer_of_zeros(void **state)
{
    (void)state;
    optimizer *p = opened(2, SET("optimizer=lars", "momentum=0"));
    float theta[2] = {0, 0};
    step(p, theta, (const float[]){1, -2}, 0.5);
    expect(theta, (const double[]){-0.5, 1}, 2);
    step(p, theta, (const float[]){0, 0}, 0.5);
    expect(theta, (const double[]){-0.5, 1}, 2);
    optimizer_close(&p);
}

/* μ = ½, rates ½ then ¼, gradients 1. Corrected (Goyal et al., equation 9): v = 1, 1.5; θ = ½, ⅛.
 * As equation 10 stands: v = ½, ¼ + ¼; θ = ½, 0. Nesterov: θ ← θ − (η g + μ v): 1 − ¾ = ¼, then
 * ¼ − (¼ + ¼) = −¼; corrected ¼, then ¼ − ¼ (1 + ½ · 1.5) = −0.1875. */
static void momentum_correction_keeps_the_rate_outside_the_velocity(void **state)
{
    (void)state;
    static const struct {
        const char *name, *corrects;
        float first, second;
    } known[] = {
        {"optimizer=momentum", "optimizer.momentum_correction=true", 0.5f, 0.125f},
        {"optimizer=momentum", "optimizer.momentum_correction=false", 0.5f, 0},
        {"optimizer=nesterov", "optimizer.momentum_correction=true", 0.25f, -0.1875f},
        {"optimizer=nesterov", "optimizer.momentum_correction=false", 0.25f, -0.25f},
    };
    for (size_t i = 0; i < COUNT_OF(known); i++) {
        optimizer *p = opened(1, SET(known[i].name, known[i].corrects, "momentum=0.5"));
        float theta = 1;
        step(p, &theta, (const float[]){1}, 0.5);
        assert_true(theta == known[i].first);
        step(p, &theta, (const float[]){1}, 0.25);
        assert_true(theta == known[i].second);
        optimizer_close(&p);
    }
}

/* From its equations, in double precision (NumPy). Without weight decay the values are those of
 * torch 1.13's NAdam(betas=(0.99, 0.999), momentum_decay=0.004, foreach=True). Rates 0.1, 0.05 and
 * 0.2. */
static void nadamw_agrees_with_its_equations(void **state)
{
    (void)state;
    static const float gradient[3][3] = {
        {0.3f, -0.2f, 0.7f}, {-0.1f, 0.5f, 0.2f}, {0.4f, 0.4f, -0.6f}};
    static const struct {
        const char *decay;
        double theta[3];
    } known[] = {{"weight_decay=0", {0.7558241, -2.06402337, 0.51189319}},
                 {"weight_decay=0.05", {0.73952007, -2.03001257, 0.5045774}}};
    for (size_t i = 0; i < COUNT_OF(known); i++) {
        optimizer *p = opened(3, SET("optimizer=nadamw", known[i].decay));
        float theta[] = {1, -2, 0.5f};
        for (size_t k = 0; k < 3; k++)
            step(p, theta, gradient[k], (const double[]){0.1, 0.05, 0.2}[k]);
        expect(theta, known[i].theta, 3);
        optimizer_close(&p);
    }
}

/* torch 2.15 on the CPU: AdamW(betas=(0.9, 0.999), eps=1e-8, weight_decay=0.05) and
 * SGD(momentum=0.9, weight_decay=0.05), three steps at rates 0.1, 0.05 and 0.2. */
static void adamw_and_momentum_agree_with_pytorch(void **state)
{
    (void)state;
    static const float gradient[3][3] = {
        {0.3f, -0.2f, 0.7f}, {-0.1f, 0.5f, 0.2f}, {0.4f, 0.4f, -0.6f}};
    static const struct {
        const char *name;
        double theta[3];
    } known[] = {{"optimizer=adamw", {0.725411952, -2.01939464, 0.330607355}},
                 {"optimizer=momentum", {0.814934075, -2.06047916, 0.342670709}}};
    for (size_t i = 0; i < COUNT_OF(known); i++) {
        optimizer *p = opened(3, SET(known[i].name, "weight_decay=0.05"));
        float theta[] = {1, -2, 0.5f};
        for (size_t k = 0; k < 3; k++)
            step(p, theta, gradient[k], (const double[]){0.1, 0.05, 0.2}[k]);
        expect(theta, known[i].theta, 3);
        optimizer_close(&p);
    }
}

/* ---- schedules ----------------------------------------------------------------------------- */

/* 1000 samples in epochs of 200, on 4 workers. */
static struct schedule schedule(const char *const *set)
{
    struct schedule s;
    options *o = settings(set);
    assert_int_equal(schedule_open(&s, o, 4, 1000, 200), OK);
    options_close(&o);
    return s;
}

static void assert_near(double a, double b)
{
    if (!(fabs(a - b) <= 1e-12 * (1 + fabs(b))))
        fail_msg("%.17g instead of %.17g", a, b);
}

static void warm_ups_begin_and_end_at_the_papers_rates(void **state)
{
    (void)state;
    struct schedule s = schedule(SET("lr_scaling=linear", "warmup_epochs=1"));
    assert_near(schedule_rate(&s, 50, 50), 0.25 * 2);
    s = schedule(SET("lr_scaling=linear", "warmup_epochs=1", "warmup=gradual"));
    assert_near(schedule_rate(&s, 0, 0), 0.5); /* from η … */
    assert_near(schedule_rate(&s, 100, 100), 0.5 * 2.5);
    assert_near(schedule_rate(&s, 200, 200), 0.5 * 4); /* … to k η */
    assert_near(schedule_rate(&s, 900, 900), 0.5 * 4);
    s = schedule(SET("lr_scaling=sqrt", "warmup_epochs=1", "warmup=gradual"));
    assert_near(schedule_rate(&s, 100, 100), 0.5 * 1.5);
    s = schedule(SET("lr_scaling=linear", "warmup_epochs=1", "warmup=constant"));
    assert_near(schedule_rate(&s, 0, 0), 0.5);
    assert_near(schedule_rate(&s, 198, 200), 0.5);
    assert_near(schedule_rate(&s, 200, 200), 2);
}

static void slow_start_has_the_papers_four_steps(void **state)
{
    (void)state;
    struct schedule s = schedule(SET("schedule=slow-start"));
    static const struct {
        uint64_t at;
        double factor;
    } known[] = {{0, 0.5},    {444, 0.5},  {445, 0.075}, {777, 0.075},
                 {778, 0.01}, {944, 0.01}, {945, 0.001}, {1000, 0.001}};
    for (size_t i = 0; i < COUNT_OF(known); i++)
        assert_near(schedule_rate(&s, known[i].at, known[i].at), 0.5 * known[i].factor);
}

static void a_growing_batch_keeps_the_rate_where_the_schedule_falls(void **state)
{
    (void)state;
    struct schedule s = schedule(SET("schedule=step", "decay=batch"));
    assert_int_equal(schedule_growth(&s, 0), 1);
    assert_int_equal(schedule_growth(&s, 499), 1);
    assert_int_equal(schedule_growth(&s, 500), 10);
    assert_near(schedule_rate(&s, 500, 540), 0.5);
    assert_int_equal(schedule_growth(&s, 750),
                     64); /* the largest growth; the rate falls for the rest */
    assert_near(schedule_rate(&s, 750, 800), 0.5 * 0.64);
    s = schedule(SET("schedule=linear", "decay=batch", "batch_growth_max=5"));
    assert_int_equal(schedule_growth(&s, 0), 1);
    assert_int_equal(schedule_growth(&s, 500), 2);
    assert_int_equal(schedule_growth(&s, 1000), 5);
    s = schedule(SET("schedule=step"));
    assert_int_equal(schedule_growth(&s, 900), 1);
    s = schedule(SET("schedule=step", "decay=batch", "batch_growth_max=1000"));
    assert_int_equal(schedule_growth(&s, 750), 100); /* 1 / (0.1 × 0.1) is slightly less */
}

/* post_local=decay starts local steps from this point on. */
static void a_schedule_has_fallen_once_it_is_below_its_first_rate(void **state)
{
    (void)state;
    struct schedule s = schedule(SET("schedule=step"));
    assert_false(schedule_has_fallen(&s, 0));
    assert_false(schedule_has_fallen(&s, 499));
    assert_true(schedule_has_fallen(&s, 500));
    s = schedule(SET("schedule=slow-start")); /* starts at 0.5 and falls after 40 of 90 epochs */
    assert_false(schedule_has_fallen(&s, 444));
    assert_true(schedule_has_fallen(&s, 445));
    s = schedule(SET("schedule=constant"));
    assert_false(schedule_has_fallen(&s, 1000));
}

static void the_epoch_of_an_update_is_that_of_its_middle(void **state)
{
    (void)state;
    struct schedule s = schedule(SET("schedule=constant"));
    assert_near(schedule_epoch(&s, 100, 200), 0.75);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(adamw_gives_values_computed_by_hand),
        cmocka_unit_test(rmsprop_warmup_gives_values_computed_by_hand),
        cmocka_unit_test(rmsprop_warmup_ends_as_momentum_bit_for_bit),
        cmocka_unit_test(lars_gives_values_computed_by_hand),
        cmocka_unit_test(lars_takes_the_norm_of_a_whole_large_layer),
        cmocka_unit_test(lars_uses_the_plain_rate_for_a_layer_of_zeros),
        cmocka_unit_test(momentum_correction_keeps_the_rate_outside_the_velocity),
        cmocka_unit_test(adamw_and_momentum_agree_with_pytorch),
        cmocka_unit_test(nadamw_agrees_with_its_equations),
        cmocka_unit_test(warm_ups_begin_and_end_at_the_papers_rates),
        cmocka_unit_test(slow_start_has_the_papers_four_steps),
        cmocka_unit_test(a_growing_batch_keeps_the_rate_where_the_schedule_falls),
        cmocka_unit_test(a_schedule_has_fallen_once_it_is_below_its_first_rate),
        cmocka_unit_test(the_epoch_of_an_update_is_that_of_its_middle),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
