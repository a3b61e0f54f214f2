/* cuda_stand_in_queue.c — handles of the stand-in, lanes of work and their order. */
#include "tests/worker/cuda/cuda_stand_in_queue.h"

#include <stdlib.h>
#include <time.h>

struct stand_in_queues stand_in_queues;

/* ---- handles ------------------------------------------------------------------------------------
 */

bool stand_in_is_known(const struct handle *h, const void *handle)
{
    while (h != NULL && (const void *)h != handle)
        h = h->next;
    return h != NULL;
}

void *stand_in_make(struct handle **first, size_t bytes)
{
    struct handle *h = stand_in_new(bytes);
    h->next = *first;
    *first = h;
    return h;
}

void stand_in_unmake(struct handle **link, void *handle)
{
    while ((void *)*link != handle)
        link = &(*link)->next;
    *link = (*link)->next;
    free(handle);
}

static cudaStream_t first_stream(void)
{
    return (cudaStream_t)stand_in_queues.streams;
}

static cudaStream_t next_stream(cudaStream_t s)
{
    return (cudaStream_t)s->handle.next;
}

static size_t count_of(const struct handle *h)
{
    size_t count = 0;
    for (; h != NULL; h = h->next)
        count++;
    return count;
}

/* ---- lanes --------------------------------------------------------------------------------------
 */

struct lane *stand_in_lane(cudaStream_t s)
{
    return s->captured != NULL ? s->captured : &s->queue;
}

void stand_in_give(struct lane *l, const struct work *work)
{
    struct work *w = stand_in_new(sizeof *w);
    *w = *work;
    if (l->at == NULL)
        l->at = w;
    *(l->first == NULL ? &l->first : l->end) = w;
    l->end = &w->next;
    l->given++;
}

void stand_in_drop_work(struct lane *l)
{
    for (struct work *w = l->first, *next; w != NULL; w = next) {
        next = w->next;
        free(w->data);
        free(w);
    }
    l->first = l->at = NULL;
}

void stand_in_free_lanes(struct lane *l)
{
    for (struct lane *next; l != NULL; l = next) {
        next = l->next;
        stand_in_drop_work(l);
        free(l);
    }
}

static double now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return 1e3 * (double)t.tv_sec + 1e-6 * (double)t.tv_nsec;
}

bool stand_in_advance(struct lane *l)
{
    struct work *w = l->at;
    if (w == NULL || (w->until != NULL && w->until->done < w->count))
        return false;
    l->at = w->next;
    if (w->passes != NULL)
        w->passes->passed_ms = now_ms();
    if (w->run != NULL && stand_in_fault == cudaSuccess)
        w->run(w->data);
    l->done++;
    if (!l->keeps) {
        l->first = w->next;
        free(w->data);
        free(w);
    }
    return true;
}

void stand_in_run_until(struct lane *l, size_t count)
{
    while (l->done < count)
        if (!stand_in_advance(l))
            stand_in_run_until((struct lane *)l->at->until, l->at->count);
}

void stand_in_wait_for(struct lane *l, size_t count)
{
    /* The order does not simply alternate: a caller that always waits twice would always get the
     * same order. */
    const bool others_first = ((uint32_t)stand_in_queues.waits++ * 2654435761u >> 16 & 1) != 0;
    for (cudaStream_t s = others_first ? first_stream() : NULL; s != NULL; s = next_stream(s)) {
        while (&s->queue != l && stand_in_advance(&s->queue)) {
        }
    }
    stand_in_run_until(l, count);
}

cudaError_t stand_in_queue(cudaStream_t s, void (*run)(void *data), void *data)
{
    HOLD_TO(own_stream, s != NULL);
    HOLD_TO(known, stand_in_is_known(stand_in_queues.streams, s));
    stand_in_give(stand_in_lane(s), &(struct work){.run = run, .data = data});
    return cudaSuccess;
}

bool stand_in_capturing(cudaStream_t s)
{
    HOLD_TO(own_stream, s != NULL);
    HOLD_TO(known, stand_in_is_known(stand_in_queues.streams, s));
    return s->captured != NULL;
}

bool stand_in_any_capture(void)
{
    return stand_in_queues.origin != NULL;
}

bool stand_in_idle(unsigned device)
{
    bool idle = true;
    for (cudaStream_t s = first_stream(); s != NULL; s = next_stream(s))
        idle = idle && (s->device != device || s->queue.at == NULL);
    return idle;
}

unsigned stand_in_device_of(cudaStream_t s)
{
    HOLD_TO(known, stand_in_is_known(stand_in_queues.streams, s));
    return s->device;
}

void stand_in_finish(cudaStream_t s)
{
    stand_in_wait_for(&s->queue, s->queue.given);
}

void stand_in_finish_all(void)
{
    for (cudaStream_t s = first_stream(); s != NULL; s = next_stream(s))
        stand_in_finish(s);
}

/* ---- as new -------------------------------------------------------------------------------------
 */

size_t stand_in_streams_left(void)
{
    return count_of(stand_in_queues.streams) + count_of(stand_in_queues.events) +
           count_of(stand_in_queues.graphs);
}

void stand_in_streams_reset(void)
{
    stand_in_free_lanes(stand_in_queues.captured);
    while (stand_in_queues.streams != NULL) {
        stand_in_drop_work(&first_stream()->queue);
        stand_in_unmake(&stand_in_queues.streams, stand_in_queues.streams);
    }
    while (stand_in_queues.events != NULL)
        stand_in_unmake(&stand_in_queues.events, stand_in_queues.events);
    while (stand_in_queues.graphs != NULL) {
        stand_in_free_lanes(((struct CUgraph_st *)stand_in_queues.graphs)->lanes);
        stand_in_unmake(&stand_in_queues.graphs, stand_in_queues.graphs);
    }
    stand_in_queues.captured = NULL;
    stand_in_queues.origin = NULL;
    stand_in_queues.waits = stand_in_queues.launches = 0;
}
