/*
 * show_run.h — prints one run: configuration, results, times and events.
 */
#ifndef GRADLAG_RESULTS_QUERY_SHOW_RUN_H
#define GRADLAG_RESULTS_QUERY_SHOW_RUN_H

#include "base/status.h"

#include <stdio.h>

/* Prints configuration, curve, staleness histogram, times of a step and events of `run` (an id, the
 * start of a uuid, or "last") as plain text. ERROR_USAGE: no such run; ERROR_RESULTS. */
status show_run(const char *path, const char *run, FILE *out) MUST_CHECK;

#endif
