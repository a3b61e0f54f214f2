/*
 * terminal_screen.h — a terminal lent for a while: its other screen, without echo or cursor, and
 * back as it was, however the program ends.
 */
#ifndef GRADLAG_EXPERIMENTS_CLI_TERMINAL_SCREEN_H
#define GRADLAG_EXPERIMENTS_CLI_TERMINAL_SCREEN_H

#include "base/status.h"

/* Whether stdin and stdout are one that can be lent: TERM is set and not dumb. */
bool terminal_screen_is_terminal(void);

/* SIGINT, SIGTERM and SIGHUP end it (terminal_screen_wait), SIGTSTP gives the terminal back
 * meanwhile. One at a time. ERROR_OTHER: the terminal does not let itself be set. */
status terminal_screen_open(void) MUST_CHECK;
void terminal_screen_close(void); /* also where it was not opened */

/* Columns and lines; 80 × 24 where the terminal does not say. */
void terminal_screen_size(unsigned *width, unsigned *height);
/* Shows a page: lines ended by '\n'; what stood there before is gone. */
void terminal_screen_show(const char *page, size_t length);
/* Waits for a key, a change of size or `seconds`; false: q was pressed, or a signal asks to end. */
bool terminal_screen_wait(double seconds);

#endif
