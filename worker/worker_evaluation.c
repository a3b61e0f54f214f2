/* worker_evaluation.c — evaluates parameters on the validation and test splits; see worker.h. */
#include "base/helpers.h"
#include "base/measured.h"
#include "base/memory.h"
#include "worker/worker_internal.h"

#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

enum {
    EVALUATION_SAMPLES = 250,
    EVALUATION_TOKENS = 2048, /* of text: activations of a batch stay in a processor's cache */
    CALIBRATION_BATCHES = 8,  /* evaluation batches of training samples */
};

/* Samples of an evaluation batch. */
static uint32_t evaluation_batch(const worker *w)
{
    const uint32_t windows = EVALUATION_TOKENS / w->data.targets;
    return !w->data.tokens ? EVALUATION_SAMPLES : windows > 0 ? windows : 1;
}

static status open_backend(worker *w, struct evaluator *e)
{
    if (e->backend != NULL)
        return OK;
    if (e > w->evaluators)
        return backend_open(&e->backend, w->settings, w->index, 1);
    e->backend = w->backend;
    return OK;
}

/* An evaluation batch has evaluation_batch() samples. If the backend is faster with another batch
 * size, the tape is padded with samples that do not count. Batch norm's statistics must contain no
 * padding, so calibration uses a tape without it. */
static status open_evaluator(worker *w, struct evaluator *e)
{
    status result = OK;
    struct shape images = {w->data.channels, w->data.height, w->data.width};
    const uint32_t batch = evaluation_batch(w);
    TRY(open_backend(w, e));
    const uint32_t unit = e->backend->kind->samples_at_once;
    const uint32_t room = unit > 0 ? (batch + unit - 1) / unit * unit : batch;
    tape *evaluation = NULL, *calibrating = NULL;
    if (e->batch == NULL)
        TRY(memory_new(&e->batch, batch, sizeof *e->batch, "a batch"));
    TRY(tape_open(&evaluation, e->backend, w->parameters, TAPE_EVALUATE, images, room));
    TRY(tape_set_targets(evaluation, w->data.targets));
    calibrating = evaluation;
    if (w->has_batch_norm && room != batch) {
        TRY(tape_open(&calibrating, e->backend, w->parameters, TAPE_EVALUATE, images, batch));
        TRY(tape_set_targets(calibrating, w->data.targets));
    }
    e->calibrating = calibrating;
    e->evaluation = evaluation;
    evaluation = calibrating = NULL;
done:
    if (calibrating != evaluation)
        tape_close(&calibrating);
    tape_close(&evaluation);
    return result;
}

void evaluators_close(worker *w)
{
    for (struct evaluator *e = w->evaluators; e < w->evaluators + EVALUATORS_MOST; e++) {
        if (e->calibrating != e->evaluation)
            tape_close(&e->calibrating);
        tape_close(&e->evaluation);
        if (e > w->evaluators)
            backend_close(&e->backend);
        memory_free(e->batch);
        memory_free(e->predicted);
    }
}

/* One evaluation by several threads. Each thread takes the next batch that no thread has taken. */
struct evaluation_pass {
    worker *w;
    const float *parameters;
    struct evaluation_sum *sums;
    atomic_size_t next, calibrated; /* next evaluation batch; calibration batches begun */
    size_t step;                    /* from one batch of this process to the next */
};

/* w->calibration has place for the sums of each calibration batch, so that they are added in the
 * order of the batches, whatever thread computed them. */
static status open_calibration(worker *w, const tape *t)
{
    if (w->calibration != NULL)
        return OK;
    w->calibration_sums = tape_sum_count(t);
    return memory_new(&w->calibration, CALIBRATION_BATCHES * w->calibration_sums, sizeof(double),
                      "batch norm's statistics");
}

static status calibrate_batch(worker *w, struct evaluator *e, const float *parameters, size_t b)
{
    status result = OK;
    tape *t = e->calibrating;
    const uint32_t batch = evaluation_batch(w);
    const uint64_t samples = dataset_training_indices(&w->data);
    const uint64_t wanted = (uint64_t)batch * CALIBRATION_BATCHES;
    tape_set_mode(t, TAPE_CALIBRATE);
    for (uint64_t i = 0; i < batch; ++i)
        e->batch[i] = (uint32_t)((b * batch + i) * samples / wanted);
    tape_gather(t, &w->data, SPLIT_TRAIN, e->batch, 0, batch, NULL);
    TRY(worker_step(w, t, parameters, NULL, batch, NULL, NULL));
    tape_copy_sums(t, w->calibration + b * w->calibration_sums);
done:
    tape_set_mode(t, TAPE_EVALUATE);
    return result;
}

/* Call it after all calibration batches. Computes batch norm's statistics from their sums. */
static void take_statistics(const worker *w, struct evaluator *e)
{
    tape_set_mode(e->evaluation, TAPE_CALIBRATE);
    for (size_t b = 0; b < CALIBRATION_BATCHES; ++b)
        tape_add_sums(e->evaluation, w->calibration + b * w->calibration_sums);
    tape_set_mode(e->evaluation, TAPE_EVALUATE);
}

/* Between keep(parameters) and keep(NULL) the parameters do not change: the backend copies them
 * once, not for each batch. */
static void keep(struct evaluator *e, const float *parameters)
{
    if (e->backend != NULL && e->backend->kind->keep != NULL)
        e->backend->kind->keep(e->backend, parameters);
}

static const enum dataset_split evaluated[] = {SPLIT_VALIDATION, SPLIT_TEST};

static size_t batches_of(const worker *w, enum dataset_split split)
{
    const size_t batch = evaluation_batch(w);
    return (w->data.count[split] + batch - 1) / batch;
}

size_t worker_evaluation_batches(const worker *w)
{
    size_t batches = 0;
    for (size_t i = 0; i < COUNT_OF(evaluated); i++)
        batches += batches_of(w, evaluated[i]);
    return batches;
}

size_t worker_classes(const worker *w)
{
    return w->data.classes;
}

/* Among equal logits the first counts, as in op_loss.correct. */
static void count_predictions(const float *logits, size_t rows, uint32_t classes,
                              uint32_t *predicted)
{
    for (size_t n = 0; n < rows; n++) {
        const float *row = logits + n * classes;
        uint32_t best = 0;
        for (uint32_t k = 1; k < classes; k++)
            best = row[k] > row[best] ? k : best;
        predicted[best]++;
    }
}

/* The tape's padding samples keep images of an earlier batch; they are computed and not counted.
 * `predicted`: NULL if predictions are not counted. */
static status evaluate_on_tape(worker *w, struct evaluator *e, const float *parameters,
                               enum dataset_split split, uint32_t first, uint32_t count,
                               struct op_loss *out, uint32_t *predicted)
{
    status result = OK;
    const float *logits = NULL;
    tape_gather(e->evaluation, &w->data, split, NULL, first, count, NULL);
    TRY(worker_step(w, e->evaluation, parameters, NULL, count, out,
                    predicted != NULL ? &logits : NULL));
    if (predicted != NULL)
        count_predictions(logits, (size_t)count * w->data.targets, w->data.classes, predicted);
done:
    return result;
}

static status evaluate_batch(worker *w, struct evaluator *e, const float *parameters,
                             enum dataset_split split, uint32_t first, struct evaluation_sum *out,
                             uint32_t *predicted)
{
    status result = OK;
    const uint32_t left = w->data.count[split] - first, batch = evaluation_batch(w);
    struct op_loss loss;
    out->count = left < batch ? left : batch;
    if (split != SPLIT_TEST || w->data.numeric)
        predicted = NULL;
    TRY(w->external != NULL
            ? external_evaluate(w->external, split, first, out->count, &loss, predicted)
            : evaluate_on_tape(w, e, parameters, split, first, out->count, &loss, predicted));
    out->loss = loss.sum;
    out->correct = loss.correct;
done:
    return result;
}

static status open_pass(worker *w)
{
    status result = OK;
    if (w->external == NULL && w->evaluators[0].evaluation == NULL)
        TRY(open_evaluator(w, w->evaluators));
    if (w->has_batch_norm)
        TRY(open_calibration(w, w->evaluators[0].evaluation));
done:
    return result;
}

/* Prepares evaluations at these parameters. Estimates batch norm's statistics from training samples
 * spread evenly over the split ("precise batch norm": Wu & Johnson 2021, section 3); the threads
 * share their batches. When all threads have returned, evaluate_batches calls take_statistics. */
static status prepare(struct evaluation_pass *p, struct evaluator *e)
{
    status result = OK;
    worker *w = p->w;
    size_t b;
    if (w->external != NULL)
        return external_prepare_evaluation(w->external, p->parameters);
    if (e->evaluation == NULL)
        TRY(open_evaluator(w, e));
    keep(e, p->parameters);
    while (w->has_batch_norm && (b = atomic_fetch_add(&p->calibrated, 1)) < CALIBRATION_BATCHES)
        TRY(calibrate_batch(w, e, p->parameters, b));
done:
    return result;
}

size_t worker_statistic_count(const worker *w)
{
    size_t count = 0;
    for (size_t i = 0; i < parameter_table_layers(w->parameters); i++)
        count += parameter_table_layer(w->parameters, i)->kind == OP_BATCH_NORM ? 2 : 0;
    return count;
}

status worker_estimate_statistics(worker *w, const float *parameters, struct worker_statistic *out)
{
    status result = OK;
    const float *values[2];
    struct evaluation_pass p = {.w = w, .parameters = parameters};
    REQUIRE(w->has_data && w->has_batch_norm);
    TRY(open_pass(w));
    TRY(prepare(&p, w->evaluators));
    take_statistics(w, w->evaluators);
    for (size_t i = 0; i < parameter_table_layers(w->parameters); i++) {
        const struct layer *l = parameter_table_layer(w->parameters, i);
        if (l->kind != OP_BATCH_NORM)
            continue;
        tape_statistics(w->evaluators[0].evaluation, i, &values[0], &values[1]);
        for (size_t k = 0; k < 2; k++, out++) {
            *out = (struct worker_statistic){.count = l->weight_shape[0], .values = values[k]};
            snprintf(out->name, sizeof out->name, "%s.running_%s", l->name,
                     k == 0 ? "mean" : "var");
        }
    }
done:
    keep(w->evaluators, NULL);
    return result;
}

static status evaluate_next(struct evaluation_pass *p, struct evaluator *e, size_t b,
                            uint32_t *predicted)
{
    worker *w = p->w;
    const size_t of_validation = batches_of(w, SPLIT_VALIDATION);
    const bool validates = b < of_validation;
    const uint32_t k = (uint32_t)(validates ? b : b - of_validation);
    return evaluate_batch(w, e, p->parameters, validates ? SPLIT_VALIDATION : SPLIT_TEST,
                          k * evaluation_batch(w), &p->sums[b], predicted);
}

/* After `prepare`: evaluates batches until none is left. */
static status evaluate_batches(struct evaluation_pass *p, struct evaluator *e, uint32_t *predicted)
{
    status result = OK;
    const size_t batches = worker_evaluation_batches(p->w);
    size_t b;
    memset(predicted, 0, worker_classes(p->w) * sizeof *predicted);
    if (p->w->has_batch_norm)
        take_statistics(p->w, e);
    while ((b = atomic_fetch_add(&p->next, p->step)) < batches)
        TRY(evaluate_next(p, e, b, predicted));
done:
    return result;
}

status worker_evaluate_part(worker *w, const float *parameters, unsigned part, unsigned parts,
                            struct evaluation_sum *sums, uint32_t *predicted)
{
    status result = OK;
    struct evaluation_pass p = {
        .w = w, .parameters = parameters, .sums = sums, .next = part, .step = parts};
    REQUIRE(w->has_data && part < parts);
    TRY(open_pass(w));
    TRY(prepare(&p, w->evaluators));
    TRY(evaluate_batches(&p, w->evaluators, predicted));
done:
    keep(w->evaluators, NULL);
    return result;
}

static void evaluation_of_split(const struct evaluation_sum *sums, size_t batches, uint32_t targets,
                                double *mean_loss, double *accuracy)
{
    double loss = 0, correct = 0, count = 0;
    for (size_t b = 0; b < batches; b++) {
        loss += sums[b].loss;
        correct += sums[b].correct;
        count += (double)sums[b].count * targets;
    }
    *mean_loss = batches == 0 ? NOT_MEASURED : loss / count;
    *accuracy = batches == 0 ? NAN : correct / count;
}

/* NaN: no predictions. */
static double share_of_largest(const uint32_t *predicted, size_t classes)
{
    double most = 0, all = 0;
    for (size_t k = 0; k < classes; k++) {
        most = predicted[k] > most ? predicted[k] : most;
        all += predicted[k];
    }
    return all > 0 ? most / all : NAN;
}

void worker_evaluation_of(const worker *w, const struct evaluation_sum *sums,
                          const uint32_t *predicted, struct evaluation *out)
{
    const size_t of_validation = batches_of(w, SPLIT_VALIDATION);
    out->train_loss = NAN;
    evaluation_of_split(sums, of_validation, w->data.targets, &out->validation_loss,
                        &out->validation_accuracy);
    evaluation_of_split(sums + of_validation, batches_of(w, SPLIT_TEST), w->data.targets,
                        &out->test_loss, &out->test_accuracy);
    out->top_class_share = share_of_largest(predicted, worker_classes(w));
    if (w->data.numeric)
        out->validation_accuracy = out->test_accuracy = NAN;
}

void worker_evaluate_on(worker *w, unsigned threads)
{
    const bool one_thread = w->external != NULL || worker_place(w) != NULL || threads == 0;
    w->evaluation_threads = one_thread ? 1 : threads < EVALUATORS_MOST ? threads : EVALUATORS_MOST;
}

static status prepare_on_thread(void *context, size_t thread)
{
    struct evaluation_pass *p = context;
    return prepare(p, &p->w->evaluators[thread]);
}

static status evaluate_on_thread(void *context, size_t thread)
{
    struct evaluation_pass *p = context;
    struct evaluator *e = &p->w->evaluators[thread];
    return evaluate_batches(p, e, e->predicted);
}

static status open_sums(worker *w)
{
    status result = OK;
    if (w->sums == NULL)
        TRY(memory_new(&w->sums, worker_evaluation_batches(w) + 1, sizeof *w->sums,
                       "sums of an evaluation"));
    for (struct evaluator *e = w->evaluators; e < w->evaluators + w->evaluation_threads; e++)
        if (e->predicted == NULL)
            TRY(memory_new(&e->predicted, worker_classes(w), sizeof *e->predicted,
                           "predictions of an evaluation"));
done:
    return result;
}

status worker_evaluate(worker *w, const float *parameters, struct evaluation *out)
{
    status result = OK;
    struct evaluation_pass p = {.w = w, .parameters = parameters, .step = 1};
    uint32_t *predicted = NULL;
    TRY(open_sums(w));
    TRY(open_pass(w));
    p.sums = w->sums;
    TRY(helpers_for(w->evaluation_threads, w->evaluation_threads, prepare_on_thread, &p));
    TRY(helpers_for(w->evaluation_threads, w->evaluation_threads, evaluate_on_thread, &p));
    predicted = w->evaluators[0].predicted;
    for (unsigned i = 1; i < w->evaluation_threads; i++)
        for (size_t k = 0; k < worker_classes(w); k++)
            predicted[k] += w->evaluators[i].predicted[k];
    worker_evaluation_of(w, w->sums, predicted, out);
done:
    for (struct evaluator *e = w->evaluators; e < w->evaluators + w->evaluation_threads; e++)
        keep(e, NULL);
    return result;
}
