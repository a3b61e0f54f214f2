/* Experiment files: what is read, which files are refused, the settings of a run, expressions. */
#include "base/clock.h"
#include "base/text.h"
#include "experiments/claims/cells.h"
#include "experiments/config/yaml_tree.h"
#include "experiments/claims/experiment.h"
#include "experiments/claims/expression.h"
#include "tests/rigs/documented.h"
#include "tests/rigs/patience.h"
#include "tests/rigs/scratch.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *const valid = "name: small\n"
                                 "question: is it?\n"
                                 "settings: {dataset: gaussian, lr: 0.1, pace: gamma}\n"
                                 "at:\n"
                                 "  4: {pace.mean_ms: 4}\n"
                                 "workers: [1, 4]\n"
                                 "seeds: [7, 8]\n"
                                 "arms:\n"
                                 "  one: {label: one, workers: [1]}\n"
                                 "  a-b:\n"
                                 "    label: the other\n"
                                 "    workers: [4]\n"
                                 "    settings: {damping: inverse, lr: 0.2}\n"
                                 "    at: {4: {momentum: 0}}\n"
                                 "    quick: [1]\n"
                                 "    expected: {4: 79.5}\n"
                                 "discussion: |\n"
                                 "  It is *not*.\n\n"
                                 "  Or so.\n"
                                 "quick: {seeds: [7], settings: {epochs: 1}}\n"
                                 "claims:\n"
                                 "  - claim: it is\n"
                                 "    value: accuracy(one, 1) - accuracy(a-b, 4)\n"
                                 "    band: [-1, 2.5]\n"
                                 "    quick: [-2, 3]\n"
                                 "verdict: {workers: 4, alone: one, undamped: a-b}\n";

static status open_text(struct experiment *e, const char *text)
{
    char path[64];
    snprintf(path, sizeof path, "%s/glexperiment-XXXXXX", scratch_folder());
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, strlen(text)), (ssize_t)strlen(text));
    close(fd);
    status result = experiment_open(e, path);
    unlink(path);
    return result;
}

static void the_example_of_the_docs_is_a_valid_file(void **state)
{
    (void)state;
    struct experiment e;
    if (open_text(&e, documented_block("docs/experiment-files.md", "yaml")) != OK)
        fail_msg("%s", error_message());
    assert_string_equal(e.name, "warm-up");
    assert_int_equal(e.arm_count, 7);
    assert_int_equal(e.claim_count, 2);
    assert_int_equal(e.verdict.column, 16);
    experiment_close(&e);
}

static void every_key_of_a_file_is_read(void **state)
{
    (void)state;
    struct experiment e;
    assert_int_equal(open_text(&e, valid), OK);
    assert_string_equal(e.name, "small");
    assert_int_equal(e.arm_count, 2);
    assert_string_equal(e.arms[1].label, "the other");
    assert_true(experiment_arm_has(&e, &e.arms[0], 1));
    assert_false(experiment_arm_has(&e, &e.arms[0], 4));
    assert_true(experiment_has(&e, &e.arms[0], 1, 7, true));
    assert_false(experiment_has(&e, &e.arms[0], 1, 8, true));
    assert_true(experiment_has(&e, &e.arms[0], 1, 8, false));
    assert_false(experiment_has(&e, &e.arms[1], 4, 7, true));
    assert_true(experiment_has(&e, &e.arms[1], 4, 7, false));
    assert_int_equal(e.claim_count, 1);
    assert_true(e.claims[0].low == -1 && e.claims[0].high == 2.5);
    assert_true(e.claims[0].quick_low == -2 && e.claims[0].quick_high == 3);
    assert_string_equal(e.verdict.undamped, "a-b");
    assert_int_equal(e.quick_seeds.count, 1);
    assert_int_equal(e.arms[0].expected_count, 0);
    assert_int_equal(e.arms[1].expected_count, 1);
    assert_true(e.arms[1].expected[0].column == 4 && e.arms[1].expected[0].value == 79.5);
    assert_string_equal(e.discussion, "It is *not*.\n\nOr so.");
    experiment_close(&e);
}

/* With `columns: batch` the lists, cells and claims name a batch size, and `workers` is a setting.
 */
static void columns_may_vary_another_key(void **state)
{
    (void)state;
    static const char text[] =
        "name: small\n"
        "question: Does it?\n"
        "columns: batch\n"
        "metric: validation_loss\n"
        "batch: [16, 32]\n"
        "settings: {workers: 2, mode: async, model: softmax, epochs: 1}\n"
        "arms:\n"
        "  a: {label: a}\n"
        "  b: {label: b, batch: [32], expected: {32: 1.5}}\n"
        "claims:\n"
        "  - {claim: c, value: 'score(a, 16) - score(b, 32)', band: [0, 1]}\n"
        "verdict: {compared: [a, b]}\n";
    struct experiment e;
    struct settings all = {0}, none = {0};
    options *o = NULL;
    if (open_text(&e, text) != OK)
        fail_msg("%s", error_message());
    assert_int_equal(e.metric, METRIC_VALIDATION_LOSS);
    assert_true(experiment_arm_has(&e, &e.arms[0], 16));
    assert_false(experiment_arm_has(&e, &e.arms[1], 16));
    assert_int_equal(cells_check(&e, e.claims[0].value), OK);
    assert_int_equal(cells_check(&e, "score(b, 16)"), ERROR_USAGE);
    experiment_settings(&e, &e.arms[0], 16, 1, false, &none, &all);
    assert_int_equal(config_compose(&o, &all), OK);
    assert_int_equal(options_integer(o, "batch"), 16);
    assert_int_equal(options_integer(o, "workers"), 2);
    options_close(&o);
    settings_free(&all);
    experiment_close(&e);
}

static void quick_may_set_the_seeds_of_one_cell(void **state)
{
    (void)state;
    char text[2048];
    const char *at = strstr(valid, "quick: [1]");
    snprintf(text, sizeof text, "%.*squick: {4: [8, 9]}%s", (int)(at - valid), valid,
             at + strlen("quick: [1]"));
    struct experiment e;
    struct int_list seeds;
    assert_int_equal(open_text(&e, text), OK);
    assert_false(experiment_has(&e, &e.arms[1], 4, 7, true));
    assert_true(experiment_has(&e, &e.arms[1], 4, 8, true));
    assert_true(experiment_has(&e, &e.arms[1], 4, 9, true));
    assert_false(experiment_has(&e, &e.arms[1], 4, 9, false));
    assert_true(experiment_has(&e, &e.arms[0], 1, 7, true));
    assert_false(experiment_has(&e, &e.arms[0], 1, 9, true));
    experiment_seeds(&e, true, &seeds);
    assert_int_equal(seeds.count, 3);
    assert_true(seeds.at[0] == 7 && seeds.at[1] == 8 && seeds.at[2] == 9);
    free(seeds.at);
    experiment_seeds(&e, false, &seeds);
    assert_int_equal(seeds.count, 2);
    free(seeds.at);
    experiment_close(&e);
}

static status compose_arm(const struct experiment *e, const char *arm, const struct settings *more,
                          options **out)
{
    struct settings all = {0};
    experiment_settings(e, experiment_arm(e, arm), 1, 7, true, more, &all);
    status result = config_compose(out, &all);
    settings_free(&all);
    return result;
}

static void an_ineffective_shared_setting_is_dropped_and_an_arms_own_is_an_error(void **state)
{
    (void)state;
    static const char text[] = "name: base\n"
                               "question: is it?\n"
                               "settings: {damping: polynomial, damping.power: 0.3,"
                               " reduction: ordered}\n"
                               "workers: [1]\n"
                               "seeds: [7]\n"
                               "arms:\n"
                               "  async: {label: a}\n"
                               "  sync: {label: s, settings: {mode: sync}}\n"
                               "  wrong: {label: w, settings: {mode: sync, consistency: bsp}}\n"
                               "quick: {settings: {payload: frames}}\n";
    struct experiment e;
    struct settings more = {0};
    options *o;
    assert_int_equal(open_text(&e, text), OK);
    assert_int_equal(compose_arm(&e, "async", &more, &o), OK);
    assert_true(options_real(o, "damping.power") == 0.3);
    assert_string_equal(options_text(o, "reduction"), "fast");
    options_close(&o);
    assert_int_equal(compose_arm(&e, "sync", &more, &o), OK);
    assert_string_equal(options_text(o, "damping"), "none");
    assert_string_equal(options_text(o, "reduction"), "ordered");
    assert_string_equal(options_text(o, "payload"), "auto");
    options_close(&o);
    assert_int_equal(compose_arm(&e, "wrong", &more, &o), ERROR_USAGE);
    assert_non_null(strstr(error_message(), "consistency=bsp"));
    settings_add(&more, "damping", "inverse", COMMAND_LINE);
    assert_int_equal(compose_arm(&e, "sync", &more, &o), ERROR_USAGE);
    assert_non_null(strstr(error_message(), "damping=inverse"));
    settings_free(&more);
    experiment_close(&e);
}

/* Layers of one file: the arm's settings, its `at`, and the columns. */
static void a_later_layer_of_the_file_drops_dotted_keys_and_the_same_layer_does_not(void **state)
{
    (void)state;
    static const char text[] =
        "name: base\n"
        "question: is it?\n"
        "workers: [1]\n"
        "seeds: [7]\n"
        "settings: {damping: polynomial, damping.power: 0.3}\n"
        "arms:\n"
        "  shared: {label: s, settings: {damping: inverse}}\n"
        "  at: {label: a, settings: {pace: gamma, pace.mean_ms: 2}, at: {1: {pace: none}}}\n"
        "  wrong: {label: w, settings: {damping.power: 0.2, damping: inverse}}\n";
    struct experiment e;
    struct settings more = {0};
    options *o;
    assert_int_equal(open_text(&e, text), OK);
    assert_int_equal(compose_arm(&e, "shared", &more, &o), OK);
    assert_false(options_declared(o, "damping.power"));
    options_close(&o);
    assert_int_equal(compose_arm(&e, "at", &more, &o), OK);
    assert_false(options_declared(o, "pace.mean_ms"));
    options_close(&o);
    assert_int_equal(compose_arm(&e, "wrong", &more, &o), ERROR_USAGE);
    assert_non_null(strstr(error_message(), "damping.power belongs to damping=polynomial"));
    experiment_close(&e);
}

static void specific_settings_override_general_ones(void **state)
{
    (void)state;
    struct experiment e;
    struct settings more = {0}, all = {0};
    options *o;
    assert_int_equal(open_text(&e, valid), OK);
    settings_add(&more, "batch", "10", "command line");
    experiment_settings(&e, &e.arms[1], 4, 8, true, &more, &all);
    assert_int_equal(config_compose(&o, &all), OK);
    assert_string_equal(options_text(o, "damping"), "inverse");
    assert_true(options_real(o, "lr") == 0.2);
    assert_true(options_real(o, "momentum") == 0);
    assert_true(options_real(o, "pace.mean_ms") == 4);
    assert_true(options_real(o, "epochs") == 1);
    assert_int_equal(options_integer(o, "batch"), 10);
    assert_int_equal(options_integer(o, "workers"), 4);
    assert_int_equal(options_integer(o, "seed"), 8);
    assert_string_equal(options_text(o, "experiment"), "small");
    assert_string_equal(options_text(o, "arm"), "a-b");
    options_close(&o);
    settings_free(&all);
    settings_free(&more);
    experiment_close(&e);
}

/* Refuses `valid` with the first `from` replaced by `to`; the message has the line (0: none) and
 * `name`, a key or value of the file. */
static void expect_refused(const char *from, const char *to, unsigned line, const char *name)
{
    struct text changed = {0};
    struct experiment e;
    char place[16] = "";
    const char *at = strstr(valid, from);
    assert_non_null(at);
    text_add_bytes(&changed, valid, (size_t)(at - valid));
    text_add(&changed, "%s%s", to, at + strlen(from));
    if (line > 0)
        snprintf(place, sizeof place, ":%u: ", line);
    assert_int_equal(open_text(&e, changed.at), ERROR_USAGE);
    if (strstr(error_message(), place) == NULL || strstr(error_message(), name) == NULL)
        fail_msg("'%s' and '%s' are not both in: %s", place, name, error_message());
    text_free(&changed);
}

/* libyaml alone takes minutes for each of these. */
static void a_deeply_nested_file_is_refused_at_once(void **state)
{
    (void)state;
    static const char *const steps[] = {"[", "{a: ", "- "};
    for (size_t i = 0; i < COUNT_OF(steps); i++) {
        struct text deep = {0};
        struct yaml_tree d;
        text_add(&deep, "a:\n  ");
        for (unsigned k = 0; k < 400000; k++)
            text_add_bytes(&deep, steps[i], strlen(steps[i]));
        const uint64_t began_ns = clock_ns();
        assert_int_equal(yaml_tree_read_text(&d, "deep.yaml", deep.at), ERROR_USAGE);
        assert_non_null(strstr(error_message(), "deep.yaml:2:"));
        assert_true(clock_ns() - began_ns < 5 * PATIENCE * UINT64_C(1000000000));
        text_free(&deep);
    }
}

static void an_invalid_file_is_refused_with_line_and_key(void **state)
{
    (void)state;
    static const struct {
        const char *from, *to;
        unsigned line;
        const char *name;
    } cases[] = {
        {"question", "qestion", 2, "question"},
        {"name: small\n", "", 1, "name"},
        {"name: small\n", "name: all\n", 1, "all"},
        {"name: small\n", "name: small/tuning\n", 1, "tuning"},
        {"[7, 8]", "[7, seven]", 7, "seven"},
        {"[7, 8]", "7", 7, "seeds"},
        {"[7, 8]", "[7, 8, 7]", 7, "seeds"},
        {"workers: [1, 4]", "workers: [1, 4, 1]", 6, "workers"},
        {"{seeds: [7], ", "{seeds: [7, 7], ", 21, "seeds"},
        {"label: one, ", "", 9, "label"},
        {"at: {4:", "at: {four:", 14, "four"},
        {"  4: {pace", "  8: {pace", 5, "'8'"},
        {"workers: [1]}", "workers: [1, 8]}", 9, "'8'"},
        {"at: {4: {m", "at: {8: {m", 14, "'8'"},
        {"quick: [1]\n", "quick: [8]\n", 15, "'8'"},
        {"{seeds: [7], ", "{workers: [8], seeds: [7], ", 21, "'8'"},
        {"{workers: 4, alone", "{workers: 8, alone", 27, "'8'"},
        {"[-1, 2.5]", "[3, 2.5]", 25, "band"},
        {"[-1, 2.5]", "[3]", 25, "band"},
        {"alone: one", "alone: nobody", 27, "nobody"},
        {"{4: 79.5}", "{1: 79.5}", 16, "expected"},
        {"{4: 79.5}", "{four: 79.5}", 16, "four"},
        {"{4: 79.5}", "{4: much}", 16, "much"},
        {"{4: 79.5}", "79.5", 16, "expected"},
        {"discussion: |\n  It is *not*.\n\n  Or so.\n", "discussion: [a]\n", 17, "discussion"},
        {"    band: [-1, 2.5]\n", "", 23, "band"},
        {"    quick: [1]\n", "    quick: {four: 1}\n", 15, "four"},
        {"    quick: [1]\n", "    quick: {4: 1}\n", 15, "quick"},
        {"    quick: [1]\n", "    quick: yes\n", 15, "quick"},
        {"    quick: [1]\n", "    quick: []\n", 15, "quick"},
        {"    quick: [1]\n", "    tune: {lr: 0.1}\n", 15, "lr"},
        {"    quick: [1]\n", "    tune: {lr: []}\n", 15, "lr"},
        {"    quick: [1]\n", "    tune: {seeds: [1]}\n", 15, "tune"},
        {"    quick: [1]\n", "    tune: {seed: [1, 2]}\n", 15, "seeds"},
        {"    quick: [1]\n", "    tune: {lr: 0.1..1}\n", 15, "lr"},
        {"    quick: [1]\n", "    tune: {search: tpe, lr: 1..0.1}\n", 15, "lr=1..0.1"},
        {"    quick: [1]\n", "    tune: {search: tep, lr: 0.1..1}\n", 15, "tpe"},
        {"    quick: [1]\n", "    tune: {search: tpe, search.per: lr, lr: [1, 2]}\n", 15,
         "search.per"},
        {"    quick: [1]\n", "    fit: a-b\n", 11, "a-b"},
        {"    quick: [1]\n", "    fit: one\n", 11, "one"},
        {"workers: [1]}\n  a-b:\n    label: the other\n    workers: [4]\n",
         "quick: [4]}\n  a-b:\n    label: the other\n    fit: one\n", 11, "quick part"},
        {"    value:", "    sql: SELECT 1\n    value:", 23, "sql"},
        {"workers: [1, 4]", "columns: lr", 6, "lr"},
        {"workers: [1, 4]", "columns: batchh", 6, "batchh"},
        {"workers: [1, 4]", "metric: speed", 6, "speed"},
    };
    struct experiment e;
    for (size_t i = 0; i < COUNT_OF(cases); i++)
        expect_refused(cases[i].from, cases[i].to, cases[i].line, cases[i].name);
    assert_int_equal(open_text(&e, valid), OK);
    experiment_close(&e);
}

static void a_measure_with_wrong_arguments_is_refused(void **state)
{
    (void)state;
    static const char *const bad[] = {
        "accuracy(one, 1, 2)",        "seconds_to(one, 1)",     "seconds_too(one, 1, 2)",
        "staleness_distance(one, 1)", "interval(one, 4)",       "paired(one, 1)",
        "paired(one, a-b, 4)",        "paired(one, nobody, 1)", "paired_median(one, 1, a-b, 4)",
        "paired(one, 1, a-b, 1, 2)"};
    static const char *const good[] = {
        "seconds_to(one, 1, 85)",     "interval(a-b, 4)",       "staleness_above(one, 1, 2)",
        "seconds_to_loss(one, 1, 1)", "paired(one, 1, a-b, 4)", "paired_interval(a-b, a-b, 4)"};
    struct experiment e;
    assert_int_equal(open_text(&e, valid), OK);
    for (size_t i = 0; i < COUNT_OF(bad); i++)
        if (cells_check(&e, bad[i]) != ERROR_USAGE)
            fail_msg("'%s' should be refused", bad[i]);
    for (size_t i = 0; i < COUNT_OF(good); i++)
        if (cells_check(&e, good[i]) != OK)
            fail_msg("%s: %s", good[i], error_message());
    experiment_close(&e);
}

/* Nine elements, nine times nine, …: each line repeats the line before nine times. */
static void aliases_that_multiply_are_refused_before_they_fill_the_memory(void **state)
{
    (void)state;
    struct text text = {0};
    struct yaml_tree d;
    text_add(&text, "l0: &l0 [x, x, x, x, x, x, x, x, x]\n");
    for (unsigned i = 1; i < 6; i++) {
        text_add(&text, "l%u: &l%u [", i, i);
        for (unsigned k = 0; k < 9; k++)
            text_add(&text, "%s*l%u", k > 0 ? ", " : "", i - 1);
        text_add(&text, "]\n");
        status result = yaml_tree_read_text(&d, "aliases.yaml", text.at);
        assert_int_equal(result, i < 3 ? OK : i == 5 ? ERROR_USAGE : result);
        if (result == OK)
            yaml_tree_close(&d);
    }
    text_free(&text);
}

static void an_unknown_name_is_answered_with_the_nearest_one(void **state)
{
    (void)state;
    struct experiment e;
    assert_int_equal(experiment_open(&e, "stale-gradient"), ERROR_USAGE);
    assert_non_null(strstr(error_message(), "stale-gradients"));
}

static void add_first_points(const struct arm *arm, struct settings *all)
{
    const struct tune_space *grids[] = {experiment_tune_space(arm, false),
                                        experiment_tune_space(arm, true)};
    for (size_t g = 0; g < COUNT_OF(grids); g++) {
        for (size_t i = 0; grids[g] != NULL && i < grids[g]->space.count; i++) {
            const struct dimension *axis = &grids[g]->space.at[i];
            for (size_t k = 0; k < axis->count; k++)
                settings_add(all, axis->key, axis->values[k], axis->origin);
        }
    }
}

/* The settings of every run are valid, and every claim names existing arms and measures. */
static void every_compiled_in_experiment_is_valid(void **state)
{
    (void)state;
    char name[64];
    size_t count = 0;
    for (; experiment_at(count, name); count++) {
        struct experiment e;
        struct settings none = {0};
        assert_int_equal(experiment_open(&e, name), OK);
        assert_string_equal(e.name, name);
        for (size_t a = 0; a < e.arm_count; a++) {
            for (size_t w = 0; w < e.columns.count; w++) {
                struct settings all = {0};
                options *o;
                if (!experiment_arm_has(&e, &e.arms[a], e.columns.at[w]))
                    continue;
                experiment_settings(&e, &e.arms[a], e.columns.at[w], 1, true, &none, &all);
                add_first_points(&e.arms[a], &all);
                if (config_compose(&o, &all) != OK)
                    fail_msg("%s, arm %s: %s", name, e.arms[a].name, error_message());
                options_close(&o);
                settings_free(&all);
            }
        }
        for (size_t c = 0; c < e.claim_count; c++)
            if (e.claims[c].value != NULL && cells_check(&e, e.claims[c].value) != OK)
                fail_msg("%s, claim %zu: %s", name, c, error_message());
        experiment_close(&e);
    }
    assert_true(count >= 2);
}

/* ---- expressions --------------------------------------------------------------------------------
 */

/* accuracy(arm, w) is 100 w plus the length of the arm's name; NaN with 99 workers. */
static status measure(void *context, const char *name, const char *arm, int64_t workers,
                      double given, double *out)
{
    (void)context;
    if (strcmp(name, "given") == 0) {
        *out = given;
        return OK;
    }
    if (strcmp(name, "accuracy") != 0)
        return error_set(ERROR_USAGE, __FILE__, __LINE__, "no measure %s", name);
    *out = workers == 99 ? NAN : 100.0 * (double)workers + (double)strlen(arm);
    return OK;
}

/* paired(a, v, b, w) is 1000 accuracy(b, w) − accuracy(a, v); its interval is 0.5 more. */
static status pair(void *context, const char *name, const char *arm, int64_t workers,
                   const char *other, int64_t other_workers, double *out)
{
    double first, second = 0;
    status result = measure(context, "accuracy", arm, workers, NAN, &first);
    result =
        result == OK ? measure(context, "accuracy", other, other_workers, NAN, &second) : result;
    *out = 1000 * second - first + (strcmp(name, "paired") == 0 ? 0 : 0.5);
    return result;
}

static status number_of(void *context UNUSED, const char (*names)[64], int64_t *out)
{
    if (!text_to_integer(names[0], out))
        return error_set(ERROR_USAGE, __FILE__, __LINE__, "no column %s", names[0]);
    return OK;
}

static bool is_number(void *context UNUSED, const char *name)
{
    int64_t number;
    return text_to_integer(name, &number);
}

static const struct measures numbers = {
    .measure = measure, .levels = 1, .column = number_of, .is_level = is_number, .pair = pair};

static double value_of(const char *text)
{
    struct measures m = numbers;
    double value = 0;
    if (expression_value(text, &m, &value) != OK)
        fail_msg("%s: %s", text, error_message());
    return value;
}

static void expressions_are_computed_in_the_usual_order(void **state)
{
    (void)state;
    assert_true(value_of("1 + 2 * 3 - 4 / 2") == 5);
    assert_true(value_of("(1 + 2) * -3") == -9);
    assert_true(value_of("8 - 2 - 1") == 5);
    assert_true(value_of("abs(2 - 5) + min(3, 1, 2) + max(4, 6)") == 10);
    assert_true(value_of("hypot(3, 4) + hypot(-2)") == 7);
    assert_true(value_of("given(a, 1, 2 * 8.5)") == 17);
    assert_true(isnan(value_of("given(a, 1)")));
    assert_true(value_of("paired(a, bcd, 2) + 1") == 203000 - 201 + 1);
    assert_true(value_of("paired_interval( a , 1, b-cd , 2 )") == 204000 - 101 + 0.5);
    assert_true(value_of(" accuracy( sync-warm , 16 ) - accuracy(a,1)") == 1609 - 101);
}

static void an_unmeasured_part_makes_the_value_unknown(void **state)
{
    (void)state;
    assert_true(isnan(value_of("accuracy(a, 99) - 1")));
    assert_true(isnan(value_of("max(1, accuracy(a, 99), 2)")));
    assert_true(isnan(value_of("abs(accuracy(a, 99))")));
    assert_true(isnan(value_of("accuracy(a, 1, accuracy(a, 99))")));
}

static void a_malformed_expression_is_refused(void **state)
{
    (void)state;
    static const char *const bad[] = {"",
                                      "1 +",
                                      "(1",
                                      "1 2",
                                      "nosuch(a, 1)",
                                      "accuracy(a)",
                                      "accuracy(a, b)",
                                      "accuracy(a, 1, )",
                                      "accuracy a",
                                      "paired(a, 1)",
                                      "paired(a, 1, 2)",
                                      "paired(a, b)",
                                      "paired(a, b, c)",
                                      "paired(a, b, 1, 2)",
                                      "min()",
                                      "1 + + 2",
                                      "3 ** 2"};
    struct measures m = numbers;
    double value;
    for (size_t i = 0; i < COUNT_OF(bad); i++)
        if (expression_value(bad[i], &m, &value) != ERROR_USAGE)
            fail_msg("'%s' should be refused", bad[i]);
    char deep[256];
    memset(deep, '(', sizeof deep - 1);
    deep[sizeof deep - 1] = '\0';
    assert_int_equal(expression_value(deep, &m, &value), ERROR_USAGE);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_example_of_the_docs_is_a_valid_file),
        cmocka_unit_test(every_key_of_a_file_is_read),
        cmocka_unit_test(columns_may_vary_another_key),
        cmocka_unit_test(quick_may_set_the_seeds_of_one_cell),
        cmocka_unit_test(an_ineffective_shared_setting_is_dropped_and_an_arms_own_is_an_error),
        cmocka_unit_test(a_later_layer_of_the_file_drops_dotted_keys_and_the_same_layer_does_not),
        cmocka_unit_test(specific_settings_override_general_ones),
        cmocka_unit_test(a_deeply_nested_file_is_refused_at_once),
        cmocka_unit_test(an_invalid_file_is_refused_with_line_and_key),
        cmocka_unit_test(a_measure_with_wrong_arguments_is_refused),
        cmocka_unit_test(aliases_that_multiply_are_refused_before_they_fill_the_memory),
        cmocka_unit_test(an_unknown_name_is_answered_with_the_nearest_one),
        cmocka_unit_test(every_compiled_in_experiment_is_valid),
        cmocka_unit_test(expressions_are_computed_in_the_usual_order),
        cmocka_unit_test(an_unmeasured_part_makes_the_value_unknown),
        cmocka_unit_test(a_malformed_expression_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
