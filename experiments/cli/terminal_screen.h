/*
 * terminal_screen.h — full-screen use of a terminal: alternate screen, no echo, no cursor. The
 * terminal is restored however the program ends.
 */
#ifndef GRADLAG_EXPERIMENTS_CLI_TERMINAL_SCREEN_H
#define GRADLAG_EXPERIMENTS_CLI_TERMINAL_SCREEN_H

#include "base/status.h"

/* True if stdin and stdout are a terminal, and TERM is set and not dumb. */
bool terminal_screen_is_terminal(void);

/* After this SIGINT, SIGTERM and SIGHUP make terminal_screen_wait return false, and SIGTSTP
 * restores the terminal while the process is suspended. One screen at a time. ERROR_OTHER: the
 * settings of the terminal cannot be read. */
status terminal_screen_open(void) MUST_CHECK;
void terminal_screen_close(void); /* does nothing if it is not open */

/* Columns and lines; 80 × 24 if unknown or below 20 × 4. */
void terminal_screen_size(unsigned *width, unsigned *height);
/* Replaces the screen by this page: lines ended by '\n'. */
void terminal_screen_show(const char *page, size_t length);
/* Waits for a key, a change of size or `seconds`. False: q was pressed or a signal asked to end. */
bool terminal_screen_wait(double seconds);

#endif
