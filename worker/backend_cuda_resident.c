/*
 * Parameters, gradient and optimizer state that stay on the device, and their update. What is
 * queued here runs on CUDA_COMPUTE: after the step before it, and before the next one.
 */
#include "worker/backend_cuda.h"

#include <math.h>
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
                          struct resident *out)
{
    status result = OK;
    struct cuda *c = (struct cuda *)b;
    struct cuda_resident *r = &c->resident;
    const size_t one = sizeof(float), parts = (count + CUDA_SQUARES_CHUNK - 1) / CUDA_SQUARES_CHUNK;
    *out = (struct resident){0};
    TRY(open_zeroed(c, &r->parameters, count * one, "the parameters"));
    TRY(open_zeroed(c, &r->gradient, (count + extra) * one, "the gradient"));
    if (states > 0) {
        TRY(open_zeroed(c, &r->state, states * count * one, "the optimizer's state"));
        out->state = r->state.at;
    }
    TRY(cuda_room_for(c, &r->parts, (parts + 1) * sizeof(double), "the gradient's norm"));
    if (r->squares == NULL) {
        TRY_CUDA(c, host_new, &r->squares, sizeof *r->squares, "the gradient's norm");
    }
    TRY(c->kind->synchronize(c->device));
    r->count = count;
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
    if (r->squares != NULL) {
        c->kind->host_free(c->device, r->squares);
    }
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

status cuda_resident_clear(backend *b, float *gradient, size_t count)
{
    struct cuda *c = (struct cuda *)b;
    if (c->host_gradient == NULL) {
        return c->kind->clear(c->device, CUDA_COMPUTE, gradient, count * sizeof *gradient);
    }
    memset(gradient, 0, count * sizeof *gradient);
    return OK;
}

/* The gradient is looked at whole before anything is written: the kernel that writes reads the
 * verdict where the one before it left it, so the host is waited for once, at the end. */
status cuda_resident_update(backend *b, const struct resident_update *u,
                            struct optimizer_pass *pass)
{
    status result = OK;
    struct cuda *c = (struct cuda *)b;
    struct cuda_resident *r = &c->resident;
    const uint32_t blocks = (uint32_t)((r->count + CUDA_SQUARES_CHUNK - 1) / CUDA_SQUARES_CHUNK);
    double *total = r->parts.at, *parts = total + 1;
    const struct cuda_grid each = {blocks, 1, 1, CUDA_SQUARES_THREADS},
                           one = {1, 1, 1, CUDA_SQUARES_THREADS};
    const struct squares_call squares = {.x = r->gradient.at, .parts = parts, .count = r->count};
    const struct squares_total_call sum = {.parts = parts, .total = total, .count = blocks};
    const struct optimizer_rates rates = optimizer_rule_rates(&u->rule, u->scale, u->lr);
    const struct update_call update = {.parameters = r->parameters.at,
                                       .state = r->state.at,
                                       .gradient = r->gradient.at,
                                       .squares = total,
                                       .count = r->count,
                                       .scale = rates.scale,
                                       .lr = rates.lr,
                                       .momentum = rates.momentum,
                                       .weight_decay = rates.weight_decay,
                                       .form = u->rule.form};
    REQUIRE(r->count > 0 && u->rule.form != OPTIMIZER_HOST_ONLY);
    TRY_CUDA(c, launch, CUDA_COMPUTE, CUDA_squares, each, &squares);
    TRY_CUDA(c, launch, CUDA_COMPUTE, CUDA_squares_total, one, &sum);
    TRY_CUDA(c, launch, CUDA_COMPUTE, CUDA_update, cuda_grid_over((r->count + 3) / 4, 256),
             &update);
    TRY_CUDA(c, copy_down, CUDA_COMPUTE, r->squares, total, sizeof *r->squares);
    TRY(c->kind->synchronize(c->device));
    *pass = (struct optimizer_pass){.finite = isfinite(*r->squares),
                                    .gradient_norm = sqrt(*r->squares)};
done:
    return result;
}
