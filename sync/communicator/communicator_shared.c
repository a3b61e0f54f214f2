/*
 * communicator_shared.c — the ranks of one host sum in shared memory.
 *
 * Every rank writes its gradient into its own slot (communicator_buffer; the backward pass writes
 * there directly). After the gate the ranks together sum all P slots, block by block, in rank
 * order, and write the mean into all P slots. After the second gate every rank has the whole mean.
 *
 * Cost per rank: two gates; 1/P of the vector read from and written to each of P slots, once, in
 * cache-sized blocks. No copy into or out of a transport, and no message: 0 bytes. If ranks share
 * each update, 1/P of each of P slots is read and 1/P of one vector is written.
 */
#include "base/memory.h"
#include "sync/communicator/shared_slots.h"

#include <string.h>

struct shared_state {
    struct shared_slots slots;
    MPI_Win common; /* for an update that the ranks share */
};

static void shared_close(communicator *c)
{
    struct shared_state *s = c->state;
    if (s == NULL)
        return;
    ranks_free_window(c, &s->common);
    shared_slots_close(c, &s->slots);
    memory_free(s);
    c->state = NULL;
}

static status shared_open(communicator *c, const options *o UNUSED, size_t count)
{
    status result = OK;
    struct shared_state *s = NULL;

    if (!c->ranks->one_host) {
        FAIL(ERROR_USAGE, "communicator=shared: the ranks are on several hosts, which share no "
                          "memory; use communicator=mpi or hierarchical");
    }
    TRY(memory_new(&s, 1, sizeof *s, "the communicator"));
    c->state = s;
    s->slots.window = s->common = MPI_WIN_NULL;
    TRY(shared_slots_open(&s->slots, c->ranks->node, count));
    c->buffer = s->slots.at[s->slots.index];
done:
    if (result != OK) {
        c->failed = true; /* perhaps on this rank only */
        shared_close(c);
    }
    return result;
}

static status shared_allreduce_mean(communicator *c, float *data, size_t count)
{
    status result = OK;
    struct shared_state *s = c->state;
    /* `data` is a part of the slot, or memory of the caller. */
    const bool in_slot = data >= c->buffer && data < c->buffer + c->count;
    const size_t first = in_slot ? (size_t)(data - c->buffer) : 0;

    if (!in_slot)
        memcpy(c->buffer, data, count * sizeof(float));
    shared_slots_begin(&s->slots);
    TRY(ranks_gate(c, "the mean gradient"));
    shared_slots_mean(&s->slots, first, count);
    TRY(ranks_gate(c, "the mean gradient"));
    if (!in_slot)
        memcpy(data, c->buffer, count * sizeof(float));
done:
    return result;
}

/* ---- for an update that the ranks share ---------------------------------------------------------
 */

static status shared_common(communicator *c, size_t bytes, void **out)
{
    status result = OK;
    struct shared_state *s = c->state;
    const char *what = "shared memory for parameters (is /dev/shm full?)";
    MPI_Aint size;
    int unit;

    REQUIRE(s->common == MPI_WIN_NULL);
    TRY(ranks_gate(c, what));
    watchdog_arm(c->timeout_s, what);
    TRY(ranks_check(MPI_Win_allocate_shared(c->rank == 0 ? (MPI_Aint)bytes + 64 : 0, 1,
                                            MPI_INFO_NULL, c->ranks->node, out, &s->common),
                    what));
    TRY(ranks_check(MPI_Win_shared_query(s->common, 0, &size, &unit, out), what));
    *out = ranks_aligned(*out);
done:
    watchdog_disarm();
    return result;
}

static status shared_mean_of_share(communicator *c, size_t count, float *notes)
{
    status result = OK;
    struct shared_state *s = c->state;
    TRY(ranks_gate(c, "the mean gradient"));
    shared_slots_mean_few(&s->slots, count, COMMUNICATOR_NOTES, notes);
    shared_slots_mean_own(&s->slots, count);
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
    .common = shared_common,
    .mean_of_share = shared_mean_of_share,
};
