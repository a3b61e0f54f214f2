#include "worker/model/stage.h"

#include <string.h>

#include "base/memory.h"
#include "worker/data/augment.h"
#include "worker/model/model.h"
#include "worker/data/sampler.h"
#include "worker/model/stage_internal.h"

/* State of a micro-batch between its forward and its backward pass. */
struct slot {
    tape *tape; /* one per slot; with recompute one for all slots */
    float *saved;
    const float *parameters;
    uint64_t batch;
    uint32_t micro;
};

struct stage {
    struct stage_part part;
    bool first, last, recompute;
    struct blueprint model;
    parameter_table *parameters; /* of this part */
    backend *backend;
    sampler *sampler;
    uint64_t seed;
    double smoothing; /* label smoothing */
    unsigned replica;
    uint32_t batch, samples; /* samples of a mini-batch, of a micro-batch */
    uint64_t drawn;          /* batch of `indices` and `crops`; UINT64_MAX: none */
    uint32_t *indices;       /* [batch] */
    struct crop *crops;      /* [batch]; NULL: no augmentation */
    struct slot *slots;
    unsigned slot_count, held; /* held: slot whose activations the shared tape contains */
    float *micro_gradient;     /* gradient of one micro-batch, before it is added */
    float *unused;             /* output of a repeated forward pass */
};

/* ---- opening ---- */

static status open_tape(stage *s, tape **out)
{
    status result = OK;
    const struct dataset *d = &s->model.data;
    TRY(tape_open(out, s->backend, s->parameters, TAPE_TRAIN, s->part.input, s->samples));
    TRY(tape_set_targets(*out, d->targets));
    tape_set_range(*out, s->part.first, s->part.last,
                   (struct shape){d->channels, d->height, d->width});
    tape_smooth_labels(*out, s->smoothing);
done:
    return result;
}

static status open_slots(stage *s, unsigned count)
{
    status result = OK;
    TRY(memory_new(&s->slots, count, sizeof *s->slots, "a stage's slots"));
    s->slot_count = count;
    for (unsigned i = 0; i < count; i++) {
        if (i == 0 || !s->recompute)
            TRY(open_tape(s, &s->slots[i].tape));
        else
            s->slots[i].tape = s->slots[0].tape;
        if (s->recompute && !s->first) {
            TRY(memory_new(&s->slots[i].saved, stage_input_count(s), sizeof(float),
                           "a stage's saved inputs"));
        }
    }
done:
    return result;
}

/* Runs every slot once, so that a step allocates nothing. */
static status warm_up(stage *s)
{
    status result = OK;
    float *parameters = NULL, *gradient = NULL, *output = NULL, *input = NULL, loss;
    TRY(memory_new(&parameters, s->part.count, sizeof(float), "parameters"));
    TRY(memory_new(&gradient, s->part.count, sizeof(float), "a gradient"));
    TRY(memory_new(&output, stage_output_count(s) + 1, sizeof(float), "activations"));
    TRY(memory_new(&input, stage_input_count(s) + 1, sizeof(float), "activations"));
    parameter_table_initialise(s->parameters, s->seed, parameters);
    for (unsigned i = 0; i < (s->recompute ? 1 : s->slot_count); i++) {
        TRY(stage_forward(s, i, 0, 0, parameters, s->last ? NULL : output, &loss));
        TRY(stage_backward(s, i, s->last ? NULL : output, gradient, true, s->first ? NULL : input));
    }
done:
    memory_free(parameters);
    memory_free(gradient);
    memory_free(output);
    memory_free(input);
    return result;
}

static status open_data(stage *s, const struct stage_options *o)
{
    status result = OK;
    TRY(sampler_open(&s->sampler, o->settings, &s->model.data, o->replica, o->replicas));
    TRY(memory_new(&s->indices, s->batch, sizeof *s->indices, "a batch"));
    s->drawn = UINT64_MAX;
    if (augment_wanted(o->settings))
        TRY(memory_new(&s->crops, s->batch, sizeof *s->crops, "a batch's crops"));
done:
    return result;
}

status stage_open(stage **out, const struct stage_options *o)
{
    status result = OK;
    stage *s = NULL;
    *out = NULL;
    REQUIRE(o->slots > 0);
    TRY(memory_new(&s, 1, sizeof *s, "a stage"));
    s->part = *o->part;
    s->first = s->part.first == 0;
    s->last = s->part.last == SIZE_MAX;
    s->recompute = o->recompute;
    s->replica = o->replica;
    s->seed = (uint64_t)options_integer(o->settings, "seed");
    s->smoothing = options_real(o->settings, "label_smoothing");
    s->batch = (uint32_t)options_integer(o->settings, "batch");
    s->samples = s->batch / o->micro_batches;
    REQUIRE(s->samples * o->micro_batches == s->batch);
    TRY(blueprint_open(&s->model, o->settings, true));
    TRY(blueprint_part(&s->model, s->part.first, s->part.last, &s->parameters));
    REQUIRE(parameter_table_count(s->parameters) == s->part.count);
    TRY(backend_open(&s->backend, o->settings, o->replica, o->replicas));
    TRY(open_data(s, o));
    TRY(memory_new(&s->micro_gradient, s->part.count + 1, sizeof(float), "a gradient"));
    if (s->recompute)
        TRY(memory_new(&s->unused, stage_output_count(s) + 1, sizeof(float), "activations"));
    TRY(open_slots(s, o->slots));
    TRY(warm_up(s));
    *out = s;
    s = NULL;
done:
    stage_close(&s);
    return result;
}

void stage_close(stage **out)
{
    stage *s = *out;
    if (s == NULL)
        return;
    for (unsigned i = 0; i < s->slot_count; i++) {
        if (i == 0 || !s->recompute)
            tape_close(&s->slots[i].tape);
        memory_free(s->slots[i].saved);
    }
    backend_close(&s->backend);
    parameter_table_close(&s->parameters);
    blueprint_close(&s->model);
    sampler_close(&s->sampler);
    memory_free(s->indices);
    memory_free(s->crops);
    memory_free(s->slots);
    memory_free(s->micro_gradient);
    memory_free(s->unused);
    memory_free(s);
    *out = NULL;
}

/* ---- one micro-batch ---- */

size_t stage_input_count(const stage *s)
{
    return s->first ? 0 : s->samples * shape_count(s->part.input);
}

size_t stage_output_count(const stage *s)
{
    return s->last ? 0 : s->samples * shape_count(s->part.output);
}

float *stage_input(stage *s, unsigned slot)
{
    REQUIRE(slot < s->slot_count);
    return s->first ? NULL : s->recompute ? s->slots[slot].saved : tape_images(s->slots[slot].tape);
}

/* The first stage needs images, the last stage labels. */
static void gather(stage *s, const struct slot *at)
{
    const struct dataset *d = &s->model.data;
    const uint32_t *indices = s->indices + (size_t)at->micro * s->samples;
    if (s->drawn != at->batch && (s->first || s->last)) {
        sampler_batch(s->sampler, at->batch, s->batch, s->indices);
        if (s->crops != NULL)
            augment_draw(s->seed, s->replica, at->batch, s->batch, s->crops);
        s->drawn = at->batch;
    }
    if (s->first) {
        const struct crop *crops = s->crops;
        tape_gather(at->tape, d, SPLIT_TRAIN, indices, 0, s->samples,
                    crops != NULL ? crops + (size_t)at->micro * s->samples : NULL);
    }
    if (s->last)
        dataset_labels(d, SPLIT_TRAIN, indices, 0, s->samples, tape_labels(at->tape));
}

static tensor *loss_of(const stage *s, tape *t, tensor *y)
{
    const struct dataset *d = &s->model.data;
    return d->numeric ? squared_error(t, y, d->target_scale, d->target_shift)
                      : softmax_cross_entropy(t, y);
}

static status forward(stage *s, unsigned slot, float *output, struct op_loss *loss)
{
    status result = OK;
    struct slot *at = &s->slots[slot];
    gather(s, at);
    if (at->saved != NULL)
        memcpy(tape_images(at->tape), at->saved, stage_input_count(s) * sizeof(float));
    s->held = slot;
    tensor *x = tape_begin(at->tape, at->parameters, s->micro_gradient);
    tensor *y = s->model.model.kind->forward(at->tape, x, &s->model.model);
    TRY(tape_forward(at->tape, s->last ? loss_of(s, at->tape, y) : NULL, s->samples, output, loss));
done:
    return result;
}

status stage_forward(stage *s, unsigned slot, uint64_t batch, uint32_t micro,
                     const float *parameters, float *output, float *loss)
{
    status result = OK;
    struct op_loss sum = {0};
    REQUIRE(slot < s->slot_count && (output == NULL) == s->last);
    s->slots[slot].batch = batch;
    s->slots[slot].micro = micro;
    s->slots[slot].parameters = parameters;
    TRY(forward(s, slot, output, &sum));
    *loss = (float)(sum.sum / ((double)s->samples * s->model.data.targets));
done:
    return result;
}

status stage_backward(stage *s, unsigned slot, const float *output_gradient, float *gradient,
                      bool add, float *input_gradient)
{
    status result = OK;
    struct slot *at = &s->slots[slot];
    struct op_loss unused;
    REQUIRE(slot < s->slot_count && (output_gradient == NULL) == s->last);
    REQUIRE((input_gradient == NULL) == s->first);
    if (s->recompute && s->held != slot)
        TRY(forward(s, slot, s->last ? NULL : s->unused, &unused));
    TRY(tape_backward(at->tape, at->parameters, output_gradient, input_gradient));
    if (!add)
        memcpy(gradient, s->micro_gradient, s->part.count * sizeof(float));
    for (size_t i = 0; add && i < s->part.count; i++)
        gradient[i] += s->micro_gradient[i];
done:
    return result;
}

size_t stage_activation_bytes(const stage *s)
{
    size_t bytes = s->recompute ? s->slot_count * stage_input_count(s) * sizeof(float) : 0;
    for (unsigned i = 0; i < (s->recompute ? 1 : s->slot_count); i++)
        bytes += tape_bytes(s->slots[i].tape);
    return bytes;
}
