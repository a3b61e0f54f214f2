/* event_queue.c — see event_queue.h. */
#include "ps/virtual/event_queue.h"

#include "base/memory.h"

status event_queue_open(struct event_queue *q, unsigned capacity)
{
    status result = OK;
    *q = (struct event_queue){.capacity = capacity};
    TRY(memory_new(&q->heap, capacity, sizeof *q->heap, "a queue of events"));
    TRY(memory_new(&q->place, capacity, sizeof *q->place, "a queue of events"));
    TRY(memory_new(&q->when, capacity, sizeof *q->when, "a queue of events"));
    for (unsigned i = 0; i < capacity; i++)
        q->place[i] = capacity;
done:
    return result;
}

void event_queue_close(struct event_queue *q)
{
    memory_free(q->heap);
    memory_free(q->place);
    memory_free(q->when);
    *q = (struct event_queue){0};
}

static bool before(const struct event_queue *q, unsigned a, unsigned b)
{
    return q->when[a] != q->when[b] ? q->when[a] < q->when[b] : a < b;
}

static void set(struct event_queue *q, unsigned at, unsigned event)
{
    q->heap[at] = event;
    q->place[event] = at;
}

static void rise(struct event_queue *q, unsigned at, unsigned event)
{
    while (at > 0 && before(q, event, q->heap[(at - 1) / 2])) {
        set(q, at, q->heap[(at - 1) / 2]);
        at = (at - 1) / 2;
    }
    set(q, at, event);
}

static void sink(struct event_queue *q, unsigned at, unsigned event)
{
    while (2 * at + 1 < q->count) {
        unsigned child = 2 * at + 1;
        if (child + 1 < q->count && before(q, q->heap[child + 1], q->heap[child]))
            child++;
        if (!before(q, q->heap[child], event))
            break;
        set(q, at, q->heap[child]);
        at = child;
    }
    set(q, at, event);
}

void event_queue_put(struct event_queue *q, unsigned event, uint64_t when)
{
    REQUIRE(event < q->capacity);
    event_queue_remove(q, event);
    q->when[event] = when;
    q->count++;
    rise(q, q->count - 1, event);
}

void event_queue_remove(struct event_queue *q, unsigned event)
{
    unsigned at = q->place[event];
    if (at == q->capacity)
        return;
    unsigned last = q->heap[--q->count];
    q->place[event] = q->capacity;
    if (last == event)
        return;
    if (at > 0 && before(q, last, q->heap[(at - 1) / 2]))
        rise(q, at, last);
    else
        sink(q, at, last);
}

unsigned event_queue_peek(const struct event_queue *q, unsigned *events, unsigned wanted)
{
    unsigned open[EVENT_QUEUE_PEEK_MAX + 2], opened = 0, found = 0;
    REQUIRE(wanted <= EVENT_QUEUE_PEEK_MAX);
    if (q->count > 0)
        open[opened++] = 0;
    while (found < wanted && opened > 0) {
        unsigned first = 0;
        for (unsigned i = 1; i < opened; i++)
            if (before(q, q->heap[open[i]], q->heap[open[first]]))
                first = i;
        unsigned at = open[first];
        events[found++] = q->heap[at];
        open[first] = open[--opened];
        for (unsigned child = 2 * at + 1; child <= 2 * at + 2 && child < q->count; child++)
            open[opened++] = child;
    }
    return found;
}
