/* backend_cuda_gradient.c — copies the gradient to the host, in buckets. Backward writes the
 * gradient roughly from the end of the flat vector to its beginning. A bucket is copied as soon as
 * all of it is final, while backward continues. */
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

/* Returns the end of the bucket that begins with parts[*next]. It is final after command *ready. */
static size_t take_bucket(const struct cuda_commands *m, size_t high, size_t *next, size_t *ready)
{
    size_t low = high;
    while (*next < m->part_count && high - low < BUCKET) {
        const struct part *p = &m->parts[(*next)++];
        low = p->offset;
        *ready = p->command > *ready ? p->command : *ready;
    }
    return *next == m->part_count ? 0 : low;
}

/* Copies m->list to m->with_copies and inserts the copies. The last command waits for the copy
 * stream. `ready` is at most the last command, so every bucket is inserted. */
status cuda_add_gradient_copies(struct cuda *c)
{
    status result = OK;
    struct cuda_commands *m = c->commands;
    struct command_list *l = &m->with_copies;
    float *to = NULL;
    size_t next = 0, ready = 0, high = c->count, low = high;
    l->count = 0;
    if (m->part_count > 0 && c->host_gradient != NULL) {
        TRY(gradient_target(c, &to));
        m->copies_to_host = true;
        low = take_bucket(m, high, &next, &ready);
    }
    for (size_t i = 0; i < m->list.count; ++i) {
        struct command *k;
        TRY(cuda_command_add(l, COMMAND_LAUNCH, CUDA_COMPUTE, &k));
        memcpy(k, &m->list.at[i],
               sizeof *k); /* with padding, because lists are compared byte by byte */
        while (low < high && ready <= i) {
            TRY(cuda_command_add_copy_to_host(l, to + low, cuda_gradient(c, low),
                                              (high - low) * sizeof(float)));
            high = low;
            low = next < m->part_count ? take_bucket(m, high, &next, &ready) : high;
        }
    }
    REQUIRE(low == high);
    if (m->copies_to_host) {
        struct command *k;
        TRY(cuda_command_add(l, COMMAND_WAIT, CUDA_COMPUTE, &k));
    }
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
        cuda_plan_forget(c, &m->plans[i]); /* they copy to memory that is no longer pinned */
}
