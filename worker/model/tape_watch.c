/* tape_watch.c — which parts of a gradient are final while the backward pass runs. */
#include "base/clock.h"
#include "base/memory.h"
#include "worker/model/tape_internal.h"

#include <string.h>

status tape_open_watch(tape *t)
{
    status result = OK;
    const size_t layers = parameter_table_layers(t->parameters);
    TRY(memory_new(&t->uses, layers, sizeof *t->uses, "the tape"));
    TRY(memory_new(&t->owners, parameter_table_slices(t->parameters), sizeof *t->owners,
                   "the tape"));
    for (size_t i = 0; i < layers; ++i) {
        const struct layer *l = parameter_table_layer(t->parameters, i);
        t->owners[l->weight] = (struct slice_owner){i, 0};
        if (l->bias != NO_SLICE)
            t->owners[l->bias] = (struct slice_owner){i, 1};
    }
done:
    return result;
}

void tape_close_watch(tape *t)
{
    memory_free(t->uses);
    memory_free(t->owners);
}

void tape_watch(tape *t, const struct gradient_watch *watch)
{
    t->watch = watch;
}

struct tape_times tape_last_times(const tape *t)
{
    return t->times;
}

void tape_count_uses(tape *t)
{
    memset(t->uses, 0, parameter_table_layers(t->parameters) * sizeof *t->uses);
    for (size_t i = 0; i < t->order_count; ++i)
        if (t->order[i]->layer != NO_SLICE)
            t->uses[t->order[i]->layer]++;
    t->unsettled = parameter_table_slices(t->parameters);
}

status tape_settle(tape *t)
{
    status result = OK;
    for (; t->unsettled > 0; t->unsettled--) {
        const struct slice_owner *owner = &t->owners[t->unsettled - 1];
        const struct parameter_slice *s = parameter_table_slice(t->parameters, t->unsettled - 1);
        if (t->uses[owner->layer] > 0)
            break;
        if (t->written[owner->layer][owner->which] == t->step)
            continue;
        if (t->b->kind->clear != NULL)
            TRY(t->b->kind->clear(t->b, t->gradient + s->offset, s->count));
        else
            memset(t->gradient + s->offset, 0, s->count * sizeof(float));
    }
done:
    return result;
}

void tape_call_watch(tape *t)
{
    if (t->watch == NULL || t->mode != TAPE_TRAIN)
        return;
    size_t from = parameter_table_count(t->parameters);
    if (t->unsettled < parameter_table_slices(t->parameters))
        from = parameter_table_slice(t->parameters, t->unsettled)->offset;
    uint64_t began = clock_ns();
    t->watch->between(t->watch->context, from);
    t->watched_ns += clock_ns() - began;
}
