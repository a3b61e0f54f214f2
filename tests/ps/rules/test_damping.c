/*
 * Damping rules: values worked out by hand from the equations:
 *   inverse      1 / max(1, τ)                           Zhang, Gupta, Lian, Liu 2016
 *   polynomial   (1 + τ)^−a                              Xie, Koyejo, Gupta 2019, section 5.2
 *   hinge        1 if τ ≤ b, else 1 / (a (τ − b) + 1)    the same
 *   exponential  exp(−a τ)
 *   generation   1 if τ ≤ g, else w
 *   cutoff       1 if τ ≤ g, else dropped
 *   mishchenko   W / max(W, τ + 1)                       Mishchenko, Bach, Even, Woodworth 2022
 *   koloskova    1 if τ ≤ C, else 1 / τ or dropped       Koloskova, Stich, Jaggi 2022
 *   fedbuff      1 / √(1 + τ)                            Nguyen et al. 2022
 *   tail         P(T ≥ τ)^a
 *   rescaled     Tᵢ / mean of all Tⱼ                     Mahran, Maranjyan, Richtárik 2026
 *   trim         min(1, c / ‖g‖)                         Pascanu, Mikolov, Bengio 2013
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "docs/examples/damping_logarithmic.c"
#include "ps/rules/consistency/consistency.h"
#include "ps/rules/correction/correction.h"
#include "tests/ps/core/core_rig.h"
#include "tests/rigs/documented.h"

static void open_damping(struct damping *out, const char *const *assignments)
{
    options *o = NULL;
    if (core_rig_settings(&o, assignments) != OK || damping_open(out, o) != OK)
        fail_msg("%s", error_message());
    options_close(&o);
}

static double scale_of(const struct damping *d, uint64_t staleness, bool *drop)
{
    struct damping_input input = {.staleness = staleness, .workers = 16, .concurrency = 16};
    return damping_scale(d, &input, drop);
}

static void expect_scale(const struct damping *d, uint64_t staleness, double expected)
{
    bool drop = true;
    double observed = scale_of(d, staleness, &drop);
    if (fabs(observed - expected) > 1e-15 || drop) {
        fail_msg("%s at staleness %llu: %.17g, expected %.17g%s", d->rule->about.name,
                 (unsigned long long)staleness, observed, expected, drop ? ", dropped" : "");
    }
}

/* mishchenko has 16 workers: min{1/16, 1/(τ + 1)} / (1/16). If they take turns, τ = 15 and the
 * paper's delay is 16. */
static void scales_equal_the_values_worked_out_by_hand(void **state)
{
    (void)state;
    static const struct {
        const char *settings[4];
        struct {
            uint64_t staleness;
            double scale;
        } expected[6];
    } cases[] = {
        {{"damping=none"}, {{0, 1}, {1000000, 1}}},
        {{"damping=inverse"}, {{1, 1}, {2, 0.5}, {3, 1.0 / 3}, {10, 0.1}, {1000, 0.001}}},
        {{"damping=polynomial"}, {{1, 0.70710678118654752}, {3, 0.5}, {8, 1.0 / 3}, {99, 0.1}}},
        {{"damping=polynomial", "damping.power=2"}, {{1, 0.25}, {9, 0.01}}},
        {{"damping=polynomial", "damping.power=0"}, {{50, 1}}},
        {{"damping=exponential"}, {{1, 0.90483741803595957}, {10, 0.36787944117144232}}},
        {{"damping=exponential", "damping.rate=0.6931471805599453"}, {{1, 0.5}, {3, 0.125}}},
        {{"damping=hinge"}, {{4, 1}, {5, 1.0 / 11}, {6, 1.0 / 21}, {14, 1.0 / 101}}},
        {{"damping=hinge", "damping.slope=0.5", "damping.after=2"},
         {{2, 1}, {3, 2.0 / 3}, {8, 0.25}}},
        {{"damping=generation"}, {{8, 1}, {9, 0.125}, {1000, 0.125}}},
        {{"damping=generation", "damping.weight=0.5"}, {{8, 1}, {9, 0.5}}},
        {{"damping=generation", "damping.after=2"}, {{2, 1}, {3, 0.125}}},
        {{"damping=fedbuff"}, {{1, 0.70710678118654752}, {3, 0.5}, {99, 0.1}}},
        {{"damping=mishchenko"}, {{15, 1}, {16, 16.0 / 17}, {19, 0.8}, {31, 0.5}, {159, 0.1}}},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct damping d;
        open_damping(&d, cases[i].settings);
        expect_scale(&d, 0, 1);
        for (size_t k = 0; k < COUNT_OF(cases[i].expected) && cases[i].expected[k].scale > 0; k++)
            expect_scale(&d, cases[i].expected[k].staleness, cases[i].expected[k].scale);
    }
}

static void cutoff_drops_what_is_older_than_its_bound(void **state)
{
    (void)state;
    struct damping d;
    bool drop = false;
    open_damping(&d, RIG("damping=cutoff"));
    expect_scale(&d, 0, 1);
    expect_scale(&d, 8, 1);
    assert_true(scale_of(&d, 9, &drop) == 0);
    assert_true(drop);
    open_damping(&d, RIG("damping=cutoff", "damping.after=0"));
    expect_scale(&d, 0, 1);
    assert_true(scale_of(&d, 1, &drop) == 0);
    assert_true(drop);
}

static double scale_among(const struct damping *d, uint64_t staleness, unsigned concurrency,
                          bool *drop)
{
    struct damping_input input = {
        .staleness = staleness, .workers = 16, .concurrency = concurrency};
    return damping_scale(d, &input, drop);
}

static void koloskova_has_scale_1_up_to_the_concurrency(void **state)
{
    (void)state;
    struct damping d;
    bool drop;
    open_damping(&d, RIG("damping=koloskova"));
    /* 4 of 16 workers have joined: η up to τ = 4, then η / τ */
    assert_true(scale_among(&d, 0, 4, &drop) == 1);
    assert_true(scale_among(&d, 4, 4, &drop) == 1);
    assert_true(scale_among(&d, 5, 4, &drop) == 0.2);
    assert_true(scale_among(&d, 16, 4, &drop) == 0.0625 && !drop);
    open_damping(&d, RIG("damping=koloskova", "damping.concurrency=8"));
    assert_true(scale_among(&d, 8, 4, &drop) == 1);
    assert_true(scale_among(&d, 10, 4, &drop) == 0.1);
    open_damping(&d, RIG("damping=koloskova", "damping.drop=1"));
    assert_true(scale_among(&d, 4, 4, &drop) == 1 && !drop);
    assert_true(scale_among(&d, 5, 4, &drop) == 0 && drop);
}

static void tail_is_the_share_of_equal_or_larger_staleness(void **state)
{
    (void)state;
    static const uint64_t seen[] = {0, 1, 1, 3, 3, 3, 3, DAMPING_AGES + 5};
    struct damping d;
    open_damping(&d, RIG("damping=tail"));
    expect_scale(&d, 3, 1); /* no history */
    assert_int_equal(damping_allocate(&d, 16), OK);
    expect_scale(&d, 3, 1);
    for (size_t i = 0; i < COUNT_OF(seen); i++)
        damping_observe(&d, 0, seen[i], 0);
    expect_scale(&d, 0, 1);
    expect_scale(&d, 1, 7.0 / 8);
    expect_scale(&d, 2, 5.0 / 8);
    expect_scale(&d, 3, 5.0 / 8);
    expect_scale(&d, 4, 1.0 / 8);
    expect_scale(&d, DAMPING_AGES + 5, 1.0 / 8);
    expect_scale(&d, UINT64_MAX, 1.0 / 8); /* counts as DAMPING_AGES − 1 */
    d.parameters[0] = 2;
    expect_scale(&d, 3, 25.0 / 64);
    d.parameters[0] = 1;
    damping_observe(&d, 0, DAMPING_AGES - 2, 0); /* the largest separate value */
    expect_scale(&d, DAMPING_AGES - 2, 2.0 / 9);
    expect_scale(&d, DAMPING_AGES - 1, 1.0 / 9);
    damping_close(&d);
}

static void rescaled_gives_each_worker_the_same_rate_per_time(void **state)
{
    (void)state;
    struct damping d;
    bool drop;
    open_damping(&d, RIG("damping=rescaled"));
    assert_int_equal(damping_allocate(&d, 3), OK);
    assert_true(scale_of(&d, 5, &drop) == 1); /* no worker has sent a gradient */
    /* Means 100 µs and 300 µs, mean of both 200 µs; worker 1 has sent nothing. */
    damping_observe(&d, 0, 0, 80.4);
    damping_observe(&d, 0, 0, 119.5); /* rounded to whole µs: 80 and 120 */
    damping_observe(&d, 2, 0, 300);
    struct damping_input input = {.worker = 0, .workers = 3};
    assert_true(damping_scale(&d, &input, &drop) == 0.5);
    input.worker = 2;
    assert_true(damping_scale(&d, &input, &drop) == 1.5 && !drop);
    /* In 600 µs worker 0 sends six gradients with scale ½, worker 2 two with 1½: sum 3 each. */
    damping_observe(&d, 1, 0, NAN); /* NaN and negative times count as 0 */
    damping_observe(&d, 1, 0, -5);
    input.worker = 1;
    assert_true(damping_scale(&d, &input, &drop) == 0);
    damping_close(&d);
}

/* Half an hour and an hour. */
static void rescaled_tells_long_steps_apart(void **state)
{
    (void)state;
    struct damping d;
    bool drop;
    open_damping(&d, RIG("damping=rescaled"));
    assert_int_equal(damping_allocate(&d, 2), OK);
    damping_observe(&d, 0, 0, 2e9);
    damping_observe(&d, 1, 0, 4e9);
    for (unsigned w = 0; w < 2; w++) {
        struct damping_input input = {.worker = w, .workers = 2};
        assert_true(fabs(damping_scale(&d, &input, &drop) - (w + 1) * 2 / 3.0) < 1e-15);
    }
    damping_close(&d);
}

static double scale_of_length(const struct damping *d, double norm)
{
    bool drop = true;
    struct damping_input input = {.staleness = 3, .workers = 16, .norm = norm};
    double s = damping_scale(d, &input, &drop);
    assert_false(drop);
    return s;
}

static void trim_clips_long_gradients_to_its_norm(void **state)
{
    (void)state;
    struct damping d;
    open_damping(&d, RIG("damping=trim"));
    assert_true(d.rule->needs_norm);
    assert_true(scale_of_length(&d, 0) == 1);
    assert_true(scale_of_length(&d, 1) == 1);
    assert_true(scale_of_length(&d, 4) == 0.25);
    assert_true(scale_of_length(&d, INFINITY) == 1); /* the core ends the run */
    open_damping(&d, RIG("damping=trim", "damping.norm=5"));
    assert_true(scale_of_length(&d, 4) == 1);
    assert_true(scale_of_length(&d, 10) == 0.5);
}

static void every_rule_starts_at_1_and_never_rises(void **state)
{
    (void)state;
    for (size_t i = 0; i < damping_registry.count; i++) {
        char chosen[64];
        snprintf(chosen, sizeof chosen, "damping=%s", damping_registry.entries[i]->name);
        struct damping d;
        open_damping(&d, RIG(chosen));
        assert_int_equal(damping_allocate(&d, 16), OK);
        for (uint64_t age = 0; age < 100; age++) /* equal workers: only staleness differs */
            damping_observe(&d, (unsigned)(age % 16), age * age % 37, 1000);
        expect_scale(&d, 0, 1);
        double last = 1;
        for (uint64_t staleness = 1; staleness != 0; staleness += 1 + staleness / 4) {
            bool drop;
            double s = scale_of(&d, staleness, &drop);
            assert_true(s >= 0 && s <= last);
            last = s;
            if (staleness > UINT64_MAX / 2)
                break;
        }
        damping_close(&d);
    }
}

/* config_check() relies on this for policies that are never stale. */
static void only_marked_rules_scale_fresh_gradients(void **state)
{
    (void)state;
    for (size_t i = 0; i < damping_registry.count; i++) {
        char chosen[64];
        bool drop = false;
        snprintf(chosen, sizeof chosen, "damping=%s", damping_registry.entries[i]->name);
        struct damping d;
        open_damping(&d, RIG(chosen));
        assert_int_equal(damping_allocate(&d, 4), OK);
        for (unsigned k = 0; k < 40; k++) /* a history of unequal workers */
            damping_observe(&d, k % 3, k * k % 11, 100 + 900 * (k % 3));
        for (unsigned w = 0; w < 4; w++) {
            struct damping_input input = {
                .workers = 4, .worker = w % 3, .concurrency = 1 + w, .norm = 7 + w};
            assert_true((damping_scale(&d, &input, &drop) == 1) ==
                        !(d.rule->scales_fresh && (w % 3 != 1 || !d.rule->equalizes_workers)));
            assert_false(drop);
        }
        damping_close(&d);
    }
}

static void every_rule_has_a_description_and_a_unique_name(void **state)
{
    (void)state;
    const struct registry *all[] = {&damping_registry, &consistency_registry, &correction_registry};
    for (size_t r = 0; r < COUNT_OF(all); r++) {
        assert_true(all[r]->count > 0);
        for (size_t i = 0; i < all[r]->count; i++) {
            const struct about *about = all[r]->entries[i];
            assert_true(strlen(about->description) > 3);
            assert_ptr_equal(registry_find(all[r], about->name), about);
        }
    }
}

static void a_misspelt_rule_gets_a_suggestion(void **state)
{
    (void)state;
    options *o = NULL;
    assert_int_equal(core_rig_settings(&o, RIG("damping=polynomal")), ERROR_USAGE);
    assert_non_null(strstr(error_message(), "polynomial"));
}

/* ---- docs/adding-a-rule.md ---- */

static void the_example_of_the_docs_is_a_valid_rule(void **state)
{
    (void)state;
    struct damping d = {.rule = &damping_logarithmic, .parameters = {1}};
    expect_scale(&d, 0, 1);
    expect_scale(&d, 1, 1 / (1 + 0.69314718055994531));
    d.parameters[0] = 0;
    expect_scale(&d, 1000, 1);
    options *o = NULL;
    double parameters[DAMPING_PARAMETERS];
    assert_int_equal(core_rig_settings(&o, RIG("damping=none")), OK);
    assert_int_equal(options_declare(o, damping_logarithmic.about.options), OK);
    registry_parameters(&damping_logarithmic.about, o, parameters, DAMPING_PARAMETERS);
    assert_true(parameters[0] == 1 && parameters[1] == 0);
    options_close(&o);
}

static void the_docs_show_the_compiled_example(void **state)
{
    (void)state;
    documented_on("docs/adding-a-rule.md", "docs/examples/damping_logarithmic.c");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(scales_equal_the_values_worked_out_by_hand),
        cmocka_unit_test(cutoff_drops_what_is_older_than_its_bound),
        cmocka_unit_test(koloskova_has_scale_1_up_to_the_concurrency),
        cmocka_unit_test(tail_is_the_share_of_equal_or_larger_staleness),
        cmocka_unit_test(rescaled_gives_each_worker_the_same_rate_per_time),
        cmocka_unit_test(rescaled_tells_long_steps_apart),
        cmocka_unit_test(trim_clips_long_gradients_to_its_norm),
        cmocka_unit_test(every_rule_starts_at_1_and_never_rises),
        cmocka_unit_test(only_marked_rules_scale_fresh_gradients),
        cmocka_unit_test(every_rule_has_a_description_and_a_unique_name),
        cmocka_unit_test(a_misspelt_rule_gets_a_suggestion),
        cmocka_unit_test(the_example_of_the_docs_is_a_valid_rule),
        cmocka_unit_test(the_docs_show_the_compiled_example),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
