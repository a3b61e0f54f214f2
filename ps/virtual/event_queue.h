/*
 * event_queue.h — the events of a virtual clock in order of time, as a binary heap. Each event is
 * in the queue at most once and can be removed.
 *
 * Events are numbers below `capacity`. The earliest event is first; if several have the same time,
 * the lowest number is first. Put and remove need logarithmic time. Only
 * event_queue_open() allocates.
 */
#ifndef GRADLAG_PS_VIRTUAL_EVENT_QUEUE_H
#define GRADLAG_PS_VIRTUAL_EVENT_QUEUE_H

#include "base/status.h"

struct event_queue {
    unsigned *heap;  /* events, the earliest first */
    unsigned *place; /* [capacity]: index of each event in the heap; `capacity`: not in it */
    uint64_t *when;  /* [capacity]: time of each event */
    unsigned count, capacity;
};

status event_queue_open(struct event_queue *q, unsigned capacity) MUST_CHECK;
void event_queue_close(struct event_queue *q);

/* Adds an event, or changes its time if it is in the queue. */
void event_queue_put(struct event_queue *q, unsigned event, uint64_t when);
/* Removes an event; does nothing if it is not in the queue. */
void event_queue_remove(struct event_queue *q, unsigned event);
/* Writes the `wanted` earliest events in order, without removing them; returns how many it wrote.
 * Contract: `wanted` ≤ EVENT_QUEUE_PEEK_MAX. */
unsigned event_queue_peek(const struct event_queue *q, unsigned *events, unsigned wanted);

enum { EVENT_QUEUE_PEEK_MAX = 64 };

#endif
