/*
 * report_page.h — the parts of the page. Each part has plots and tables with the same numbers.
 * Internal to results/.
 */
#ifndef GRADLAG_RESULTS_REPORT_REPORT_PAGE_H
#define GRADLAG_RESULTS_REPORT_REPORT_PAGE_H

#include "base/text.h"
#include "results/report/figures.h"
#include "results/report/html.h"
#include "results/report/report_data.h"

/* Writes a part of an experiment's section; writes nothing without data. With d->figures its plots
 * become figures, and the rest of what it writes is dropped. */
typedef void report_part(struct text *out, const struct report_data *d,
                         const struct report_section *s);

report_part report_claims;     /* verdict, claims with their bands */
report_part report_map;        /* which side is ahead in each column */
report_part report_legend;     /* colour, shape and dash of each series */
report_part report_outcomes;   /* final accuracy or loss against the columns */
report_part report_curves;     /* accuracy against samples, and against time */
report_part report_throughput; /* accuracy against updates and samples per second */
report_part report_staleness;  /* histograms */
report_part report_time;       /* where time goes, and the slowest worker */
report_part report_trials;     /* tuning: number of trials and their results */

/* Adds the number of claims with each outcome that occurs. `e` NULL: adds nothing. */
void report_tally(struct text *out, const struct report_experiment *e);

/* Parts about the whole file. */
void report_failures(struct text *out, const struct report_data *d);
struct sqlite3;
status report_runs(struct text *out, const struct report_data *d, struct sqlite3 *db,
                   const char *experiment) MUST_CHECK;

/* Begins and ends "<figure>" with a caption. */
void report_figure_begin(struct text *out, const char *title, const char *caption_format, ...)
    PRINTF_LIKE(3, 4);
void report_figure_end(struct text *out);
/* A table cell with the name of a series and its swatch. */
void report_cell_series(struct html_table *t, const struct report_data *d, size_t series);
/* A table cell with a link to the run. */
void report_cell_run(struct html_table *t, const struct report_run *r);
/* The width of a figure with the names of the section and `more` pixels beside each other: one
 * column if they fit, else two. */
double report_figure_width(const struct report_data *d, const struct report_section *s,
                           double more);
/* Whether an axis of outcomes is logarithmic: they are losses, all above 0. */
bool report_is_logarithmic(const struct report_data *d, const struct report_section *s);
/* Completes the range of an axis of outcomes; an accuracy lies within 0 and 100 %. */
void report_range_end(const struct report_section *s, struct plot_axis *a);
/* Whether the columns of the section are numbers of workers. */
bool report_over_workers(const struct report_section *s);
/* The name of a column: "1 worker", "16 workers" or "delay=16". */
struct report_column {
    char text[96];
};
struct report_column report_column(const struct report_section *s, int64_t column);
/* For axes: "test accuracy, %", "test loss" or "validation loss, nats". */
const char *report_outcome_name(const struct report_section *s);
/* For titles: "Test accuracy", "Test loss" or "Validation loss". */
const char *report_outcome_title(const struct report_section *s);
/* For captions: "Test accuracy in %", "Test loss" or "Validation loss in nats". */
const char *report_outcome_caption(const struct report_section *s);
/* After a number: " % test accuracy", " test loss" or " nats validation loss". */
const char *report_outcome_unit(const struct report_section *s);
/* The number of decimals of an outcome. */
int report_outcome_decimals(const struct report_section *s);
/* The 95 % interval of the mean, in percent or nats; cut to 0…100 for accuracies. NaN for fewer
 * than two runs. */
void report_interval(const struct report_section *s, const struct sample *a, double ends[2]);
/* The same as two table cells. */
void report_cell_interval(struct html_table *t, const struct report_section *s,
                          const struct sample *a);
/* "89.24 (95 %: 88.94 to 89.54) % test accuracy (n 3)"; for one run without the interval. */
void report_outcome(struct text *out, const struct report_section *s, const struct sample *outcome);

enum { REPORT_COLUMNS = 64 };

#endif
