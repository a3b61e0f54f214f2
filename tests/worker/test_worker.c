/* test_worker.c — the worker: its gradient is a pure function, its evaluation changes no state, and
 * training reduces the loss. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <malloc.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "experiments/config/config.h"
#include "tests/worker/gradients.h"
#include "tests/rigs/built_in_models.h"
#include "worker/backend.h"
#include "worker/data/dataset.h"
#include "worker/model/model.h"
#include "worker/model/tape.h"
#include "worker/worker.h"

struct worker_rig {
    options *settings;
    worker *worker;
    float *parameters, *gradient;
    size_t count;
};

static void check(status s)
{
    if (s != OK)
        fail_msg("%s", error_message());
}

/* Settings as "key=value key=value". */
static void settings_open(options **out, const char *set)
{
    static const char *const base[] = {"dataset=gaussian", "model=lenet", "model.activation=tanh",
                                       NULL};
    char text[256], *at = text;
    const char *words[17] = {NULL};
    size_t count = 0;
    strncpy(text, set, sizeof text - 1);
    text[sizeof text - 1] = '\0';
    for (char *word = strtok_r(at, " ", &at); word != NULL; word = strtok_r(NULL, " ", &at)) {
        assert_true(count + 1 < COUNT_OF(words));
        words[count++] = word;
    }
    check(config_compose_texts(out, base, words, "test"));
}

/* model= of registry entry `model`, and data of `size` that it can read. */
static const char *model_settings(char out[96], size_t model, unsigned size)
{
    const struct model_kind *kind = (const struct model_kind *)model_registry.entries[model];
    snprintf(out, 96,
             kind->reads_tokens ? "model=%s dataset=grammar dataset.context=%u"
                                : "model=%s dataset.size=%u",
             kind->about.name, size);
    return out;
}

static void rig_open(struct worker_rig *r, const char *set, unsigned index, unsigned count)
{
    settings_open(&r->settings, set);
    const struct worker_options o = {.settings = r->settings, .index = index, .count = count};
    check(worker_open(&r->worker, &o));
    r->count = worker_parameter_count(r->worker);
    check(memory_new(&r->parameters, r->count, sizeof(float), "parameters"));
    check(memory_new(&r->gradient, r->count, sizeof(float), "gradient"));
    check(worker_initial_parameters(r->worker, r->parameters, r->count));
}

static void rig_close(struct worker_rig *r)
{
    worker_close(&r->worker);
    options_close(&r->settings);
    memory_free(r->parameters);
    memory_free(r->gradient);
}

static void gradients_are_the_same_bits_in_any_order_and_any_worker(void **state)
{
    (void)state;
    static const char *const models[] = {"mlp", "lenet", "resnet8"};
    for (size_t m = 0; m < COUNT_OF(models); ++m) {
        char set[64] = "dataset.samples=300 seed=5 model=";
        struct worker_rig a, b;
        struct step_stats first, second;
        struct evaluation unused;
        strcat(set, models[m]);
        rig_open(&a, set, 1, 3);
        rig_open(&b, set, 1, 3);
        assert_memory_equal(a.parameters, b.parameters, a.count * sizeof(float));
        check(worker_gradient(a.worker, a.parameters, 4, a.gradient, &first));
        for (uint64_t batch = 0; batch < 9; batch += 3)
            check(worker_gradient(b.worker, b.parameters, batch, b.gradient, &second));
        assert_memory_not_equal(a.gradient, b.gradient, a.count * sizeof(float));
        check(worker_evaluate(b.worker, b.parameters, &unused));
        check(worker_gradient(b.worker, b.parameters, 4, b.gradient, &second));
        assert_memory_equal(a.gradient, b.gradient, a.count * sizeof(float));
        assert_true(first.loss == second.loss);
        assert_int_equal(first.correct, second.correct);
        assert_int_equal(first.samples, 32);
        rig_close(&a);
        rig_close(&b);
    }
}

/* One thread runs convolutions in parts and batch norm in gradlag's kernels; two threads run
 * oneDNN's for the whole batch. Each is the other's reference, with a batch large enough for
 * several parts. */
static void two_threads_give_the_gradient_of_one(void **state)
{
    (void)state;
    static const char *const models[] = {"softmax", "mlp", "lenet", "cnn", "resnet8"};
    for (size_t m = 0; m < COUNT_OF(models); ++m) {
        char set[128];
        struct worker_rig one, two;
        struct step_stats stats;
        snprintf(set, sizeof set, "dataset.samples=200 dataset.size=28 batch=24 model=%s",
                 models[m]);
        rig_open(&one, set, 0, 1);
        strcat(set, " threads=2");
        rig_open(&two, set, 0, 1);
        for (uint64_t batch = 0; batch < 2; ++batch) {
            struct worker_batch of_one = {one.worker, batch};
            const struct gradient_reference reference = gradient_of_worker(&of_one, one.parameters);
            check(worker_gradient(two.worker, two.parameters, batch, two.gradient, &stats));
            double apart = gradient_distance_beside_kinks(&reference, two.gradient, 1e-5);
            if (!(apart < 1e-5)) {
                fail_msg("%s: relative distance between the gradients of two threads and one %.2g",
                         models[m], apart);
            }
        }
        check(worker_gradient(two.worker, two.parameters, 1, one.gradient, &stats));
        assert_memory_equal(one.gradient, two.gradient, one.count * sizeof(float));
        rig_close(&one);
        rig_close(&two);
    }
}

static void *compute_batch_4(void *context)
{
    struct worker_rig *r = context;
    struct step_stats stats;
    check(worker_gradient(r->worker, r->parameters, 4, r->gradient, &stats));
    return NULL;
}

static void check_another_thread(const char *set)
{
    struct worker_rig r;
    struct step_stats stats;
    pthread_t thread;
    float *here;
    rig_open(&r, set, 0, 1);
    check(memory_new(&here, r.count, sizeof(float), "gradient"));
    check(worker_gradient(r.worker, r.parameters, 4, here, &stats));
    assert_int_equal(pthread_create(&thread, NULL, compute_batch_4, &r), 0);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_memory_equal(r.gradient, here, r.count * sizeof(float));
    memory_free(here);
    rig_close(&r);
}

static bool precision_is_here(const char *precision)
{
    char set[64];
    options *settings;
    worker *w;
    snprintf(set, sizeof set, "dataset.samples=64 precision=%s", precision);
    settings_open(&settings, set);
    const struct worker_options o = {.settings = settings, .count = 1};
    const status opened = worker_open(&w, &o);
    worker_close(&w);
    options_close(&settings);
    return opened == OK;
}

/* Simulations and replays compute on other threads than the one that opened the worker. */
static void a_gradient_has_the_same_bits_on_any_thread(void **state)
{
    (void)state;
    static const char *const precisions[] = {"fp32", "bf16"};
    setenv("GRADLAG_BF16_EMULATED", "1", 1);
    for (size_t i = 0; i < COUNT_OF(precisions); ++i) {
        if (!precision_is_here(precisions[i])) {
            print_message("skipped: precision=%s: %s\n", precisions[i], error_message());
            continue;
        }
        for (size_t m = 0; m < 2 * all_built_in_models(); ++m) {
            char set[192], model[96];
            snprintf(set, sizeof set, "dataset.samples=64 batch=8 %s precision=%s threads=%u",
                     model_settings(model, m / 2, 20), precisions[i], (unsigned)m % 2 + 1);
            check_another_thread(set);
        }
    }
}

static void workers_and_seeds_differ_in_their_batches(void **state)
{
    (void)state;
    struct worker_rig a, b, c;
    struct step_stats stats;
    rig_open(&a, "dataset.samples=300", 0, 2);
    rig_open(&b, "dataset.samples=300", 1, 2);
    rig_open(&c, "dataset.samples=300 seed=2", 0, 2);
    assert_memory_equal(a.parameters, b.parameters, a.count * sizeof(float));
    assert_memory_not_equal(a.parameters, c.parameters, a.count * sizeof(float));
    check(worker_gradient(a.worker, a.parameters, 0, a.gradient, &stats));
    check(worker_gradient(b.worker, a.parameters, 0, b.gradient, &stats));
    check(worker_gradient(c.worker, a.parameters, 0, c.gradient, &stats));
    assert_memory_not_equal(a.gradient, b.gradient, a.count * sizeof(float));
    assert_memory_not_equal(a.gradient, c.gradient, a.count * sizeof(float));
    rig_close(&a);
    rig_close(&b);
    rig_close(&c);
}

static void every_model_can_fit_one_batch(void **state)
{
    (void)state;
    for (size_t m = 0; m < all_built_in_models(); ++m) {
        char set[192], model[96];
        struct worker_rig r;
        struct step_stats first, last = {0};
        const struct model_kind *kind = (const struct model_kind *)model_registry.entries[m];
        const float rate = kind->reads_tokens ? 0.2f : 0.02f;
        snprintf(set, sizeof set, "dataset.samples=300 batch=16 %s", model_settings(model, m, 16));
        rig_open(&r, set, 0, 1);
        check(worker_gradient(r.worker, r.parameters, 0, r.gradient, &first));
        for (int step = 0; step < 60; ++step) {
            check(worker_gradient(r.worker, r.parameters, 0, r.gradient, &last));
            for (size_t i = 0; i < r.count; ++i)
                r.parameters[i] -= rate * r.gradient[i];
        }
        if (!(last.loss < 0.7f * first.loss && last.correct > first.correct))
            fail_msg("%s: loss %g, after 60 steps %g", set, (double)first.loss, (double)last.loss);
        rig_close(&r);
    }
}

/* A linear model on well separated classes. */
static void evaluation_shows_the_effect_of_training(void **state)
{
    (void)state;
    struct worker_rig r;
    struct step_stats stats;
    struct evaluation before, after;
    rig_open(&r, "model=softmax dataset.size=8 dataset.samples=600 dataset.separation=12", 0, 1);
    check(worker_evaluate(r.worker, r.parameters, &before));
    for (uint64_t batch = 0; batch < 60; ++batch) {
        check(worker_gradient(r.worker, r.parameters, batch, r.gradient, &stats));
        for (size_t i = 0; i < r.count; ++i)
            r.parameters[i] -= 0.05f * r.gradient[i];
    }
    check(worker_evaluate(r.worker, r.parameters, &after));
    assert_true(before.test_accuracy < 0.5);
    assert_true(after.test_accuracy > 0.9);
    assert_true(after.validation_accuracy > 0.9);
    assert_true(after.test_loss < before.test_loss);
    assert_true(isnan(after.train_loss));
    rig_close(&r);
}

static void evaluation_is_a_pure_function_of_the_parameters(void **state)
{
    (void)state;
    struct worker_rig r;
    struct step_stats stats;
    struct evaluation first, second;
    /* 251 test samples: the last batch has one sample. */
    rig_open(&r, "model=resnet8 dataset.samples=1001 dataset.size=12", 0, 1);
    check(worker_evaluate(r.worker, r.parameters, &first));
    check(worker_gradient(r.worker, r.parameters, 0, r.gradient, &stats));
    check(worker_evaluate(r.worker, r.gradient, &second));
    assert_true(first.test_loss != second.test_loss);
    check(worker_evaluate(r.worker, r.parameters, &second));
    assert_true(first.test_loss == second.test_loss);
    assert_true(first.test_accuracy == second.test_accuracy);
    assert_true(first.validation_loss == second.validation_loss);
    rig_close(&r);
}

/* More threads than batches, too. */
static void an_evaluation_on_several_threads_has_the_bits_of_one(void **state)
{
    (void)state;
    static const char *const sets[] = {"model=resnet8 dataset.samples=4000 dataset.size=8",
                                       "model=lenet dataset.samples=1001"};
    for (size_t i = 0; i < COUNT_OF(sets); i++) {
        struct worker_rig r;
        struct evaluation one, more;
        rig_open(&r, sets[i], 0, 1);
        check(worker_evaluate(r.worker, r.parameters, &one));
        for (unsigned threads = 2; threads < 10; threads += 3) {
            worker_evaluate_on(r.worker, threads);
            check(worker_evaluate(r.worker, r.parameters, &more));
            assert_memory_equal(&one.validation_loss, &more.validation_loss, sizeof(double));
            assert_memory_equal(&one.test_loss, &more.test_loss, sizeof(double));
            assert_true(one.test_accuracy == more.test_accuracy);
            assert_true(one.validation_accuracy == more.validation_accuracy);
            assert_true(one.top_class_share == more.top_class_share);
        }
        rig_close(&r);
    }
}

static void an_evaluation_in_parts_has_the_bits_of_a_whole_one(void **state)
{
    (void)state;
    struct worker_rig r;
    struct evaluation whole, shared;
    struct evaluation_sum sums[64];
    uint32_t predicted[10], all[10];
    rig_open(&r, "model=resnet8 dataset.samples=4000 dataset.size=8", 0, 1);
    assert_int_equal(worker_classes(r.worker), COUNT_OF(all));
    const size_t batches = worker_evaluation_batches(r.worker);
    assert_in_range(batches, 4, COUNT_OF(sums));
    check(worker_evaluate(r.worker, r.parameters, &whole));
    const unsigned each[] = {1, 3, (unsigned)batches + 1};
    for (size_t i = 0; i < COUNT_OF(each); i++) {
        const unsigned parts = each[i];
        memset(sums, 0, sizeof sums);
        memset(all, 0, sizeof all);
        for (unsigned part = parts; part-- > 0;) {
            check(worker_evaluate_part(r.worker, r.parameters, part, parts, sums, predicted));
            for (size_t k = 0; k < COUNT_OF(all); k++)
                all[k] += predicted[k];
        }
        worker_evaluation_of(r.worker, sums, all, &shared);
        assert_true(shared.test_loss == whole.test_loss);
        assert_true(shared.test_accuracy == whole.test_accuracy);
        assert_true(shared.validation_loss == whole.validation_loss);
        assert_true(shared.validation_accuracy == whole.validation_accuracy);
        assert_true(shared.top_class_share == whole.top_class_share);
    }
    rig_close(&r);
}

/* Ten classes. A bias decides the prediction: one class for every sample, or no class. */
static void evaluation_gives_the_share_of_the_most_predicted_class(void **state)
{
    (void)state;
    struct worker_rig r;
    struct evaluation e;
    struct step_stats stats;
    rig_open(&r, "model=softmax dataset.size=8 dataset.samples=600 dataset.separation=12", 0, 1);
    const struct parameter_slice *bias = worker_slice(r.worker, 1);
    assert_int_equal(bias->count, 10);
    for (uint64_t batch = 0; batch < 60; ++batch) {
        check(worker_gradient(r.worker, r.parameters, batch, r.gradient, &stats));
        for (size_t i = 0; i < r.count; ++i)
            r.parameters[i] -= 0.05f * r.gradient[i];
    }
    check(worker_evaluate(r.worker, r.parameters, &e));
    assert_true(e.test_accuracy > 0.9);
    assert_true(e.top_class_share >= 0.1 && e.top_class_share < 0.3);
    r.parameters[bias->offset + 7] = 1e6f;
    check(worker_evaluate(r.worker, r.parameters, &e));
    assert_true(e.top_class_share == 1);
    assert_true(e.test_accuracy < 0.3);
    rig_close(&r);
}

static void augmentation_changes_gradients_and_not_evaluation(void **state)
{
    (void)state;
    static const char set[] = "model=resnet8 dataset.samples=400 dataset.size=12 augment=";
    char text[128];
    struct worker_rig plain, shown, again;
    struct step_stats stats;
    struct evaluation a, b;
    snprintf(text, sizeof text, "%snone", set);
    rig_open(&plain, text, 0, 2);
    snprintf(text, sizeof text, "%sstandard", set);
    rig_open(&shown, text, 0, 2);
    rig_open(&again, text, 0, 2);
    check(worker_gradient(plain.worker, plain.parameters, 3, plain.gradient, &stats));
    check(worker_gradient(shown.worker, plain.parameters, 3, shown.gradient, &stats));
    assert_memory_not_equal(plain.gradient, shown.gradient, plain.count * sizeof(float));
    for (uint64_t batch = 5; batch > 2; batch--)
        check(worker_gradient(again.worker, plain.parameters, batch, again.gradient, &stats));
    assert_memory_equal(again.gradient, shown.gradient, plain.count * sizeof(float));
    check(worker_evaluate(plain.worker, plain.parameters, &a));
    check(worker_evaluate(shown.worker, plain.parameters, &b));
    assert_true(a.test_loss == b.test_loss && a.validation_loss == b.validation_loss);
    rig_close(&plain);
    rig_close(&shown);
    rig_close(&again);
}

static void a_worker_computes_the_gradient_of_any_shard(void **state)
{
    (void)state;
    static const char *const augment[] = {"none", "standard"};
    for (size_t i = 0; i < COUNT_OF(augment); ++i) {
        char text[96];
        struct worker_rig own, other;
        struct step_stats stats;
        worker_shard *shard;
        snprintf(text, sizeof text, "dataset.samples=300 dataset.size=16 augment=%s", augment[i]);
        rig_open(&own, text, 2, 3);
        rig_open(&other, text, 0, 1);
        check(worker_shard_open(&shard, other.worker, other.settings, 2, 3));
        check(worker_gradient(own.worker, own.parameters, 7, own.gradient, &stats));
        check(worker_gradient_as(other.worker, shard, own.parameters, 7, other.gradient, &stats));
        assert_memory_equal(own.gradient, other.gradient, own.count * sizeof(float));
        worker_shard_close(&shard);
        rig_close(&own);
        rig_close(&other);
    }
}

/* On the stand-in for CUDA: the device gathers and crops the batch itself. */
static void a_device_crops_samples_as_the_host_does(void **state)
{
    (void)state;
#ifndef GRADLAG_CUDA
    skip();
#endif
    static const char *const augment[] = {"none", "standard"};
    struct step_stats stats;
    for (size_t i = 0; i < COUNT_OF(augment); ++i) {
        char text[160];
        struct worker_rig host, device;
        snprintf(text, sizeof text,
                 "model=softmax dataset.samples=300 dataset.size=11 dataset.channels=3 augment=%s "
                 "device=%s",
                 augment[i], "cpu");
        rig_open(&host, text, 1, 2);
        memcpy(strstr(text, "device=cpu"), "device=cuda", sizeof "device=cuda");
        rig_open(&device, text, 1, 2);
        check(worker_gradient(host.worker, host.parameters, 2, host.gradient, &stats));
        check(worker_gradient(device.worker, host.parameters, 2, device.gradient, &stats));
        assert_true(gradient_distance(device.gradient, host.gradient, host.count) < 1e-5);
        rig_close(&host);
        rig_close(&device);
    }
}

/* fc1 then adds infinities of both signs. */
static void a_loss_shows_that_activations_overflow(void **state)
{
    (void)state;
    struct worker_rig r;
    struct step_stats stats;
    rig_open(&r, "model.activation=relu dataset.samples=300", 0, 1);
    for (size_t i = 0; i < r.count; ++i)
        r.parameters[i] *= 1e20f;
    check(worker_gradient(r.worker, r.parameters, 0, r.gradient, &stats));
    assert_false(isfinite(stats.loss));
    rig_close(&r);
}

struct worker_taker {
    const struct worker_rig *r;
    float *taken;
    size_t from;
    unsigned pieces;
};

static void take(void *context, size_t final_from)
{
    struct worker_taker *k = context;
    k->pieces += final_from < k->from;
    memcpy(k->taken + final_from, k->r->gradient + final_from,
           (k->from - final_from) * sizeof(float));
    memset(k->r->gradient + final_from, 0x7f, (k->from - final_from) * sizeof(float));
    k->from = final_from;
}

/* Elements that are removed as soon as they are reported final form the gradient. A device reports
 * the whole gradient at once, whatever the model. */
static void gradients_are_final_layer_by_layer(void **state)
{
    (void)state;
#ifdef GRADLAG_CUDA
    enum { DEVICE_MODELS = 1 };
#else
    enum { DEVICE_MODELS = 0 };
#endif
    for (size_t i = 0; i < all_built_in_models() + DEVICE_MODELS; ++i) {
        bool device = i == all_built_in_models();
        char set[192], model[96];
        struct worker_rig r;
        struct step_stats plain, watched;
        snprintf(set, sizeof set, "dataset.samples=300 batch=16 %s device=%s",
                 device ? "model=lenet dataset.size=20" : model_settings(model, i, 20),
                 device ? "cuda" : "cpu");
        rig_open(&r, set, 0, 1);
        struct worker_taker k = {.r = &r, .from = r.count};
        const struct gradient_watch watch = {.context = &k, .between = take};
        check(memory_new(&k.taken, r.count, sizeof(float), "vectors"));
        check(worker_gradient_watched(r.worker, r.parameters, 3, r.gradient, &watch, &watched));
        check(worker_gradient(r.worker, r.parameters, 3, r.gradient, &plain));
        assert_int_equal(k.from, 0);
        assert_memory_equal(k.taken, r.gradient, r.count * sizeof(float));
        assert_true(device ? k.pieces == 1 : k.pieces >= worker_slice_count(r.worker) / 2);
        assert_true(watched.watch_ns > 0 && plain.watch_ns == 0);
        assert_true(plain.forward_ns > 0 && plain.backward_ns > 0);
        assert_true(plain.forward_ns + plain.backward_ns <= plain.compute_ns);
        memory_free(k.taken);
        rig_close(&r);
    }
}

static void steps_allocate_nothing(void **state)
{
    (void)state;
    struct worker_rig r;
    struct step_stats stats;
    rig_open(&r, "dataset.samples=300 augment=standard", 0, 1);
    check(worker_gradient(r.worker, r.parameters, 0, r.gradient, &stats));
    struct mallinfo2 before = mallinfo2();
    for (uint64_t batch = 0; batch < 100; ++batch)
        check(worker_gradient(r.worker, r.parameters, batch, r.gradient, &stats));
    struct mallinfo2 after = mallinfo2();
    assert_int_equal(before.uordblks, after.uordblks);
    assert_int_equal(before.hblkhd, after.hblkhd);
    rig_close(&r);
}

static void slices_cover_the_vector_without_gaps(void **state)
{
    (void)state;
    struct worker_rig r;
    rig_open(&r, "dataset.samples=100", 0, 1);
    size_t at = 0;
    for (size_t i = 0; i < worker_slice_count(r.worker); ++i) {
        const struct parameter_slice *s = worker_slice(r.worker, i);
        size_t count = 1;
        for (unsigned k = 0; k < s->rank; ++k)
            count *= s->shape[k];
        assert_int_equal(s->offset, at);
        assert_int_equal(s->count, count);
        at += count;
    }
    assert_int_equal(at, r.count);
    assert_string_equal(worker_slice(r.worker, 0)->name, "conv1.weight");
    assert_string_equal(worker_slice(r.worker, 1)->name, "conv1.bias");
    assert_int_equal(worker_epoch_samples(r.worker), 100);
    assert_non_null(strstr(worker_device_description(r.worker), "oneDNN"));
    rig_close(&r);
}

static void parameters_only_needs_no_data(void **state)
{
    (void)state;
    options *o;
    worker *w;
    settings_open(&o, "dataset=fashion-mnist dataset.path=/nonexistent");
    const struct worker_options wanted = {.settings = o, .count = 1, .parameters_only = true};
    check(worker_open(&w, &wanted));
    assert_int_equal(worker_parameter_count(w), 37610);
    worker_close(&w);
    options_close(&o);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gradients_are_the_same_bits_in_any_order_and_any_worker),
        cmocka_unit_test(two_threads_give_the_gradient_of_one),
        cmocka_unit_test(a_gradient_has_the_same_bits_on_any_thread),
        cmocka_unit_test(workers_and_seeds_differ_in_their_batches),
        cmocka_unit_test(every_model_can_fit_one_batch),
        cmocka_unit_test(evaluation_shows_the_effect_of_training),
        cmocka_unit_test(evaluation_is_a_pure_function_of_the_parameters),
        cmocka_unit_test(an_evaluation_on_several_threads_has_the_bits_of_one),
        cmocka_unit_test(an_evaluation_in_parts_has_the_bits_of_a_whole_one),
        cmocka_unit_test(evaluation_gives_the_share_of_the_most_predicted_class),
        cmocka_unit_test(augmentation_changes_gradients_and_not_evaluation),
        cmocka_unit_test(a_worker_computes_the_gradient_of_any_shard),
        cmocka_unit_test(a_device_crops_samples_as_the_host_does),
        cmocka_unit_test(a_loss_shows_that_activations_overflow),
        cmocka_unit_test(gradients_are_final_layer_by_layer),
        cmocka_unit_test(steps_allocate_nothing),
        cmocka_unit_test(slices_cover_the_vector_without_gaps),
        cmocka_unit_test(parameters_only_needs_no_data),
    };
    return cmocka_run_group_tests_name("worker", tests, NULL, NULL);
}
