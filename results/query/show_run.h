/*
 * show_run.h — one run on a page: what it was, how it went, where its time went.
 */
#ifndef GRADLAG_RESULTS_QUERY_SHOW_RUN_H
#define GRADLAG_RESULTS_QUERY_SHOW_RUN_H

#include "base/status.h"

#include <stdio.h>

/* Configuration, curve, staleness histogram, time breakdown and events of `run` (an id, the start
 * of a uuid, or "last"), as plain text. */
status show_run(const char *path, const char *run, FILE *out) MUST_CHECK;

#endif
