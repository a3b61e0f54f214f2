/*
 * table_layout.h — which columns of a table a terminal shows, and how wide. Internal to
 * results/query/.
 *
 * A table that fits is not changed. Else, one after the other, until it fits:
 *   1. a column with one value in all of several rows leaves the table;
 *   2. names are broken after '_' and spaces;
 *   3. text (never a number) is shortened, the widest first, to TABLE_TEXT_LEAST columns at least;
 *   4. columns are left out, from the right.
 */
#ifndef GRADLAG_RESULTS_QUERY_TABLE_LAYOUT_H
#define GRADLAG_RESULTS_QUERY_TABLE_LAYOUT_H

#include "results/query/query_table.h"

enum { TABLE_TEXT_LEAST = 12 };

/* Sets width, shared, left_out and shortened of every column. width: of the terminal; 0: no limit.
 * False: the table fits only with changes, and one row is easier to read with one line per
 * column. */
bool table_layout(struct query_table *t, unsigned width);

/* The part of `name` that the next line of a heading of `width` columns holds, in bytes. */
size_t table_layout_heading(const char *name, unsigned width);

#endif
