/*
 * progress.h — live progress on stderr: in place on a terminal, else a plain line every few
 * seconds. Log lines that come in between stay whole: the line in place is cleared first.
 */
#ifndef GRADLAG_EXPERIMENTS_RUN_PROGRESS_H
#define GRADLAG_EXPERIMENTS_RUN_PROGRESS_H

#include "worker/training.h"

struct progress {
    bool quiet, live, colour;
    bool shown;        /* a line stands in place now */
    uint64_t shown_ns; /* when the last one was written */
    char title[128];   /* "async ×4 inverse seed 1" */
    bool staleness;    /* asynchronous runs show it */
};
/* Reads the terminal, NO_COLOR and TERM. */
void progress_open(struct progress *p, const char *title, bool staleness, bool quiet);
void progress_show(struct progress *p, const struct training_progress *now);
/* A line of the caller's, by the same rules. */
void progress_text(struct progress *p, const char *text);
/* Takes the line in place away; call before anything else is written to stderr, and at the end. */
void progress_clear(struct progress *p);
/* "1:02:03", "4:05" or "8 s" */
void progress_duration(double seconds, char out[32]);
/* The same of what is over, where fractions of a second are known: "0.28 s" */
void progress_took(double seconds, char out[32]);

#endif
