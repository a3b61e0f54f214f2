#include "worker/worker.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "worker/augment.h"
#include "worker/backend.h"
#include "worker/checkpoint.h"
#include "worker/dataset.h"
#include "worker/model.h"
#include "worker/pace.h"
#include "worker/sampler.h"

enum {
    EVALUATION_BATCH = 250,
    CALIBRATION_BATCHES = 8, /* of EVALUATION_BATCH training samples */
};

struct worker {
    struct dataset data;
    sampler *sampler;
    pace *pace;
    backend *backend;
    struct model model;
    parameter_table *parameters;
    struct optimizer_layer *layers; /* one for each slice */
    bool has_batch_norm;
    bool joins; /* batch_norm=synchronised, and there are others */
    uint64_t seed;
    const char *initial; /* a checkpoint's path; NULL: drawn */
    uint32_t batch;
    unsigned index;
    uint32_t *indices;  /* [batch] */
    struct crop *crops; /* [batch], NULL: samples are shown as they are */
    tape *training;
    tape *evaluation;            /* made when first needed: most workers never evaluate */
    tape *calibrating;           /* of EVALUATION_BATCH samples; may be `evaluation` itself */
    uint32_t *calibration;       /* [EVALUATION_BATCH] */
    struct evaluation_sum *sums; /* [batches], of worker_evaluate */
    uint32_t *predicted;         /* [classes], of worker_evaluate */
    char description[200];
};

/* One whole step on one tape whose images and labels are filled in. *logits, unless NULL: the
 * model's answers, [batch][classes], until the tape's next step. */
static status step_shown(worker *w, tape *t, const float *parameters, float *gradient,
                         uint32_t valid, struct op_loss *out, const float **logits)
{
    tensor *x = tape_begin(t, parameters, gradient);
    tensor *y = w->model.kind->forward(t, x, &w->model);
    if (logits != NULL) {
        *logits = tape_value(t, y);
    }
    tensor *loss = w->data.numeric ? squared_error(t, y, w->data.target_scale, w->data.target_shift)
                                   : softmax_cross_entropy(t, y);
    return tape_finish(t, loss, valid, out);
}

static status step(worker *w, tape *t, const float *parameters, float *gradient, uint32_t valid,
                   struct op_loss *out)
{
    return step_shown(w, t, parameters, gradient, valid, out, NULL);
}

/* Runs the training step once on blank images, so that everything it needs is there. */
static status warm_up(worker *w)
{
    status result = OK;
    float *parameters = NULL, *gradient = NULL;
    size_t count = parameter_table_count(w->parameters);
    struct op_loss loss;
    TRY(memory_new(&parameters, count, sizeof(float), "parameters"));
    TRY(memory_new(&gradient, count, sizeof(float), "a gradient"));
    parameter_table_initialise(w->parameters, w->seed, parameters);
    TRY(step(w, w->training, parameters, gradient, w->batch, &loss));
done:
    memory_free(parameters);
    memory_free(gradient);
    return result;
}

static status list_layers(worker *w)
{
    status result = OK;
    const size_t count = parameter_table_slices(w->parameters);
    TRY(memory_new(&w->layers, count, sizeof *w->layers, "a model's layers"));
    for (size_t i = 0; i < count; i++) {
        const struct parameter_slice *slice = parameter_table_slice(w->parameters, i);
        w->layers[i] =
            (struct optimizer_layer){.count = slice->count, .excluded = slice->rank == 1};
    }
done:
    return result;
}

static double smoothing_of(const options *o)
{
    return options_declared(o, "label_smoothing") ? options_real(o, "label_smoothing") : 0;
}

static status open_joint(worker *w, const struct worker_options *o)
{
    status result = OK;
    bool wanted = options_declared(o->settings, "batch_norm") &&
                  strcmp(options_text(o->settings, "batch_norm"), "synchronised") == 0;
    if (!wanted) {
        return OK;
    }
    if (!w->has_batch_norm) {
        FAIL(ERROR_USAGE,
             "batch_norm=synchronised: model=%s has no batch norm; leave it out, or use one that "
             "has, as model=resnet8",
             w->model.kind->about.name);
    }
    if (worker_place(w) != NULL) {
        FAIL(ERROR_USAGE, "batch_norm=synchronised computes on the CPU alone; set device=cpu");
    }
    w->joins = o->count > 1;
    if (w->joins) {
        tape_join(w->training, NULL);
    }
done:
    return result;
}

static status open_training(worker *w, const struct worker_options *o, struct shape images)
{
    status result = OK;
    TRY(sampler_open(&w->sampler, o->settings, w->data.count[SPLIT_TRAIN], o->index, o->count));
    TRY(pace_open(&w->pace, o->settings, o->index));
    TRY(memory_new(&w->indices, w->batch, sizeof *w->indices, "a batch"));
    if (w->backend->kind->dataset_open != NULL) {
        TRY(w->backend->kind->dataset_open(w->backend, &w->data));
    }
    if (augment_wanted(o->settings)) {
        TRY(memory_new(&w->crops, w->batch, sizeof *w->crops, "a batch's crops"));
    }
    if (o->no_gradients) {
        return OK;
    }
    TRY(tape_open(&w->training, w->backend, w->parameters, TAPE_TRAIN, images, w->batch));
    if (w->data.numeric && smoothing_of(o->settings) > 0) {
        FAIL(ERROR_USAGE, "label_smoothing is for classes: this dataset's labels are numbers");
    }
    tape_smooth_labels(w->training, smoothing_of(o->settings));
    TRY(open_joint(w, o));
    TRY(warm_up(w));
done:
    return result;
}

status worker_open(worker **out, const struct worker_options *o)
{
    status result = OK;
    worker *w = NULL;
    *out = NULL;
    TRY(memory_new(&w, 1, sizeof *w, "a worker"));
    w->seed = (uint64_t)options_integer(o->settings, "seed");
    w->index = o->index;
    w->batch = (uint32_t)options_integer(o->settings, "batch");
    if (options_declared(o->settings, "initial") &&
        options_text(o->settings, "initial")[0] != '\0') {
        w->initial = options_text(o->settings, "initial");
    }
    TRY(dataset_open(&w->data, o->settings, !o->parameters_only));
    struct shape images = {w->data.channels, w->data.height, w->data.width};
    TRY(model_open(&w->model, o->settings, w->data.classes));
    TRY(parameter_table_open(&w->parameters));
    TRY(model_discover(&w->model, images, w->parameters));
    TRY(list_layers(w));
    for (size_t i = 0; i < parameter_table_layers(w->parameters); ++i) {
        w->has_batch_norm |= parameter_table_layer(w->parameters, i)->kind == OP_BATCH_NORM;
    }
    TRY(backend_open(&w->backend, o->settings, o->index, o->count));
    snprintf(w->description, sizeof w->description, "%s: %s", w->backend->kind->about.name,
             w->backend->kind->describe(w->backend));
    if (!o->parameters_only) {
        TRY(open_training(w, o, images));
    }
    *out = w;
    w = NULL;
done:
    worker_close(&w);
    return result;
}

void worker_close(worker **out)
{
    worker *w = *out;
    if (w == NULL) {
        return;
    }
    tape_close(&w->training);
    if (w->calibrating != w->evaluation) {
        tape_close(&w->calibrating);
    }
    tape_close(&w->evaluation);
    backend_close(&w->backend);
    parameter_table_close(&w->parameters);
    sampler_close(&w->sampler);
    pace_close(&w->pace);
    dataset_close(&w->data);
    memory_free(w->indices);
    memory_free(w->crops);
    memory_free(w->layers);
    memory_free(w->calibration);
    memory_free(w->sums);
    memory_free(w->predicted);
    memory_free(w);
    *out = NULL;
}

size_t worker_parameter_count(const worker *w)
{
    return parameter_table_count(w->parameters);
}

size_t worker_slice_count(const worker *w)
{
    return parameter_table_slices(w->parameters);
}

const struct parameter_slice *worker_slice(const worker *w, size_t index)
{
    return parameter_table_slice(w->parameters, index);
}

struct optimizer_layers worker_layers(const worker *w)
{
    return (struct optimizer_layers){w->layers, parameter_table_slices(w->parameters)};
}

uint64_t worker_epoch_samples(const worker *w)
{
    return w->data.count[SPLIT_TRAIN];
}

size_t worker_joint_sums(const worker *w)
{
    size_t most = 0;
    for (size_t i = 0; w->joins && i < parameter_table_layers(w->parameters); ++i) {
        const struct layer *l = parameter_table_layer(w->parameters, i);
        size_t sums = l->kind == OP_BATCH_NORM ? 2 * (size_t)l->weight_shape[0] : 0;
        most = sums > most ? sums : most;
    }
    return most;
}

void worker_join(worker *w, const struct joint_batch *joint)
{
    REQUIRE(w->joins);
    tape_join(w->training, joint);
}

const char *worker_device_description(const worker *w)
{
    return w->description;
}

static status read_initial(const worker *w, float *out)
{
    status result = OK;
    struct checkpoint_tensor *tensors = NULL;
    size_t count = worker_slice_count(w);
    TRY(memory_new(&tensors, count, sizeof *tensors, "a checkpoint's tensors"));
    for (size_t i = 0; i < count; i++) {
        const struct parameter_slice *slice = worker_slice(w, i);
        tensors[i] = (struct checkpoint_tensor){
            .name = slice->name, .rank = slice->rank, .data = out + slice->offset};
        memcpy(tensors[i].shape, slice->shape, sizeof slice->shape);
    }
    TRY(checkpoint_read(w->initial, tensors, count, NULL, 0));
done:
    memory_free(tensors);
    return result;
}

status worker_initial_parameters(worker *w, float *out, size_t count)
{
    REQUIRE(count == parameter_table_count(w->parameters));
    if (w->initial != NULL) {
        return read_initial(w, out);
    }
    parameter_table_initialise(w->parameters, w->seed, out);
    return OK;
}

void worker_hold_memory(worker *w)
{
    if (w->backend->kind->hold != NULL) {
        w->backend->kind->hold(w->backend);
    }
}

void worker_forget_memory(worker *w)
{
    if (w->backend->kind->forget != NULL) {
        w->backend->kind->forget(w->backend);
    }
}

/* ---- on a device --------------------------------------------------------------------------------
 */

const struct device_place *worker_place(const worker *w)
{
    return w->backend->kind->place != NULL ? w->backend->kind->place(w->backend) : NULL;
}

status worker_reside(worker *w, size_t extra, unsigned states, struct resident *out)
{
    return w->backend->kind->resident_open(w->backend, worker_parameter_count(w), extra, states,
                                           out);
}

status worker_resident_write(worker *w, float *to_device, const float *from, size_t count)
{
    return w->backend->kind->resident_write(w->backend, to_device, from, count);
}

status worker_resident_read(worker *w, float *to, const float *from_device, size_t count)
{
    return w->backend->kind->resident_read(w->backend, to, from_device, count);
}

status worker_resident_update(worker *w, const struct resident_update *u,
                              struct optimizer_pass *pass)
{
    return w->backend->kind->resident_update(w->backend, u, pass);
}

/* ---- gradients ----------------------------------------------------------------------------------
 */

status worker_gradient(worker *w, const float *parameters, uint64_t batch, float *gradient,
                       struct step_stats *stats)
{
    status result = OK;
    REQUIRE(w->training != NULL);
    uint64_t started = clock_ns();
    sampler_batch(w->sampler, batch, w->batch, w->indices);
    if (w->crops != NULL) {
        augment_draw(w->seed, w->index, batch, w->batch, w->crops);
    }
    tape_gather(w->training, &w->data, SPLIT_TRAIN, w->indices, 0, w->batch, w->crops);
    uint64_t gathered = clock_ns();
    struct op_loss loss;
    TRY(step(w, w->training, parameters, gradient, w->batch, &loss));
    pace_wait(w->pace, batch, started);
    stats->loss = (float)(loss.sum / w->batch);
    stats->samples = w->batch;
    stats->correct = loss.correct;
    struct tape_times times = tape_last_times(w->training);
    stats->began_ns = started;
    stats->data_ns = gathered - started;
    stats->forward_ns = times.forward_ns;
    stats->backward_ns = times.backward_ns;
    stats->watch_ns = times.watch_ns;
    stats->compute_ns = clock_ns() - gathered - times.watch_ns;
done:
    return result;
}

status worker_gradient_watched(worker *w, const float *parameters, uint64_t batch, float *gradient,
                               const struct gradient_watch *watch, struct step_stats *stats)
{
    tape_watch(w->training, watch);
    status result = worker_gradient(w, parameters, batch, gradient, stats);
    tape_watch(w->training, NULL);
    return result;
}

struct worker_shard {
    sampler *sampler;
    unsigned index;
};

status worker_shard_open(worker_shard **out, const worker *w, const options *settings,
                         unsigned index, unsigned count)
{
    status result = OK;
    worker_shard *s = NULL;
    *out = NULL;
    TRY(memory_new(&s, 1, sizeof *s, "a shard"));
    s->index = index;
    TRY(sampler_open(&s->sampler, settings, w->data.count[SPLIT_TRAIN], index, count));
    *out = s;
    s = NULL;
done:
    worker_shard_close(&s);
    return result;
}

void worker_shard_close(worker_shard **s)
{
    if (*s != NULL) {
        sampler_close(&(*s)->sampler);
        memory_free(*s);
        *s = NULL;
    }
}

status worker_gradient_as(worker *w, worker_shard *shard, const float *parameters, uint64_t batch,
                          float *gradient, struct step_stats *stats)
{
    sampler *own_sampler = w->sampler;
    pace *own_pace = w->pace;
    unsigned own_index = w->index;
    w->sampler = shard->sampler;
    w->index = shard->index;
    w->pace = NULL;
    status result = worker_gradient(w, parameters, batch, gradient, stats);
    w->sampler = own_sampler;
    w->index = own_index;
    w->pace = own_pace;
    return result;
}

/* ---- evaluation ---------------------------------------------------------------------------------
 */

/* A batch is of EVALUATION_BATCH samples, and of some that do not count where the backend is faster
 * with them; batch norm's statistics are of those that do, so they need a tape without. */
static status open_evaluation(worker *w)
{
    status result = OK;
    struct shape images = {w->data.channels, w->data.height, w->data.width};
    const uint32_t unit = w->backend->kind->samples_at_once;
    const uint32_t batch = EVALUATION_BATCH,
                   room = unit > 0 ? (batch + unit - 1) / unit * unit : batch;
    tape *evaluation = NULL, *calibrating = NULL;
    if (w->calibration == NULL) {
        TRY(memory_new(&w->calibration, batch, sizeof *w->calibration, "a batch"));
    }
    TRY(tape_open(&evaluation, w->backend, w->parameters, TAPE_EVALUATE, images, room));
    calibrating = evaluation;
    if (w->has_batch_norm && room != batch) {
        TRY(tape_open(&calibrating, w->backend, w->parameters, TAPE_EVALUATE, images, batch));
    }
    w->calibrating = calibrating;
    w->evaluation = evaluation;
    evaluation = NULL;
done:
    tape_close(&evaluation);
    return result;
}

/* Batch norm's statistics at these parameters, from training samples spread evenly over the split
 * ("precise batch norm": Wu & Johnson 2021, section 3). */
static status calibrate(worker *w, const float *parameters)
{
    status result = OK;
    tape *t = w->calibrating;
    uint64_t samples = w->data.count[SPLIT_TRAIN];
    uint64_t wanted = (uint64_t)EVALUATION_BATCH * CALIBRATION_BATCHES;
    tape_set_mode(t, TAPE_CALIBRATE);
    for (uint64_t b = 0; b < CALIBRATION_BATCHES; ++b) {
        for (uint64_t i = 0; i < EVALUATION_BATCH; ++i) {
            w->calibration[i] = (uint32_t)((b * EVALUATION_BATCH + i) * samples / wanted);
        }
        tape_gather(t, &w->data, SPLIT_TRAIN, w->calibration, 0, EVALUATION_BATCH, NULL);
        TRY(step(w, t, parameters, NULL, EVALUATION_BATCH, NULL));
    }
done:
    tape_set_mode(t, TAPE_EVALUATE);
    tape_take_statistics(w->evaluation, t);
    return result;
}

/* While they are not given back the backend need not copy them for each batch. */
static void keep(worker *w, const float *parameters)
{
    if (w->backend->kind->keep != NULL) {
        w->backend->kind->keep(w->backend, parameters);
    }
}

static const enum dataset_split evaluated[] = {SPLIT_VALIDATION, SPLIT_TEST};

static size_t batches_of(const worker *w, enum dataset_split split)
{
    return (w->data.count[split] + EVALUATION_BATCH - 1) / EVALUATION_BATCH;
}

size_t worker_evaluation_batches(const worker *w)
{
    size_t batches = 0;
    for (size_t i = 0; i < COUNT_OF(evaluated); i++) {
        batches += batches_of(w, evaluated[i]);
    }
    return batches;
}

size_t worker_classes(const worker *w)
{
    return w->data.classes;
}

/* The first of equal logits, as where correct answers are counted. */
static void count_predictions(const float *logits, uint32_t samples, uint32_t classes,
                              uint32_t *predicted)
{
    for (uint32_t n = 0; n < samples; n++) {
        const float *row = logits + (size_t)n * classes;
        uint32_t best = 0;
        for (uint32_t k = 1; k < classes; k++) {
            best = row[k] > row[best] ? k : best;
        }
        predicted[best]++;
    }
}

/* One batch of a split. What is left over of the images of the batch before is computed and not
 * counted. */
static status evaluate_batch(worker *w, const float *parameters, enum dataset_split split,
                             uint32_t first, struct evaluation_sum *out, uint32_t *predicted)
{
    status result = OK;
    const bool counts = split == SPLIT_TEST && !w->data.numeric;
    uint32_t left = w->data.count[split] - first;
    struct op_loss loss;
    const float *logits = NULL;
    out->count = left < EVALUATION_BATCH ? left : EVALUATION_BATCH;
    tape_gather(w->evaluation, &w->data, split, NULL, first, out->count, NULL);
    TRY(step_shown(w, w->evaluation, parameters, NULL, out->count, &loss, counts ? &logits : NULL));
    out->loss = loss.sum;
    out->correct = loss.correct;
    if (counts) {
        count_predictions(logits, out->count, w->data.classes, predicted);
    }
done:
    return result;
}

status worker_evaluate_part(worker *w, const float *parameters, unsigned part, unsigned parts,
                            struct evaluation_sum *sums, uint32_t *predicted)
{
    status result = OK;
    size_t b = 0;
    REQUIRE(w->sampler != NULL && part < parts);
    memset(predicted, 0, worker_classes(w) * sizeof *predicted);
    if (w->evaluation == NULL) {
        TRY(open_evaluation(w));
    }
    keep(w, parameters);
    if (w->has_batch_norm) {
        TRY(calibrate(w, parameters));
    }
    for (size_t i = 0; i < COUNT_OF(evaluated); i++) {
        for (uint32_t k = 0; k < batches_of(w, evaluated[i]); k++, b++) {
            if (b % parts == part) {
                TRY(evaluate_batch(w, parameters, evaluated[i], k * EVALUATION_BATCH, &sums[b],
                                   predicted));
            }
        }
    }
done:
    keep(w, NULL);
    return result;
}

static void evaluation_of_split(const struct evaluation_sum *sums, size_t batches,
                                double *mean_loss, double *accuracy)
{
    double loss = 0, correct = 0, count = 0;
    for (size_t b = 0; b < batches; b++) {
        loss += sums[b].loss;
        correct += sums[b].correct;
        count += sums[b].count;
    }
    *mean_loss = batches == 0 ? NAN : loss / count;
    *accuracy = batches == 0 ? NAN : correct / count;
}

/* NaN where nothing was predicted. */
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
    evaluation_of_split(sums, of_validation, &out->validation_loss, &out->validation_accuracy);
    evaluation_of_split(sums + of_validation, batches_of(w, SPLIT_TEST), &out->test_loss,
                        &out->test_accuracy);
    out->top_class_share = share_of_largest(predicted, worker_classes(w));
    if (w->data.numeric) {
        out->validation_accuracy = out->test_accuracy = NAN;
    }
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
