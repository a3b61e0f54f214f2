/* backend_cuda_device_vectors.c — parameters, gradient and optimizer state that stay on the device,
 * and their update. All work is queued on CUDA_COMPUTE, between two steps. */
#include "worker/cuda/backend_cuda.h"

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
    TRY(cuda_room_for(c, &r->parts, (parts + 1) * sizeof(double), "the gradient's norm"));
    if (r->squares == NULL)
        TRY_CUDA(c, host_new, &r->squares, sizeof *r->squares, "the gradient's norm");
    TRY(c->kind->synchronize(c->device));
    r->summed = false;
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
    if (r->squares != NULL)
        c->kind->host_free(c->device, r->squares);
}

status cuda_resident_write(backend *b, float *to_device, const float *from, size_t count)
{
    status result = OK;
    struct cuda *c = (struct cuda *)b;
    c->resident.summed = false; /* the vector may be the gradient */
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
        c->resident.summed = false;
        return c->kind->clear(c->device, CUDA_COMPUTE, gradient, count * sizeof *gradient);
    }
    memset(gradient, 0, count * sizeof *gradient);
    return OK;
}

/* ---- the update ---------------------------------------------------------------------------------
 * Kernels sum the squares of the whole gradient; the kernel that writes reads this sum on the
 * device. So the device waits for the host once, at the end of the update, or not at all if the
 * step has computed the sum already. */

struct device_vectors_sums {
    struct squares_call parts;
    struct squares_total_call total;
    struct cuda_grid each, one;
};

static struct device_vectors_sums sums_of(const struct cuda_resident *r)
{
    const uint32_t blocks = (uint32_t)((r->count + CUDA_SQUARES_CHUNK - 1) / CUDA_SQUARES_CHUNK);
    double *total = r->parts.at, *parts = total + 1;
    return (struct device_vectors_sums){
        .parts = {.x = r->gradient.at, .parts = parts, .count = r->count},
        .total = {.parts = parts, .total = total, .count = blocks},
        .each = {blocks, 1, 1, CUDA_SQUARES_THREADS},
        .one = {1, 1, 1, CUDA_SQUARES_THREADS}};
}

status cuda_resident_sum(struct cuda *c)
{
    status result = OK;
    struct cuda_resident *r = &c->resident;
    if (r->sums_wanted && c->gradient_at != NULL && c->gradient_at == r->gradient.at) {
        const struct device_vectors_sums s = sums_of(r);
        TRY(cuda_queue_launch(c, CUDA_squares, s.each, &s.parts, sizeof s.parts));
        TRY(cuda_queue_launch(c, CUDA_squares_total, s.one, &s.total, sizeof s.total));
        TRY(cuda_queue_down(c, r->squares, s.total.total, sizeof *r->squares));
        r->summed = true;
    }
done:
    return result;
}

static status look_at_gradient(struct cuda *c, const struct device_vectors_sums *s)
{
    status result = OK;
    TRY_CUDA(c, launch, CUDA_COMPUTE, CUDA_squares, s->each, &s->parts);
    TRY_CUDA(c, launch, CUDA_COMPUTE, CUDA_squares_total, s->one, &s->total);
    TRY_CUDA(c, copy_down, CUDA_COMPUTE, c->resident.squares, s->total.total, sizeof(double));
done:
    return result;
}

status cuda_resident_update(backend *b, const struct device_update *u, struct optimizer_pass *pass)
{
    status result = OK;
    struct cuda *c = (struct cuda *)b;
    struct cuda_resident *r = &c->resident;
    const struct device_vectors_sums sums = sums_of(r);
    const struct optimizer_rates rates = optimizer_rule_rates(&u->rule, u->scale, u->lr);
    const struct update_call update = {.parameters = r->parameters.at,
                                       .state = r->state.at,
                                       .gradient = r->gradient.at,
                                       .squares = sums.total.total,
                                       .damping = u->scale,
                                       .count = r->count,
                                       .scale = rates.scale,
                                       .lr = rates.lr,
                                       .momentum = rates.momentum,
                                       .weight_decay = rates.weight_decay,
                                       .form = u->rule.form};
    const bool summed = r->summed && u->as_computed;
    REQUIRE(r->count > 0 && u->rule.form != OPTIMIZER_HOST_ONLY);
    if (!summed)
        TRY(look_at_gradient(c, &sums));
    TRY_CUDA(c, launch, CUDA_COMPUTE, CUDA_update, cuda_grid_over((r->count + 3) / 4, 256),
             &update);
    if (!summed)
        TRY(c->kind->synchronize(c->device));
    r->sums_wanted = u->as_computed;
    *pass = (struct optimizer_pass){.finite = optimizer_takes(*r->squares, u->scale),
                                    .gradient_norm = sqrt(*r->squares)};
done:
    return result;
}
