/*
 * print_columns.h — text in columns, and Markdown's tables.
 */
#ifndef GRADLAG_EXPERIMENTS_PRINT_COLUMNS_H
#define GRADLAG_EXPERIMENTS_PRINT_COLUMNS_H

#include "base/status.h"

#include <stdint.h>
#include <stdio.h>

/* UTF-8 text, left-aligned in `width` columns; at least one space follows it. */
void print_padded(FILE *to, const char *text, int width);
/* "| text ": a cell of a line of Markdown's, which is cut at each bare '|'. */
void print_cell(FILE *to, const char *text);

/* What ends the noun after a number: "" of one, else "s". */
static inline const char *plural(uint64_t count)
{
    return count == 1 ? "" : "s";
}

#endif
