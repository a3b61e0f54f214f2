/*
 * screen.h — a terminal lent for a while: its other screen, without echo or cursor, and back as it
 * was, however the program ends.
 */
#ifndef GRADLAG_EXPERIMENTS_SCREEN_H
#define GRADLAG_EXPERIMENTS_SCREEN_H

#include "worker/base.h"

/* Whether stdin and stdout are one that can be lent: TERM is set and not dumb. */
bool screen_is_terminal(void);

/* SIGINT, SIGTERM and SIGHUP end it (screen_wait), SIGTSTP gives the terminal back meanwhile. One
 * at a time. ERROR_OTHER: the terminal does not let itself be set. */
status screen_open(void) MUST_CHECK;
void screen_close(void); /* also where it was not opened */

/* Columns and lines; 80 × 24 where the terminal does not say. */
void screen_size(unsigned *width, unsigned *height);
/* Shows a page: lines ended by '\n'; what stood there before is gone. */
void screen_show(const char *page, size_t length);
/* Waits for a key, a change of size or `seconds`; false: q was pressed, or a signal asks to end. */
bool screen_wait(double seconds);

#endif
