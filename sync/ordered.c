/* ordered.c — the mean in rank order over any transport. */
#include "sync/ranks.h"
#include "worker/optimizer.h"

enum { MOST_RANKS = 4096 };

/* Pieces stay in the caches between the transport's copies and the sum. */
size_t ranks_ordered_piece(unsigned size)
{
    const size_t least = 1 << 18; /* floats */
    return (size_t)size * 4096 > least ? (size_t)size * 4096 : least;
}

struct layout { /* of one piece: where each rank's chunk of it lies */
    int lengths[MOST_RANKS], offsets[MOST_RANKS];
    int own_lengths[MOST_RANKS], own_offsets[MOST_RANKS];
};

static void lay_out(struct layout *l, const communicator *c, size_t count)
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

/* Every rank gets its chunk from all … */
static status scatter(communicator *c, const struct layout *l, float *data, MPI_Request *request)
{
    return ranks_check(MPI_Ialltoallv(data, l->lengths, l->offsets, MPI_FLOAT, c->received,
                                      l->own_lengths, l->own_offsets, MPI_FLOAT, c->ranks->world,
                                      request),
                       WHAT);
}

/* … adds it up, and hands it to all. */
static status reduce_and_gather(communicator *c, const struct layout *l, float *data,
                                MPI_Request *request)
{
    const float *gradients[MOST_RANKS];
    const int own = l->own_lengths[0];
    for (unsigned i = 0; i < c->size; i++)
        gradients[i] = c->received + l->own_offsets[i];
    reduce_mean_ordered(gradients, c->size, (size_t)own, c->received);
    return ranks_check(MPI_Iallgatherv(c->received, own, MPI_FLOAT, data, l->lengths, l->offsets,
                                       MPI_FLOAT, c->ranks->world, request),
                       WHAT);
}

static status mean_of_piece(communicator *c, const struct layout *l, float *data)
{
    status result = OK;
    MPI_Request request;
    TRY(scatter(c, l, data, &request));
    TRY(ranks_wait(c, &request, 1, WHAT));
    TRY(reduce_and_gather(c, l, data, &request));
    TRY(ranks_wait(c, &request, 1, WHAT));
done:
    return result;
}

status ranks_mean_ordered(communicator *c, float *data, size_t count)
{
    status result = OK;
    const size_t piece = ranks_ordered_piece(c->size);
    struct layout layout;

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

/* ---- part by part, while its owner computes ----------------------------------------------------
 */

struct ordered_parts {
    struct part {
        float *data;
        size_t count;
    } * parts;
    unsigned begun, complete;
    /* Of part number `complete`, if it was begun: */
    size_t at, length; /* the piece of it that travels */
    bool gathers;      /* on its way back already */
    MPI_Request request;
    struct layout layout;
};

status ordered_parts_open(communicator *c)
{
    status result = OK;
    struct ordered_parts *s = NULL;
    REQUIRE(c->size <= MOST_RANKS);
    TRY(memory_new(&s, 1, sizeof *s, "the communicator"));
    c->ordered_parts = s;
    TRY(memory_new(&s->parts, c->parts_most, sizeof *s->parts, "the communicator"));
done:
    return result;
}

void ordered_parts_close(communicator *c)
{
    if (c->ordered_parts != NULL)
        memory_free(c->ordered_parts->parts);
    memory_free(c->ordered_parts);
    c->ordered_parts = NULL;
}

static status send_piece(communicator *c)
{
    struct ordered_parts *s = c->ordered_parts;
    const struct part *p = &s->parts[s->complete];
    const size_t piece = ranks_ordered_piece(c->size), left = p->count - s->at;
    s->length = left < piece ? left : piece;
    s->gathers = false;
    lay_out(&s->layout, c, s->length);
    return scatter(c, &s->layout, p->data + s->at, &s->request);
}

/* The request has completed: what comes next. */
static status next_stage(communicator *c)
{
    struct ordered_parts *s = c->ordered_parts;
    const struct part *p = &s->parts[s->complete];
    if (!s->gathers) {
        s->gathers = true;
        return reduce_and_gather(c, &s->layout, p->data + s->at, &s->request);
    }
    s->at += s->length;
    if (s->at == p->count) {
        s->at = 0;
        s->complete++;
    }
    return s->complete < s->begun ? send_piece(c) : OK;
}

status ordered_part_begin(communicator *c, unsigned part, float *data, size_t count)
{
    struct ordered_parts *s = c->ordered_parts;
    REQUIRE(part < c->parts_most && count > 0);
    if (part == 0)
        s->begun = s->complete = 0;
    s->parts[part] = (struct part){data, count};
    s->begun++;
    return s->complete == part ? send_piece(c) : OK;
}

status ordered_parts_advance(communicator *c, unsigned *complete)
{
    status result = OK;
    struct ordered_parts *s = c->ordered_parts;
    int arrived = 1;
    while (s->complete < s->begun && arrived) {
        TRY(ranks_check(MPI_Test(&s->request, &arrived, MPI_STATUS_IGNORE), WHAT));
        if (arrived)
            TRY(next_stage(c));
    }
    *complete = s->complete;
done:
    return result;
}

status ordered_parts_finish(communicator *c)
{
    status result = OK;
    struct ordered_parts *s = c->ordered_parts;
    while (s->complete < s->begun) {
        TRY(ranks_wait(c, &s->request, 1, WHAT));
        TRY(next_stage(c));
    }
done:
    return result;
}
