/* worker_evaluation.c — evaluates parameters on the validation and test splits; see worker.h. */
#include "base/memory.h"
#include "worker/worker_internal.h"

#include <math.h>
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

/* An evaluation batch has evaluation_batch() samples. If the backend is faster with another batch
 * size, the tape is padded with samples that do not count. Batch norm's statistics must contain no
 * padding, so calibration uses a tape without it. */
static status open_evaluation(worker *w)
{
    status result = OK;
    struct shape images = {w->data.channels, w->data.height, w->data.width};
    const uint32_t unit = w->backend->kind->samples_at_once;
    const uint32_t batch = evaluation_batch(w),
                   room = unit > 0 ? (batch + unit - 1) / unit * unit : batch;
    tape *evaluation = NULL, *calibrating = NULL;
    if (w->calibration == NULL)
        TRY(memory_new(&w->calibration, batch, sizeof *w->calibration, "a batch"));
    TRY(tape_open(&evaluation, w->backend, w->parameters, TAPE_EVALUATE, images, room));
    TRY(tape_set_targets(evaluation, w->data.targets));
    calibrating = evaluation;
    if (w->has_batch_norm && room != batch) {
        TRY(tape_open(&calibrating, w->backend, w->parameters, TAPE_EVALUATE, images, batch));
        TRY(tape_set_targets(calibrating, w->data.targets));
    }
    w->calibrating = calibrating;
    w->evaluation = evaluation;
    evaluation = calibrating = NULL;
done:
    if (calibrating != evaluation)
        tape_close(&calibrating);
    tape_close(&evaluation);
    return result;
}

/* Estimates batch norm's statistics at these parameters, from training samples spread evenly over
 * the split ("precise batch norm": Wu & Johnson 2021, section 3). */
static status calibrate(worker *w, const float *parameters)
{
    status result = OK;
    tape *t = w->calibrating;
    const uint32_t batch = evaluation_batch(w);
    uint64_t samples = dataset_training_indices(&w->data);
    uint64_t wanted = (uint64_t)batch * CALIBRATION_BATCHES;
    tape_set_mode(t, TAPE_CALIBRATE);
    for (uint64_t b = 0; b < CALIBRATION_BATCHES; ++b) {
        for (uint64_t i = 0; i < batch; ++i)
            w->calibration[i] = (uint32_t)((b * batch + i) * samples / wanted);
        tape_gather(t, &w->data, SPLIT_TRAIN, w->calibration, 0, batch, NULL);
        TRY(worker_step(w, t, parameters, NULL, batch, NULL, NULL));
    }
done:
    tape_set_mode(t, TAPE_EVALUATE);
    tape_take_statistics(w->evaluation, t);
    return result;
}

/* Between keep(parameters) and keep(NULL) the parameters do not change: the backend copies them
 * once, not for each batch. */
static void keep(worker *w, const float *parameters)
{
    if (w->backend != NULL && w->backend->kind->keep != NULL)
        w->backend->kind->keep(w->backend, parameters);
}

static const enum dataset_split evaluated[] = {SPLIT_VALIDATION, SPLIT_TEST};

static size_t batches_of(const worker *w, enum dataset_split split)
{
    const uint32_t batch = evaluation_batch(w);
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

/* Of equal logits the first counts, as in the count of correct answers. */
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
static status evaluate_on_tape(worker *w, const float *parameters, enum dataset_split split,
                               uint32_t first, uint32_t count, struct op_loss *out,
                               uint32_t *predicted)
{
    status result = OK;
    const float *logits = NULL;
    tape_gather(w->evaluation, &w->data, split, NULL, first, count, NULL);
    TRY(worker_step(w, w->evaluation, parameters, NULL, count, out,
                    predicted != NULL ? &logits : NULL));
    if (predicted != NULL)
        count_predictions(logits, (size_t)count * w->data.targets, w->data.classes, predicted);
done:
    return result;
}

static status evaluate_batch(worker *w, const float *parameters, enum dataset_split split,
                             uint32_t first, struct evaluation_sum *out, uint32_t *predicted)
{
    status result = OK;
    const uint32_t left = w->data.count[split] - first, batch = evaluation_batch(w);
    struct op_loss loss;
    out->count = left < batch ? left : batch;
    if (split != SPLIT_TEST || w->data.numeric)
        predicted = NULL;
    TRY(w->external != NULL
            ? external_evaluate(w->external, split, first, out->count, &loss, predicted)
            : evaluate_on_tape(w, parameters, split, first, out->count, &loss, predicted));
    out->loss = loss.sum;
    out->correct = loss.correct;
done:
    return result;
}

/* Prepares evaluations at these parameters. */
static status prepare(worker *w, const float *parameters)
{
    status result = OK;
    if (w->external != NULL)
        return external_prepare_evaluation(w->external, parameters);
    if (w->evaluation == NULL)
        TRY(open_evaluation(w));
    keep(w, parameters);
    if (w->has_batch_norm)
        TRY(calibrate(w, parameters));
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
    REQUIRE(w->sampler != NULL && w->has_batch_norm);
    TRY(prepare(w, parameters));
    for (size_t i = 0; i < parameter_table_layers(w->parameters); i++) {
        const struct layer *l = parameter_table_layer(w->parameters, i);
        if (l->kind != OP_BATCH_NORM)
            continue;
        tape_statistics(w->evaluation, i, &values[0], &values[1]);
        for (size_t k = 0; k < 2; k++, out++) {
            *out = (struct worker_statistic){.count = l->weight_shape[0], .values = values[k]};
            snprintf(out->name, sizeof out->name, "%s.running_%s", l->name,
                     k == 0 ? "mean" : "var");
        }
    }
done:
    keep(w, NULL);
    return result;
}

status worker_evaluate_part(worker *w, const float *parameters, unsigned part, unsigned parts,
                            struct evaluation_sum *sums, uint32_t *predicted)
{
    status result = OK;
    size_t b = 0;
    REQUIRE(w->sampler != NULL && part < parts);
    memset(predicted, 0, worker_classes(w) * sizeof *predicted);
    TRY(prepare(w, parameters));
    for (size_t i = 0; i < COUNT_OF(evaluated); i++) {
        for (uint32_t k = 0; k < batches_of(w, evaluated[i]); k++, b++) {
            if (b % parts == part) {
                TRY(evaluate_batch(w, parameters, evaluated[i], k * evaluation_batch(w), &sums[b],
                                   predicted));
            }
        }
    }
done:
    keep(w, NULL);
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
    *mean_loss = batches == 0 ? NAN : loss / count;
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

status worker_evaluate(worker *w, const float *parameters, struct evaluation *out)
{
    status result = OK;
    if (w->sums == NULL) {
        TRY(memory_new(&w->sums, worker_evaluation_batches(w) + 1, sizeof *w->sums,
                       "sums of an evaluation"));
        TRY(memory_new(&w->predicted, worker_classes(w), sizeof *w->predicted,
                       "predictions of an evaluation"));
    }
    TRY(worker_evaluate_part(w, parameters, 0, 1, w->sums, w->predicted));
    worker_evaluation_of(w, w->sums, w->predicted, out);
done:
    return result;
}
