/* terminal.h — columns and colours of a terminal, and the columns of UTF-8 text on it. */
#ifndef GRADLAG_BASE_TERMINAL_H
#define GRADLAG_BASE_TERMINAL_H

#include "base/status.h"

/* Columns of the terminal on `fd`. If the terminal does not report them: the value of the variable
 * COLUMNS, or 80 if it is not set. 0: `fd` is not a terminal. */
unsigned terminal_columns(int fd);

/* True unless the variable NO_COLOR is set and not empty. */
bool terminal_wants_colour(void);

/* The character at the start of `text`, which is NUL-terminated and not empty. Control characters
 * and bytes that are not UTF-8 are not printable. They count as one column, because the caller
 * prints a space instead. columns: 2 for East Asian characters and emoji, 0 for combining marks. */
struct terminal_character {
    unsigned bytes, columns;
    bool printable;
};
struct terminal_character terminal_character_at(const char *text);
/* Columns of the whole text. */
unsigned terminal_text_columns(const char *text);
/* The number of bytes of the longest start of the text that fits in this many columns. */
size_t terminal_fitting(const char *text, unsigned columns);

#endif
