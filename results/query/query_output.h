/*
 * query_output.h — writes the rows of a statement as a table, CSV, JSON or Markdown, or one
 * column a line. Internal to results/.
 */
#ifndef GRADLAG_RESULTS_QUERY_QUERY_OUTPUT_H
#define GRADLAG_RESULTS_QUERY_QUERY_OUTPUT_H

#include "results/store/database.h"
#include "results/query/query.h"

struct query_style {
    enum query_format format;
    /* QUERY_TABLE: columns of the terminal that the table must fit; 0: no limit. */
    unsigned width;
    /* The command that prints everything, for the line below a table that does not fit. */
    const char *complete;
};

/* Steps `s` to its end. Tables are kept in memory to align their columns; CSV and JSON are written
 * row by row. *rows may be NULL. */
status query_output_write(sqlite3 *db, sqlite3_stmt *s, const struct query_style *style, FILE *out,
                          size_t *rows) MUST_CHECK;

#endif
