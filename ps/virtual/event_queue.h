/*
 * event_queue.h — what happens next on a virtual clock: a binary heap of events, each of which is
 * in it once at most and can be taken out again.
 *
 * Events are numbers below `capacity`. The earliest comes first; of those at one time, the lowest
 * number. All operations take logarithmic time and allocate nothing.
 */
#ifndef GRADLAG_PS_VIRTUAL_EVENT_QUEUE_H
#define GRADLAG_PS_VIRTUAL_EVENT_QUEUE_H

#include "base/status.h"

struct event_queue {
    unsigned *heap;  /* events, the earliest first */
    unsigned *place; /* of each event in the heap; `capacity`: not in it */
    uint64_t *when;  /* of each event */
    unsigned count, capacity;
};

status event_queue_open(struct event_queue *q, unsigned capacity) MUST_CHECK;
void event_queue_close(struct event_queue *q);

/* Moves it, where it is in the queue already. */
void event_queue_put(struct event_queue *q, unsigned event, uint64_t when);
/* Does nothing where it is not in the queue. */
void event_queue_remove(struct event_queue *q, unsigned event);
/* The earliest event, taken out. False: there is none. */
bool event_queue_take(struct event_queue *q, unsigned *event, uint64_t *when);
/* The `wanted` earliest events in order, left where they are; how many there were. */
unsigned event_queue_look(const struct event_queue *q, unsigned *events, unsigned wanted);

enum { EVENT_QUEUE_LOOK = 64 }; /* the most that event_queue_look gives */

#endif
