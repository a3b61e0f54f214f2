/*
 * communicator_dummy.c — exchanges nothing: every rank continues with its own gradient. It is for
 * profiling: the time that a run saves against a real communicator is the time of the exchange. It
 * is not training: after the first update every rank has its own parameters, and rank 0's are those
 * of a run on its share of the data.
 *
 * Only the last COMMUNICATOR_NOTES floats of a vector (loss, failure, stop request) are averaged,
 * so that ranks stop and fail together. If a vector is not finite on one rank, its first float
 * becomes NaN on all ranks, as it would with a mean.
 *
 * Cost: one gate, which waits for the slowest rank like every exchange; one pass over the vector;
 * one allreduce of 28 bytes, for which each rank sends 2·(P − 1)/P × 28 bytes.
 */
#include "base/log.h"
#include "sync/communicator/ranks.h"
#include "base/vector.h"

#include <math.h>
#include <string.h>

static status dummy_open(communicator *c, const options *o UNUSED, size_t count UNUSED)
{
    status result = OK;
    if (c->ordered) {
        FAIL(ERROR_USAGE, "communicator=dummy computes no sum, so reduction=ordered has no effect; "
                          "leave reduction out, or use communicator=auto");
    }
    if (c->rank == 0) {
        log_warning(
            "communicator=dummy: NO GRADIENT IS EXCHANGED. This is not training: it measures "
            "how long a run takes without the exchange; its accuracy is meaningless");
    }
done:
    return result;
}

static void dummy_close(communicator *c UNUSED) {}

static size_t notes_of(size_t count)
{
    return count < COMMUNICATOR_NOTES ? count : COMMUNICATOR_NOTES;
}

static status dummy_allreduce_mean(communicator *c, float *data, size_t count)
{
    status result = OK;
    const size_t notes = notes_of(count), kept = count - notes;
    static float sums[COMMUNICATOR_NOTES + 1]; /* static: MPI may use it after a timeout */
    float *bad = &sums[COMMUNICATOR_NOTES];
    MPI_Request request;

    memset(sums, 0, sizeof sums);
    memcpy(sums, data + kept, notes * sizeof *sums);
    *bad = isfinite(vector_sum_of_squares(kept, data)) ? 0.0f : 1.0f;
    TRY(ranks_gate(c, "the mean loss"));
    TRY(ranks_check(MPI_Iallreduce(MPI_IN_PLACE, sums, COMMUNICATOR_NOTES + 1, MPI_FLOAT, MPI_SUM,
                                   c->ranks->world, &request),
                    "the mean loss"));
    TRY(ranks_wait(c, &request, 1, "the mean loss"));
    vector_multiply(notes, 1.0f / (float)c->size, sums, data + kept);
    if (*bad != 0)
        data[0] = NAN;
done:
    return result;
}

static double dummy_sent_bytes(const communicator *c, size_t count UNUSED)
{
    return ranks_ring_bytes(c, COMMUNICATOR_NOTES + 1);
}

const struct communicator_kind communicator_dummy = {
    .about = {.name = "dummy",
              .description = "exchanges nothing: for profiling, the result is not training"},
    .exchanges_nothing = true,
    .open = dummy_open,
    .close = dummy_close,
    .allreduce_mean = dummy_allreduce_mean,
    .sent_bytes = dummy_sent_bytes,
};
