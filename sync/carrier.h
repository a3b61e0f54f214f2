/*
 * carrier.h — a thread that makes the means of a vector's parts, one after the other, by the
 * communicator's own allreduce, while its owner computes.
 *
 * For ranks whose computing leaves them a processor (a GPU computes, or there are more of them than
 * threads). There a call that waits costs nobody anything, and it does less work than one that is
 * begun, tested and moved on; communicators without parts of their own get them so.
 *
 * One thread owns a carrier and calls these functions. All ranks begin the same parts in the same
 * order; whoever of the two threads has time calls MPI for the next one, never both at once. Its
 * waits have the communicator's limits. An error comes out of carrier_finish, and of every later
 * one.
 */
#ifndef GRADLAG_SYNC_CARRIER_H
#define GRADLAG_SYNC_CARRIER_H

#include "sync/communicator.h"

typedef struct carrier carrier;

/* c->parts_most parts may be under way. */
status carrier_open(carrier **out, communicator *c) MUST_CHECK;
/* NULL-safe. What is under way then is given up: within 0.1 s, unless all ranks have come to it. */
void carrier_close(carrier **p);
/* data[0..count) is final: it becomes the mean over ranks. Does not wait. */
void carrier_begin(carrier *r, float *data, size_t count);
/* Until all that were begun are: helps. *hidden_ns ← how long the thread was at those that were
 * means already. */
status carrier_finish(carrier *r, uint64_t *hidden_ns) MUST_CHECK;

#endif
