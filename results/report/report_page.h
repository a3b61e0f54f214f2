/*
 * report_page.h — the parts of the report's page, each a few plots with their numbers in tables.
 * Internal to results/.
 */
#ifndef GRADLAG_RESULTS_REPORT_REPORT_PAGE_H
#define GRADLAG_RESULTS_REPORT_REPORT_PAGE_H

#include "base/text.h"
#include "results/report/html.h"
#include "results/report/report_data.h"

/* A part of an experiment's section; adds nothing where there is nothing to show. */
typedef void report_part(struct text *out, const struct report_data *d,
                         const struct report_section *s);

report_part report_claims;     /* verdict, claims with their bands */
report_part report_legend;     /* which colour, shape and dash is which series */
report_part report_workers;    /* accuracy against the number of workers */
report_part report_curves;     /* accuracy against samples, and against time */
report_part report_throughput; /* accuracy against updates and samples per second */
report_part report_staleness;  /* histograms */
report_part report_time;       /* where time goes, and the slowest worker */
report_part report_trials;     /* of tuning: how many, and what came of them */

/* Of the whole file. */
void report_failures(struct text *out, const struct report_data *d);
struct sqlite3;
status report_runs(struct text *out, const struct report_data *d, struct sqlite3 *db,
                   const char *experiment) MUST_CHECK;

/* "<figure>" with its caption, and its end. */
void report_figure_begin(struct text *out, const char *title, const char *caption_format, ...)
    PRINTF_LIKE(3, 4);
void report_figure_end(struct text *out);
/* "asynchronous, undamped × 16", with its swatch, as a table's cell. */
void report_cell_series(struct html_table *t, const struct report_data *d, size_t series);
/* The run's number, which leads to it. */
void report_cell_run(struct html_table *t, const struct report_run *r);
/* The range of an axis of outcomes: no accuracy is beyond 0 or 100 %. */
void report_range_end(const struct report_section *s, struct plot_axis *a);
/* "test accuracy, %" or "test loss", and how many decimals it is written with. */
const char *report_outcome_name(const struct report_section *s);
int report_outcome_decimals(const struct report_section *s);
/* The 95 % interval of the mean, in per cent or nats; an accuracy's within 0 and 100. NaN for fewer
 * than two runs. */
void report_interval(const struct report_section *s, const struct sample *a, double ends[2]);
/* The same as two cells. */
void report_cell_interval(struct html_table *t, const struct report_section *s,
                          const struct sample *a);
/* "89.24 (95 %: 88.94 to 89.54) % test accuracy (n 3)"; without the interval for one run. */
void report_outcome(struct text *out, const struct report_section *s, const struct sample *outcome);

enum { REPORT_WORKER_COUNTS = 64 };

#endif
