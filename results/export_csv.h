/*
 * export_csv.h — writes the tables of a results file as CSV files (RFC 4180 with a header line).
 * Other formats are written in Python (python/gradlag/exports.py).
 */
#ifndef GRADLAG_RESULTS_EXPORT_CSV_H
#define GRADLAG_RESULTS_EXPORT_CSV_H

#include "base/status.h"

struct csv_export {
    const char *results;     /* the results file */
    const char *const *runs; /* each an id, the start of a uuid, or "last" */
    size_t run_count;        /* 0: all runs of the file */
    const char *folder;      /* created if it does not exist */
};

/* Writes folder/TABLE.csv for every table of the schema, in one transaction of the results file.
 * Each file appears, or replaces an earlier one, when it is complete. *runs: how many were written.
 * ERROR_USAGE: no such run; ERROR_RESULTS: the results file; ERROR_OTHER: a file cannot be written.
 */
status export_csv(const struct csv_export *request, size_t *runs) MUST_CHECK;

#endif
