/*
 * queued_run.h — reads the settings of a queued run; names the environment variable that a sweep
 * sets.
 */
#ifndef GRADLAG_EXPERIMENTS_RUN_QUEUED_RUN_H
#define GRADLAG_EXPERIMENTS_RUN_QUEUED_RUN_H

#include "base/options.h"

/* Set by a sweep for the process of one run: the title of its progress. Such a process reports its
 * outcome only in the run's row. */
#define QUEUED_TITLE "GRADLAG_SWEEP_TITLE"

/* Composes the settings of a queued run, with `results` as its results file. ERROR_RESULTS: their
 * hash differs from the recorded one, because another version of gradlag queued the run. */
status queued_settings(options **out, const char *results, int64_t run_id) MUST_CHECK;

#endif
