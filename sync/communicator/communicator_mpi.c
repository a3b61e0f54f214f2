/*
 * communicator_mpi.c — MPI_Allreduce in place; any number of hosts.
 *
 * Cost. Open MPI chooses the algorithm by the size and the number of ranks: recursive doubling for
 * small vectors (log2 P steps of the whole vector), a ring or halving and doubling for large ones
 * (each rank sends and receives 2·(P − 1)/P of the vector).
 *
 * On one host the mean is one MPI_Allreduce without a further pass over the vector. With two ranks
 * the MPI operation computes the mean (ranks->reduces). With 4, 8, … ranks the update can multiply
 * by 1/P (communicator_allreduce_scaled). Ranks that exchange again and again within a millisecond
 * wait for each other inside the call, not at the gate before it. The vector is not cut into
 * pieces. With pieces of 8 MiB, 102.4 MB take a quarter less time on a quiet host, but eight times
 * as long on a busy one: at each piece ranks wait for each other and yield the processor to other
 * programs.
 *
 * Between hosts the vector is exchanged in buckets of bucket_kib, each with its own time limit:
 * over a slow link the whole vector may take longer than the limit.
 */
#include "base/clock.h"
#include "base/memory.h"
#include "sync/communicator/ranks.h"

static const char WHAT[] = "the mean gradient";

enum { GATE_EVERY = 256, OFTEN_NS = 1000000 };

/* Counts are the same on all ranks, so that all pass the gate at the same exchanges. */
struct mpi_state {
    unsigned exchanges, until_gate; /* per gate; left until the next gate */
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
    c->state = s;
done:
    return result;
}

/* Waits until every rank has arrived, without processor time. The gate costs a third of the
 * shortest exchange. If exchanges follow each other so fast that waits are short, ranks pass the
 * gate at one exchange in GATE_EVERY. At the other exchanges they wait inside MPI, which yields the
 * processor. */
static status arrive(communicator *c)
{
    status result = OK;
    struct mpi_state *s = c->state;
    bool often;
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

static status reduce_on_host(communicator *c, float *data, size_t count)
{
    status result = OK;
    /* While a rank computes, the helper thread of overlap.c must not wait for it in MPI. */
    TRY(c->in_parts ? ranks_gate(c, WHAT) : arrive(c));
    for (size_t from = 0; from < count; from += INT32_MAX)
        TRY(ranks_reduce(c, data + from, count - from < INT32_MAX ? count - from : INT32_MAX));
done:
    return result;
}

/* Waits by ranks_wait, not in a blocking call. So a rank can find the missing rank on another host
 * (missing_ranks.c), and a helper thread can leave the wait when its rank ends. */
static status reduce_in_buckets(communicator *c, float *data, size_t count)
{
    status result = OK;
    MPI_Request request;
    TRY(ranks_gate(c, WHAT));
    for (size_t from = 0; from < count;) {
        size_t length = count - from < c->bucket ? count - from : c->bucket;
        /* A small rest, such as the notes after a gradient, goes with the last bucket. */
        if (count - from - length < c->bucket / 4 && count - from <= INT32_MAX)
            length = count - from;
        TRY(ranks_begin_reduce(c, data + from, length, &request));
        TRY(ranks_wait(c, &request, 1, WHAT));
        from += length;
    }
done:
    return result;
}

/* With two ranks the result is the mean (ranks->reduces). */
static status mpi_allreduce_sum(communicator *c, float *data, size_t count)
{
    const bool in_buckets = c->ranks->gate.page == NULL || (c->in_parts && c->ranks->crowded);
    return in_buckets ? reduce_in_buckets(c, data, count) : reduce_on_host(c, data, count);
}

static status mpi_allreduce_mean(communicator *c, float *data, size_t count)
{
    status result = OK;
    TRY(mpi_allreduce_sum(c, data, count));
    ranks_complete_mean(c, data, count);
done:
    return result;
}

const struct communicator_kind communicator_mpi = {
    .about = {.name = "mpi",
              .description = "MPI_Allreduce; in buckets of bucket_kib between hosts",
              .source = "MPI 3.1 §5.9.6; algorithms as chosen by Open MPI"},
    .sends_codes = true,
    .open = mpi_open,
    .close = mpi_close,
    .allreduce_mean = mpi_allreduce_mean,
    .allreduce_sum = mpi_allreduce_sum,
    .sums_by_mpi = true,
    .sent_bytes = ranks_ring_bytes,
};
