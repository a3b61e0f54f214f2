/*
 * plan_queue.h — a plan's runs in the queue of their results file (results/run_queue.h).
 */
#ifndef GRADLAG_EXPERIMENTS_SWEEP_PLAN_QUEUE_H
#define GRADLAG_EXPERIMENTS_SWEEP_PLAN_QUEUE_H

#include "experiments/sweep/plan.h"
#include "results/run_queue.h"

const char *plan_results(const struct planned_run *r);
/* What a row's state is to a plan: one that was stopped is to be made. */
enum planned_state plan_state_of(enum queue_state state);

/* Puts what is missing into the queue, in one transaction per results file, so that two sweeps of
 * the same runs add each of them once. */
status plan_put_missing(struct plan *p) MUST_CHECK;
/* One run, unless there is one already (queue_add); `attempt`: the how-manieth row it is. */
status plan_put(struct planned_run *r, bool again, unsigned attempt) MUST_CHECK;
status plan_look(const struct planned_run *r, struct queue_entry *out) MUST_CHECK;

#endif
