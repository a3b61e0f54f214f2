/*
 * show_comparison.h — prints several runs beside each other: what differs between them, results,
 * curves, and differences over the seeds that they share.
 */
#ifndef GRADLAG_RESULTS_QUERY_SHOW_COMPARISON_H
#define GRADLAG_RESULTS_QUERY_SHOW_COMPARISON_H

#include "base/status.h"

#include <stdio.h>

enum { COMPARED_AT_MOST = 8 };

/* Prints 2 to COMPARED_AT_MOST runs; each is an id, the start of a uuid, or "last". width: columns
 * of the terminal, as in struct query_request. ERROR_USAGE: no such run, or one run named twice;
 * ERROR_RESULTS. */
status show_comparison(const char *path, const char *const *runs, size_t count, unsigned width,
                       FILE *out) MUST_CHECK;

#endif
