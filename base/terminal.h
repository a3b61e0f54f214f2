/* terminal.h — columns and colours of a terminal, and the columns of UTF-8 text on it. */
#ifndef GRADLAG_BASE_TERMINAL_H
#define GRADLAG_BASE_TERMINAL_H

#include "base/status.h"

/* Columns of the terminal on `fd`. If the terminal does not say, the variable COLUMNS; if it is not
 * set, 80. 0: `fd` is not a terminal. */
unsigned terminal_columns(int fd);

/* True unless the variable NO_COLOR is set and not empty. */
bool terminal_wants_colour(void);

/* The character at the start of NUL-terminated text that is not empty. A control character and a
 * byte that is not UTF-8 are not printable and count as one column, for the space to print
 * instead. columns: 2 for East Asian characters and emoji, 0 for combining marks. */
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
