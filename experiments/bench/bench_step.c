/*
 * bench_step.c — `gradlag bench step`: a worker's step; on the CPU compared with oneDNN's
 * primitives alone.
 *
 * The step is worker_gradient: gathering the batch, forward, backward. The cases take turns, so
 * that all run under the same load:
 *   step         worker_gradient; on a GPU with the copies of parameters and gradient, as in
 *                asynchronous training
 *   products     on the CPU: the step's convolutions and the matrix products of linear layers, but
 *                not of attention, as primitives in their best layouts
 *   primitives   on the CPU: the same with pools and batch norms
 *   resident     on a GPU: parameters stay there and the step includes their update (momentum), as
 *                in synchronous training and in a step of PyTorch
 * The ratios are of medians. Images are synthetic, 28×28×1 as in Fashion-MNIST.
 */
#include "base/clock.h"
#include "base/memory.h"
#include "experiments/bench/bench.h"
#include "experiments/bench/onednn_bound.h"
#include "experiments/config/config.h"
#include "worker/data/dataset.h"
#include "worker/model/model.h"
#include "worker/worker.h"

#include <stdio.h>
#include <string.h>

const struct option bench_step_keys[] = {
    {"models", OPTION_TEXT, "mlp,lenet,cnn,resnet8", 0, 0, NULL, NULL, "models, comma-separated"},
    {"batches", OPTION_TEXT, "32,64,128", 0, 0, NULL, NULL, "batch sizes, comma-separated"},
    {"seconds", OPTION_REAL, "0.1", 0.001, 60, NULL, NULL, "how long each repeat lasts"},
    {"device", OPTION_NAME, "cpu", 0, 0, NULL, &backend_registry, "device of the worker"},
    {"threads", OPTION_INTEGER, "1", 1, 256, NULL, NULL, "threads of the worker"},
    {"precision", OPTION_NAME, "fp32", 0, 0, "fp32|tf32|bf16", NULL, "precision of the products"},
    {"channels", OPTION_INTEGER, "1", 1, 4, NULL, NULL, "colour channels of the images"},
    {"size", OPTION_INTEGER, "28", 1, 1024, NULL, NULL, "height and width of the images"},
    {"width", OPTION_INTEGER, "0", 0, 65536, NULL, NULL,
     "model.width of the models that have it; 0: its default"},
    {"bounds", OPTION_FLAG, "true", 0, 0, NULL, NULL,
     "on the CPU also measure the bounds, in the same precision"},
    {"clock", OPTION_NAME, "wall", 0, 0, "wall|cpu", NULL,
     "cpu: count only the time this thread ran, on a machine that others use too; device=cpu only"},
    {"repeats", OPTION_INTEGER, "9", 1, BENCH_REPEATS, NULL, NULL,
     "number of measurements of each case"},
    {0},
};

enum { STEP, PRODUCTS, PRIMITIVES, RESIDENT, CASES };
static const char *const names[CASES] = {"step", "products", "primitives", "resident"};

static const struct optimizer_rule MOMENTUM = {
    .form = OPTIMIZER_MOMENTUM, .states = 1, .momentum = 0.9f};

struct bench_step_subject {
    options *settings;
    worker *worker;
    onednn_bound *products, *primitives;
    float *parameters, *gradient;
    struct device_vectors resident;
    bool measured[CASES];
    uint64_t batch;
};

static bool reads_tokens(const char *model)
{
    const struct about *kind = registry_find(&model_registry, model);
    return kind != NULL && ((const struct model_kind *)kind)->reads_tokens;
}

static bool is_on_cpu(const struct bench *b)
{
    return strcmp(options_text(b->settings, "device"), "cpu") == 0;
}

static bool has_bounds(const struct bench *b)
{
    return options_flag(b->settings, "bounds") && is_on_cpu(b);
}

static bool counts_wall_time(const struct bench *b)
{
    return strcmp(options_text(b->settings, "clock"), "wall") == 0;
}

/* While the GPU computes, the host's thread sleeps. */
static status check_clock(const struct bench *b)
{
    status result = OK;
    if (!counts_wall_time(b) && !is_on_cpu(b))
        FAIL(ERROR_USAGE,
             "clock=cpu does not count the time of the GPU; with device=%s use clock=wall",
             options_text(b->settings, "device"));
done:
    return result;
}

static status open_settings(struct bench_step_subject *s, const struct bench *b, const char *model,
                            const char *batch)
{
    status result = OK;
    const bool tokens = reads_tokens(model);
    char chosen[3][80];
    snprintf(chosen[0], sizeof chosen[0], "model=%s", model);
    snprintf(chosen[1], sizeof chosen[1], "batch=%s", batch);
    snprintf(chosen[2], sizeof chosen[2], "device=%s", options_text(b->settings, "device"));
    TRY(config_compose_texts(&s->settings,
                             (const char *const[]){tokens ? "dataset=grammar" : "dataset=gaussian",
                                                   chosen[0], chosen[1], chosen[2], NULL},
                             NULL, "bench"));
    if (options_declared(s->settings, "model.activation"))
        TRY(options_set(s->settings, "model.activation", "tanh", "bench"));
    TRY(bench_pass_on(b, s->settings, "threads", "threads"));
    TRY(bench_pass_on(b, s->settings, "precision", "precision"));
    if (options_declared(s->settings, "model.width") && options_integer(b->settings, "width") > 0)
        TRY(bench_pass_on(b, s->settings, "model.width", "width"));
    if (tokens)
        goto done;
    TRY(bench_pass_on(b, s->settings, "dataset.channels", "channels"));
    TRY(bench_pass_on(b, s->settings, "dataset.size", "size"));
done:
    return result;
}

/* Records one step on a tape to get its operations. */
static status open_bounds(struct bench_step_subject *s, uint32_t batch)
{
    status result = OK;
    struct dataset data;
    struct model model;
    backend *device = NULL;
    parameter_table *table = NULL;
    tape *t = NULL;
    struct op_description *operations = NULL;
    struct backend_options o = {
        .threads = (uint32_t)options_integer(s->settings, "threads"),
        .precision = strcmp(options_text(s->settings, "precision"), "bf16") == 0 ? PRECISION_BF16
                                                                                 : PRECISION_FP32,
    };
    TRY(dataset_open(&data, s->settings, false));
    struct shape images = {data.channels, data.height, data.width};
    TRY(model_open(&model, s->settings, &data));
    TRY(parameter_table_open(&table));
    TRY(model_discover(&model, images, table));
    TRY(backend_open(&device, s->settings, 0, 1));
    TRY(tape_open(&t, device, table, TAPE_TRAIN, images, batch));
    TRY(tape_set_targets(t, data.targets));
    tensor *x = tape_begin(t, s->parameters, s->gradient);
    tensor *loss = softmax_cross_entropy(t, model.kind->forward(t, x, &model));
    TRY(tape_finish(t, loss, batch, NULL));
    size_t count = tape_operation_count(t);
    TRY(memory_new(&operations, count, sizeof *operations, "operations"));
    for (size_t i = 0; i < count; ++i)
        operations[i] = *tape_operation(t, i);
    TRY(onednn_bound_open(&s->products, operations, count, true, &o));
    TRY(onednn_bound_open(&s->primitives, operations, count, false, &o));
done:
    memory_free(operations);
    tape_close(&t);
    backend_close(&device);
    parameter_table_close(&table);
    return result;
}

static void close_subject(struct bench_step_subject *s)
{
    worker_close(&s->worker);
    onednn_bound_close(&s->products);
    onednn_bound_close(&s->primitives);
    options_close(&s->settings);
    memory_free(s->parameters);
    memory_free(s->gradient);
}

static status open_subject(struct bench_step_subject *s, const struct bench *b, const char *model,
                           const char *batch)
{
    status result = OK;
    *s = (struct bench_step_subject){0};
    TRY(open_settings(s, b, model, batch));
    const struct worker_options o = {.settings = s->settings, .count = 1};
    TRY(worker_open(&s->worker, &o));
    size_t count = worker_parameter_count(s->worker);
    TRY(memory_new(&s->parameters, count, sizeof(float), "parameters"));
    TRY(memory_new(&s->gradient, count, sizeof(float), "a gradient"));
    TRY(worker_initial_parameters(s->worker, s->parameters, count));
    worker_hold_memory(s->worker);
    s->measured[STEP] = true;
    if (has_bounds(b)) {
        TRY(open_bounds(s, (uint32_t)options_integer(s->settings, "batch")));
        s->measured[PRODUCTS] = true;
        s->measured[PRIMITIVES] = !reads_tokens(model); /* else equal to products */
    }
    if (worker_place(s->worker) != NULL) {
        TRY(worker_reside(s->worker, 0, MOMENTUM.states, &s->resident));
        TRY(worker_resident_write(s->worker, s->resident.parameters, s->parameters, count));
        s->measured[RESIDENT] = true;
    }
done:
    return result;
}

/* Makes one round of steps: as many as the host waits for at once. */
static status run_resident(struct bench_step_subject *s, unsigned *steps)
{
    status result = OK;
    struct step_stats stats[DEVICE_STEPS_MOST];
    struct device_result results[DEVICE_STEPS_MOST];
    const struct device_update update = {.rule = MOMENTUM, .scale = 1, .lr = 0.01};
    const unsigned round = worker_resident_steps(s->worker);
    for (unsigned i = 0; i < round; i++)
        TRY(worker_resident_step(s->worker, &s->resident, s->batch + i, &update, &stats[i]));
    TRY(worker_resident_results(s->worker, s->batch, round, results, stats));
    s->batch += round;
    *steps += round;
done:
    return result;
}

/* Adds the number of steps to *steps. */
static status run_once(struct bench_step_subject *s, int what, unsigned *steps)
{
    struct step_stats stats;
    if (what == RESIDENT)
        return run_resident(s, steps);
    ++*steps;
    switch (what) {
    case STEP:
        return worker_gradient(s->worker, s->parameters, s->batch++, s->gradient, &stats);
    case PRODUCTS:
        return onednn_bound_run(s->products);
    default:
        return onednn_bound_run(s->primitives);
    }
}

static double now(const struct bench *b)
{
    return counts_wall_time(b) ? clock_seconds() : clock_thread_cpu_seconds();
}

static status measure(const struct bench *b, struct bench_step_subject *s, const char *model,
                      const char *batch)
{
    status result = OK;
    struct bench_series rates[CASES] = {0};
    double samples = options_real(s->settings, "batch"),
           lasting = options_real(b->settings, "seconds");
    for (unsigned i = 0; i <= b->repeats; i++) { /* the first one warms up */
        for (int what = 0; what < CASES; what++) {
            if (!s->measured[what])
                continue;
            double began = now(b), took;
            unsigned steps = 0;
            do {
                TRY(run_once(s, what, &steps));
                took = now(b) - began;
            } while (took < lasting);
            if (i > 0)
                bench_add(&rates[what], samples * steps / took);
        }
    }
    char line[96];
    for (int what = 0; what < CASES; what++) {
        (void)snprintf(line, sizeof line, "%s batch=%s %s", model, batch, names[what]);
        if (s->measured[what])
            bench_report(b, line, "samples/s", &rates[what]);
    }
    for (int what = PRODUCTS; what <= PRIMITIVES && s->measured[what]; what++) {
        (void)snprintf(line, sizeof line, "%s batch=%s step/%s", model, batch, names[what]);
        bench_report_value(b, line, "×", bench_median(&rates[0]) / bench_median(&rates[what]));
    }
done:
    return result;
}

status bench_step(int argc, char **argv)
{
    status result = OK;
    struct bench b;
    struct bench_step_subject s = {0};
    char model[64], batch[64];
    TRY(bench_open(&b, "step", bench_step_keys, argc, argv));
    TRY(check_clock(&b));
    const char *models = options_text(b.settings, "models");
    while (bench_next_item(&models, model)) {
        const char *batches = options_text(b.settings, "batches");
        while (bench_next_item(&batches, batch)) {
            TRY(open_subject(&s, &b, model, batch));
            TRY(measure(&b, &s, model, batch));
            close_subject(&s);
            s = (struct bench_step_subject){0};
        }
    }
done:
    close_subject(&s);
    bench_close(&b);
    return result;
}
