/* Experiment files with several axes: columns, selectors, and which files are refused. */
#include "base/text.h"
#include "experiments/claims/cells.h"
#include "experiments/claims/experiment.h"
#include "tests/rigs/scratch.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

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

/* A column is one level of each axis; the last axis varies fastest. */
static const char several_axes[] =
    "name: map\n"
    "question: Where?\n"
    "settings: {mode: async, model: softmax, engine: virtual, epochs: 1, pace: gamma}\n"
    "axes:\n"
    "  nodes: {alike: {}, slow: {pace: constant, pace.worker: 0, pace.factor: 5}}\n"
    "  damping: [none, inverse]\n"
    "  workers: [4, 8, 16]\n"
    "at: {slow: {lr: 0.01}, 8 slow: {lr: 0.02}, inverse: {momentum: 0}}\n"
    "seeds: [1, 2]\n"
    "arms:\n"
    "  all: {label: a}\n"
    "  some:\n"
    "    label: s\n"
    "    nodes: [slow]\n"
    "    workers: [4, 16]\n"
    "    at: {inverse 16: {lr: 0.5}}\n"
    "    expected: {slow none 4: 81}\n"
    "    quick: {4 slow: [2]}\n"
    "quick: {workers: [4], seeds: [1]}\n"
    "claims:\n"
    "  - {claim: c, value: 'accuracy(all, alike, none, 4) - accuracy(some, 16, slow, none)', band: "
    "[0, 1]}\n"
    "  - {claim: p, value: 'paired(all, some, slow, inverse, 4)', band: [0, 1]}\n"
    "verdict: {at: slow none 16, undamped: all}\n";

static double lr_of(const struct experiment *e, const char *arm, int64_t column)
{
    struct settings all = {0}, none = {0};
    options *o = NULL;
    experiment_settings(e, experiment_arm(e, arm), column, 1, false, &none, &all);
    assert_int_equal(config_compose(&o, &all), OK);
    const double lr = options_real(o, "lr");
    options_close(&o);
    settings_free(&all);
    return lr;
}

static void columns_may_be_combinations_of_several_axes(void **state)
{
    (void)state;
    struct experiment e;
    char text[64];
    int64_t column;
    if (open_text(&e, several_axes) != OK)
        fail_msg("%s", error_message());
    assert_int_equal(e.columns.count, 12);
    const char slow_none_8[3][64] = {"8", "slow", "none"};
    assert_int_equal(experiment_find_column(&e, slow_none_8, &column), OK);
    assert_int_equal(column, 7);
    experiment_column_text(&e, column, text);
    assert_string_equal(text, "slow, damping=none, 8 workers");
    assert_true(experiment_arm_has(&e, &e.arms[0], 7));
    assert_false(experiment_arm_has(&e, &e.arms[1], 7));
    assert_true(experiment_arm_has(&e, &e.arms[1], 8));  /* slow none 16 */
    assert_false(experiment_arm_has(&e, &e.arms[1], 2)); /* alike none 16 */
    assert_int_equal(e.verdict.column, 8);
    assert_int_equal(e.arms[1].expected[0].column, 6);
    assert_true(experiment_has(&e, &e.arms[0], 0, 1, true));
    assert_int_equal(experiment_columns(&e, true)->count, 4);
    assert_true(experiment_has(&e, &e.arms[1], 6, 2, true));
    assert_false(experiment_has(&e, &e.arms[1], 6, 1, true));
    assert_true(lr_of(&e, "all", 0) == 0.03 && lr_of(&e, "all", 6) == 0.01);
    assert_true(lr_of(&e, "all", 7) == 0.02 && lr_of(&e, "some", 11) == 0.5);
    for (size_t i = 0; i < e.claim_count; i++)
        if (cells_check(&e, e.claims[i].value) != OK)
            fail_msg("%s", error_message());
    static const char *const wrong[] = {
        "accuracy(all, alike, none)",      "accuracy(all, alike, none, 5)",
        "accuracy(all, alike, slow, 4)",   "accuracy(all, alike, none, 4, 7)",
        "accuracy(some, alike, none, 16)", "paired(all, some, slow, inverse)"};
    for (size_t i = 0; i < COUNT_OF(wrong); i++)
        if (cells_check(&e, wrong[i]) != ERROR_USAGE)
            fail_msg("'%s' should be refused", wrong[i]);
    experiment_close(&e);
}

static void axes_that_do_not_fit_are_refused(void **state)
{
    (void)state;
    static const struct {
        const char *from, *to, *names;
    } of[] = {
        {"[4, 8, 16]", "[4, 8, 4]", "4"},
        {"[4, 8, 16]", "[]", "workers"},
        {"workers: [4, 16]", "workers: []", "workers"},
        {"{workers: [4], seeds", "{workers: [], seeds", "workers"},
        {"alike: {}", "alike: {workers: 4}", "workers"},
        {"alike: {}", "alike: {damping: none}", "damping"},
        {"alike: {}", "alike: {seed: 4}", "seed"},
        {"  workers: [4, 8, 16]", "  workers: [4, 8, 16]\n  w: {x: {pace.factor: 2}}",
         "pace.factor"},
        {"  workers: [4, 8, 16]", "  workers: [4, 8, 16]\n  seed: [5, 6]", "seed"},
        {"[none, inverse]", "[none, slow]", "slow"},
        {"alike: {}", "a b: {}", "a b"},
        {"alike: {}", "alike: 3", "settings"},
        {"  damping:", "  nothing:", "nothing"},
        {"nodes: [slow]", "nodes: [fast]", "fast"},
        {"workers: [4, 16]", "workers: [4, 4]", "4"},
        {"8 slow:", "slow alike:", "slow alike"},
        {"8 slow:", "9 slow:", "9"},
        {"slow none 4: 81", "slow 4: 81", "slow 4"},
        {"at: slow none 16,", "at: slow,", "slow"},
        {"seeds: [1, 2]", "seeds: [1]\ncolumns: delay", "columns"},
        {"seeds: [1, 2]", "seeds: [1]\nworkers: [1]", "workers"},
    };
    for (size_t i = 0; i < COUNT_OF(of); i++) {
        struct text changed = {0};
        struct experiment e;
        const char *at = strstr(several_axes, of[i].from);
        assert_non_null(at);
        text_add_bytes(&changed, several_axes, (size_t)(at - several_axes));
        text_add(&changed, "%s%s", of[i].to, at + strlen(of[i].from));
        if (open_text(&e, changed.at) != ERROR_USAGE ||
            strstr(error_message(), of[i].names) == NULL)
            fail_msg("'%s' for '%s': %s", of[i].to, of[i].from, error_message());
        text_free(&changed);
    }
}

/* Settings that the columns, the seeds or the arm's name would replace without a word. */
static void settings_that_every_run_replaces_are_refused(void **state)
{
    (void)state;
    static const struct {
        const char *text, *key; /* NULL: it is accepted */
    } of[] = {
        {"workers: [2]\narms: {a: {label: a, settings: {workers: 8}}}", "workers=8"},
        {"workers: [2]\narms: {a: {label: a, settings: {seed: 7}}}", "seed=7"},
        {"workers: [2]\narms: {a: {label: a, at: {2: {arm: b}}}}", "arm=b"},
        {"workers: [2]\nat: {2: {experiment: b}}\narms: {a: {label: a}}", "experiment=b"},
        {"workers: [2]\nquick: {settings: {workers: 1}}\narms: {a: {label: a}}", "workers=1"},
        {"workers: [2]\narms: {a: {label: a, tune: {workers: [1, 4]}}}", "workers"},
        {"workers: [2]\narms: {a: {label: a, tune: {arm: [b, c]}}}", "arm"},
        {"workers: [2]\narms: {a: {label: a, tune: {lr: [1, 2], quick: {workers: [1, 4]}}}}",
         "workers"},
        {"columns: updates\nupdates: [5]\narms: {a: {label: a, settings: {epochs: 2}}}",
         "epochs=2"},
        {"columns: updates\nupdates: [5]\narms: {a: {label: a, tune: {samples: [8]}}}", "samples"},
        {"columns: updates\nupdates: [5]\nat: {5: {epochs: 2}}\narms: {a: {label: a}}", NULL},
        {"columns: seed\nseed: [5]\narms: {a: {label: a}}", "seed"},
        {"workers: [2]\narms: {a: {label: a, settings: {updates: 8}}}", NULL},
        {"workers: [2]\narms: {a: {label: ''}}", "label"},
    };
    struct experiment e;
    for (size_t i = 0; i < COUNT_OF(of); i++) {
        struct text text = {0};
        text_add(&text, "name: n\nquestion: q\n%s\n", of[i].text);
        const status result = open_text(&e, text.at);
        if (result != (of[i].key == NULL ? OK : ERROR_USAGE) ||
            (result != OK && strstr(error_message(), of[i].key) == NULL))
            fail_msg("%s: %s", of[i].text, error_message());
        if (result == OK)
            experiment_close(&e);
        text_free(&text);
    }
}

/* Composes the arm of an experiment with these columns and settings. */
static status compose_lengths(const char *columns, const char *base, const char *arm, options **o)
{
    struct text text = {0};
    struct experiment e;
    struct settings all = {0}, none = {0};
    text_add(&text,
             "name: n\nquestion: q\ncolumns: %s: [10]\nsettings: {%s}\n"
             "arms: {a: {label: a, settings: {%s}}}\n",
             columns, base, arm);
    status result = open_text(&e, text.at);
    if (result == OK) {
        experiment_settings(&e, &e.arms[0], 10, 1, false, &none, &all);
        result = config_compose(o, &all);
        experiment_close(&e);
    }
    settings_free(&all);
    text_free(&text);
    return result;
}

static void a_later_layer_overrules_a_length_but_one_map_has_only_one(void **state)
{
    (void)state;
    static const struct {
        const char *columns, *base, *arm, *counts; /* NULL: an error */
    } of[] = {
        {"updates\nupdates", "epochs: 3", "lr: 0.1", "updates"},
        {"batch\nbatch", "epochs: 3", "samples: 100", "samples"},
        {"batch\nbatch", "samples: 100", "epochs: 3", "epochs"},
        {"batch\nbatch", "updates: 50,\n epochs: 3", "lr: 0.1", NULL},
        {"batch\nbatch", "lr: 0.1", "epochs: 3,\n updates: 50", NULL},
    };
    static const char *const lengths[] = {"epochs", "samples", "updates"};
    for (size_t i = 0; i < COUNT_OF(of); i++) {
        options *o = NULL;
        const status result = compose_lengths(of[i].columns, of[i].base, of[i].arm, &o);
        assert_int_equal(result, of[i].counts != NULL ? OK : ERROR_USAGE);
        if (result != OK)
            assert_non_null(strstr(error_message(), "epochs and updates both"));
        for (size_t k = 0; k < COUNT_OF(lengths) && result == OK; k++)
            assert_int_equal(options_was_set(o, lengths[k]), strcmp(lengths[k], of[i].counts) == 0);
        options_close(&o);
    }
}

/* A file may be one line, as JSON is, so that all layers have one origin. */
static void layers_on_one_line_overrule_a_length(void **state)
{
    (void)state;
    struct experiment e;
    struct settings all = {0}, none = {0};
    options *o = NULL;
    assert_int_equal(open_text(&e, "{\"name\": \"n\", \"question\": \"q\", \"workers\": [1, 2], "
                                   "\"settings\": {\"epochs\": 3}, \"arms\": {\"a\": "
                                   "{\"label\": \"a\", \"settings\": {\"updates\": 10}, "
                                   "\"at\": {\"1\": {\"samples\": 20}}}}}\n"),
                     OK);
    for (int64_t workers = 1; workers <= 2; workers++) {
        experiment_settings(&e, &e.arms[0], workers, 1, false, &none, &all);
        assert_int_equal(config_compose(&o, &all), OK);
        assert_false(options_was_set(o, "epochs"));
        assert_int_equal(options_integer(o, "updates"), workers == 1 ? 0 : 10);
        assert_int_equal(options_integer(o, "samples"), workers == 1 ? 20 : 0);
        options_close(&o);
        settings_free(&all);
    }
    experiment_close(&e);
}

/* If the other arm is not in the quick part, a fitted arm could never run there. A fitted pace is
 * known too late for trials and for further seeds of a map. */
static void a_fit_that_cannot_be_made_is_refused(void **state)
{
    (void)state;
    static const struct {
        const char *from, *to, *map;
        status wanted;
    } of[] = {{"", "", "", OK},
              {"", ", quick: false", "", OK},
              {", quick: false", ", quick: false", "", OK},
              {", quick: false", "", "", ERROR_USAGE},
              {"", ", tune: {lr: [0.1, 0.2]}", "", ERROR_USAGE},
              {"", "", ", seeds: 4", ERROR_USAGE}};
    struct experiment e;
    for (size_t i = 0; i < COUNT_OF(of); i++) {
        char text[512];
        snprintf(text, sizeof text,
                 "name: fitted\nquestion: q\nsettings: {mode: async, model: softmax, epochs: 1}\n"
                 "workers: [2]\narms:\n  real: {label: r%s}\n"
                 "  fit: {label: f, fit: real, settings: {engine: virtual}%s}\n"
                 "map: {one: [real], two: [fit]%s}\n",
                 of[i].from, of[i].to, of[i].map);
        const status result = open_text(&e, text);
        assert_int_equal(result, of[i].wanted);
        if (result == OK)
            experiment_close(&e);
        else
            assert_non_null(strstr(error_message(), ":7: arm 'fit'"));
    }
}

/* The map has the seeds 1 to 8, the quick part 50, and one of its cells 60. */
static void trials_with_seeds_of_runs_are_refused(void **state)
{
    (void)state;
    static const struct {
        const char *tune, *map;
        status wanted;
    } of[] = {{"seeds: [9]", ", seeds: 8", OK},
              {"seeds: [101, 102]", ", seeds: 8", OK},
              {"seeds: [101, 8]", ", seeds: 8", ERROR_USAGE},
              {"seeds: [3]", ", seeds: 8", ERROR_USAGE},
              {"seeds: [1]", ", seeds: 8", ERROR_USAGE},
              {"seeds: [9], quick: {lr: [0.1, 0.2], seeds: [4]}", ", seeds: 8", ERROR_USAGE},
              {"seeds: [3]", "", OK},
              {"seeds: [9, 2]", "", ERROR_USAGE},
              {"seeds: [50]", "", ERROR_USAGE},
              {"seeds: [60]", "", ERROR_USAGE},
              {"seeds: [9], quick: {lr: [0.1, 0.2], seeds: [1]}", "", ERROR_USAGE}};
    struct experiment e;
    for (size_t i = 0; i < COUNT_OF(of); i++) {
        char text[512];
        snprintf(text, sizeof text,
                 "name: m\nquestion: q\nsettings: {model: softmax, engine: virtual, epochs: 1}\n"
                 "workers: [2]\nseeds: [1, 2]\nmap: {s: [a], t: [b]%s}\nquick: {seeds: [50]}\n"
                 "arms:\n"
                 "  a: {label: a, settings: {mode: sync}, quick: {2: [60]}}\n"
                 "  b: {label: b, settings: {mode: async}, tune: {lr: [0.1, 0.2], %s}}\n",
                 of[i].map, of[i].tune);
        const status result = open_text(&e, text);
        if (result != of[i].wanted)
            fail_msg("'%s' with '%s': %s", of[i].tune, of[i].map, error_message());
        if (result == OK) {
            assert_int_equal(experiment_trial_seed(&e), 160);
            experiment_close(&e);
        } else {
            assert_non_null(strstr(error_message(), ":10: "));
            assert_non_null(strstr(error_message(), "arm 'b'"));
        }
    }
}

/* A setting of the command line may change runs of all arms, but not what they differ in. */
static void a_command_line_that_removes_what_is_compared_is_refused(void **state)
{
    (void)state;
    static const struct {
        const char *top, *arm, *key; /* keys of the file; of an arm; on the command line */
        status wanted;
    } of[] = {
        {"settings: {epochs: 20}", "label: a", "epochs", OK},
        {"settings: {epochs: 20}", "label: a", "updates", OK},
        {"settings: {epochs: 20}", "label: a, settings: {updates: 10}", "updates", ERROR_USAGE},
        {"settings: {epochs: 20}", "label: a, settings: {updates: 10}", "epochs", ERROR_USAGE},
        {"settings: {lr: 1}", "label: a, at: {2: {seconds: 1}}", "samples", ERROR_USAGE},
        {"at: {2: {epochs: 3}}", "label: a", "updates", ERROR_USAGE},
        {"settings: {lr: 1}", "label: a, tune: {epochs: [1, 2]}", "updates", ERROR_USAGE},
        {"columns: updates\nupdates: [2]", "label: a", "epochs", ERROR_USAGE},
        {"settings: {damping: polynomial}", "label: a", "damping", OK},
        {"settings: {damping.power: 0.5}", "label: a", "damping", OK},
        {"settings: {lr: 1}", "label: a, settings: {damping.power: 0.5}", "damping", ERROR_USAGE},
        {"settings: {lr: 1}", "label: a, settings: {damping.power: 0.5}", "damp", OK},
        {"settings: {lr: 1}", "label: a, settings: {damping: none}", "damping.power", OK},
        {"settings: {lr: 1}", "label: a, at: {2: {pace.cv: 0.5}}", "pace", ERROR_USAGE},
        {"at: {2: {pace.mean_ms: 5}}", "label: a", "pace", ERROR_USAGE},
        {"settings: {lr: 1}", "label: a, tune: {outer.lr: [1, 2]}", "outer", ERROR_USAGE},
        {"axes: {k: {a: {network.gbps: 1}}, w: {x: {}}}", "label: a", "network", ERROR_USAGE},
        {"axes: {damping.power: [0.5, 1]}", "label: a", "damping", ERROR_USAGE},
    };
    for (size_t i = 0; i < COUNT_OF(of); i++) {
        struct text text = {0};
        struct experiment e;
        struct settings more = {0};
        const bool other =
            strstr(of[i].top, "columns") != NULL || strstr(of[i].top, "axes") != NULL;
        text_add(&text, "name: n\nquestion: q\n%s\n%sarms: {a: {%s}}\n", of[i].top,
                 other ? "" : "workers: [2]\n", of[i].arm);
        if (open_text(&e, text.at) != OK)
            fail_msg("%s: %s", of[i].top, error_message());
        settings_add(&more, of[i].key, "7", COMMAND_LINE);
        if (experiment_check_override(&e, &more) != of[i].wanted)
            fail_msg("%s=7 with '%s' and '%s'", of[i].key, of[i].top, of[i].arm);
        settings_free(&more);
        experiment_close(&e);
        text_free(&text);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(columns_may_be_combinations_of_several_axes),
        cmocka_unit_test(axes_that_do_not_fit_are_refused),
        cmocka_unit_test(settings_that_every_run_replaces_are_refused),
        cmocka_unit_test(a_fit_that_cannot_be_made_is_refused),
        cmocka_unit_test(trials_with_seeds_of_runs_are_refused),
        cmocka_unit_test(layers_on_one_line_overrule_a_length),
        cmocka_unit_test(a_command_line_that_removes_what_is_compared_is_refused),
        cmocka_unit_test(a_later_layer_overrules_a_length_but_one_map_has_only_one),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
