/*
 * plan_shared.h — the runs of a plan that several hosts work off (shared.h): which of them this
 * process may make, and how it tells the others.
 */
#ifndef GRADLAG_EXPERIMENTS_PLAN_SHARED_H
#define GRADLAG_EXPERIMENTS_PLAN_SHARED_H

#include "experiments/plan.h"
#include "experiments/shared.h"

/* Before anything is made: says of runs that ended in this process's results file what is not said
 * yet, and marks those that others have. */
status plan_shared_begin(struct plan *p, shared *s) MUST_CHECK;
/* Takes a run for this process; where that is too late its state says what has become of it. */
status plan_shared_take(struct planned_run *r, shared *s) MUST_CHECK;
/* Tells how a run ended that this process took; does nothing for others. */
status plan_shared_end(struct planned_run *r, shared *s) MUST_CHECK;
/* Looks at those that others make: their states, and how many of them go on. One that is free again
 * is missing. */
status plan_shared_look(struct plan *p, shared *s, size_t *going_on) MUST_CHECK;
/* Whether another host took over what this process had taken: it was thought lost. */
status plan_shared_was_lost(const struct planned_run *r, shared *s, bool *lost) MUST_CHECK;

#endif
