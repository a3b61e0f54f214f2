/* backend_cuda_commands.c — the commands of a step. Operations append commands to a list.
 * cuda_commands_finish inserts the copies or sums of the gradient and runs the list. If it equals
 * an earlier one, it is captured as a CUDA graph and afterwards launched as one, so that the GPU
 * does not wait for the host between kernels. A worker alternates between a few lists (training,
 * evaluation, another slot for the gradient); all of them are kept. */
#include "worker/cuda/backend_cuda_commands.h"

#include "base/log.h"
#include "base/memory.h"

#include <stdlib.h>
#include <string.h>

/* ---- writing ------------------------------------------------------------------------------------
 */

status cuda_grow(void *array, size_t count, size_t *capacity, size_t size)
{
    status result = OK;
    if (count == *capacity) {
        const size_t more = *capacity == 0 ? 64 : *capacity * 2;
        TRY(memory_grow(array, count, more, size, "a step's commands"));
        *capacity = more;
    }
done:
    return result;
}

status cuda_command_add(struct command_list *l, enum command_kind kind, enum cuda_stream stream,
                        struct command **out)
{
    status result = OK;
    TRY(cuda_grow(&l->at, l->count, &l->capacity, sizeof *l->at));
    *out = &l->at[l->count++];
    memset(*out, 0, sizeof **out);
    (*out)->kind = kind;
    (*out)->stream = stream;
done:
    return result;
}

static status add_copy(struct command_list *l, enum command_kind kind, enum cuda_stream stream,
                       void *to, const void *from, size_t bytes)
{
    status result = OK;
    struct command *k;
    TRY(cuda_command_add(l, kind, stream, &k));
    k->copy.to = to;
    k->copy.from = from;
    k->copy.bytes = bytes;
done:
    return result;
}

status cuda_command_add_copy_to_host(struct command_list *l, void *to, const void *from,
                                     size_t bytes)
{
    status result = OK;
    struct command *k;
    TRY(cuda_command_add(l, COMMAND_WAIT, CUDA_COPY, &k));
    TRY(add_copy(l, COMMAND_DOWN, CUDA_COPY, to, from, bytes));
done:
    return result;
}

status cuda_command_add_sum(struct command_list *l, const struct device_sum *by, float *data,
                            size_t count)
{
    status result = OK;
    struct command *k;
    TRY(cuda_command_add(l, COMMAND_WAIT, CUDA_COPY, &k));
    TRY(cuda_command_add(l, COMMAND_SUM, CUDA_COPY, &k));
    k->sum.by = by;
    k->sum.data = data;
    k->sum.count = count;
done:
    return result;
}

status cuda_queue_launch(struct cuda *c, enum cuda_kernel k, struct cuda_grid g, const void *call,
                         size_t bytes)
{
    status result = OK;
    struct command *command;
    REQUIRE(bytes <= CUDA_CALL_BYTES);
    TRY(cuda_command_add(&c->commands->list, COMMAND_LAUNCH, CUDA_COMPUTE, &command));
    command->launch.kernel = k;
    command->launch.grid = g;
    memcpy(command->launch.call, call, bytes);
done:
    return result;
}

static status find_product(struct cuda *c, const struct cuda_product_shape *s, cuda_product **out)
{
    status result = OK;
    struct cuda_known_product *p;
    for (p = c->products; p != NULL; p = p->next) {
        const struct cuda_product_shape *k = &p->shape;
        if (k->rows == s->rows && k->columns == s->columns && k->inner == s->inner &&
            k->a_transposed == s->a_transposed && k->b_transposed == s->b_transposed &&
            k->arithmetic == s->arithmetic && k->epilogue == s->epilogue &&
            k->accumulate == s->accumulate) {
            *out = p->product;
            return OK;
        }
    }
    TRY(memory_new(&p, 1, sizeof *p, "a matrix product"));
    p->shape = *s;
    result = c->kind->product_open(c->device, s, &p->product);
    if (result != OK) {
        memory_free(p);
        goto done;
    }
    p->next = c->products;
    c->products = p;
    *out = p->product;
done:
    return result;
}

status cuda_queue_product(struct cuda *c, const struct cuda_product_shape *shape,
                          const struct cuda_product_call *call)
{
    status result = OK;
    struct command *k;
    cuda_product *product = NULL;
    TRY(find_product(c, shape, &product));
    TRY(cuda_command_add(&c->commands->list, COMMAND_PRODUCT, CUDA_COMPUTE, &k));
    k->product.product = product;
    k->product.call = *call;
done:
    return result;
}

status cuda_queue_up(struct cuda *c, void *to, const void *from, size_t bytes)
{
    return add_copy(&c->commands->list, COMMAND_UP, CUDA_COMPUTE, to, from, bytes);
}

status cuda_queue_down(struct cuda *c, void *to, const void *from, size_t bytes)
{
    c->commands->copies_to_host = true;
    return cuda_command_add_copy_to_host(&c->commands->list, to, from, bytes);
}

status cuda_queue_clear(struct cuda *c, size_t offset, size_t count)
{
    status result = OK;
    TRY(add_copy(&c->commands->list, COMMAND_CLEAR, CUDA_COMPUTE, cuda_gradient(c, offset), NULL,
                 count * sizeof(float)));
    TRY(cuda_gradient_written(c, offset, count));
done:
    return result;
}

status cuda_queue_wait(struct cuda *c)
{
    struct command *k;
    return cuda_command_add(&c->commands->list, COMMAND_WAIT, CUDA_COMPUTE, &k);
}

status cuda_deliver(struct cuda *c, void *to, const void *from, size_t bytes)
{
    status result = OK;
    struct cuda_commands *m = c->commands;
    c->needs_host = true;
    TRY(cuda_grow(&m->deliveries, m->delivery_count, &m->delivery_capacity, sizeof *m->deliveries));
    m->deliveries[m->delivery_count++] = (struct delivery){to, from, bytes};
done:
    return result;
}

status cuda_deliver_loss(struct cuda *c, struct op_loss *to, const struct cuda_loss *from)
{
    return cuda_deliver(c, to, from, 0);
}

void cuda_commands_retire(struct cuda *c, void *device_memory, void *pinned_memory)
{
    struct cuda_commands *m = c->commands;
    status grown =
        cuda_grow(&m->retired, m->retired_count, &m->retired_capacity, sizeof *m->retired);
    if (grown == OK) {
        m->retired[m->retired_count++] = (struct retired){device_memory, pinned_memory};
    } /* otherwise closing the device frees it */
}

/* ---- running ------------------------------------------------------------------------------------
 */

static status run_one(struct cuda *c, const struct command *k)
{
    const struct cuda_kind *on = c->kind;
    cuda_device *d = c->device;
    switch (k->kind) {
    case COMMAND_LAUNCH:
        return on->launch(d, k->stream, k->launch.kernel, k->launch.grid, k->launch.call);
    case COMMAND_PRODUCT:
        return on->product_run(d, k->product.product, &k->product.call);
    case COMMAND_UP:
        return on->copy_up(d, k->stream, k->copy.to, k->copy.from, k->copy.bytes);
    case COMMAND_DOWN:
        return on->copy_down(d, k->stream, k->copy.to, k->copy.from, k->copy.bytes);
    case COMMAND_CLEAR:
        return on->clear(d, k->stream, k->copy.to, k->copy.bytes);
    case COMMAND_SUM:
        return k->sum.by->queue(k->sum.by->context, k->sum.data, k->sum.count,
                                on->native_stream(d, k->stream));
    case COMMAND_WAIT:
        return on->wait(d, k->stream, k->stream == CUDA_COPY ? CUDA_COMPUTE : CUDA_COPY);
    }
    UNREACHABLE("a command of no known kind");
}

static status run_list(struct cuda *c, const struct command_list *l)
{
    status result = OK;
    for (size_t i = 0; i < l->count; ++i)
        TRY(run_one(c, &l->at[i]));
done:
    return result;
}

static uint64_t hash_of(const struct command_list *l)
{
    uint64_t hash = 14695981039346656037u; /* FNV-1a, eight bytes at a time */
    const uint8_t *at = (const uint8_t *)l->at;
    for (size_t i = 0; i + 8 <= l->count * sizeof *l->at; i += 8) {
        uint64_t word;
        memcpy(&word, at + i, sizeof word);
        hash = (hash ^ word) * 1099511628211u;
    }
    return hash;
}

void cuda_plan_forget(struct cuda *c, struct command_plan *p)
{
    if (p->graph != NULL) {
        c->kind->graph_close(c->device, p->graph);
        p->graph = NULL;
    }
    p->list.count = 0;
    p->hash = 0;
}

/* The plan of this list. *known false: the least recently used plan, to be replaced. */
static struct command_plan *find_plan(struct cuda_commands *m, const struct command_list *l,
                                      uint64_t hash, bool *known)
{
    struct command_plan *oldest = &m->plans[0];
    for (size_t i = 0; i < PLANS; ++i) {
        struct command_plan *p = &m->plans[i];
        if (p->list.count == l->count && p->hash == hash &&
            memcmp(p->list.at, l->at, l->count * sizeof *l->at) == 0) {
            *known = true;
            return p;
        }
        oldest = p->used < oldest->used ? p : oldest;
    }
    *known = false;
    return oldest;
}

static status keep_plan(struct cuda *c, struct command_plan *p, const struct command_list *l,
                        uint64_t hash)
{
    status result = OK;
    cuda_plan_forget(c, p);
    while (p->list.capacity < l->count)
        TRY(cuda_grow(&p->list.at, p->list.capacity, &p->list.capacity, sizeof *l->at));
    memcpy(p->list.at, l->at, l->count * sizeof *l->at);
    p->list.count = l->count;
    p->hash = hash;
done:
    return result;
}

static void warn_once(struct cuda_commands *m, const char *why)
{
    if (!m->warned) {
        log_info("cuda: %s; such steps run without CUDA graphs, which is slower", why);
        m->warned = true;
    }
}

static bool may_capture(const struct cuda_commands *m, const struct command_list *l)
{
    if (m->graphs != GRAPHS_WITHOUT_SUMS)
        return m->graphs == GRAPHS_ALL;
    for (size_t i = 0; i < l->count; ++i)
        if (l->at[i].kind == COMMAND_SUM)
            return false;
    return true;
}

static status capture(struct cuda *c, struct command_plan *p)
{
    status result = OK, ended;
    TRY(c->kind->capture_begin(c->device));
    result = run_list(c, &p->list);
    ended = c->kind->capture_end(c->device, &p->graph);
    if (result != OK && p->graph != NULL) { /* the graph ends before the failed command */
        c->kind->graph_close(c->device, p->graph);
        p->graph = NULL;
    }
    result = result == OK ? ended : result;
done:
    return result;
}

/* Runs m->with_copies, the whole step. A new list runs without capture: the driver loads some
 * kernels at first use, which a capture does not allow. */
static status run_step(struct cuda *c)
{
    status result = OK;
    struct cuda_commands *m = c->commands;
    struct command_list *l = &m->with_copies;
    bool known;
    uint64_t hash = hash_of(l);
    struct command_plan *p = find_plan(m, l, hash, &known);
    p->used = ++m->clock;
    if (!known) {
        TRY(keep_plan(c, p, l, hash));
        if (++m->new_lists == NEW_LISTS)
            warn_once(m, "the model's control flow changes between steps");
    } else {
        m->new_lists = 0;
    }
    if (known && p->graph == NULL && may_capture(m, l)) {
        if (capture(c, p) == OK) {
            m->statistics.captured++;
        } else {
            m->graphs = GRAPHS_NONE;
            warn_once(m, error_message());
        }
    }
    if (p->graph != NULL) {
        m->statistics.launched++;
        TRY(c->kind->graph_launch(c->device, p->graph));
    } else {
        m->statistics.direct++;
        TRY(run_list(c, l));
    }
done:
    return result;
}

static void free_retired(struct cuda *c)
{
    struct cuda_commands *m = c->commands;
    for (size_t i = 0; i < m->retired_count; ++i) {
        c->kind->memory_free(c->device, m->retired[i].device);
        c->kind->host_free(c->device, m->retired[i].pinned);
    }
    m->retired_count = 0;
}

static void deliver_all(struct cuda_commands *m)
{
    for (size_t i = 0; i < m->delivery_count; ++i) {
        const struct delivery *d = &m->deliveries[i];
        if (d->bytes > 0) {
            memcpy(d->to, d->from, d->bytes);
        } else {
            const struct cuda_loss *loss = d->from;
            *(struct op_loss *)d->to = (struct op_loss){loss->sum, loss->correct};
        }
    }
    m->delivery_count = 0;
}

/* Range names for a profiler; NULL: none. */
static void phase(struct cuda *c, const char *name)
{
    if (c->commands->in_phase)
        c->kind->range_end();
    c->commands->in_phase = name != NULL;
    if (name != NULL)
        c->kind->range_begin(name);
}

void cuda_commands_begin(struct cuda *c)
{
    struct cuda_commands *m = c->commands;
    phase(c, "gradlag: write the step down");
    m->list.count = m->part_count = m->delivery_count = 0;
    m->interrupted = m->copies_to_host = false;
    c->staging.queued = false;
}

status cuda_commands_interrupt(struct cuda *c)
{
    status result = OK;
    struct cuda_commands *m = c->commands;
    m->interrupted = true;
    TRY(run_list(c, &m->list));
    TRY(c->kind->synchronize(c->device));
    deliver_all(m);
    m->list.count = 0;
    for (size_t i = 0; i < m->part_count; ++i)
        m->parts[i].command = 0; /* the copy has finished */
    c->staging.queued = false;
done:
    return result;
}

status cuda_commands_wait(struct cuda *c)
{
    status result = OK;
    TRY(c->kind->synchronize(c->device));
    deliver_all(c->commands);
    free_retired(c);
done:
    return result;
}

status cuda_commands_finish(struct cuda *c, bool queued)
{
    status result = OK;
    struct cuda_commands *m = c->commands;
    phase(c, "gradlag: launch the step");
    TRY(cuda_add_gradient_copies(c));
    m->statistics.commands = (uint32_t)m->with_copies.count;
    m->statistics.kernels = 0;
    for (size_t i = 0; i < m->with_copies.count; ++i)
        m->statistics.kernels += m->with_copies.at[i].kind <= COMMAND_PRODUCT;
    if (m->interrupted) {
        if (m->part_count > 0) /* training: an evaluation always reads results in this way */
            warn_once(m, "the model looks at values in the middle of a step");
        m->statistics.direct++;
        TRY(run_list(c, &m->with_copies));
    } else {
        TRY(run_step(c));
    }
    if (!queued) {
        phase(c, "gradlag: wait for the GPU");
        TRY(cuda_commands_wait(c));
    }
done:
    phase(c, NULL);
    m->list.count = 0;
    return result;
}

void cuda_commands_abandon(struct cuda *c)
{
    const struct error kept = error_save(); /* the reason why the step is abandoned */
    cuda_commands_begin(c);
    c->resident.queued = 0;
    phase(c, NULL);
    status waited = c->kind->synchronize(c->device);
    (void)waited; /* the next step reports a fault again */
    error_restore(&kept);
}

void cuda_command_statistics(const struct cuda *c, struct cuda_command_statistics *out)
{
    *out = c->commands->statistics;
}

/* ---- opening
 * -------------------------------------------------------------------------------------
 */

/* GRADLAG_CUDA_GRAPHS in the environment: `none` turns graphs off; `all` also captures steps with
 * sums over ranks, which NCCL allows. */
status cuda_commands_open(struct cuda *c)
{
    status result = OK;
    const char *wanted = getenv("GRADLAG_CUDA_GRAPHS");
    TRY(memory_new(&c->commands, 1, sizeof *c->commands, "the cuda backend"));
    c->commands->graphs = wanted == NULL                ? GRAPHS_WITHOUT_SUMS
                          : strcmp(wanted, "none") == 0 ? GRAPHS_NONE
                          : strcmp(wanted, "all") == 0  ? GRAPHS_ALL
                                                        : GRAPHS_WITHOUT_SUMS;
done:
    return result;
}

void cuda_commands_close(struct cuda *c)
{
    struct cuda_commands *m = c->commands;
    if (m == NULL)
        return;
    cuda_forget(c);
    free_retired(c);
    c->kind->host_free(c->device, m->bounce);
    while (c->products != NULL) {
        struct cuda_known_product *p = c->products;
        c->products = p->next;
        c->kind->product_close(c->device, p->product);
        memory_free(p);
    }
    for (size_t i = 0; i < PLANS; ++i)
        memory_free(m->plans[i].list.at);
    memory_free(m->list.at);
    memory_free(m->with_copies.at);
    memory_free(m->parts);
    memory_free(m->deliveries);
    memory_free(m->retired);
    memory_free(m->pinned);
    memory_free(m);
    c->commands = NULL;
}
