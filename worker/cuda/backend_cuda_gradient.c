/* backend_cuda_gradient.c — copies the gradient to the host, or sums it over ranks, in buckets.
 * Backward writes the gradient roughly from the end of the flat vector to its beginning. A bucket
 * is copied or summed as soon as all of it is final, while backward continues. */
#include "worker/cuda/backend_cuda_commands.h"

#include <string.h>

status cuda_gradient_written(struct cuda *c, size_t offset, size_t count)
{
    status result = OK;
    struct cuda_commands *m = c->commands;
    REQUIRE(m->list.count > 0);
    size_t last = m->list.count - 1;
    for (size_t i = 0; i < m->part_count; ++i) {
        if (m->parts[i].offset == offset) {
            m->parts[i].command = last;
            goto done;
        }
    }
    TRY(cuda_grow(&m->parts, m->part_count, &m->part_capacity, sizeof *m->parts));
    /* Sorted by descending offset, which is usually the order of the calls. */
    size_t at = m->part_count++;
    for (; at > 0 && m->parts[at - 1].offset < offset; --at)
        m->parts[at] = m->parts[at - 1];
    m->parts[at] = (struct part){offset, count, last};
done:
    return result;
}

static status bounce_room(struct cuda *c, size_t bytes)
{
    status result = OK;
    struct cuda_commands *m = c->commands;
    if (m->bounce_bytes < bytes) {
        cuda_commands_retire(c, NULL, m->bounce);
        m->bounce = NULL;
        m->bounce_bytes = 0;
        TRY_CUDA(c, host_new, &m->bounce, bytes, "pinned memory for a gradient");
        m->bounce_bytes = bytes;
    }
done:
    return result;
}

static status gradient_target(struct cuda *c, float **out)
{
    status result = OK;
    size_t bytes = c->count * sizeof(float);
    *out = c->host_gradient;
    if (!cuda_is_pinned(c, c->host_gradient, bytes, false)) {
        TRY(bounce_room(c, bytes));
        *out = c->commands->bounce;
        TRY(cuda_deliver(c, c->host_gradient, *out, bytes));
    }
done:
    return result;
}

/* Progress of the copies or sums of the gradient, from its end to its beginning. */
struct outgoing {
    const struct device_sum *sum; /* NULL: copies to `to` */
    float *to;
    size_t bucket, high, low; /* the next bucket is [low, high) */
    size_t next, ready;       /* parts in buckets so far; last command that writes the bucket */
};

static void take_bucket(const struct cuda_commands *m, struct outgoing *o)
{
    o->low = o->high;
    while (o->next < m->part_count && o->high - o->low < o->bucket) {
        const struct part *p = &m->parts[o->next++];
        o->low = p->offset;
        o->ready = p->command > o->ready ? p->command : o->ready;
    }
    if (o->next == m->part_count)
        o->low = 0;
}

/* The notes behind the gradient are final before any part of it. */
static status begin_outgoing(struct cuda *c, struct outgoing *o)
{
    status result = OK;
    struct cuda_commands *m = c->commands;
    *o = (struct outgoing){.sum = c->resident.updates ? c->resident.update.sum : NULL};
    if (m->part_count == 0 || (o->sum == NULL && c->host_gradient == NULL))
        goto done;
    m->copies_to_host = true;
    o->bucket = o->sum != NULL ? o->sum->bucket : BUCKET;
    o->high = c->count + (o->sum != NULL ? DEVICE_NOTES : 0);
    if (o->sum == NULL)
        TRY(gradient_target(c, &o->to));
    take_bucket(m, o);
done:
    return result;
}

static status add_outgoing(struct cuda *c, const struct outgoing *o)
{
    struct command_list *l = &c->commands->with_copies;
    float *from = cuda_gradient(c, o->low);
    const size_t count = o->high - o->low;
    return o->sum != NULL
               ? cuda_command_add_sum(l, o->sum, from, count)
               : cuda_command_add_copy_to_host(l, o->to + o->low, from, count * sizeof(float));
}

/* Copies m->list to m->with_copies and inserts the copies or sums. The last command waits for the
 * copy stream. `ready` is at most the last command, so every bucket is inserted. */
status cuda_add_gradient_copies(struct cuda *c)
{
    status result = OK;
    struct cuda_commands *m = c->commands;
    struct command_list *l = &m->with_copies;
    struct command *k;
    struct outgoing o;
    l->count = 0;
    TRY(begin_outgoing(c, &o));
    for (size_t i = 0; i < m->list.count; ++i) {
        TRY(cuda_command_add(l, COMMAND_LAUNCH, CUDA_COMPUTE, &k));
        memcpy(k, &m->list.at[i],
               sizeof *k); /* with padding, because lists are compared byte by byte */
        while (o.low < o.high && o.ready <= i) {
            TRY(add_outgoing(c, &o));
            o.high = o.low;
            if (o.high > 0)
                take_bucket(m, &o);
        }
    }
    REQUIRE(o.low == o.high);
    if (m->copies_to_host)
        TRY(cuda_command_add(l, COMMAND_WAIT, CUDA_COMPUTE, &k));
done:
    return result;
}

/* ---- pinned memory ------------------------------------------------------------------------------
 */

bool cuda_is_pinned(struct cuda *c, const void *at, size_t bytes, bool read_only)
{
    struct cuda_commands *m = c->commands;
    for (size_t i = 0; i < m->pinned_count; ++i) {
        const struct pinned *p = &m->pinned[i];
        if (p->at == at && p->bytes >= bytes)
            return p->done && (read_only || !p->read_only);
    }
    if (!m->hold ||
        cuda_grow(&m->pinned, m->pinned_count, &m->pinned_capacity, sizeof *m->pinned) != OK)
        return false;
    struct pinned *p = &m->pinned[m->pinned_count++];
    *p = (struct pinned){at, bytes, read_only, c->kind->pin(c->device, at, bytes, read_only)};
    return p->done;
}

void cuda_hold(struct cuda *c)
{
    c->commands->hold = true;
}

void cuda_forget(struct cuda *c)
{
    struct cuda_commands *m = c->commands;
    for (size_t i = 0; i < m->pinned_count; ++i)
        if (m->pinned[i].done)
            c->kind->unpin(c->device, m->pinned[i].at);
    m->pinned_count = 0;
    m->hold = false;
    for (size_t i = 0; i < PLANS; ++i)
        cuda_plan_forget(c, &m->plans[i]); /* its commands use memory that is no longer pinned */
}
