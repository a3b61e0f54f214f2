/*
 * replica_device.c — replica_device: stays on the rank's GPU. In each update 4 notes are copied to
 * the GPU; 4 notes, the loss and whether the gradient is finite are copied back. Parameters are
 * copied to the host only for replica_view.
 *
 * The exchange gives the *sum* over ranks, and the update multiplies by 1/size: the same product as
 * with a mean, without a pass over the gradient.
 */
#include "base/memory.h"
#include "sync/replica.h"

#include "worker/optimizer/optimizer.h"

struct device {
    struct optimizer_rule rule;
    struct device_vectors at;
    float *host_copy;     /* parameters, then state */
    bool copy_is_current; /* host_copy is of the last update */
};

static void device_close(replica *r)
{
    struct device *d = r->state;
    memory_free(d->host_copy);
    memory_free(d);
    r->state = NULL;
}

static status device_open(replica *r, const options *o)
{
    status result = OK;
    struct device *d = NULL;
    TRY(memory_new(&d, 1, sizeof *d, "the replica"));
    r->state = d;
    TRY(optimizer_rule_of(o, &d->rule));
    TRY(memory_new(&d->host_copy, (1 + d->rule.states) * r->count, sizeof(float), "parameters"));
    TRY(worker_reside(r->worker, COMMUNICATOR_NOTES, d->rule.states, &d->at));
    TRY(worker_initial_parameters(r->worker, d->host_copy, r->count));
    TRY(worker_resident_write(r->worker, d->at.parameters, d->host_copy, r->count));
    d->copy_is_current = true;
    r->parameters = d->at.parameters;
    r->gradient = d->at.gradient;
done:
    return result;
}

static status device_exchange(replica *r, float notes[COMMUNICATOR_NOTES])
{
    status result = OK;
    float *device_notes = r->gradient + r->count;
    const float share = 1.0f / (float)r->c->size;
    if (r->c->size == 1)
        return OK;
    TRY(worker_resident_write(r->worker, device_notes, notes, COMMUNICATOR_NOTES));
    TRY(communicator_device_sum(r->c, r->gradient, r->count + COMMUNICATOR_NOTES));
    TRY(worker_resident_read(r->worker, notes, device_notes, COMMUNICATOR_NOTES));
    for (unsigned i = 0; i < COMMUNICATOR_NOTES; i++)
        notes[i] *= share;
done:
    return result;
}

static status device_apply(replica *r, double lr, bool *finite)
{
    status result = OK;
    struct device *d = r->state;
    struct optimizer_pass pass;
    const struct device_update update = {.rule = d->rule,
                                         .scale = (double)(1.0f / (float)r->c->size),
                                         .lr = lr,
                                         .as_computed = r->c->size == 1};
    TRY(worker_resident_update(r->worker, &update, &pass));
    *finite = pass.finite;
    d->copy_is_current = d->copy_is_current && !pass.finite;
done:
    return result;
}

static status device_view(replica *r, struct replica_view *out)
{
    status result = OK;
    struct device *d = r->state;
    const size_t states = d->rule.states * r->count;
    if (!d->copy_is_current) {
        TRY(worker_resident_read(r->worker, d->host_copy, d->at.parameters, r->count));
        if (states > 0)
            TRY(worker_resident_read(r->worker, d->host_copy + r->count, d->at.state, states));
        d->copy_is_current = true;
    }
    *out = (struct replica_view){.parameters = d->host_copy,
                                 .optimizer_state = states > 0 ? d->host_copy + r->count : NULL,
                                 .optimizer_state_count = states};
done:
    return result;
}

/* Kernels do not use the number of updates. */
static status device_set(replica *r, const struct replica_view *from, uint64_t updates UNUSED)
{
    status result = OK;
    struct device *d = r->state;
    d->copy_is_current = false;
    TRY(worker_resident_write(r->worker, d->at.parameters, from->parameters, r->count));
    if (from->optimizer_state != NULL)
        TRY(worker_resident_write(r->worker, d->at.state, from->optimizer_state,
                                  from->optimizer_state_count));
done:
    return result;
}

const struct replica_kind replica_device = {
    .name = "device",
    .open = device_open,
    .close = device_close,
    .exchange = device_exchange,
    .apply = device_apply,
    .view = device_view,
    .set = device_set,
};
