/*
 * exchange.c — a vector goes out in parts while it is being made, and comes back as a mean.
 *
 * Parts are cut at multiples of c->bucket and sent from the vector's end on, as a backward pass
 * makes it. Whoever computes lends the exchange a moment between two operators
 * (communicator_advance), and between hosts, or with a processor to spare, a thread does so besides
 * (sync/mover.h): without such moments nothing moves. Or that thread does it all (sync/carrier.h).
 *
 * Hidden is the time in which parts were under way while their owner computed, as far as they had
 * come back when it was done: a part that has only been begun by then has hidden nothing.
 */
#include "sync/carrier.h"
#include "sync/mover.h"
#include "sync/ranks.h"

struct part_functions {
    status (*begin)(communicator *c, unsigned part, float *data, size_t count);
    status (*advance)(communicator *c, unsigned *complete);
    status (*finish)(communicator *c);
};

struct exchange {
    struct part_functions by; /* begin NULL: all at the end */
    float *data;              /* NULL: none is going on */
    size_t count, sent_from;
    unsigned begun, complete;
    bool early;          /* one was begun before all was final */
    uint64_t counted_ns; /* until when flying_ns is */
    uint64_t flying_ns;  /* hidden, if what is under way comes back in time */
    uint64_t hidden_ns;
    carrier *carrier; /* NULL: none is of use, or not yet */
    mover *mover;     /* its lock is over data and all below; NULL: none is of use, or not yet */
    status failed;    /* before communicator_finish, which tells it, and why */
    struct error why;
};

/* ---- by a thread that has a processor for it ---- */

static bool is_carried(const communicator *c)
{
    const bool own_parts = c->kind->part_begin != NULL || (c->ordered && !c->in_rank_order);
    const bool dearer = c->kind->parts_are_dearer || (c->ordered && !c->in_rank_order);
    if (!c->has_processor || c->kind->allreduce_mean == NULL || c->kind->exchanges_nothing)
        return false;
    return !own_parts || dearer;
}

static status carried_begin(communicator *c, unsigned part UNUSED, float *data, size_t count)
{
    carrier_begin(c->exchange->carrier, data, count);
    return OK;
}

/* The thread knows. */
static status carried_advance(communicator *c UNUSED, unsigned *complete)
{
    *complete = 0;
    return OK;
}

static status carried_finish(communicator *c)
{
    return carrier_finish(c->exchange->carrier, &c->exchange->hidden_ns);
}

static status choose(communicator *c)
{
    struct exchange *e = c->exchange;
    const bool ordered = c->ordered && !c->in_rank_order;
    if (c->kind->on_device || c->size == 1)
        return OK;
    if (is_carried(c)) {
        e->by = (struct part_functions){carried_begin, carried_advance, carried_finish};
        return e->carrier == NULL ? carrier_open(&e->carrier, c) : OK;
    }
    carrier_close(&e->carrier);
    if (ordered) {
        e->by = (struct part_functions){ordered_part_begin, ordered_parts_advance,
                                        ordered_parts_finish};
        return c->ordered_parts == NULL ? ordered_parts_open(c) : OK;
    }
    e->by =
        (struct part_functions){c->kind->part_begin, c->kind->parts_advance, c->kind->parts_finish};
    return OK;
}

status exchange_open(communicator *c)
{
    status result = OK;
    TRY(memory_new(&c->exchange, 1, sizeof *c->exchange, "the exchange"));
    TRY(choose(c));
done:
    return result;
}

status communicator_spare_processors(communicator *c, bool spare)
{
    REQUIRE(c->exchange->data == NULL);
    c->has_processor = spare;
    return choose(c);
}

void exchange_stop(communicator *c)
{
    struct exchange *e = c->exchange;
    if (e == NULL)
        return;
    if (e->data != NULL) {
        c->failed = true;
        atomic_store(&c->ranks->leaves, true);
    }
    mover_close(&e->mover);
    carrier_close(&e->carrier);
}

void exchange_close(communicator *c)
{
    if (c->exchange == NULL)
        return;
    ordered_parts_close(c);
    memory_free(c->exchange);
    c->exchange = NULL;
}

bool communicator_overlaps(const communicator *c)
{
    return c->exchange->by.begin != NULL;
}

bool communicator_same_in_parts(const communicator *c)
{
    return c->exchange->by.begin == NULL || c->ordered || c->in_rank_order || c->size <= 2;
}

/* The first error is kept for communicator_finish. */
static void keep(struct exchange *e, status result)
{
    if (result != OK && e->failed == OK) {
        e->failed = result;
        e->why = error_kept();
    }
}

/* Those whose every element is final. */
static status begin_parts(communicator *c, size_t final_from)
{
    status result = OK;
    struct exchange *e = c->exchange;
    while (e->sent_from > 0) {
        size_t from = (e->sent_from - 1) / c->bucket * c->bucket;
        if (from < final_from)
            break;
        TRY(e->by.begin(c, e->begun, e->data + from, e->sent_from - from));
        e->begun++;
        e->sent_from = from;
    }
done:
    return result;
}

static status move_on(communicator *c)
{
    status result = OK;
    struct exchange *e = c->exchange;
    unsigned complete;
    if (e->complete == e->begun)
        return OK;
    TRY(e->by.advance(c, &complete));
    if (complete > e->complete) {
        e->hidden_ns += e->flying_ns;
        e->flying_ns = 0;
        e->complete = complete;
    }
done:
    return result;
}

/* The rank has computed since it was counted last. */
static void count_flying(struct exchange *e)
{
    const uint64_t now = clock_ns();
    if (e->complete < e->begun)
        e->flying_ns += now - e->counted_ns;
    e->counted_ns = now;
}

static bool under_way(const communicator *c)
{
    const struct exchange *e = c->exchange;
    return e->complete < e->begun && e->failed == OK && !c->failed;
}

static bool move(void *context)
{
    communicator *c = context;
    count_flying(c->exchange);
    keep(c->exchange, move_on(c));
    return under_way(c);
}

void communicator_begin(communicator *c, float *data, size_t count)
{
    struct exchange *e = c->exchange;
    REQUIRE(e->data == NULL && count + COMMUNICATOR_NOTES <= c->count);
    const bool moves = c->waits_for_links || c->has_processor;
    if (moves && e->by.begin != NULL && e->carrier == NULL && e->mover == NULL)
        keep(e, mover_open(&e->mover, c->has_processor, move, c));
    e->data = data;
    e->count = e->sent_from = count;
    e->begun = e->complete = 0;
    e->early = false;
    e->flying_ns = e->hidden_ns = 0;
}

bool communicator_began_early(const communicator *c)
{
    return c->exchange->data != NULL && c->exchange->early;
}

void communicator_advance(communicator *c, size_t final_from)
{
    struct exchange *e = c->exchange;
    REQUIRE(e->data != NULL);
    if (e->by.begin == NULL)
        return;
    mover_lock(e->mover);
    if (e->failed == OK && !c->failed) {
        count_flying(e);
        keep(e, begin_parts(c, final_from));
        e->early = e->early || (e->begun > 0 && final_from > 0);
        if (e->failed == OK)
            keep(e, move_on(c));
        e->counted_ns = clock_ns();
    }
    mover_unlock(e->mover, under_way(c));
}

static status finish_parts(communicator *c, size_t notes)
{
    status result = OK;
    struct exchange *e = c->exchange;
    if (e->failed != OK)
        error_put_back(&e->why);
    TRY(e->failed);
    TRY(begin_parts(c, 0));
    c->sent_bytes += communicator_mean_bytes(c, e->count + notes);
    if (notes > 0)
        TRY(e->by.begin(c, e->begun++, e->data + e->count, notes));
    /* The gate between hosts is a collective call, too, and parts are sent when there is room for
     * them, so not at the same time everywhere: it could come between others on each rank. Where a
     * thread carries them they have gates of their own. */
    if (c->ranks->gate.page != NULL && e->carrier == NULL)
        TRY(ranks_gate(c, "the mean gradient"));
    TRY(e->by.finish(c));
done:
    return result;
}

status communicator_finish(communicator *c, size_t notes, uint64_t *hidden_ns)
{
    status result = OK;
    struct exchange *e = c->exchange;
    REQUIRE(e->data != NULL && notes <= COMMUNICATOR_NOTES);
    mover_lock(e->mover); /* it stays away from now on, until more is begun */
    mover_unlock(e->mover, false);
    if (e->by.begin == NULL)
        TRY(communicator_allreduce_mean(c, e->data, e->count + notes));
    else if (e->count + notes > 0)
        TRY(finish_parts(c, notes));
done:
    *hidden_ns = e->hidden_ns;
    e->data = NULL;
    if (result != OK)
        c->failed = true;
    return result;
}
