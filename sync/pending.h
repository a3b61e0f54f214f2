/*
 * pending.h — gradients between their computation and their update, in the order of computation.
 * The vectors themselves are in the replica.
 */
#ifndef GRADLAG_SYNC_PENDING_H
#define GRADLAG_SYNC_PENDING_H

#include "sync/communicator/communicator.h"
#include "sync/vector_queue.h"
#include "worker/worker.h"

#include <string.h>

/* Means over ranks. They are sent in the message of the gradient, after its last value. */
enum trainer_note { NOTE_LOSS, NOTE_FAILED, NOTE_STOP, NOTE_SECONDS };

/* One rank's mean gradient over some batches, until its update is made. */
struct pending {
    unsigned batches;
    bool exchanged;   /* the replica's gradient and the notes are means over ranks */
    status own;       /* of this rank's computation */
    uint64_t version; /* updates applied when it was computed */
    float notes[COMMUNICATOR_NOTES];
    struct step_stats stats;
    uint64_t exchange_ns, hidden_ns;
};

struct pending_queue {
    /* Oldest first. Only the youngest may be without an exchange. Between two steps there are at
     * most `delay` gradients. */
    struct pending at[DELAY_MOST + 1];
    unsigned count;
    uint64_t batches; /* batches of each rank in all these gradients */
};

static inline void pending_add(struct pending_queue *q, const struct pending *m)
{
    q->at[q->count++] = *m;
    q->batches += m->batches;
}

/* Moves the oldest to *out. */
static inline void pending_take(struct pending_queue *q, struct pending *out)
{
    *out = q->at[0];
    memmove(q->at, q->at + 1, --q->count * sizeof *q->at);
    q->batches -= out->batches;
}

/* The gradient that is not exchanged yet, or NULL. */
static inline struct pending *pending_not_exchanged(struct pending_queue *q)
{
    return q->count > 0 && !q->at[q->count - 1].exchanged ? &q->at[q->count - 1] : NULL;
}

#endif
