/*
 * communicator_mpi.c — MPI_Allreduce of the sum, in place, bucket by bucket; then × 1/size.
 *
 * Cost. Open MPI chooses the algorithm by size of bucket and number of ranks: recursive doubling
 * for small ones (log2 P steps of the whole bucket), ring for large ones (2·(P − 1) steps of 1/P
 * of it), so about 2·(P − 1)/P × bytes are sent and received by each rank. A bucket stays in the
 * cache between the copies into and out of the transport's buffers: that is worth 2–3× over one
 * call for 100 MB. Works over any number of hosts.
 */
#include "sync/ranks.h"
#include "worker/vector.h"

/* Parts under way at a time: all at once they would share the link, and all come back last. */
enum { WINDOW = 4 };

struct mpi_state {
    struct part {
        MPI_Request request;
        float *data;
        size_t count;
    } * parts;
    unsigned begun, sent, complete; /* the first so many */
};

static status mpi_open(communicator *c, const options *o, size_t count)
{
    status result = OK;
    struct mpi_state *s = NULL;

    (void)o;
    (void)count;
    TRY(memory_new(&s, 1, sizeof *s, "the communicator"));
    c->state = s;
    TRY(memory_new(&s->parts, c->parts_most, sizeof *s->parts, "the communicator"));
done:
    return result;
}

static void mpi_close(communicator *c)
{
    struct mpi_state *s = c->state;
    if (s != NULL)
        memory_free(s->parts);
    memory_free(s);
}

/* One bucket, which has a limit of its own: of many, over a slow link, each may be in time. On one
 * host the blocking call is the fastest when every rank has a processor: all are in it. Otherwise
 * its spinning would keep the others from coming. Between hosts the link decides, and who waits
 * outside of a call can find out for whom (sync/roll_call.c). */
static status mpi_sum(communicator *c, float *data, size_t count)
{
    status result = OK;
    MPI_Comm world = c->ranks->world;
    if (c->ranks->crowded || !c->ranks->one_host) {
        MPI_Request request;
        TRY(ranks_check(
            MPI_Iallreduce(MPI_IN_PLACE, data, (int)count, MPI_FLOAT, MPI_SUM, world, &request),
            "the mean gradient"));
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
        /* The notes after a gradient, or any other small rest, travel with the last bucket. */
        if (count - from - length < c->bucket / 4 && count - from <= INT32_MAX)
            length = count - from;
        TRY(mpi_sum(c, data + from, length));
        vector_multiply(length, scale, data + from, data + from);
        from += length;
    }
done:
    return result;
}

/* ---- while its owner computes ------------------------------------------------------------------
 */

static status send_parts(communicator *c)
{
    status result = OK;
    struct mpi_state *s = c->state;
    for (; s->sent < s->begun && s->sent < s->complete + WINDOW; s->sent++) {
        struct part *p = &s->parts[s->sent];
        TRY(ranks_check(MPI_Iallreduce(MPI_IN_PLACE, p->data, (int)p->count, MPI_FLOAT, MPI_SUM,
                                       c->ranks->world, &p->request),
                        "the mean gradient"));
    }
done:
    return result;
}

static status mpi_part_begin(communicator *c, unsigned part, float *data, size_t count)
{
    struct mpi_state *s = c->state;
    REQUIRE(part < c->parts_most);
    if (part == 0)
        s->begun = s->sent = s->complete = 0;
    s->parts[part] = (struct part){.data = data, .count = count};
    s->begun++;
    return send_parts(c);
}

static status part_arrived(communicator *c)
{
    struct mpi_state *s = c->state;
    const struct part *p = &s->parts[s->complete++];
    vector_multiply(p->count, 1.0f / (float)c->size, p->data, p->data);
    return send_parts(c);
}

/* Testing one moves all of them. */
static status mpi_parts_advance(communicator *c, unsigned *complete)
{
    status result = OK;
    struct mpi_state *s = c->state;
    int arrived = 1;
    while (s->complete < s->begun && arrived) {
        TRY(ranks_check(MPI_Test(&s->parts[s->complete].request, &arrived, MPI_STATUS_IGNORE),
                        "the mean gradient"));
        if (arrived)
            TRY(part_arrived(c));
    }
    *complete = s->complete;
done:
    return result;
}

static status mpi_parts_finish(communicator *c)
{
    status result = OK;
    struct mpi_state *s = c->state;
    while (s->complete < s->begun) {
        TRY(ranks_wait(c, &s->parts[s->complete].request, 1, "the mean gradient"));
        TRY(part_arrived(c));
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
    .sent_bytes = ranks_ring_bytes,
    .part_begin = mpi_part_begin,
    .parts_advance = mpi_parts_advance,
    .parts_finish = mpi_parts_finish,
    .parts_are_dearer = true,
};
