/*
 * watch_page.h — the text of `gradlag watch`, in lines no wider than the terminal. Pure functions
 * of data read from the results file.
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

/* Adds the whole page: lines ended by '\n', at most `height` lines, none wider than `width`.
 * Control characters in texts of the file become spaces. */
void watch_page_add(const struct watch_page *page, const struct live_runs *l, struct text *out);

/* Add one line about a running run, and about an ended run, without '\n'. */
void watch_line_add(const struct live_run *r, struct text *out);
void watch_end_add(const struct live_run *r, struct text *out);

/* Adds the estimated time of the whole queue, "  about 4:10 left in all". */
void watch_queue_add(const struct live_runs *l, struct text *out);

/* Adds a sparkline "▁▂▅█", scaled from minimum to maximum. With more than `columns` values each
 * character is a mean of several. Adds nothing for fewer than two values. */
void watch_spark_add(const struct live_curve *curve, unsigned columns, struct text *out);

#endif
