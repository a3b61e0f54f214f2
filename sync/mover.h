/*
 * mover.h — a thread that lends an exchange its moments while the rank computes.
 *
 * MPI moves data while somebody calls it, and a convolution's gradient is one long operator: what
 * would have to be answered meanwhile waits until it ends. So between hosts, where there is a
 * network to wait for, a thread looks every MOVER_PERIOD_NS, and sleeps in between. Where a rank's
 * computing leaves it a processor and parts are cheap (communicator=shared; others are carried
 * then, sync/carrier.h), it looks without a pause for MOVER_KEEN_NS after its owner's last moment.
 * Among the ranks of one host that use every processor nothing is waited for but these, which it
 * would only take from them.
 *
 * One thread owns a mover and calls these functions; `move` runs on the mover's own thread, with
 * the lock, never at the same time as what the owner does between mover_lock and mover_unlock.
 */
#ifndef GRADLAG_SYNC_MOVER_H
#define GRADLAG_SYNC_MOVER_H

#include "worker/base.h"

typedef struct mover mover;

enum { MOVER_PERIOD_NS = 200000, MOVER_KEEN_NS = 5000000 };

/* Moves what is under way; false: nothing is, until the owner says so again. */
typedef bool mover_function(void *context);

/* `keen`: it has a processor of its own. */
status mover_open(mover **out, bool keen, mover_function *move, void *context) MUST_CHECK;
void mover_close(mover **p); /* NULL-safe */
void mover_lock(mover *m);   /* NULL-safe, as is the next: where nobody moves nothing is locked */
void mover_unlock(mover *m, bool under_way);

#endif
