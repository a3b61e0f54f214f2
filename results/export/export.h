/*
 * export.h — runs of a results file in the formats of other tools. One file per format,
 * export_NAME.c, and one line in export.def.
 *
 * A format writes a folder or a file of its own; what an earlier export wrote there of the same
 * runs is replaced, each file at once. The results file is only read, as of one moment.
 */
#ifndef GRADLAG_RESULTS_EXPORT_EXPORT_H
#define GRADLAG_RESULTS_EXPORT_EXPORT_H

#include "base/status.h"

struct export_description {
    const char *name, *description;
    const char *to; /* where it goes unless told otherwise */
};
/* Format i; false past the last. */
bool export_at(size_t index, struct export_description *out);

struct export_request {
    const char *format;
    const char *results;     /* the results file */
    const char *const *runs; /* each an id, the start of a uuid, or "last" */
    size_t run_count;        /* 0: all of the file */
    const char *to;          /* NULL: as the format's description says */
};
struct export_outcome {
    const char *to; /* borrowed */
    size_t runs, files;
};
/* ERROR_USAGE: no such format (names the nearest) or run; ERROR_RESULTS: the results file;
 * ERROR_OTHER: a file cannot be written. */
status export_write(const struct export_request *request, struct export_outcome *out) MUST_CHECK;

#endif
