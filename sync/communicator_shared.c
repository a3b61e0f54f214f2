/*
 * communicator_shared.c — the ranks of one host add up in shared memory.
 *
 * Every rank writes its gradient into its own slot (communicator_buffer: the backward pass does it
 * in place). Past the gate the ranks add up all P slots between them, block by block, in rank
 * order, and write the mean into all P slots; past the second gate everybody has the whole of it.
 *
 * Cost per rank: two gates; P × 1/P of the vector read and written, once, in cache-sized blocks:
 * no copy into or out of a transport, and no message: 0 bytes on the wire.
 */
#include "sync/slots.h"

#include <string.h>

static void shared_close(communicator *c)
{
    struct slots *s = c->state;
    if (s == NULL)
        return;
    slots_close(c, s);
    memory_free(s);
    c->state = NULL;
}

static status shared_open(communicator *c, const options *o UNUSED, size_t count)
{
    status result = OK;
    struct slots *s = NULL;

    if (!c->ranks->one_host) {
        FAIL(ERROR_USAGE, "communicator=shared: the ranks are on several hosts, which share no "
                          "memory. Use communicator=mpi or hierarchical");
    }
    TRY(memory_new(&s, 1, sizeof *s, "the communicator"));
    c->state = s;
    TRY(slots_open(s, c->ranks->node, count));
    c->buffer = s->at[s->index];
done:
    if (result != OK) {
        c->failed = true; /* of this rank perhaps, and not of others */
        shared_close(c);
    }
    return result;
}

static status shared_allreduce_mean(communicator *c, float *data, size_t count)
{
    status result = OK;

    if (data != c->buffer)
        memcpy(c->buffer, data, count * sizeof(float));
    slots_begin(c->state);
    TRY(ranks_gate(c, "the mean gradient"));
    slots_mean(c->state, count);
    TRY(ranks_gate(c, "the mean gradient"));
    if (data != c->buffer)
        memcpy(data, c->buffer, count * sizeof(float));
done:
    return result;
}

const struct communicator_kind communicator_shared = {
    .about = {.name = "shared",
              .description = "sums in memory shared by the ranks of one host, in rank order",
              .source = "MPI 3.1 §11.2.3 (shared-memory windows)"},
    .in_rank_order = true,
    .open = shared_open,
    .close = shared_close,
    .allreduce_mean = shared_allreduce_mean,
};
