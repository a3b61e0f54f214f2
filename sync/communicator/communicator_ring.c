/*
 * communicator_ring.c — reduce-scatter, then allgather, around the ring of ranks, piece by piece,
 * over MPI point-to-point messages.
 *
 * The vector is cut into P chunks. In step s of 2·(P − 1), rank r sends chunk r − s − 1 to rank
 * r + 1 and receives chunk r − s − 2 from rank r − 1 (mod P). In the first P − 1 steps a rank adds
 * the received chunk to its own: chunk k is summed on its way from rank k + 1 to rank k. Rank k
 * then has the whole sum and multiplies it by 1/P. In the other P − 1 steps complete chunks travel
 * on. Each chunk is summed once, so all ranks have the same bits.
 *
 * A chunk travels in pieces. A rank sends a piece on as soon as it has received it, so all links
 * are busy all the time, and the piece is still in the cache.
 *
 * Cost per rank: 2·(P − 1) steps, each of one message's latency; 2·(P − 1)/P × bytes sent and
 * received, which is the minimum of any algorithm. Time ≈ 2·(P − 1)·(α + n/(P·B)) for latency α,
 * bandwidth B and n bytes.
 */
#include "base/memory.h"
#include "sync/communicator/ranks.h"
#include "base/vector.h"

enum {
    PIECE = 32768, /* floats */
    WINDOW = 4,    /* messages under way in each direction */
};

struct ring_state {
    float *received; /* [WINDOW][PIECE]: pieces to add */
};

static void ring_close(communicator *c)
{
    struct ring_state *s = c->state;
    if (s == NULL || c->failed) /* failed: messages may still arrive there */
        return;
    memory_free(s->received);
    memory_free(s);
    c->state = NULL;
}

static status ring_open(communicator *c, const options *o UNUSED, size_t count UNUSED)
{
    status result = OK;
    struct ring_state *s = NULL;

    TRY(memory_new(&s, 1, sizeof *s, "the communicator"));
    c->state = s;
    TRY(memory_new(&s->received, (size_t)WINDOW * PIECE, sizeof(float), "the communicator"));
done:
    if (result != OK)
        ring_close(c);
    return result;
}

/* One exchange. Message number m = step × pieces + piece, the same for sender and receiver.
 * Messages between two ranks arrive in order. */
struct flow {
    communicator *c;
    const struct ring_state *state;
    float *data;
    size_t count;
    size_t pieces;   /* of each chunk; some may be empty */
    size_t messages; /* in each direction */
    size_t send_begun, send_done, receive_begun, receive_done;
    MPI_Request requests[2 * WINDOW]; /* sends, then receives */
};

struct ring_piece {
    float *at;
    int length;
};

/* The piece that message m carries; `back`: 1 for a sent message, 2 for a received one. */
static struct ring_piece piece_of(const struct flow *f, size_t m, unsigned back)
{
    const unsigned size = f->c->size;
    const size_t step = m / f->pieces;
    size_t from, length, at, count;

    ranks_chunk(f->count, (unsigned)((f->c->rank + 2 * size - step - back) % size), size, &from,
                &length);
    ranks_chunk(length, (unsigned)(m % f->pieces), (unsigned)f->pieces, &at, &count);
    return (struct ring_piece){.at = f->data + from + at, .length = (int)count};
}

static bool is_added(const struct flow *f, size_t m)
{
    return m < (f->c->size - 1) * f->pieces;
}

static float *receive_buffer(const struct flow *f, size_t m, const struct ring_piece *p)
{
    return is_added(f, m) ? f->state->received + m % WINDOW * PIECE : p->at;
}

static status begin_receives(struct flow *f)
{
    status result = OK;
    const int from = (int)((f->c->rank + f->c->size - 1) % f->c->size);

    while (f->receive_begun < f->messages && f->receive_begun < f->receive_done + WINDOW) {
        const size_t m = f->receive_begun;
        struct ring_piece p = piece_of(f, m, 2);
        /* It overwrites a piece that this rank sends in the first half: wait for that send. */
        if (!is_added(f, m) && m - (f->c->size - 1) * f->pieces >= f->send_done)
            break;
        TRY(ranks_check(MPI_Irecv(receive_buffer(f, m, &p), p.length, MPI_FLOAT, from, 0,
                                  f->c->ranks->world, &f->requests[WINDOW + m % WINDOW]),
                        "the mean gradient"));
        f->receive_begun++;
    }
done:
    return result;
}

static status begin_sends(struct flow *f)
{
    status result = OK;
    const int to = (int)((f->c->rank + 1) % f->c->size);

    /* A piece received in one step is sent in the next. */
    while (f->send_begun < f->messages && f->send_begun < f->send_done + WINDOW &&
           f->send_begun < f->receive_done + f->pieces) {
        struct ring_piece p = piece_of(f, f->send_begun, 1);
        TRY(ranks_check(MPI_Isend(p.at, p.length, MPI_FLOAT, to, 0, f->c->ranks->world,
                                  &f->requests[f->send_begun % WINDOW]),
                        "the mean gradient"));
        f->send_begun++;
    }
done:
    return result;
}

VECTOR_CLONES
static void add_and_scale(float *restrict data, const float *restrict received, size_t count,
                          float scale)
{
    for (size_t i = 0; i < count; i++)
        data[i] = (data[i] + received[i]) * scale;
}

static void add_message(const struct flow *f, size_t m)
{
    struct ring_piece p = piece_of(f, m, 2);
    const float *received = receive_buffer(f, m, &p);
    const size_t count = (size_t)p.length;

    if (is_added(f, m + f->pieces))
        vector_add(count, received, p.at);
    else if (is_added(f, m))
        add_and_scale(p.at, received, count, 1.0f / (float)f->c->size);
}

/* Waits until the oldest message of either direction is complete. */
static status advance(struct flow *f)
{
    status result = OK;
    const size_t sent = f->send_done % WINDOW, received = WINDOW + f->receive_done % WINDOW;
    MPI_Request oldest[2] = {f->requests[sent], f->requests[received]};
    int which;

    TRY(ranks_wait_any(f->c, oldest, 2, &which, "the mean gradient"));
    f->requests[sent] = oldest[0];
    f->requests[received] = oldest[1];
    if (which == 0)
        f->send_done++;
    else
        add_message(f, f->receive_done++);
done:
    return result;
}

static status ring_allreduce_mean(communicator *c, float *data, size_t count)
{
    status result = OK;
    size_t from, length, longest = 0;

    for (unsigned i = 0; i < c->size; i++) {
        ranks_chunk(count, i, c->size, &from, &length);
        longest = length > longest ? length : longest;
    }
    /* Pieces are cut at cache lines, so a piece may be one line longer than the average. */
    const size_t pieces = longest / (PIECE - 16) + 1;
    struct flow f = {.c = c,
                     .state = c->state,
                     .data = data,
                     .count = count,
                     .pieces = pieces,
                     .messages = 2 * (size_t)(c->size - 1) * pieces};
    for (unsigned i = 0; i < 2 * WINDOW; i++)
        f.requests[i] = MPI_REQUEST_NULL;
    TRY(ranks_gate(c, "the mean gradient"));
    while (f.send_done < f.messages || f.receive_done < f.messages) {
        TRY(begin_receives(&f));
        TRY(begin_sends(&f));
        TRY(advance(&f));
    }
done:
    return result;
}

const struct communicator_kind communicator_ring = {
    .about = {.name = "ring",
              .description = "reduce-scatter and allgather around a ring, in pieces, by messages",
              .source = "Patarasuk & Yuan 2009, Bandwidth optimal all-reduce algorithms"},
    .open = ring_open,
    .close = ring_close,
    .allreduce_mean = ring_allreduce_mean,
    .sent_bytes = ranks_ring_bytes,
};
