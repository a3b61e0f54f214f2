/*
 * communicator_gather.c — every rank gets every gradient and sums them in rank order.
 *
 * Cost per rank: one step; (P − 1) × bytes received; P × bytes of memory. For few ranks and small
 * vectors only.
 */
#include "base/memory.h"
#include "sync/communicator/ranks.h"
#include "worker/optimizer/optimizer.h"

struct gather_state {
    float *all;          /* [size][count] */
    const float **parts; /* [size]: the gradient of each rank */
};

static void gather_close(communicator *c)
{
    struct gather_state *s = c->state;
    if (s == NULL || c->failed) /* a pending call of MPI may still write to s->all */
        return;
    memory_free(s->all);
    memory_free(s->parts);
    memory_free(s);
    c->state = NULL;
}

static status gather_open(communicator *c, const options *o UNUSED, size_t count)
{
    status result = OK;
    struct gather_state *s = NULL;

    TRY(memory_new(&s, 1, sizeof *s, "the communicator"));
    c->state = s;
    TRY(memory_new(&s->parts, c->size, sizeof *s->parts, "the communicator"));
    TRY(memory_new(&s->all, c->size * count, sizeof(float), "all gradients"));
done:
    if (result != OK)
        gather_close(c);
    return result;
}

static status gather_allreduce_mean(communicator *c, float *data, size_t count)
{
    status result = OK;
    struct gather_state *s = c->state;
    const char *what = "the mean gradient";
    MPI_Request request;

    TRY(ranks_gate(c, what));
    TRY(ranks_check(MPI_Iallgather(data, (int)count, MPI_FLOAT, s->all, (int)count, MPI_FLOAT,
                                   c->ranks->world, &request),
                    what));
    TRY(ranks_wait(c, &request, 1, what));
    for (unsigned i = 0; i < c->size; i++)
        s->parts[i] = s->all + i * count;
    reduce_mean_ordered(s->parts, c->size, count, data);
done:
    return result;
}

/* Every rank sends its vector to all others. */
static double gather_sent_bytes(const communicator *c, size_t count)
{
    return (double)c->size * (c->size - 1) * (double)count * sizeof(float);
}

const struct communicator_kind communicator_gather = {
    .about = {.name = "gather", .description = "every rank gets every gradient and sums them"},
    .in_rank_order = true,
    .open = gather_open,
    .close = gather_close,
    .allreduce_mean = gather_allreduce_mean,
    .sent_bytes = gather_sent_bytes,
};
