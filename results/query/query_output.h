/*
 * query_output.h — writes the rows of a statement as a table, CSV, JSON or Markdown. Internal to
 * results/.
 */
#ifndef GRADLAG_RESULTS_QUERY_QUERY_OUTPUT_H
#define GRADLAG_RESULTS_QUERY_QUERY_OUTPUT_H

#include "results/store/database.h"
#include "results/query/query.h"

/* Steps `s` to its end. Tables are kept in memory to align their columns; CSV and JSON are written
 * row by row. *rows may be NULL. */
status query_output_write(sqlite3 *db, sqlite3_stmt *s, enum query_format format, FILE *out,
                          size_t *rows) MUST_CHECK;

#endif
