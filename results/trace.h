/*
 * trace.h — a recorded run as a timeline: JSON in the Trace Event Format, which Perfetto and
 * chrome://tracing show.
 *
 * Made of the rows of `step` and `push`, in any mode, after the run; so it costs the run nothing.
 * Memory is bounded: rows are read and written one after the other.
 *
 *   ranks     a lane of steps, each of data, forward, backward, pace, exchange, apply; beside it a
 *             lane of what was hidden
 *   workers   a lane of push-pull (waiting for parameters) and compute
 *   servers   a lane of apply
 */
#ifndef GRADLAG_RESULTS_TRACE_H
#define GRADLAG_RESULTS_TRACE_H

#include "worker/base.h"

/* `run`: its number or "last". ERROR_RESULTS: no such run, or `to` cannot be written. */
status trace_write(const char *results, const char *run, const char *to) MUST_CHECK;

#endif
