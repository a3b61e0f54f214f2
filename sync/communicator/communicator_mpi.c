/*
 * communicator_mpi.c — MPI_Allreduce in place, piece by piece.
 *
 * Cost. Open MPI chooses the algorithm by the size of a piece and the number of ranks: recursive
 * doubling for small ones (log2 P steps of the whole piece), a ring or halving and doubling for
 * large ones (2·(P − 1)/P of the piece sent and received by each rank). It works over any number of
 * hosts.
 *
 * It is meant to be as fast as the call itself. So the mean costs no pass over the vector with two
 * ranks (ranks->reduces), and ranks that exchange again and again in less than a millisecond wait
 * for each other inside the call, not at the gate before it.
 */
#include "base/clock.h"
#include "base/memory.h"
#include "sync/communicator/ranks.h"

enum { GATE_EVERY = 64, OFTEN_NS = 1000000 };
static const char WHAT[] = "the mean gradient";

struct mpi_state {
    size_t piece;       /* floats of one call */
    unsigned exchanges; /* since the gate, and until the next: all ranks pass it at the same one */
    unsigned until_gate;
    uint64_t at_gate_ns;
};

static void mpi_close(communicator *c)
{
    memory_free(c->state);
    c->state = NULL;
}

static status mpi_open(communicator *c, const options *o UNUSED, size_t count UNUSED)
{
    status result = OK;
    struct mpi_state *s = NULL;
    TRY(memory_new(&s, 1, sizeof *s, "the communicator"));
    s->piece = c->bucket;
    c->state = s;
done:
    return result;
}

/* Waits until every rank has arrived, without processor time. The gate costs a third of the
 * shortest exchange. While exchanges follow each other so fast that waits are short, only one in
 * GATE_EVERY passes it. */
static status arrive(communicator *c, struct mpi_state *s)
{
    status result = OK;
    bool often;
    if (c->in_parts || c->ranks->crowded || c->ranks->gate.page == NULL)
        return ranks_gate(c, WHAT);
    if (s->until_gate > 0) {
        s->until_gate--;
        return OK;
    }
    const bool short_steps = clock_ns() - s->at_gate_ns < (uint64_t)s->exchanges * OFTEN_NS;
    TRY(gate_vote(c, &c->ranks->gate, short_steps, &often, WHAT));
    s->exchanges = often ? GATE_EVERY : 1;
    s->until_gate = s->exchanges - 1;
    s->at_gate_ns = clock_ns();
done:
    return result;
}

/* Each piece has its own time limit: over a slow link all pieces together may take longer than the
 * limit. Between hosts the rank waits outside a blocking call, so that it can find the missing rank
 * (missing_ranks.c). */
static status mean_of_piece(communicator *c, float *data, size_t count)
{
    status result = OK;
    MPI_Request request;
    if (c->ranks->one_host)
        return ranks_blocking_mean(c, data, count);
    TRY(ranks_begin_mean(c, data, count, &request));
    TRY(ranks_wait(c, &request, 1, WHAT));
    ranks_complete_mean(c, data, count);
done:
    return result;
}

static status mpi_allreduce_mean(communicator *c, float *data, size_t count)
{
    status result = OK;
    struct mpi_state *s = c->state;
    TRY(arrive(c, s));
    for (size_t from = 0; from < count;) {
        size_t length = count - from < s->piece ? count - from : s->piece;
        /* A small rest, such as the notes after a gradient, goes with the last piece. */
        if (count - from - length < s->piece / 4 && count - from <= INT32_MAX)
            length = count - from;
        TRY(mean_of_piece(c, data + from, length));
        from += length;
    }
done:
    return result;
}

const struct communicator_kind communicator_mpi = {
    .about = {.name = "mpi",
              .description = "MPI_Allreduce in buckets of bucket_kib; any number of hosts",
              .source = "MPI 3.1 §5.9.6; algorithms as chosen by Open MPI"},
    .sends_codes = true,
    .open = mpi_open,
    .close = mpi_close,
    .allreduce_mean = mpi_allreduce_mean,
    .sums_by_mpi = true,
    .sent_bytes = ranks_ring_bytes,
};
