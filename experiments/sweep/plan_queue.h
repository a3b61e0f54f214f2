/*
 * plan_queue.h — a plan's runs in the queue of their results file (results/run_queue.h).
 */
#ifndef GRADLAG_EXPERIMENTS_SWEEP_PLAN_QUEUE_H
#define GRADLAG_EXPERIMENTS_SWEEP_PLAN_QUEUE_H

#include "experiments/sweep/plan.h"
#include "results/run_queue.h"

/* The path of the run's results file. */
const char *plan_results(const struct planned_run *r);
/* The state of a planned run whose row has this state. A stopped row: PLANNED_MISSING. */
enum planned_state plan_state_of(enum queue_state state);

/* Puts the missing runs into the queue, in one transaction for each results file. Two sweeps of the
 * same runs therefore add each run once. */
status plan_enqueue_missing(struct plan *p) MUST_CHECK;
/* Puts one run into the queue, unless it is there already (queue_add). `attempt`: from 1. */
status plan_enqueue(struct planned_run *r, bool again, unsigned attempt) MUST_CHECK;
/* Reads the run's row. */
status plan_queue_entry(const struct planned_run *r, struct queue_entry *out) MUST_CHECK;

#endif
