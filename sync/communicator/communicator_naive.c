/*
 * communicator_naive.c — rank 0 gathers all gradients, sums them in rank order and sends the mean
 * to every rank. A baseline for teaching, not for use.
 *
 * Cost: 2 steps. Rank 0 receives (P − 1) × bytes in the first and sends as many in the second, over
 * its one link; the links of other ranks are idle. Time ≈ 2·(P − 1)·(α + n/B) for latency α,
 * bandwidth B and n bytes: P times that of a ring. Rank 0 needs memory for P vectors.
 */
#include "base/memory.h"
#include "sync/communicator/ranks.h"
#include "worker/optimizer/optimizer.h"

struct naive_state {        /* set on rank 0 only */
    float *others;          /* [size − 1][count] */
    const float **in_order; /* [size] */
    MPI_Request *requests;  /* [size − 1] */
};

static void naive_close(communicator *c)
{
    struct naive_state *s = c->state;
    if (s == NULL || c->failed) /* failed: messages may still arrive there */
        return;
    memory_free(s->others);
    memory_free(s->in_order);
    memory_free(s->requests);
    memory_free(s);
    c->state = NULL;
}

static status naive_open(communicator *c, const options *o UNUSED, size_t count)
{
    status result = OK;
    struct naive_state *s = NULL;

    if (count > INT32_MAX) {
        FAIL(ERROR_USAGE,
             "communicator=naive: a gradient of %zu floats does not fit into one MPI message; use "
             "communicator=auto",
             count);
    }
    TRY(memory_new(&s, 1, sizeof *s, "the communicator"));
    c->state = s;
    if (c->rank == 0 && c->size > 1) {
        TRY(memory_new(&s->others, (c->size - 1) * count, sizeof(float), "all gradients"));
        TRY(memory_new(&s->in_order, c->size, sizeof *s->in_order, "the communicator"));
        TRY(memory_new(&s->requests, c->size - 1, sizeof(MPI_Request), "the communicator"));
    }
done:
    if (result != OK)
        naive_close(c);
    return result;
}

static status gather_and_broadcast(communicator *c, float *data, size_t count)
{
    status result = OK;
    const struct naive_state *s = c->state;
    const char *what = "the mean gradient";
    const int others = (int)c->size - 1;

    s->in_order[0] = data;
    for (int i = 0; i < others; i++) {
        float *theirs = s->others + (size_t)i * count;
        s->in_order[i + 1] = theirs;
        TRY(ranks_check(
            MPI_Irecv(theirs, (int)count, MPI_FLOAT, i + 1, 0, c->ranks->world, &s->requests[i]),
            what));
    }
    TRY(ranks_wait(c, s->requests, others, what));
    reduce_mean_ordered(s->in_order, c->size, count, data);
    for (int i = 0; i < others; i++)
        TRY(ranks_check(
            MPI_Isend(data, (int)count, MPI_FLOAT, i + 1, 0, c->ranks->world, &s->requests[i]),
            what));
    TRY(ranks_wait(c, s->requests, others, what));
done:
    return result;
}

static status naive_allreduce_mean(communicator *c, float *data, size_t count)
{
    status result = OK;
    const char *what = "the mean gradient";
    MPI_Comm world = c->ranks->world;
    MPI_Request request;

    TRY(ranks_gate(c, what));
    if (c->rank == 0) {
        TRY(gather_and_broadcast(c, data, count));
        goto done;
    }
    TRY(ranks_check(MPI_Isend(data, (int)count, MPI_FLOAT, 0, 0, world, &request), what));
    TRY(ranks_wait(c, &request, 1, what));
    TRY(ranks_check(MPI_Irecv(data, (int)count, MPI_FLOAT, 0, 0, world, &request), what));
    TRY(ranks_wait(c, &request, 1, what));
done:
    return result;
}

/* As many bytes as a ring sends, but all through rank 0's link. */
const struct communicator_kind communicator_naive = {
    .about = {.name = "naive",
              .description = "rank 0 gathers, sums in rank order and sends to all; for teaching"},
    .in_rank_order = true,
    .open = naive_open,
    .close = naive_close,
    .allreduce_mean = naive_allreduce_mean,
    .sent_bytes = ranks_ring_bytes,
};
