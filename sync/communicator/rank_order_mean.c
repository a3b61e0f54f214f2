/* rank_order_mean.c — reduction=ordered: the mean in rank order over any transport. */
#include "base/memory.h"
#include "sync/communicator/ranks.h"
#include "worker/optimizer/optimizer.h"

enum { MOST_RANKS = 4096 };

/* Small enough that a piece stays in the caches between the transport's copies and the sum. */
size_t ranks_ordered_piece(unsigned size)
{
    const size_t least = 1 << 18; /* floats */
    return (size_t)size * 4096 > least ? (size_t)size * 4096 : least;
}

struct rank_order_mean_layout { /* where each rank's chunk of one piece lies */
    int lengths[MOST_RANKS], offsets[MOST_RANKS];
    int own_lengths[MOST_RANKS], own_offsets[MOST_RANKS];
};

static void lay_out(struct rank_order_mean_layout *l, const communicator *c, size_t count)
{
    size_t from, length, own_from, own;
    ranks_chunk(count, c->rank, c->size, &own_from, &own);
    for (unsigned i = 0; i < c->size; i++) {
        ranks_chunk(count, i, c->size, &from, &length);
        l->offsets[i] = (int)from;
        l->lengths[i] = (int)length;
        l->own_offsets[i] = (int)(i * own);
        l->own_lengths[i] = (int)own;
    }
}

static const char WHAT[] = "the mean gradient in rank order";

/* Each rank receives its chunk of the piece from all ranks, sums it in rank order and sends the
 * result to all. */
static status mean_of_piece(communicator *c, const struct rank_order_mean_layout *l, float *data)
{
    status result = OK;
    const int own = l->own_lengths[0];
    const float *gradients[MOST_RANKS];
    MPI_Request request;
    TRY(ranks_check(MPI_Ialltoallv(data, l->lengths, l->offsets, MPI_FLOAT, c->received,
                                   l->own_lengths, l->own_offsets, MPI_FLOAT, c->ranks->world,
                                   &request),
                    WHAT));
    TRY(ranks_wait(c, &request, 1, WHAT));
    for (unsigned i = 0; i < c->size; i++)
        gradients[i] = c->received + l->own_offsets[i];
    reduce_mean_ordered(gradients, c->size, (size_t)own, c->received);
    TRY(ranks_check(MPI_Iallgatherv(c->received, own, MPI_FLOAT, data, l->lengths, l->offsets,
                                    MPI_FLOAT, c->ranks->world, &request),
                    WHAT));
    TRY(ranks_wait(c, &request, 1, WHAT));
done:
    return result;
}

status ranks_mean_ordered(communicator *c, float *data, size_t count)
{
    status result = OK;
    const size_t piece = ranks_ordered_piece(c->size);
    struct rank_order_mean_layout layout;

    REQUIRE(c->size <= MOST_RANKS);
    TRY(ranks_gate(c, "the mean gradient"));
    for (size_t from = 0; from < count; from += piece) {
        size_t length = count - from < piece ? count - from : piece;
        if (from == 0 || length != piece)
            lay_out(&layout, c, length);
        TRY(mean_of_piece(c, &layout, data + from));
    }
done:
    return result;
}
