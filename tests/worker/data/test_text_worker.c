/* test_text_worker.c — workers that train on text: what a loss and an accuracy count, shards. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/measured.h"
#include "base/memory.h"
#include "experiments/config/config.h"
#include "tests/worker/dataset_rig.h"
#include "worker/worker.h"

enum { PERIOD = 5, LENGTH = 80000, CONTEXT = 16, BATCH = 3 };

static char path[128];

/* A text of bytes 0, 1, 2, 3, 4, 0, …: a fifth of all labels is 0. */
static int write_text(void **state)
{
    if (dataset_rig_open(state) != 0)
        return 1;
    snprintf(path, sizeof path, "%s/text", dataset_source);
    FILE *file = fopen(path, "wb");
    for (int i = 0; file != NULL && i < LENGTH; i++)
        fputc(i % PERIOD, file);
    return file == NULL || fclose(file) != 0;
}

static void check(status s)
{
    if (s != OK)
        fail_msg("status %d: %s", s, error_message());
}

struct text_worker {
    options *settings;
    worker *worker;
    size_t count;
    float *parameters, *gradient;
};

static void open_worker(struct text_worker *t, const char *own, unsigned index, unsigned count)
{
    char at[160];
    snprintf(at, sizeof at, "dataset.path=%s", path);
    check(config_compose_texts(
        &t->settings,
        (const char *const[]){"model=gpt", "model.width=8", "model.heads=2", "dataset=text", NULL},
        SET(at, "dataset.context=16", "dataset.vocabulary=32", "batch=3", own), "test"));
    const struct worker_options o = {.settings = t->settings, .index = index, .count = count};
    check(worker_open(&t->worker, &o));
    t->count = worker_parameter_count(t->worker);
    check(memory_new(&t->parameters, t->count, sizeof(float), "parameters"));
    check(memory_new(&t->gradient, t->count, sizeof(float), "a gradient"));
}

static void close_worker(struct text_worker *t)
{
    memory_free(t->parameters);
    memory_free(t->gradient);
    worker_close(&t->worker);
    options_close(&t->settings);
}

/* With all parameters 0 every logit is 0: the loss is ln 32 at each token, and the prediction is
 * class 0, the first of equal ones. */
static void losses_and_accuracies_are_means_over_tokens(void **state)
{
    (void)state;
    struct text_worker t;
    struct evaluation e;
    struct step_stats stats;
    open_worker(&t, "seed=1", 0, 1);
    check(worker_evaluate(t.worker, t.parameters, &e));
    assert_true(fabs(e.validation_loss - log(32)) < 1e-6 && fabs(e.test_loss - log(32)) < 1e-6);
    uint32_t zeros = 0, labels = (LENGTH / 20 - 1) / CONTEXT * CONTEXT; /* 5 % */
    for (uint32_t i = 1; i <= labels; i++)
        zeros += (LENGTH - LENGTH / 20 + i) % PERIOD == 0;
    assert_true(fabs(e.validation_accuracy - (double)zeros / labels) < 1e-12);
    assert_true(fabs(e.top_class_share - 1) < 1e-12);
    check(worker_gradient(t.worker, t.parameters, 0, t.gradient, &stats));
    assert_true(fabs((double)stats.loss - log(32)) < 1e-6);
    assert_int_equal(stats.samples, BATCH);
    assert_in_range(stats.correct, BATCH * (CONTEXT / PERIOD), BATCH * (CONTEXT / PERIOD + 1));
    close_worker(&t);
}

static void without_a_test_split_only_its_figures_are_missing(void **state)
{
    (void)state;
    struct text_worker t;
    struct evaluation e;
    open_worker(&t, "dataset.test=no", 0, 1);
    check(worker_evaluate(t.worker, t.parameters, &e));
    assert_true(fabs(e.validation_loss - log(32)) < 1e-6 && isfinite(e.validation_accuracy));
    assert_memory_equal(&e.test_loss, &(double){NOT_MEASURED}, sizeof e.test_loss);
    assert_true(isnan(e.test_accuracy) && isnan(e.top_class_share));
    assert_int_equal(worker_epoch_samples(t.worker), (LENGTH * 95 / 100 - 1) / CONTEXT);
    close_worker(&t);
}

static void an_evaluation_in_parts_is_the_whole_one(void **state)
{
    (void)state;
    enum { PARTS = 3, MOST = 64 };
    struct text_worker t;
    struct evaluation whole, joined;
    struct evaluation_sum sums[MOST];
    uint32_t predicted[32], all[32] = {0};
    open_worker(&t, "seed=2", 0, 1);
    check(worker_initial_parameters(t.worker, t.parameters, t.count));
    check(worker_evaluate(t.worker, t.parameters, &whole));
    assert_in_range(worker_evaluation_batches(t.worker), 4, MOST); /* two of each split */
    for (unsigned part = 0; part < PARTS; part++) {
        check(worker_evaluate_part(t.worker, t.parameters, part, PARTS, sums, predicted));
        for (int k = 0; k < 32; k++)
            all[k] += predicted[k];
    }
    worker_evaluation_of(t.worker, sums, all, &joined);
    assert_memory_equal(&joined.validation_loss, &whole.validation_loss,
                        sizeof whole - offsetof(struct evaluation, validation_loss));
    close_worker(&t);
}

static void a_shard_gives_the_gradient_of_its_worker(void **state)
{
    (void)state;
    enum { WORKERS = 3 };
    struct text_worker one, other;
    worker_shard *shard;
    struct step_stats stats;
    float *before = NULL;
    open_worker(&one, "seed=4", 0, WORKERS);
    check(worker_initial_parameters(one.worker, one.parameters, one.count));
    check(memory_new(&before, one.count, sizeof(float), "a gradient"));
    for (unsigned w = 0; w < WORKERS; w++) {
        open_worker(&other, "seed=4", w, WORKERS);
        check(worker_shard_open(&shard, one.worker, one.settings, w, WORKERS));
        for (uint64_t batch = 4; batch-- > 0;) {
            check(worker_gradient(other.worker, one.parameters, batch, other.gradient, &stats));
            check(
                worker_gradient_as(one.worker, shard, one.parameters, batch, one.gradient, &stats));
            assert_memory_equal(one.gradient, other.gradient, one.count * sizeof(float));
            assert_memory_not_equal(one.gradient, before, one.count * sizeof(float));
            memcpy(before, one.gradient, one.count * sizeof(float));
        }
        worker_shard_close(&shard);
        close_worker(&other);
    }
    memory_free(before);
    close_worker(&one);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(losses_and_accuracies_are_means_over_tokens),
        cmocka_unit_test(without_a_test_split_only_its_figures_are_missing),
        cmocka_unit_test(an_evaluation_in_parts_is_the_whole_one),
        cmocka_unit_test(a_shard_gives_the_gradient_of_its_worker),
    };
    return cmocka_run_group_tests(tests, write_text, dataset_rig_close);
}
