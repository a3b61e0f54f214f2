/*
 * late_workers.h — key workers.max: workers that join a run after its begin, leave and come back.
 *
 * Training begins with the first W workers (W = key workers). Workers W … workers.max − 1 count as
 * lost until they join. They may join at any time, as a lost worker may join again. What depends on
 * W stays as it is: partition of the data, lr_scaling, and rules that use the number of workers. A
 * late worker draws its samples from the whole training split (worker/data/sampler.h). The state
 * that the server keeps for a worker begins at 0, and stays while the worker is away.
 */
#ifndef GRADLAG_PS_CORE_LATE_WORKERS_H
#define GRADLAG_PS_CORE_LATE_WORKERS_H

#include "base/options.h"

/* The number of workers that may train at the same time, at least key workers. */
unsigned workers_max_of(const options *settings);
/* ERROR_USAGE, naming the key, if these settings exclude late workers. */
status late_workers_check(const options *settings) MUST_CHECK;

#endif
