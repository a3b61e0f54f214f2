/*
 * overlap.c — exchanges a gradient in parts while the rank still computes it.
 *
 * The vector is cut into parts at multiples of c->bucket. The backward pass finishes the vector
 * from its end, so the last part is exchanged first. The owner queues each part that is final
 * (communicator_advance). A helper thread takes the parts in order and computes the mean of each
 * with the communicator's own allreduce (ranks_mean). So overlap works the same way for every kind,
 * and a part has the waits, limits and errors of any other mean. Between hosts, communicator=mpi
 * has WINDOW parts under way at a time (mean_in_window).
 *
 * From the first queued part until communicator_finish returns, only the helper thread uses the
 * communicator: MPI_THREAD_SERIALIZED is enough. Every rank queues the same parts in the same
 * order.
 *
 * If computing leaves each rank a free processor (c->has_processor), the helper thread spins like
 * any other wait. Otherwise it sleeps between its tests until the owner waits too (ranks->sleeps),
 * so that it does not take the processor from the computation.
 *
 * hidden_ns is the time that the helper thread spent on parts that were complete before the owner
 * called communicator_finish.
 */
#include "base/clock.h"
#include "base/memory.h"
#include "base/thread.h"
#include "sync/communicator/ranks.h"

#include <pthread.h>

/* Parts under way at a time between hosts: the first messages of one part travel while the data of
 * another part fill the link. With more parts, all share the link and arrive late. */
enum { WINDOW = 4 };

struct overlap {
    /* The owner's. */
    float *data; /* NULL: no exchange is under way */
    size_t count, queued_from;
    bool early; /* a part was queued before the whole vector was final */
    bool started;
    pthread_t thread;
    /* The helper thread's: number of parts sent, and their requests. */
    unsigned sent;
    MPI_Request requests[WINDOW];
    /* Under the lock: */
    pthread_mutex_t lock;
    pthread_cond_t changed;
    unsigned queued, complete; /* parts; the notes are one more part */
    size_t notes;              /* floats behind data[count], queued last; 0: not queued */
    bool owner_waits, ends;
    uint64_t hidden_ns;
    status failed; /* the first error; communicator_finish returns it with its message `why` */
    struct error why;
};

status overlap_open(communicator *c)
{
    status result = OK;
    TRY(memory_new(&c->overlap, 1, sizeof *c->overlap, "the exchange"));
    pthread_mutex_init(&c->overlap->lock, NULL);
    pthread_cond_init(&c->overlap->changed, NULL);
done:
    return result;
}

bool communicator_overlaps(const communicator *c)
{
    return c->size > 1 && !c->kind->on_device && !c->kind->exchanges_nothing &&
           ranks_may_take_turns();
}

bool communicator_same_in_parts(const communicator *c)
{
    return !communicator_overlaps(c) || c->ordered || c->in_rank_order || c->size <= 2;
}

bool communicator_overlap_may_gain(const communicator *c)
{
    return communicator_overlaps(c) && communicator_same_in_parts(c) && !c->ranks->crowded &&
           (c->has_processor || !c->ranks->one_host);
}

void communicator_spare_processors(communicator *c, bool spare)
{
    c->has_processor = spare;
}

/* ---- the helper thread ---- */

/* Parts are numbered from the end of the vector; the notes are the last part. */
static float *find_part(const communicator *c, unsigned part, size_t *count)
{
    const struct overlap *e = c->overlap;
    const size_t parts = (e->count + c->bucket - 1) / c->bucket;
    const size_t from = part == parts ? e->count : (parts - 1 - part) * c->bucket;
    *count = part == parts ? e->notes : part == 0 ? e->count - from : c->bucket;
    return e->data + from;
}

/* Sends the parts below `queued` as far as the window allows, then waits for `part`. */
static status mean_in_window(communicator *c, unsigned part, unsigned queued)
{
    status result = OK;
    struct overlap *e = c->overlap;
    size_t count;
    float *data;
    for (; e->sent < queued && e->sent < part + WINDOW; e->sent++) {
        data = find_part(c, e->sent, &count);
        TRY(ranks_begin_reduce(c, data, count, &e->requests[e->sent % WINDOW]));
    }
    TRY(ranks_wait(c, &e->requests[part % WINDOW], 1, "the mean gradient"));
    data = find_part(c, part, &count);
    ranks_complete_mean(c, data, count);
done:
    return result;
}

static status mean_of_part(communicator *c, unsigned part, unsigned queued)
{
    size_t count;
    if (c->kind->sums_by_mpi && !c->ordered && c->ranks->gate.page == NULL)
        return mean_in_window(c, part, queued);
    float *data = find_part(c, part, &count);
    return ranks_mean(c, data, count);
}

/* Called with the lock held; releases it during the exchange. */
static void exchange_next(communicator *c)
{
    struct overlap *e = c->overlap;
    const unsigned part = e->complete, queued = e->queued;
    const uint64_t began = clock_ns();
    pthread_mutex_unlock(&e->lock);
    status result = mean_of_part(c, part, queued);
    pthread_mutex_lock(&e->lock);
    if (result != OK) {
        e->failed = result;
        e->why = error_save();
    } else {
        e->complete++;
    }
    if (!e->owner_waits)
        e->hidden_ns += clock_ns() - began;
    pthread_cond_broadcast(&e->changed);
}

static void *body(void *context)
{
    communicator *c = context;
    struct overlap *e = c->overlap;
    pthread_mutex_lock(&e->lock);
    while (!e->ends)
        if (e->failed == OK && e->complete < e->queued)
            exchange_next(c);
        else
            pthread_cond_wait(&e->changed, &e->lock);
    pthread_mutex_unlock(&e->lock);
    return NULL;
}

/* ---- the owner ---- */

void communicator_begin(communicator *c, float *data, size_t count)
{
    struct overlap *e = c->overlap;
    REQUIRE(e->data == NULL && count + COMMUNICATOR_NOTES <= c->count);
    pthread_mutex_lock(&e->lock);
    if (communicator_overlaps(c) && !e->started) {
        e->failed = thread_start(&e->thread, body, c, "the thread that exchanges gradients");
        e->started = e->failed == OK;
        if (!e->started)
            e->why = error_save();
    }
    e->data = data;
    e->count = e->queued_from = count;
    e->queued = e->sent = e->complete = 0;
    e->notes = 0;
    e->early = e->owner_waits = false;
    e->hidden_ns = 0;
    pthread_mutex_unlock(&e->lock);
    c->in_parts = true;
    atomic_store(&c->ranks->sleeps, !c->has_processor);
}

bool communicator_began_early(const communicator *c)
{
    return c->overlap->data != NULL && c->overlap->early;
}

/* Moves queued_from to the start of the first final part; returns how many parts that adds. */
static unsigned count_final(communicator *c, size_t final_from)
{
    struct overlap *e = c->overlap;
    unsigned parts = 0;
    while (e->queued_from > 0) {
        size_t from = (e->queued_from - 1) / c->bucket * c->bucket;
        if (from < final_from)
            break;
        e->queued_from = from;
        parts++;
    }
    return parts;
}

void communicator_advance(communicator *c, size_t final_from)
{
    struct overlap *e = c->overlap;
    REQUIRE(e->data != NULL);
    const unsigned more = e->started ? count_final(c, final_from) : 0;
    if (more == 0)
        return;
    e->early = e->early || final_from > 0;
    pthread_mutex_lock(&e->lock);
    e->queued += more;
    pthread_cond_broadcast(&e->changed);
    pthread_mutex_unlock(&e->lock);
}

/* Queues the rest and waits until all parts are complete. */
static status await_thread(communicator *c, size_t notes)
{
    struct overlap *e = c->overlap;
    pthread_mutex_lock(&e->lock);
    e->owner_waits = true; /* parts that complete from now on are not hidden */
    e->notes = notes;
    e->queued += count_final(c, 0) + (notes > 0);
    pthread_cond_broadcast(&e->changed);
    while (e->failed == OK && e->complete < e->queued)
        pthread_cond_wait(&e->changed, &e->lock);
    const status result = e->failed;
    if (result != OK)
        error_restore(&e->why);
    pthread_mutex_unlock(&e->lock);
    return result;
}

status communicator_finish(communicator *c, size_t notes, uint64_t *hidden_ns)
{
    status result = OK;
    struct overlap *e = c->overlap;
    REQUIRE(e->data != NULL && notes <= COMMUNICATOR_NOTES);
    atomic_store(&c->ranks->sleeps, false);
    if (!communicator_overlaps(c)) {
        TRY(communicator_allreduce_mean(c, e->data, e->count + notes));
        goto done;
    }
    c->sent_bytes += communicator_mean_bytes(c, e->count + notes);
    TRY(await_thread(c, notes));
done:
    *hidden_ns = e->hidden_ns;
    e->data = NULL;
    c->in_parts = false;
    if (result != OK)
        c->failed = true;
    return result;
}

/* ---- the end ---- */

void overlap_stop(communicator *c)
{
    struct overlap *e = c->overlap;
    if (e == NULL || !e->started)
        return;
    if (e->data != NULL) {
        c->failed = true;
        atomic_store(&c->ranks->leaves, true);
    }
    pthread_mutex_lock(&e->lock);
    e->ends = true;
    pthread_cond_broadcast(&e->changed);
    pthread_mutex_unlock(&e->lock);
    pthread_join(e->thread, NULL);
    e->started = false;
}

void overlap_close(communicator *c)
{
    if (c->overlap == NULL)
        return;
    pthread_cond_destroy(&c->overlap->changed);
    pthread_mutex_destroy(&c->overlap->lock);
    memory_free(c->overlap);
    c->overlap = NULL;
}
