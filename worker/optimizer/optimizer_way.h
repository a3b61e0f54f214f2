/*
 * optimizer_way.h — how an update touches memory: the kind of store and the prefetch distance. The
 * bits of an update do not depend on it.
 *
 * Which way is fastest depends on the processor and on the length of the vectors. So opening an
 * optimizer tries the ways in OPTIMIZER_TRIALS updates of vectors of that length. Then the way with
 * the shortest update stays; the usual way stays if no other is clearly faster. The shortest time
 * excludes updates during which the thread was preempted. Each way has OPTIMIZER_TURNS updates in a
 * row, and the first ones do not count, because they find the caches as the previous way left them.
 */
#ifndef GRADLAG_WORKER_OPTIMIZER_OPTIMIZER_WAY_H
#define GRADLAG_WORKER_OPTIMIZER_OPTIMIZER_WAY_H

#include <stdbool.h>
#include <stddef.h>

enum {
    OPTIMIZER_WAYS = 4,
    OPTIMIZER_TURNS = 8,
    OPTIMIZER_TRIALS = OPTIMIZER_WAYS * OPTIMIZER_TURNS
};

struct optimizer_way {
    bool streamed; /* stores bypass the caches */
    size_t ahead;  /* prefetch distance, in elements */
};

/* The trial of one optimizer. Zero-initialise. */
struct optimizer_trial {
    unsigned updates;                /* so far, at most OPTIMIZER_TRIALS */
    unsigned chosen;                 /* the result; valid after the last trial update */
    double shortest[OPTIMIZER_WAYS]; /* seconds */
};

/* The way without a trial; `large`: the vectors exceed the caches. */
struct optimizer_way optimizer_way_usual(bool large);
/* The way of the next update. Before the first result it is the usual one. */
struct optimizer_way optimizer_way_next(const struct optimizer_trial *t, bool large);
/* The update that optimizer_way_next() was called for took `seconds`. Ignored after the trial. */
void optimizer_way_took(struct optimizer_trial *t, bool large, double seconds);

/* For tests: from now on, updates that are not in place use this way, as if a trial had chosen it.
 * A buffer that is not aligned is still written by plain stores. Defined in optimizer.c. */
struct optimizer;
void optimizer_force_way(struct optimizer *p, unsigned way);

#endif
