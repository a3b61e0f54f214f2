/* tape_gradients.c — buffers for the gradients of values, reused within and between steps. */
#include "worker/model/tape_internal.h"

#include <string.h>

size_t tape_bytes_of(const tape *t, struct shape s)
{
    return t->batch * shape_count(s) * sizeof(float);
}

/* A gradient lives from its first write to its node's backward. Its buffer is then reused, the last
 * one first, because it is probably still in the processor's cache. There are at most as many
 * buffers as nodes. */
status tape_take_gradient(tape *t, struct tape_node *n)
{
    for (size_t i = t->spare_count; i-- > 0;) {
        if (t->b->kind->buffer_same_layout(t->spare[i], n->value)) {
            n->gradient = t->spare[i];
            t->spare_count--;
            memmove(t->spare + i, t->spare + i + 1, (t->spare_count - i) * sizeof *t->spare);
            return OK;
        }
    }
    t->bytes += tape_bytes_of(t, n->d.output);
    return t->b->kind->buffer_like(t->b, n->value, &n->gradient);
}

/* Sorts at the start of each step, so that equal steps use equal buffers: a device recognises the
 * repeated step. Usually already sorted. */
void tape_sort_gradients(tape *t)
{
    for (size_t i = 1; i < t->spare_count; ++i) {
        backend_buffer *moved = t->spare[i];
        size_t at = i;
        for (; at > 0 && (uintptr_t)t->spare[at - 1] > (uintptr_t)moved; --at)
            t->spare[at] = t->spare[at - 1];
        t->spare[at] = moved;
    }
}

void tape_give_gradient_back(tape *t, struct tape_node *n)
{
    if (n->gradient != NULL) {
        REQUIRE(t->spare_count <= t->node_capacity);
        t->spare[t->spare_count++] = n->gradient;
        n->gradient = NULL;
    }
}
