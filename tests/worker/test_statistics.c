/* test_statistics.c — the statistics of batch norm that a checkpoint holds: names, values from a
 * direct computation, and no effect on training. */
#include "base/memory.h"
#include "experiments/config/config.h"
#include "worker/data/dataset.h"
#include "worker/worker.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <string.h>

/* The estimation uses 8 batches of 250 training samples: here all of them, in order. */
enum { SAMPLES = 2000, BATCH = 250, SIDE = 5, PIXELS = SIDE * SIDE, CHANNELS = 16, MOST = 64 };

struct statistics_rig {
    options *settings;
    worker *worker;
    float *parameters;
    size_t count;
};

static void check(status s)
{
    if (s != OK)
        fail_msg("%s", error_message());
}

static void rig_open(struct statistics_rig *r, const char *model)
{
    static const char *const base[] = {"dataset=gaussian", "dataset.samples=2000", "dataset.size=5",
                                       NULL};
    const char *const set[] = {model, NULL};
    check(config_compose_texts(&r->settings, base, set, "test"));
    const struct worker_options o = {.settings = r->settings, .count = 1};
    check(worker_open(&r->worker, &o));
    r->count = worker_parameter_count(r->worker);
    check(memory_new(&r->parameters, r->count, sizeof(float), "parameters"));
    check(worker_initial_parameters(r->worker, r->parameters, r->count));
}

static void rig_close(struct statistics_rig *r)
{
    worker_close(&r->worker);
    options_close(&r->settings);
    memory_free(r->parameters);
}

static void every_batch_norm_layer_has_a_mean_and_a_variance(void **state)
{
    (void)state;
    struct statistics_rig r;
    struct worker_statistic found[MOST];
    size_t layers = 0;
    rig_open(&r, "model=resnet8");
    check(worker_estimate_statistics(r.worker, r.parameters, found));
    for (size_t i = 0; i < worker_slice_count(r.worker); i++) {
        const struct parameter_slice *slice = worker_slice(r.worker, i);
        const char *dot = strrchr(slice->name, '.');
        const size_t length = (size_t)(dot - slice->name);
        if (slice->rank != 1 || strcmp(dot, ".weight") != 0)
            continue;
        for (size_t k = 0; k < 2; k++) {
            const struct worker_statistic *s = &found[2 * layers + k];
            assert_int_equal(strncmp(s->name, slice->name, length), 0);
            assert_string_equal(s->name + length, k == 0 ? ".running_mean" : ".running_var");
            assert_int_equal(s->count, slice->count);
        }
        layers++;
    }
    assert_int_equal(layers, 9);
    assert_int_equal(worker_statistic_count(r.worker), 2 * layers);
    rig_close(&r);
}

/* y[channel][pixel] of layer "conv": 3×3, padding 1, no bias, one input channel. */
static void convolve(const float *weights, const float *image, double *y)
{
    for (int c = 0; c < CHANNELS; c++) {
        for (int at = 0; at < PIXELS; at++) {
            double sum = 0;
            for (int k = 0; k < 9; k++) {
                const int row = at / SIDE + k / 3 - 1, column = at % SIDE + k % 3 - 1;
                if (row >= 0 && row < SIDE && column >= 0 && column < SIDE)
                    sum += (double)weights[c * 9 + k] * (double)image[row * SIDE + column];
            }
            y[c * PIXELS + at] = sum;
        }
    }
}

static void the_first_layers_statistics_are_those_of_its_inputs(void **state)
{
    (void)state;
    struct statistics_rig r;
    struct worker_statistic found[MOST];
    struct dataset data;
    static float images[BATCH * PIXELS];
    double y[CHANNELS * PIXELS], sum[CHANNELS] = {0}, square[CHANNELS] = {0};
    rig_open(&r, "model=resnet8");
    check(worker_estimate_statistics(r.worker, r.parameters, found));
    check(dataset_open(&data, r.settings, true));
    assert_string_equal(worker_slice(r.worker, 0)->name, "conv.weight");
    for (uint32_t n = 0; n < SAMPLES; n++) {
        if (n % BATCH == 0)
            dataset_gather(&data, SPLIT_TRAIN, NULL, n, BATCH, NULL, images, NULL);
        convolve(r.parameters, images + n % BATCH * PIXELS, y);
        for (int i = 0; i < CHANNELS * PIXELS; i++) {
            sum[i / PIXELS] += y[i];
            square[i / PIXELS] += y[i] * y[i];
        }
    }
    for (int c = 0; c < CHANNELS; c++) {
        const double mean = sum[c] / (SAMPLES * PIXELS);
        const double variance = square[c] / (SAMPLES * PIXELS) - mean * mean;
        assert_true(fabs((double)found[0].values[c] - mean) < 1e-5 * sqrt(variance));
        assert_true(fabs((double)found[1].values[c] - variance) < 1e-5 * variance);
    }
    dataset_close(&data);
    rig_close(&r);
}

static void an_estimation_changes_neither_gradients_nor_evaluations(void **state)
{
    (void)state;
    struct statistics_rig with, without;
    struct worker_statistic found[MOST];
    struct step_stats stats;
    struct evaluation one, two;
    float *gradients[2];
    rig_open(&with, "model=resnet8");
    rig_open(&without, "model=resnet8");
    for (int i = 0; i < 2; i++)
        check(memory_new(&gradients[i], with.count, sizeof(float), "a gradient"));
    check(worker_gradient(with.worker, with.parameters, 0, gradients[0], &stats));
    check(worker_estimate_statistics(with.worker, gradients[0], found)); /* other parameters */
    check(worker_gradient(with.worker, with.parameters, 1, gradients[0], &stats));
    check(worker_gradient(without.worker, without.parameters, 1, gradients[1], &stats));
    assert_memory_equal(gradients[0], gradients[1], with.count * sizeof(float));
    check(worker_evaluate(with.worker, with.parameters, &one));
    check(worker_evaluate(without.worker, without.parameters, &two));
    assert_true(one.test_loss == two.test_loss);
    for (int i = 0; i < 2; i++)
        memory_free(gradients[i]);
    rig_close(&with);
    rig_close(&without);
}

static void a_model_without_batch_norm_has_none(void **state)
{
    (void)state;
    struct statistics_rig r;
    rig_open(&r, "model=mlp");
    assert_int_equal(worker_statistic_count(r.worker), 0);
    rig_close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_batch_norm_layer_has_a_mean_and_a_variance),
        cmocka_unit_test(the_first_layers_statistics_are_those_of_its_inputs),
        cmocka_unit_test(an_estimation_changes_neither_gradients_nor_evaluations),
        cmocka_unit_test(a_model_without_batch_norm_has_none),
    };
    return cmocka_run_group_tests_name("statistics", tests, NULL, NULL);
}
