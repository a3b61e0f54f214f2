/* precision=auto in one process: the rule, the recorded answer, two processes that disagree, and
 * trials on a GPU. */
#include "experiments/config/config.h"
#include "experiments/config/precision_trial.h"
#include "experiments/config/prerequisites.h"
#include "experiments/run/provenance.h"
#include "experiments/sweep/core_allocation.h"
#include "experiments/sweep/precision_choice.h"
#include "tests/rigs/scratch.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* A new results file, and settings of a small run that writes to it. */
struct precision_case {
    char path[64], results[80];
    options *o;
};

static void open_settings(struct precision_case *c, const char *more)
{
    static const char *const base[] = {"dataset=gaussian", "dataset.size=8", "model=softmax",
                                       "batch=10", NULL};
    options_close(&c->o);
    assert_int_equal(
        config_compose_texts(
            &c->o, base, (const char *const[]){c->results, "precision=auto", more, NULL}, "test"),
        OK);
    assert_int_equal(config_check(c->o), OK);
}

static void open_case(struct precision_case *c, const char *name)
{
    *c = (struct precision_case){0};
    snprintf(c->path, sizeof c->path, "%s/%s.db", scratch_folder(), name);
    snprintf(c->results, sizeof c->results, "results=%s", c->path);
    unlink(c->path);
    open_settings(c, NULL);
}

static void close_case(struct precision_case *c)
{
    options_close(&c->o);
    unlink(c->path);
}

/* Adds a run of the case's settings, whose trial gave this answer. */
static void record(const struct precision_case *c, const char *reason)
{
    struct precision_case other = *c;
    struct run_row row;
    recorder *r = NULL;
    int64_t id;
    other.o = NULL;
    open_settings(&other, NULL);
    assert_int_equal(options_set(other.o, "precision_trial", reason, "test"), OK);
    run_row_open(&row, other.o);
    assert_int_equal(recorder_open(&r, c->path), OK);
    assert_int_equal(recorder_begin(r, &row.description, "running", &id), OK);
    recorder_close(&r);
    run_row_close(&row);
    options_close(&other.o);
}

static void bf16_must_be_five_per_cent_faster(void **state)
{
    (void)state;
    assert_true(precision_prefers_bf16(&(struct precision_trial){1.06, 1, ""}));
    assert_false(precision_prefers_bf16(&(struct precision_trial){1.04, 1, ""}));
    assert_false(precision_prefers_bf16(&(struct precision_trial){1, 2, ""}));
    assert_false(precision_prefers_bf16(&(struct precision_trial){0, 0, "not available"}));
}

static void a_trial_chooses_by_its_times(void **state)
{
    (void)state;
    struct precision_case c;
    struct precision_trial t;
    double fp32, bf16;
    open_case(&c, "trial");
    assert_int_equal(precision_trial_run(c.o, NULL, &t), OK);
    if (t.why[0] == '\0')
        assert_true(t.fp32_s > 0 && t.bf16_s > 0);
    assert_int_equal(precision_choose(c.o, PRECISION_MEASURE), OK);
    assert_false(precision_is_auto(c.o));
    const char *reason = options_text(c.o, "precision_trial"), *chosen = reason + 5;
    assert_memory_equal(reason, options_text(c.o, "precision"), 4);
    if (sscanf(chosen, " a step takes %lf ms in fp32, %lf ms in bf16", &fp32, &bf16) == 2 &&
        (fp32 / bf16 < 1.049 || fp32 / bf16 > 1.051))
        assert_true((fp32 > 1.05 * bf16) == (strcmp(options_text(c.o, "precision"), "bf16") == 0));
    close_case(&c);
}

static void the_first_recorded_answer_counts_for_the_same_computation_only(void **state)
{
    (void)state;
    struct precision_case c;
    open_case(&c, "recorded");
    record(&c, "bf16: recorded first");
    record(&c, "fp32: recorded later");
    assert_int_equal(precision_choose(c.o, PRECISION_LOOK_UP), OK);
    assert_string_equal(options_text(c.o, "precision"), "bf16");
    assert_string_equal(options_text(c.o, "precision_trial"), "bf16: recorded first");
    open_settings(&c, "seed=7"); /* the same work */
    assert_int_equal(precision_choose(c.o, PRECISION_LOOK_UP), OK);
    assert_string_equal(options_text(c.o, "precision"), "bf16");
    static const char *const other[] = {"batch=11", "threads=2", "dataset.size=9", "model=mlp"};
    for (size_t i = 0; i < COUNT_OF(other); i++) {
        open_settings(&c, other[i]);
        assert_int_equal(precision_choose(c.o, PRECISION_LOOK_UP), OK);
        assert_string_equal(options_text(c.o, "precision"), "fp32");
        assert_string_equal(options_text(c.o, "precision_trial"), "");
    }
    close_case(&c);
}

static void another_answer_recorded_meanwhile_is_an_error(void **state)
{
    (void)state;
    struct precision_case c;
    open_case(&c, "meanwhile");
    assert_int_equal(precision_choose(c.o, PRECISION_MEASURE), OK);
    const bool bf16 = strcmp(options_text(c.o, "precision"), "bf16") == 0;
    record(&c, bf16 ? "fp32: elsewhere" : "bf16: elsewhere");
    assert_int_equal(precision_confirm(c.o), ERROR_RESULTS);
    close_case(&c);
    open_case(&c, "agreed");
    assert_int_equal(precision_choose(c.o, PRECISION_MEASURE), OK);
    assert_int_equal(precision_confirm(c.o), OK);
    close_case(&c);
}

static void a_request_to_stop_ends_the_trial(void **state)
{
    (void)state;
    struct precision_case c;
    struct precision_trial t;
    const volatile sig_atomic_t stop = 1;
    open_case(&c, "stopped");
    open_settings(&c, "dataset.samples=2000000"); /* takes seconds to generate */
    assert_int_equal(precision_trial_run(c.o, &stop, &t), STOPPED);
    close_case(&c);
}

/* As the second round of a sweep with a search: its first round was checked, and ran on GPUs. */
static void a_gpu_can_be_tried_after_checks_and_runs(void **state)
{
    (void)state;
#ifndef GRADLAG_CUDA
    skip();
#endif
    struct precision_case c;
    struct precision_trial t;
    struct core_allocation all;
    struct core_share share;
    open_case(&c, "gpu");
    open_settings(&c, "device=cuda");
    assert_int_equal(prerequisites_check(c.o), OK);
    assert_int_equal(core_allocation_open(&all, 2, true), OK);
    assert_true(core_allocation_take(&all, c.o, &share));
    assert_int_equal(share.gpu_count, 1);
    if (precision_trial_run(c.o, NULL, &t) != OK)
        fail_msg("%s", error_message());
    assert_true(t.fp32_s > 0);
    close_case(&c);
}

static void a_missing_gpu_is_the_same_error_as_in_a_run(void **state)
{
    (void)state;
#ifndef GRADLAG_CUDA
    skip();
#endif
    struct precision_case c;
    open_case(&c, "no gpu");
    open_settings(&c, "device=cuda");
    setenv("GRADLAG_STAND_IN_DEVICES", "0", 1);
    assert_int_equal(prerequisites_check(c.o), ERROR_USAGE);
    assert_non_null(strstr(error_message(), "device=cuda"));
    unsetenv("GRADLAG_STAND_IN_DEVICES");
    close_case(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bf16_must_be_five_per_cent_faster),
        cmocka_unit_test(a_trial_chooses_by_its_times),
        cmocka_unit_test(the_first_recorded_answer_counts_for_the_same_computation_only),
        cmocka_unit_test(another_answer_recorded_meanwhile_is_an_error),
        cmocka_unit_test(a_request_to_stop_ends_the_trial),
        cmocka_unit_test(a_gpu_can_be_tried_after_checks_and_runs),
        cmocka_unit_test(a_missing_gpu_is_the_same_error_as_in_a_run),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
