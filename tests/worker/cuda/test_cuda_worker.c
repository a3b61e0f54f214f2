/* test_cuda_worker.c — a worker on the CUDA backend: the dataset on the device, evaluation, memory.
 */
#include <malloc.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "experiments/config/config.h"
#include "tests/worker/cuda/cuda_rig.h"
#include "tests/worker/dataset_rig.h"
#include "tests/worker/gradients.h"

struct cuda_worker_rig {
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

static void settings_open(struct cuda_worker_rig *r, const char *device, const char *model,
                          const char *samples, const char *size)
{
    char set[4][64];
    const bool tokens = strcmp(model, "gpt") == 0;
    const char *const keys[] = {"device", "model", "dataset.samples",
                                tokens ? "dataset.context" : "dataset.size"};
    const char *const values[] = {device, model, samples, size};
    memset(r, 0, sizeof *r);
    for (size_t i = 0; i < COUNT_OF(set); i++)
        snprintf(set[i], sizeof set[i], "%s=%s", keys[i], values[i]);
    check(config_compose_texts(
        &r->settings,
        (const char *const[]){"batch=8", tokens ? "dataset=grammar" : "dataset=gaussian", NULL},
        (const char *const[]){set[0], set[1], set[2], set[3], NULL}, "test"));
}

static void rig_open(struct cuda_worker_rig *r, const char *device, const char *model,
                     const char *samples, const char *size)
{
    settings_open(r, device, model, samples, size);
    const struct worker_options o = {.settings = r->settings, .count = 1};
    check(worker_open(&r->worker, &o));
    r->count = worker_parameter_count(r->worker);
    check(memory_new(&r->parameters, r->count, sizeof(float), "parameters"));
    check(memory_new(&r->gradient, r->count, sizeof(float), "gradient"));
    check(worker_initial_parameters(r->worker, r->parameters, r->count));
}

static void rig_close(struct cuda_worker_rig *r)
{
    worker_close(&r->worker);
    options_close(&r->settings);
    memory_free(r->parameters);
    memory_free(r->gradient);
}

/* The loss may differ by some 1e-4, the accuracy by one sample. */
static void assert_close(double a, double b, double tolerance)
{
    if (!(fabs(a - b) <= tolerance))
        fail_msg("%g on one device, %g on the other", a, b);
}

static void evaluation_equals_that_of_the_cpu(void **state)
{
    (void)state;
    static const struct {
        const char *name, *samples, *size;
    } models[] = {
        {"softmax", "310", "8"},
#if !defined(GRADLAG_SANITIZE) /* slow, and test_cuda_backend.c has its kernels */
        {"resnet8", "310", "8"},
#endif
        {"gpt", "61", "7"}
    };
    for (size_t i = 0; i < COUNT_OF(models); ++i) {
        struct cuda_worker_rig cpu, cuda;
        struct evaluation a, b;
        struct step_stats step, stats;
        /* Fewer samples than full batches of re-estimation and of the splits. */
        rig_open(&cpu, "cpu", models[i].name, models[i].samples, models[i].size);
        rig_open(&cuda, "cuda", models[i].name, models[i].samples, models[i].size);
        check(worker_evaluate(cpu.worker, cpu.parameters, &a));
        for (int again = 0; again < 2; ++again) {
            check(worker_evaluate(cuda.worker, cpu.parameters, &b));
            assert_close(a.test_loss, b.test_loss, 1e-4 * a.test_loss);
            assert_close(a.validation_loss, b.validation_loss, 1e-4 * a.validation_loss);
            assert_close(a.test_accuracy, b.test_accuracy, 0.02);
            assert_close(a.validation_accuracy, b.validation_accuracy, 0.04);
            assert_close(a.top_class_share, b.top_class_share, 0.02);
            check(worker_gradient(cpu.worker, cpu.parameters, 0, cpu.gradient, &step));
            check(worker_gradient(cuda.worker, cpu.parameters, 0, cuda.gradient, &stats));
            assert_close(step.loss, stats.loss, 1e-4 * step.loss);
        }
        rig_close(&cpu);
        rig_close(&cuda);
    }
}

/* The vector is the same, its contents differ. */
static void each_evaluation_uses_the_current_parameters(void **state)
{
    (void)state;
    struct cuda_worker_rig cpu, cuda;
    struct evaluation a, b, before;
    rig_open(&cpu, "cpu", "softmax", "310", "8");
    rig_open(&cuda, "cuda", "softmax", "310", "8");
    check(worker_evaluate(cuda.worker, cuda.parameters, &before));
    for (size_t i = 0; i < cuda.count; ++i)
        cuda.parameters[i] *= (float)(1 + i % 3);
    check(worker_evaluate(cpu.worker, cuda.parameters, &a));
    check(worker_evaluate(cuda.worker, cuda.parameters, &b));
    assert_close(a.test_loss, b.test_loss, 1e-4 * a.test_loss);
    assert_true(fabs(before.test_loss - b.test_loss) > 1e-3 * a.test_loss);
    rig_close(&cpu);
    rig_close(&cuda);
}

static void gradients_do_not_depend_on_earlier_calls(void **state)
{
    (void)state;
    struct cuda_worker_rig a, b;
    struct step_stats first, second;
    struct evaluation unused;
    rig_open(&a, "cuda", "lenet", "300", "16");
    rig_open(&b, "cuda", "lenet", "300", "16");
    check(worker_gradient(a.worker, a.parameters, 4, a.gradient, &first));
    worker_hold_memory(b.worker);
    for (uint64_t batch = 0; batch < 9; ++batch)
        check(worker_gradient(b.worker, b.parameters, batch, b.gradient, &second));
    assert_memory_not_equal(a.gradient, b.gradient, a.count * sizeof(float));
    check(worker_evaluate(b.worker, b.parameters, &unused));
    check(worker_gradient(b.worker, b.parameters, 4, b.gradient, &second));
    assert_memory_equal(a.gradient, b.gradient, a.count * sizeof(float));
    assert_true(first.loss == second.loss);
    assert_int_equal(first.correct, second.correct);
    worker_forget_memory(b.worker);
    rig_close(&a);
    rig_close(&b);
}

/* A vector of parameters, which may be pinned read-only, is later a gradient. */
static void held_parameters_may_become_a_gradient(void **state)
{
    (void)state;
    struct cuda_worker_rig r;
    struct step_stats stats;
    float *both;
    rig_open(&r, "cuda", "softmax", "300", "16");
    check(memory_new(&both, r.count, sizeof(float), "parameters, then a gradient"));
    memcpy(both, r.parameters, r.count * sizeof(float));
    worker_hold_memory(r.worker);
    check(worker_gradient(r.worker, both, 4, r.gradient, &stats));
    for (int step = 0; step < 3; ++step) { /* direct, captured, replayed */
        memset(both, 0x7f, r.count * sizeof(float));
        check(worker_gradient(r.worker, r.parameters, 4, both, &stats));
        assert_memory_equal(r.gradient, both, r.count * sizeof(float));
    }
    worker_forget_memory(r.worker);
    rig_close(&r);
    memory_free(both);
}

static void steps_take_no_memory(void **state)
{
    (void)state;
    struct cuda_worker_rig r;
    struct step_stats stats;
    struct cuda_properties before, after;
    if (!cuda_rig_on_stand_in()) /* only its allocations can be counted */
        skip();
    rig_open(&r, "cuda", "lenet", "300", "16");
    for (uint64_t batch = 0; batch < 4; ++batch) /* direct, captured, replayed */
        check(worker_gradient(r.worker, r.parameters, batch, r.gradient, &stats));
    struct mallinfo2 host = mallinfo2();
    cuda_rig_describe(&before);
    for (uint64_t batch = 0; batch < 50; ++batch)
        check(worker_gradient(r.worker, r.parameters, batch, r.gradient, &stats));
    cuda_rig_describe(&after);
    assert_true(mallinfo2().uordblks < host.uordblks + 16 * 50); /* see test_bf16.c */
    assert_int_equal(before.free_bytes, after.free_bytes);
    rig_close(&r);
}

/* ---- the dataset on the device ------------------------------------------------------------------
 */

enum { BATCH = 45, SHOWN = 37, CONTEXT = 13 };

static tensor *as_it_is(tape *t, tensor *x)
{
    (void)t;
    return x;
}

/* Reads the images in the layout of convolutions and pools. */
static tensor *in_lanes(tape *t, tensor *x)
{
    return max_pool(t, x, 1, 1);
}

static void assert_gathered(const struct dataset *d, const uint32_t *indices, uint32_t first,
                            const struct crop *crops, tensor *(*show)(tape *t, tensor *x))
{
    static float wanted[BATCH * 3 * 11 * 11];
    static uint32_t labels[BATCH * CONTEXT];
    const struct backend_options o = {.threads = 1, .place.device = -1};
    backend *b;
    tape *t;
    parameter_table *table;
    size_t size = dataset_image_size(d);
    fixture_device = "cuda";
    check(((const struct backend_kind *)registry_find(&backend_registry, "cuda"))->open(&b, &o));
    check(b->kind->dataset_open(b, d));
    check(parameter_table_open(&table));
    check(tape_open(&t, b, table, TAPE_EVALUATE, (struct shape){d->channels, d->height, d->width},
                    BATCH));
    check(tape_set_targets(t, d->targets));
    for (int step = 0; step < 3; ++step) {
        tape_gather(t, d, SPLIT_TEST, indices, first, SHOWN, crops);
        dataset_gather(d, SPLIT_TEST, indices, first, SHOWN, crops, wanted, labels);
        float none = 0;
        const float *seen = tape_value(t, show(t, tape_begin(t, &none, NULL)));
        assert_memory_equal(seen, wanted, SHOWN * size * sizeof(float));
        assert_memory_equal(tape_labels(t), labels, SHOWN * d->targets * sizeof *labels);
        check(tape_finish(t, NULL, 0, NULL));
    }
    tape_close(&t);
    parameter_table_close(&table);
    backend_close(&b);
}

static void gathering_on_the_device_gives_the_same_bits(void **state)
{
    (void)state;
    struct dataset d;
    uint32_t indices[SHOWN];
    struct crop crops[SHOWN];
    check(dataset_rig_load(
        "gaussian", SET("dataset.samples=600", "dataset.size=11", "dataset.channels=3"), true, &d));
    for (uint32_t i = 0; i < SHOWN; ++i) {
        indices[i] = i * 7919 % d.count[SPLIT_TEST];
        crops[i] =
            (struct crop){.dx = (int8_t)(i % 9 - 4), .dy = (int8_t)(i / 9 % 9 - 4), .flip = i % 2};
    }
    crops[5].dx = 11; /* the whole image is outside of the crop */
    tensor *(*const shows[])(tape *, tensor *) = {as_it_is, in_lanes};
    for (size_t i = 0; i < COUNT_OF(shows); ++i) {
        assert_gathered(&d, indices, 0, NULL, shows[i]);
        assert_gathered(&d, NULL, 3, NULL, shows[i]);
        assert_gathered(&d, indices, 0, crops, shows[i]);
    }
    dataset_close(&d);
}

static void windows_of_text_are_gathered_on_the_device(void **state)
{
    (void)state;
    struct dataset d;
    uint32_t places[SHOWN];
    check(
        dataset_rig_load("grammar", SET("dataset.samples=20000", "dataset.context=13"), true, &d));
    assert_int_equal(d.targets, CONTEXT);
    for (uint32_t i = 0; i < SHOWN; ++i)
        places[i] = i * 7919 % (d.length[SPLIT_TEST] - CONTEXT);
    assert_gathered(&d, places, 0, NULL, as_it_is);
    assert_gathered(&d, NULL, 3, NULL, as_it_is);
    assert_gathered(&d, NULL, d.count[SPLIT_TEST] - SHOWN, NULL, as_it_is);
    dataset_close(&d);
}

/* ---- too little memory --------------------------------------------------------------------------
 */

static void a_dataset_that_does_not_fit_is_an_error(void **state)
{
    (void)state;
    struct cuda_worker_rig r;
    if (!cuda_rig_on_stand_in()) /* only its memory can be limited */
        skip();
    setenv("GRADLAG_STAND_IN_MEMORY", "20000", 1);
    settings_open(&r, "cuda", "softmax", "500", "16");
    const struct worker_options o = {.settings = r.settings, .count = 1};
    assert_int_equal(worker_open(&r.worker, &o), ERROR_OTHER);
    unsetenv("GRADLAG_STAND_IN_MEMORY");
    assert_null(r.worker);
    assert_int_equal(worker_open(&r.worker, &o), OK);
    worker_close(&r.worker);
    options_close(&r.settings);
}

static tensor *softmax(tape *t, tensor *x, const struct model *m)
{
    return linear(t, x, "fc", m->classes);
}

static double evaluated(struct fixture *f, tape *t, const struct model *m)
{
    struct op_loss loss;
    memset(tape_images(t), 0, f->batch * shape_count(f->images) * sizeof(float));
    for (uint32_t i = 0; i < f->batch; ++i)
        tape_labels(t)[i] = i % 10;
    tensor *x = tape_begin(t, f->parameters, NULL);
    check(tape_finish(t, softmax_cross_entropy(t, softmax(t, x, m)), f->batch, &loss));
    return loss.sum;
}

static void kept_parameters_are_copied_once(void **state)
{
    (void)state;
    const struct model_kind kind = {.about = {.name = "test"}, .forward = softmax};
    const struct model m = {.kind = &kind, .classes = 10};
    struct fixture f;
    tape *t = NULL;
    fixture_device = "cuda";
    fixture_open(&f, &m, (struct shape){1, 4, 4}, 8, 3);
    check(tape_open(&t, f.backend, f.table, TAPE_EVALUATE, f.images, f.batch));
    float *bias = &f.parameters[parameter_table_count(f.table) - 1];
    double losses[4];
    f.backend->kind->keep(f.backend, f.parameters);
    for (int i = 0; i < 4; ++i) {
        *bias += 1;
        if (i == 2) /* a training step copies the current vector, and it stays kept */
            fixture_step(&f, f.parameters, f.gradient);
        else if (i == 3)
            f.backend->kind->keep(f.backend, NULL);
        losses[i] = evaluated(&f, t, &m);
    }
    assert_true(losses[0] == losses[1]);
    assert_true(losses[1] != losses[2]);
    assert_true(losses[2] != losses[3]);
    tape_close(&t);
    fixture_close(&f);
}

static void a_backend_works_again_after_it_ran_out_of_memory(void **state)
{
    (void)state;
    const struct model_kind kind = {.about = {.name = "test"}, .forward = softmax};
    const struct model m = {.kind = &kind, .classes = 10};
    struct fixture f;
    tape *large = NULL;
    float before;
    if (!cuda_rig_on_stand_in()) /* only its memory can be limited */
        skip();
    fixture_device = "cuda";
    setenv("GRADLAG_STAND_IN_MEMORY", "33754432", 1); /* 32 MiB are the workspace of products */
    fixture_open(&f, &m, (struct shape){1, 16, 16}, 8, 3);
    before = (float)fixture_step(&f, f.parameters, f.gradient);
    assert_int_equal(tape_open(&large, f.backend, f.table, TAPE_TRAIN, f.images, 4096),
                     ERROR_OTHER);
    assert_null(large);
    /* The images take all memory, so none is left for the logits. */
    struct cuda_properties left;
    cuda_rig_describe(&left);
    uint32_t images = (uint32_t)(left.free_bytes / (shape_count(f.images) * sizeof(float)));
    check(tape_open(&large, f.backend, f.table, TAPE_TRAIN, f.images, images));
    tensor *x = tape_begin(large, f.parameters, f.shifted);
    struct op_loss loss;
    assert_int_equal(
        tape_finish(large, softmax_cross_entropy(large, softmax(large, x, &m)), images, &loss),
        ERROR_OTHER);
    tape_close(&large);
    assert_true((float)fixture_step(&f, f.parameters, f.gradient) == before);
    fixture_close(&f);
    unsetenv("GRADLAG_STAND_IN_MEMORY");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(evaluation_equals_that_of_the_cpu),
        cmocka_unit_test(each_evaluation_uses_the_current_parameters),
        cmocka_unit_test(kept_parameters_are_copied_once),
        cmocka_unit_test(gradients_do_not_depend_on_earlier_calls),
        cmocka_unit_test(held_parameters_may_become_a_gradient),
        cmocka_unit_test(steps_take_no_memory),
        cmocka_unit_test(gathering_on_the_device_gives_the_same_bits),
        cmocka_unit_test(windows_of_text_are_gathered_on_the_device),
        cmocka_unit_test(a_dataset_that_does_not_fit_is_an_error),
        cmocka_unit_test(a_backend_works_again_after_it_ran_out_of_memory),
    };
    return cuda_rig_run("cuda_worker", tests, COUNT_OF(tests), dataset_rig_open, dataset_rig_close);
}
