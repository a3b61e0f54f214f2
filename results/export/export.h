/*
 * export.h — exports runs of a results file to the formats of other tools. A format is a file
 * export_NAME.c and a line in export.def.
 *
 * A format writes one folder or one file. Files of an earlier export of the same runs are replaced
 * atomically. The results file is read in one transaction.
 */
#ifndef GRADLAG_RESULTS_EXPORT_EXPORT_H
#define GRADLAG_RESULTS_EXPORT_EXPORT_H

#include "base/status.h"

struct export_description {
    const char *name, *description;
    const char *to; /* default target */
};
/* Format i; false: i is too large. */
bool export_at(size_t index, struct export_description *out);

struct export_request {
    const char *format;
    const char *results;     /* the results file */
    const char *const *runs; /* each an id, the start of a uuid, or "last" */
    size_t run_count;        /* 0: all runs of the file */
    const char *to;          /* NULL: the default of the format */
};
struct export_outcome {
    const char *to; /* borrowed */
    size_t runs, files;
};
/* ERROR_USAGE: no such format (the message names the most similar one) or run; ERROR_RESULTS: the
 * results file; ERROR_OTHER: a file cannot be written. */
status export_write(const struct export_request *request, struct export_outcome *out) MUST_CHECK;

#endif
