#include "worker/worker.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/memory.h"
#include "base/vector.h"
#include "worker/checkpoint.h"
#include "worker/worker_internal.h"

status worker_step(worker *w, tape *t, const float *parameters, float *gradient, uint32_t valid,
                   struct op_loss *out, const float **logits)
{
    tensor *x = tape_begin(t, parameters, gradient);
    tensor *y = w->model.kind->forward(t, x, &w->model);
    if (logits != NULL)
        *logits = tape_value(t, y);
    tensor *loss = w->data.numeric ? squared_error(t, y, w->data.target_scale, w->data.target_shift)
                                   : softmax_cross_entropy(t, y);
    return tape_finish(t, loss, valid, out);
}

static status step(worker *w, tape *t, const float *parameters, float *gradient, uint32_t valid,
                   struct op_loss *out)
{
    return worker_step(w, t, parameters, gradient, valid, out, NULL);
}

/* Runs the training step once on blank images, so that later steps allocate nothing. */
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

static status open_batches(worker *w, const struct worker_options *o)
{
    status result = OK;
    TRY(sampler_open(&w->sampler, o->settings, &w->data, o->index, o->count));
    TRY(pace_open(&w->pace, o->settings, o->index));
    TRY(memory_new(&w->indices, w->batch, sizeof *w->indices, "a batch"));
done:
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
        if (parameter_table_is_hidden_matrix(w->parameters, i)) {
            w->layers[i].rows = slice->shape[0];
            w->layers[i].columns = (uint32_t)(slice->count / slice->shape[0]);
        }
    }
done:
    return result;
}

static status open_joint(worker *w, const struct worker_options *o)
{
    status result = OK;
    if (strcmp(options_text(o->settings, "batch_norm"), "synchronised") != 0)
        return OK;
    if (!w->has_batch_norm) {
        FAIL(ERROR_USAGE,
             "batch_norm=synchronised requires a model with batch norm, but model=%s has none; "
             "remove batch_norm=synchronised or choose such a model, for example model=resnet8",
             w->model.kind->about.name);
    }
    if (worker_place(w) != NULL)
        FAIL(ERROR_USAGE, "batch_norm=synchronised runs only on the CPU; set device=cpu");
    w->joins = o->count > 1;
    if (w->joins)
        tape_join(w->training, NULL);
done:
    return result;
}

static status open_training(worker *w, const struct worker_options *o, struct shape images)
{
    status result = OK;
    if (w->backend->kind->dataset_open != NULL)
        TRY(w->backend->kind->dataset_open(w->backend, &w->data));
    if (augment_wanted(o->settings))
        TRY(memory_new(&w->crops, w->batch, sizeof *w->crops, "a batch's crops"));
    if (o->no_gradients)
        return OK;
    TRY(tape_open(&w->training, w->backend, w->parameters, TAPE_TRAIN, images, w->batch));
    TRY(tape_set_targets(w->training, w->data.targets));
    tape_smooth_labels(w->training, options_real(o->settings, "label_smoothing"));
    TRY(open_joint(w, o));
    TRY(warm_up(w));
done:
    return result;
}

/* The tape, its parameters and the data, in this process. */
static status open_network(worker *w, const struct worker_options *o)
{
    status result = OK;
    if (o->dataset_of != NULL)
        dataset_borrow(&w->data, &o->dataset_of->data);
    else
        TRY(dataset_open(&w->data, o->settings, !o->parameters_only));
    const struct shape images = {w->data.channels, w->data.height, w->data.width};
    TRY(model_open(&w->model, o->settings, &w->data));
    TRY(model_discover(&w->model, images, w->parameters));
    for (size_t i = 0; i < parameter_table_layers(w->parameters); ++i)
        w->has_batch_norm |= parameter_table_layer(w->parameters, i)->kind == OP_BATCH_NORM;
    TRY(backend_open(&w->backend, o->settings, o->index, o->count));
    snprintf(w->description, sizeof w->description, "%s: %s", w->backend->kind->about.name,
             w->backend->kind->describe(w->backend));
    if (!o->parameters_only)
        TRY(open_training(w, o, images));
done:
    return result;
}

static status open_external(worker *w, const struct worker_options *o)
{
    status result = OK;
    REQUIRE(!o->no_gradients); /* config_check() refuses mode=pipeline */
    TRY(external_open(&w->external, o->settings, o->count, o->stop, w->parameters, &w->data));
    snprintf(w->description, sizeof w->description, "%s", external_description(w->external));
done:
    return result;
}

status worker_open(worker **out, const struct worker_options *o)
{
    status result = OK;
    worker *w = NULL;
    *out = NULL;
    TRY(memory_new(&w, 1, sizeof *w, "a worker"));
    w->settings = o->settings;
    w->evaluation_threads = 1;
    w->seed = (uint64_t)options_integer(o->settings, "seed");
    w->index = o->index;
    w->stop = o->stop;
    w->batch = (uint32_t)options_integer(o->settings, "batch");
    if (options_text(o->settings, "initial")[0] != '\0')
        w->initial = options_text(o->settings, "initial");
    TRY(parameter_table_open(&w->parameters));
    TRY(model_is_external(o->settings) ? open_external(w, o) : open_network(w, o));
    TRY(list_layers(w));
    w->has_data = !o->parameters_only;
    if (!o->parameters_only && !o->no_gradients)
        TRY(open_batches(w, o));
    *out = w;
    w = NULL;
done:
    worker_close(&w);
    return result;
}

void worker_close(worker **out)
{
    worker *w = *out;
    if (w == NULL)
        return;
    tape_close(&w->training);
    evaluators_close(w);
    backend_close(&w->backend);
    external_close(&w->external);
    parameter_table_close(&w->parameters);
    sampler_close(&w->sampler);
    pace_close(&w->pace);
    dataset_close(&w->data);
    memory_free(w->indices);
    memory_free(w->crops);
    memory_free(w->layers);
    memory_free(w->sums);
    memory_free(w->calibration);
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

void worker_join(worker *w, const struct batch_norm_group *joint)
{
    REQUIRE(w->joins);
    tape_join(w->training, joint);
}

const char *worker_program(const worker *w)
{
    return w->external != NULL ? external_program(w->external) : NULL;
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

static status check_finite(const worker *w, const float *initial)
{
    status result = OK;
    const char *from = w->initial != NULL ? w->initial : "the program of model.command";
    for (size_t i = 0; i < worker_slice_count(w); i++) {
        const struct parameter_slice *slice = worker_slice(w, i);
        if (!isfinite(vector_sum_of_squares(slice->count, initial + slice->offset))) {
            FAIL(ERROR_DATA,
                 "initial parameters of %s: '%s' has values that are not finite; choose parameters "
                 "of a training that has not diverged",
                 from, slice->name);
        }
    }
done:
    return result;
}

status worker_initial_parameters(worker *w, float *out, size_t count)
{
    status result = OK;
    REQUIRE(count == parameter_table_count(w->parameters));
    if (w->initial != NULL)
        TRY(read_initial(w, out));
    else if (w->external != NULL)
        TRY(external_initial(w->external, out));
    else
        parameter_table_initialise(w->parameters, w->seed, out);
    TRY(check_finite(w, out));
done:
    return result;
}

void worker_hold_memory(worker *w)
{
    if (w->backend != NULL && w->backend->kind->hold != NULL)
        w->backend->kind->hold(w->backend);
}

void worker_forget_memory(worker *w)
{
    if (w->backend != NULL && w->backend->kind->forget != NULL)
        w->backend->kind->forget(w->backend);
}

/* ---- device-resident vectors ---- */

const struct device_place *worker_place(const worker *w)
{
    return w->backend != NULL && w->backend->kind->place != NULL
               ? w->backend->kind->place(w->backend)
               : NULL;
}

status worker_reside(worker *w, size_t extra, unsigned states, struct device_vectors *out)
{
    return w->backend->kind->device_vectors_open(w->backend, worker_parameter_count(w), extra,
                                                 states, out);
}

status worker_resident_write(worker *w, float *to_device, const float *from, size_t count)
{
    return w->backend->kind->device_vectors_write(w->backend, to_device, from, count);
}

status worker_resident_read(worker *w, float *to, const float *from_device, size_t count)
{
    return w->backend->kind->device_vectors_read(w->backend, to, from_device, count);
}

/* ---- gradients ---- */

/* Sets stats->data_ns, forward_ns, backward_ns and watch_ns; w->indices holds the batch. */
static status compute(worker *w, const float *parameters, uint64_t batch, float *gradient,
                      struct op_loss *loss, struct step_stats *stats)
{
    status result = OK;
    if (w->external != NULL) {
        stats->data_ns = clock_ns() - stats->began_ns;
        TRY(external_gradient(w->external, parameters, w->index, batch, w->indices, w->batch,
                              gradient, loss, &stats->backward_ns));
        goto done;
    }
    if (w->crops != NULL)
        augment_draw(w->seed, w->index, batch, w->batch, w->crops);
    tape_gather(w->training, &w->data, SPLIT_TRAIN, w->indices, 0, w->batch, w->crops);
    stats->data_ns = clock_ns() - stats->began_ns;
    TRY(step(w, w->training, parameters, gradient, w->batch, loss));
    const struct tape_times times = tape_last_times(w->training);
    stats->forward_ns = times.forward_ns;
    stats->backward_ns = times.backward_ns;
    stats->watch_ns = times.watch_ns;
done:
    return result;
}

status worker_gradient(worker *w, const float *parameters, uint64_t batch, float *gradient,
                       struct step_stats *stats)
{
    status result = OK;
    struct op_loss loss;
    REQUIRE(w->training != NULL || w->external != NULL);
    *stats = (struct step_stats){.began_ns = clock_ns(), .samples = w->batch};
    sampler_batch(w->sampler, batch, w->batch, w->indices);
    TRY(compute(w, parameters, batch, gradient, &loss, stats));
    pace_wait(w->pace, batch, stats->began_ns, w->stop);
    stats->loss = (float)(loss.sum / ((double)w->batch * w->data.targets));
    stats->correct = loss.correct;
    stats->compute_ns = clock_ns() - stats->began_ns - stats->data_ns - stats->watch_ns;
done:
    return result;
}

unsigned worker_resident_steps(const worker *w)
{
    const bool paced = strcmp(options_text(w->settings, "pace"), "none") != 0;
    return paced ? 1 : worker_place(w)->steps;
}

status worker_resident_step(worker *w, const struct device_vectors *at, uint64_t batch,
                            const struct device_update *u, struct step_stats *stats)
{
    status result = OK;
    struct op_loss later;
    *stats = (struct step_stats){.began_ns = clock_ns(), .samples = w->batch};
    TRY(w->backend->kind->device_vectors_update(w->backend, u));
    sampler_batch(w->sampler, batch, w->batch, w->indices);
    TRY(compute(w, at->parameters, batch, at->gradient, &later, stats));
    stats->compute_ns = clock_ns() - stats->began_ns - stats->data_ns;
    stats->forward_ns = stats->compute_ns;
done:
    return result;
}

status worker_resident_results(worker *w, uint64_t first, unsigned count, struct device_result *out,
                               struct step_stats *stats)
{
    status result = OK;
    const uint64_t began_ns = clock_ns();
    TRY(w->backend->kind->device_vectors_results(w->backend, out, count));
    for (unsigned i = 0; i < count; i++)
        pace_wait(w->pace, first + i, stats[i].began_ns, w->stop);
    const uint64_t share_ns = (clock_ns() - began_ns) / count;
    for (unsigned i = 0; i < count; i++) {
        stats[i].loss = (float)(out[i].loss / ((double)w->batch * w->data.targets));
        stats[i].correct = out[i].correct;
        stats[i].backward_ns = share_ns;
        stats[i].compute_ns += share_ns;
    }
done:
    return result;
}

/* An external model's whole gradient becomes final at once, so the watch is called once, at the
 * end. */
status worker_gradient_watched(worker *w, const float *parameters, uint64_t batch, float *gradient,
                               const struct gradient_watch *watch, struct step_stats *stats)
{
    status result = OK;
    if (w->external == NULL) {
        tape_watch(w->training, watch);
        result = worker_gradient(w, parameters, batch, gradient, stats);
        tape_watch(w->training, NULL);
        return result;
    }
    TRY(worker_gradient(w, parameters, batch, gradient, stats));
    if (watch == NULL)
        goto done;
    const uint64_t began_ns = clock_ns();
    watch->between(watch->context, 0);
    stats->watch_ns = clock_ns() - began_ns;
done:
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
    TRY(sampler_open(&s->sampler, settings, &w->data, index, count));
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
