/*
 * queued_run.h — one run of the queue: its settings from its row, and what a sweep tells the
 * process that makes it.
 */
#ifndef GRADLAG_EXPERIMENTS_RUN_QUEUED_RUN_H
#define GRADLAG_EXPERIMENTS_RUN_QUEUED_RUN_H

#include "base/options.h"

/* The environment of a process that a sweep starts for one run: the title of its progress. Such a
 * process says how it went in the run's row alone. */
#define QUEUED_TITLE "GRADLAG_SWEEP_TITLE"

/* The settings of a run in `results`, with that as its results file. ERROR_RESULTS: they do not
 * come to the same run any more. */
status queued_settings(options **out, const char *results, int64_t run_id) MUST_CHECK;

#endif
