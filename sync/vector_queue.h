/*
 * vector_queue.h — a first-in, first-out queue of flat float vectors of one size, for key delay:
 * mean gradients that wait for their update (replica.h), and updates that error feedback compares
 * with later ones (delay_correction.h).
 *
 * One thread. After vector_queue_open no call allocates.
 */
#ifndef GRADLAG_SYNC_VECTOR_QUEUE_H
#define GRADLAG_SYNC_VECTOR_QUEUE_H

#include "base/status.h"

enum { DELAY_MOST = 64 }; /* the largest value of key delay */

struct vector_queue {
    unsigned capacity, count;
    size_t elements; /* of each vector */
    float *memory;   /* [capacity][elements] */
    /* The vectors, oldest first; those from `count` on are free. */
    float *at[DELAY_MOST];
};

/* `capacity` ≤ DELAY_MOST; 0: an empty queue without memory. `what` names it in an error. */
status vector_queue_open(struct vector_queue *q, unsigned capacity, size_t elements,
                         const char *what) MUST_CHECK;
void vector_queue_close(struct vector_queue *q);
/* Appends a copy of `from`. Contract: the queue is not full. */
void vector_queue_push(struct vector_queue *q, const float *from);
/* Makes the oldest vector the youngest. */
void vector_queue_rotate(struct vector_queue *q);
/* Drops the oldest vector. Contract: there is one. */
void vector_queue_pop(struct vector_queue *q);

#endif
