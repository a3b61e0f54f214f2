/*
 * trace.h — a recorded run as a timeline: JSON in the Trace Event Format, which Perfetto and
 * chrome://tracing show.
 *
 * It is written after the run from the rows of step, push, pass and evaluation, in all modes. The
 * run itself pays only for recording `pass` (pipelines). Rows are streamed; memory holds 32 bytes
 * for each evaluation.
 *
 *   - ranks: one lane of steps, each with data, forward, backward, pace, exchange and apply; a
 *     second lane of hidden exchange
 *   - stages: as ranks, with the passes of each micro-batch; without flushes only passes, exchange
 *     and apply
 *   - workers: one lane of push-pull (waiting for parameters) and compute, which contains data,
 *     forward, backward and pace
 *   - servers: one lane of apply
 *
 * The first process also shows the evaluations, during which all other clocks stop. If training
 * goes on meanwhile (event evaluation_beside), they are in a separate lane.
 */
#ifndef GRADLAG_RESULTS_QUERY_TRACE_H
#define GRADLAG_RESULTS_QUERY_TRACE_H

#include "base/status.h"

/* `run`: an id, the start of a uuid, or "last". ERROR_USAGE: no such run. ERROR_RESULTS: the
 * results file cannot be read or is damaged, or `to` cannot be written. */
status trace_write(const char *results, const char *run, const char *to) MUST_CHECK;

#endif
