/*
 * communicator_mpi.c — MPI_Allreduce of the sum, in place, bucket by bucket; then × 1/size.
 *
 * Cost. Open MPI chooses the algorithm by bucket size and number of ranks: recursive doubling for
 * small buckets (log2 P steps of the whole bucket), a ring for large ones (2·(P − 1) steps of 1/P
 * of it). So each rank sends and receives about 2·(P − 1)/P × bytes. A bucket stays in the cache
 * between the copies into and out of the transport's buffers: 2–3× faster than one call for 100 MB.
 * It works over any number of hosts.
 */
#include "sync/communicator/ranks.h"
#include "base/vector.h"

static status mpi_open(communicator *c UNUSED, const options *o UNUSED, size_t count UNUSED)
{
    return OK;
}

static void mpi_close(communicator *c UNUSED) {}

/* Each bucket has its own time limit: over a slow link all buckets together may take longer than
 * the limit. On one host, if every rank has a processor, the blocking call is fastest. If ranks
 * exceed processors, a rank that spins in the call would keep the others from arriving. Between
 * hosts the rank waits outside a blocking call, so that it can find the missing rank
 * (missing_ranks.c). */
static status mpi_sum(communicator *c, float *data, size_t count)
{
    status result = OK;
    MPI_Comm world = c->ranks->world;
    if (c->ranks->crowded || !c->ranks->one_host) {
        MPI_Request request;
        TRY(ranks_begin_sum(c, data, count, &request));
        TRY(ranks_wait(c, &request, 1, "the mean gradient"));
    } else {
        watchdog_arm(c->timeout_s, "the mean gradient");
        TRY(ranks_check(MPI_Allreduce(MPI_IN_PLACE, data, (int)count, MPI_FLOAT, MPI_SUM, world),
                        "the mean gradient"));
    }
done:
    watchdog_disarm();
    return result;
}

static status mpi_allreduce_mean(communicator *c, float *data, size_t count)
{
    status result = OK;
    const float scale = 1.0f / (float)c->size;

    TRY(ranks_gate(c, "the mean gradient"));
    for (size_t from = 0; from < count;) {
        size_t length = count - from < c->bucket ? count - from : c->bucket;
        /* A small rest, such as the notes after a gradient, goes with the last bucket. */
        if (count - from - length < c->bucket / 4 && count - from <= INT32_MAX)
            length = count - from;
        TRY(mpi_sum(c, data + from, length));
        vector_multiply(length, scale, data + from, data + from);
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
