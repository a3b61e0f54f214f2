/*
 * print_columns.h — text in columns, and cells of Markdown tables.
 */
#ifndef GRADLAG_EXPERIMENTS_PRINT_COLUMNS_H
#define GRADLAG_EXPERIMENTS_PRINT_COLUMNS_H

#include "base/status.h"

#include <stdint.h>
#include <stdio.h>

/* UTF-8 text, left-aligned in `width` columns; at least one space follows it. */
void print_padded(FILE *to, const char *text, int width);
/* Prints "| text ", a cell of a Markdown table; escapes each '|' in the text. */
void print_cell(FILE *to, const char *text);

/* "" for 1, else "s": the ending of a counted noun. */
static inline const char *plural(uint64_t count)
{
    return count == 1 ? "" : "s";
}

#endif
