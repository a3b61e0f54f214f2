/* backend_cuda_device_vectors.c — parameters, gradient and optimizer state that stay on the device,
 * and their update, which is part of the step. Several steps may be queued. Each has its own block
 * of inputs and its own place for its result, in pinned memory, and so its own CUDA graph. */
#include "worker/cuda/backend_cuda.h"

#include <string.h>

const struct device_place *cuda_place_of(const backend *b)
{
    return &((const struct cuda *)b)->place;
}

static status open_zeroed(struct cuda *c, struct cuda_room *r, size_t bytes, const char *what)
{
    status result = OK;
    TRY(cuda_room_for(c, r, bytes, what));
    TRY_CUDA(c, clear, CUDA_COMPUTE, r->at, bytes);
done:
    return result;
}

status cuda_resident_open(backend *b, size_t count, size_t extra, unsigned states,
                          struct device_vectors *out)
{
    status result = OK;
    struct cuda *c = (struct cuda *)b;
    struct cuda_resident *r = &c->resident;
    const size_t one = sizeof(float), parts = (count + CUDA_SQUARES_CHUNK - 1) / CUDA_SQUARES_CHUNK;
    *out = (struct device_vectors){0};
    TRY(open_zeroed(c, &r->parameters, count * one, "the parameters"));
    TRY(open_zeroed(c, &r->gradient, (count + extra) * one, "the gradient"));
    if (states > 0) {
        TRY(open_zeroed(c, &r->state, states * count * one, "the optimizer's state"));
        out->state = r->state.at;
    }
    TRY(cuda_room_for(c, &r->parts, parts * sizeof(double), "the gradient's norm"));
    TRY(cuda_room_for(c, &r->result, sizeof *r->results, "a step's result"));
    if (r->results == NULL)
        TRY_CUDA(c, host_new, &r->results, DEVICE_STEPS_MOST * sizeof *r->results,
                 "the steps' results");
    TRY(c->kind->synchronize(c->device));
    r->queued = 0;
    r->updates = false;
    r->count = count;
    r->extra = extra;
    out->parameters = r->parameters.at;
    out->gradient = r->gradient.at;
done:
    return result;
}

void cuda_resident_close(struct cuda *c)
{
    struct cuda_resident *r = &c->resident;
    cuda_room_close(c, &r->parameters);
    cuda_room_close(c, &r->gradient);
    cuda_room_close(c, &r->state);
    cuda_room_close(c, &r->parts);
    cuda_room_close(c, &r->result);
    c->kind->host_free(c->device, r->results);
}

status cuda_resident_write(backend *b, float *to_device, const float *from, size_t count)
{
    status result = OK;
    struct cuda *c = (struct cuda *)b;
    TRY_CUDA(c, copy_up, CUDA_COMPUTE, to_device, from, count * sizeof *from);
    TRY(c->kind->synchronize(c->device));
done:
    return result;
}

status cuda_resident_read(backend *b, float *to, const float *from_device, size_t count)
{
    status result = OK;
    struct cuda *c = (struct cuda *)b;
    TRY_CUDA(c, copy_down, CUDA_COMPUTE, to, from_device, count * sizeof *to);
    TRY(c->kind->synchronize(c->device));
done:
    return result;
}

/* ---- the update ---------------------------------------------------------------------------------
 * Kernels sum the squares of the whole gradient. One thread judges loss and sum, and the kernel
 * that writes the parameters reads its verdict. If it refuses an update, it refuses those of all
 * queued steps, so that the parameters stay as the host finds them. */

status cuda_resident_update(backend *b, const struct device_update *u)
{
    struct cuda *c = (struct cuda *)b;
    struct cuda_resident *r = &c->resident;
    REQUIRE(r->count > 0 && u->rule.form != OPTIMIZER_HOST_ONLY);
    REQUIRE(r->queued < c->place.steps && (u->sum == NULL || r->extra >= DEVICE_NOTES));
    r->update = *u;
    r->updates = true;
    return OK;
}

static const struct cuda_step *step_on_device(const struct cuda *c)
{
    return c->staging.device.at;
}

status cuda_resident_loss(struct cuda *c, const struct cuda_loss *loss, double targets)
{
    status result = OK;
    struct cuda_resident *r = &c->resident;
    r->loss = loss;
    r->targets = targets;
    if (r->update.sum != NULL) {
        const struct cuda_grid notes = {1, 1, 1, DEVICE_NOTES};
        TRY(cuda_stage(c));
        TRY(CUDA_LAUNCH(c, step_notes, notes, .step = step_on_device(c), .loss = loss,
                        .notes = cuda_gradient(c, c->count)));
    }
done:
    return result;
}

/* Writes to the block in host memory. Its copy to the device is queued but has not run yet. */
static void stage_update(struct cuda *c)
{
    const struct cuda_resident *r = &c->resident;
    const struct device_update *u = &r->update;
    const struct optimizer_rates rates = optimizer_rule_rates(&u->rule, u->scale, u->lr);
    struct cuda_step *step = cuda_staged_step(c);
    step->first = r->queued == 0;
    step->targets = r->targets;
    step->damping = u->scale;
    step->scale = rates.scale;
    step->lr = rates.lr;
    step->momentum = rates.momentum;
    step->weight_decay = rates.weight_decay;
    memcpy(step->notes, u->notes, sizeof step->notes);
}

static status queue_verdict(struct cuda *c)
{
    status result = OK;
    const struct cuda_resident *r = &c->resident;
    const bool sums = r->update.sum != NULL;
    const uint32_t blocks = (uint32_t)((r->count + CUDA_SQUARES_CHUNK - 1) / CUDA_SQUARES_CHUNK);
    struct cuda_grid each = {blocks, 1, 1, CUDA_SQUARES_THREADS},
                     one = {1, 1, 1, CUDA_SQUARES_THREADS};
    if (sums) /* the sums over ranks are inserted before this wait */
        TRY(cuda_queue_wait(c));
    TRY(CUDA_LAUNCH(c, squares, each, .x = r->gradient.at, .parts = r->parts.at,
                    .count = r->count));
    TRY(CUDA_LAUNCH(c, step_verdict, one, .step = step_on_device(c), .parts = r->parts.at,
                    .loss = r->loss, .notes = sums ? cuda_gradient(c, c->count) : NULL,
                    .result = r->result.at, .count = blocks));
done:
    return result;
}

status cuda_resident_finish(struct cuda *c)
{
    status result = OK;
    struct cuda_resident *r = &c->resident;
    REQUIRE(c->gradient_at == r->gradient.at && c->count == r->count);
    TRY(cuda_stage(c));
    stage_update(c);
    TRY(queue_verdict(c));
    TRY(CUDA_LAUNCH(c, update, cuda_grid_over((r->count + 3) / 4, 256), .step = step_on_device(c),
                    .result = r->result.at, .parameters = r->parameters.at, .state = r->state.at,
                    .gradient = r->gradient.at, .count = r->count, .form = r->update.rule.form));
    TRY(cuda_queue_down(c, &r->results[r->queued], r->result.at, sizeof *r->results));
done:
    return result;
}

status cuda_resident_results(backend *b, struct device_result *out, unsigned count)
{
    status result = OK;
    struct cuda *c = (struct cuda *)b;
    struct cuda_resident *r = &c->resident;
    REQUIRE(count == r->queued);
    r->queued = 0;
    TRY(cuda_commands_wait(c));
    memcpy(out, r->results, count * sizeof *out);
done:
    return result;
}
