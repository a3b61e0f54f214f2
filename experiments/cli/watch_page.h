/*
 * watch_page.h — what `gradlag watch` shows, as lines of text no wider than the terminal: pure
 * functions of what the results file holds.
 */
#ifndef GRADLAG_EXPERIMENTS_CLI_WATCH_PAGE_H
#define GRADLAG_EXPERIMENTS_CLI_WATCH_PAGE_H

#include "base/text.h"
#include "results/query/live_runs.h"

struct watch_page {
    const char *path;       /* of the results file */
    unsigned width, height; /* columns and lines; 20 × 4 at least */
    bool colour;
};

/* The whole page: lines ended by '\n', at most `height` of them and none wider than `width`. Text
 * of the file does not steer the terminal. */
void watch_page_add(const struct watch_page *page, const struct live_runs *l, struct text *out);

/* One line on a run in flight, and one on a run that has ended, without '\n'. */
void watch_line_add(const struct live_run *r, struct text *out);
void watch_end_add(const struct live_run *r, struct text *out);

/* "  about 4:10 left in all", of the queue. */
void watch_queue_add(const struct live_runs *l, struct text *out);

/* "▁▂▅█": one character a value, from the least to the greatest; at most `columns`, of which each
 * is then a mean of several. Nothing for less than two values. */
void watch_spark_add(const struct live_curve *curve, unsigned columns, struct text *out);

#endif
