/* Real processes that train on text: every mode, replay, a text without a test split, bad input. */
#include "base/status.h"
#include "tests/rigs/process_rig.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WINDOWS                                                                                    \
    "dataset.context=16", "model=gpt", "model.layers=1", "model.width=16", "model.heads=2",        \
        "batch=4", "updates=20", "warmup_epochs=0", "lr=0.1", "evaluate_every=0"
#define GRAMMAR "dataset=grammar", "dataset.samples=400", WINDOWS

static void text_trains_in_every_mode(void **state)
{
    struct process_rig *r = *state;
    assert_int_equal(RIG_RUN(r, "run", GRAMMAR, "mode=async", "workers=2"), OK);
    process_expect_replayed(r);
    assert_int_equal(RIG_RUN(r, "run", GRAMMAR, "mode=pipeline", "workers=2", "micro_batches=2"),
                     OK);
    process_expect_answer(r,
                          "SELECT count(*) FROM run WHERE status = 'finished' AND "
                          "final_loss BETWEEN 1 AND 5 AND final_accuracy < 1",
                          "2");
    process_expect_nothing_left(r);
}

/* The windows of a batch do not depend on mode or engine, so neither do the bits. */
static void the_same_windows_give_the_same_parameters(void **state)
{
    static const char sql[] = "SELECT count(*) || ' ' || count(DISTINCT parameters_sha256) FROM "
                              "run WHERE workers = (SELECT workers FROM run ORDER BY id DESC)";
    struct process_rig *r = *state;
    assert_int_equal(RIG_RUN(r, "run", GRAMMAR, "mode=async"), OK);
    assert_int_equal(RIG_RUN(r, "run", GRAMMAR, "mode=sync", "reduction=ordered"), OK);
    process_expect_answer(r, sql, "2 1");
    for (int virtual = 0; virtual < 2; virtual ++) {
        assert_int_equal(RIG_RUN(r, "run", GRAMMAR, "mode=sync", "workers=2", "reduction=ordered",
                                 "sampler=whole", virtual ? "engine=virtual" : "engine=real",
                                 virtual ? "pace=gamma" : "pace=none"),
                         OK);
    }
    process_expect_answer(r, sql, "2 1");
}

/* The cache must not take them for one file. */
static void files_of_one_relative_path_are_different_data(void **state)
{
    struct process_rig *r = *state;
    char script[1024];
    snprintf(script, sizeof script,
             "for word in hello world; do mkdir $word; yes $word | head -c 9000 >$word/text; "
             "touch -d @0 $word/text; (cd $word; gradlag run dataset=text dataset.path=text "
             "dataset.context=16 model=gpt model.layers=1 model.width=16 model.heads=2 batch=4 "
             "updates=20 evaluate_every=0 results=../results.db --quiet) || exit; done");
    assert_int_equal(process_shell(r, script), OK);
    process_expect_answer(r, "SELECT count(DISTINCT parameters_sha256) FROM run", "2");
}

/* dataset.path does not tell runs apart. */
static void a_sweep_warns_of_a_run_with_another_path(void **state)
{
#define NUMBERS WINDOWS, "dataset=text", "lr=0.01,0.02", "dataset.vocabulary=128"
    struct process_rig *r = *state;
    assert_int_equal(process_shell(r, "seq 2000 >one; seq 3000 >two"), OK);
    assert_int_equal(RIG_RUN(r, "sweep", NUMBERS, "dataset.path=one"), OK);
    assert_null(strstr(process_errors(r), "dataset.sha256"));
    assert_int_equal(RIG_RUN(r, "sweep", NUMBERS, "dataset.path=one"), OK);
    assert_null(strstr(process_errors(r), "dataset.sha256"));
    assert_int_equal(RIG_RUN(r, "sweep", NUMBERS, "dataset.path=two"), OK);
    process_expect_errors_contain(r, "dataset.sha256");
    process_expect_answer(r, "SELECT count(*) FROM run", "2");
}

static void a_text_without_a_test_split_has_validation_figures(void **state)
{
    struct process_rig *r = *state;
    assert_int_equal(process_shell(r, "seq 2000 >numbers"), OK);
    assert_int_equal(RIG_RUN(r, "run", WINDOWS, "dataset=text", "dataset.path=numbers",
                             "dataset.test=no", "dataset.vocabulary=128"),
                     OK);
    process_expect_answer(r, "SELECT final_loss IS NULL AND final_accuracy IS NULL FROM run", "1");
    const double nats = strtod(process_ask(r, "SELECT validation_loss FROM evaluation"), NULL);
    char bits[16];
    assert_true(nats > 0.5 && nats < 5);
    snprintf(bits, sizeof bits, "%.4f", nats / log(2));
    assert_int_equal(RIG_RUN(r, "show", "1"), OK);
    process_expect_line(r, "bits per byte", bits);
}

static void bad_texts_end_with_the_right_exit_code(void **state)
{
    struct process_rig *r = *state;
    process_write(r, "short", "abc");
    static const struct {
        status code;
        const char *setting, *part;
    } bad[] = {
        {ERROR_USAGE, "sampler=reshuffled", "sampler=whole"},
        {ERROR_USAGE, "augment=standard", "augment"},
        {ERROR_DATA, "dataset.path=missing", "dataset.path"},
        {ERROR_DATA, "dataset.path=short", "dataset.context"},
    };
    for (size_t i = 0; i < COUNT_OF(bad); i++) {
        assert_int_equal(
            RIG_RUN(r, "run", "dataset=text", "model=gpt", "updates=1", bad[i].setting),
            bad[i].code);
        process_expect_error(r, bad[i].part);
    }
    assert_int_equal(
        RIG_RUN(r, "run", "dataset=grammar", "model=gpt", "updates=1", "dataset.path=short"),
        ERROR_USAGE);
    process_expect_error(r, "dataset.path");
}

int main(void)
{
#define PROCESS_TEST(f) cmocka_unit_test_setup_teardown(f, process_set_up, process_tear_down)
    const struct CMUnitTest tests[] = {
        PROCESS_TEST(text_trains_in_every_mode),
        PROCESS_TEST(the_same_windows_give_the_same_parameters),
        PROCESS_TEST(files_of_one_relative_path_are_different_data),
        PROCESS_TEST(a_sweep_warns_of_a_run_with_another_path),
        PROCESS_TEST(a_text_without_a_test_split_has_validation_figures),
        PROCESS_TEST(bad_texts_end_with_the_right_exit_code),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
