/*
 * progress.h — progress on stderr: on a terminal one line that is rewritten in place, otherwise a
 * new line every few seconds. Callers clear the line before they write anything else.
 */
#ifndef GRADLAG_EXPERIMENTS_RUN_PROGRESS_H
#define GRADLAG_EXPERIMENTS_RUN_PROGRESS_H

#include "worker/training.h"

struct progress {
    bool quiet, live, colour;
    bool shown;        /* the terminal shows a progress line now */
    uint64_t shown_ns; /* time of the last line */
    char title[128];   /* "async ×4 inverse seed 1" */
    bool staleness;    /* show staleness (asynchronous runs) */
};
/* Reads the terminal, NO_COLOR and TERM. */
void progress_open(struct progress *p, const char *title, bool staleness, bool quiet);
void progress_show(struct progress *p, const struct training_progress *now);
/* Shows a text of the caller instead, at the same rate. */
void progress_text(struct progress *p, const char *text);
/* Clears the progress line. Call it before any other output to stderr, and at the end. */
void progress_clear(struct progress *p);
/* "1:02:03", "4:05" or "8 s" */
void progress_duration(double seconds, char out[32]);
/* The same for a measured time, with fractions below 10 s: "0.28 s" */
void progress_elapsed(double seconds, char out[32]);

#endif
