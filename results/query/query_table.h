/*
 * query_table.h — rows as an aligned table, as Markdown, or as one line per column. A table that is
 * wider than the terminal is fitted to it. Internal to results/query/.
 */
#ifndef GRADLAG_RESULTS_QUERY_QUERY_TABLE_H
#define GRADLAG_RESULTS_QUERY_QUERY_TABLE_H

#include "base/text.h"
#include "results/query/query_output.h"

struct query_table_cell {
    int type;      /* SQLITE_NULL, … */
    double number; /* SQLITE_INTEGER, SQLITE_FLOAT */
    size_t text;   /* offset into the table's text; unused for reals */
};
struct query_table_column {
    const char *name; /* borrowed from the statement */
    int decimals;     /* of its reals; −1: with an exponent */
    unsigned cells;   /* columns of its widest cell */
    bool right;       /* numbers */
    /* The layout. */
    unsigned width;
    bool shared;   /* one value in all rows, in the line above the table */
    bool left_out; /* does not fit */
    bool shortened;
};
/* Whether the table has this column. */
static inline bool query_table_shows(const struct query_table_column *c)
{
    return !c->shared && !c->left_out;
}
struct query_table {
    size_t columns, rows, capacity;
    struct query_table_column *column;
    struct query_table_cell *cells; /* rows × columns, row-major */
    struct text text;               /* NUL-separated */
};

/* The text of a cell, NUL-terminated; `buffer` holds numbers. */
const char *query_table_cell(const struct query_table *t, size_t row, size_t column,
                             char buffer[400]);

/* Steps `s` to its end and writes its rows; formats QUERY_TABLE, QUERY_MARKDOWN and
 * QUERY_VERTICAL. *rows: their number. */
status query_table_write(sqlite3 *db, sqlite3_stmt *s, const struct query_style *style, FILE *out,
                         size_t *rows) MUST_CHECK;

#endif
