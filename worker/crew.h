/*
 * crew.h — threads that help with one pass over large vectors, on cores that nobody uses just now.
 *
 * The one who calls does as much of the work as comes; helpers take blocks while it lasts. A helper
 * that wakes late, or never, delays nothing. Which thread does a block must not matter to its
 * result: then the numbers do not depend on how many helped.
 *
 * One thread calls. Blocking signals stay with it: helpers block all of them.
 */
#ifndef GRADLAG_WORKER_CREW_H
#define GRADLAG_WORKER_CREW_H

#include "worker/base.h"

typedef struct crew crew;

/* Does block `block` of the work. Called from any thread of the crew, each block once. */
typedef void crew_work(void *context, size_t block);

/* As many helpers as there may be cores for them, at most CREW_HELPERS; they sleep. */
enum { CREW_HELPERS = 3 };
status crew_open(crew **out) MUST_CHECK;
void crew_close(crew **p); /* NULL-safe */

/* How many cores others are using: the next calls keep off them. At first: all. */
void crew_keep_off(crew *c, unsigned busy);
/* Does blocks 0 … blocks − 1 and returns when all are done. NULL: the caller does them alone. */
void crew_run(crew *c, size_t blocks, crew_work *work, void *context);

#endif
