/*
 * replica_device.c — replica_device: parameters, gradient and optimizer state stay on the
 * rank's GPU. A step computes the gradient, sums it over ranks and makes the update. The host
 * queues several steps and then waits once for their losses. Parameters are copied to the host only
 * for replica_view.
 *
 * The exchange gives the *sum* over ranks, and the update multiplies by 1/size: the same product as
 * with a mean, without a pass over the gradient. With overlap (key overlap, unless it is `no`)
 * parts of bucket_kib are summed while the backward pass goes on.
 */
#include "base/clock.h"
#include "base/memory.h"
#include "sync/pending.h"
#include "sync/replica.h"

#include <string.h>

struct device {
    struct optimizer_rule rule;
    struct device_vectors at;
    struct device_sum sum;
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
    r->overlaps = r->c->size > 1 && strcmp(options_text(o, "overlap"), "no") != 0;
    d->sum = (struct device_sum){.queue = communicator_device_sum,
                                 .context = r->c,
                                 .bucket = r->overlaps ? r->c->bucket : SIZE_MAX};
    r->parameters = d->at.parameters;
    r->gradient = d->at.gradient;
done:
    return result;
}

/* Queues the steps of the round. */
static status queue_steps(replica *r, struct replica_round *round)
{
    status result = OK;
    const struct device *d = r->state;
    const bool alone = r->c->size == 1;
    struct device_update update = {.rule = d->rule,
                                   .scale = (double)(1.0f / (float)r->c->size),
                                   .sum = alone ? NULL : &d->sum,
                                   .notes[NOTE_STOP] = round->stop,
                                   .notes[NOTE_SECONDS] = round->seconds};
    for (unsigned i = 0; i < round->count; i++) {
        update.lr = round->lr[i];
        TRY(worker_resident_step(r->worker, &d->at, round->first + i, &update, &round->stats[i]));
    }
done:
    return result;
}

static status device_round(replica *r, struct replica_round *round)
{
    status result = OK;
    struct device *d = r->state;
    struct device_result results[DEVICE_STEPS_MOST];
    const float share = 1.0f / (float)r->c->size;
    const uint64_t began_ns = clock_ns();
    if (r->c->size > 1)
        TRY(communicator_device_begin(r->c, round->count));
    round->exchange_ns = clock_ns() - began_ns;
    TRY(queue_steps(r, round));
    if (r->c->size > 1)
        TRY(communicator_device_end(r->c, r->count + COMMUNICATOR_NOTES, round->count));
    TRY(worker_resident_results(r->worker, round->first, round->count, results, round->stats));
    for (unsigned i = 0; i < round->count; i++) {
        round->made += results[i].updated != 0;
        for (unsigned k = 0; k < COMMUNICATOR_NOTES; k++)
            round->notes[i][k] = results[i].notes[k] * share;
    }
    d->copy_is_current = d->copy_is_current && round->made == 0;
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
    .round = device_round,
    .view = device_view,
    .set = device_set,
};
