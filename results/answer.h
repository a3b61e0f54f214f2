/*
 * answer.h — the rows of a statement, written as a table, CSV, JSON or Markdown. Internal to
 * results/.
 */
#ifndef GRADLAG_RESULTS_ANSWER_H
#define GRADLAG_RESULTS_ANSWER_H

#include "results/database.h"
#include "results/query.h"

/* Steps `s` to its end. Tables are held in memory, because their columns are aligned; CSV and JSON
 * are written row by row. */
status answer_write(sqlite3 *db, sqlite3_stmt *s, enum query_format format, FILE *out,
                    size_t *rows) MUST_CHECK;

#endif
