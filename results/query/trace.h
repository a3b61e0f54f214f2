/*
 * trace.h — a recorded run as a timeline: JSON in the Trace Event Format, which Perfetto and
 * chrome://tracing show.
 *
 * Made of the rows of `step`, `push`, `pass` and `evaluation`, in any mode, after the run; so it
 * costs the run nothing but, with pipelines, recording `pass`. Memory is bounded but for 32 bytes
 * of each evaluation: rows are read and written one after the other.
 *
 *   ranks     a lane of steps, each of data, forward, backward, pace, exchange, apply; beside it a
 *             lane of what was hidden
 *   stages    the same, with the passes of each micro-batch where they were; without flushes these,
 *             exchange and apply without steps around them
 *   workers   a lane of push-pull (waiting for parameters) and compute, which is data, forward,
 *             backward and pace
 *   servers   a lane of apply
 *   the first of all: evaluations, while which other clocks stand still
 */
#ifndef GRADLAG_RESULTS_QUERY_TRACE_H
#define GRADLAG_RESULTS_QUERY_TRACE_H

#include "base/status.h"

/* `run`: its number or "last". ERROR_RESULTS: no such run, or `to` cannot be written. */
status trace_write(const char *results, const char *run, const char *to) MUST_CHECK;

#endif
