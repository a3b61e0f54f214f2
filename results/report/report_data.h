/*
 * report_data.h — the data of the report, read from the results file in one transaction: runs,
 * cells (runs that differ only in the seed), series (cells that differ only in the column) and
 * experiments. Internal to results/.
 */
#ifndef GRADLAG_RESULTS_REPORT_REPORT_DATA_H
#define GRADLAG_RESULTS_REPORT_REPORT_DATA_H

#include "results/report/plot.h"
#include "results/report/report.h"
#include "results/query/statistics.h"

enum run_status {
    RUN_QUEUED,
    RUN_RUNNING,
    RUN_FINISHED,
    RUN_DIVERGED,
    RUN_FAILED,
    RUN_STOPPED,
    RUN_STATUSES
};

struct report_run {
    int64_t id, workers, seed,
        provenance; /* provenance: first run of this machine and program, or 0 */
    enum run_status status;
    size_t cell; /* index */
    char *experiment, *arm, *mode, *words;
    double accuracy, loss, validation; /* accuracies in percent; loss: of the test split */
    double validation_loss;
    bool loss_is_nan, validation_loss_is_nan; /* measured, in contrast to a NaN above */
    double updates_per_second, samples_per_second, mean_staleness, max_staleness, seconds;
    double updates, samples_used, samples_computed;
    char *uuid, *tag, *started_at, *finished_at, *sha256, *why;
    int64_t slowest; /* the worker with the longest compute time, or -1 */
    double slowest_compute_us, mean_compute_us,
        slowest_share;     /* share: its part of the run's steps */
    int64_t time_workers;  /* workers with recorded times */
    double steps, step_us; /* step_us: mean over all steps */
    const char *panel;     /* "", or the panel of its experiment; borrowed */
    double bits;           /* the final loss of text in bits per byte; NaN: other data */
    bool collapsed;        /* finished, and predicts one class; false if unknown */
    bool repeats;          /* an earlier finished run of the cell has its seed */
    bool drawn;            /* its evaluations are part of the curve of the cell */
};

/* One evaluation of all seeds of a cell. */
struct curve_point {
    struct sample samples, seconds, accuracy, loss, validation_loss;
};
struct staleness_count {
    int64_t staleness;
    double pushes;
};
/* Sums over steps, in microseconds. */
struct time_sums {
    double steps, compute, exchange, pull, queue, apply, whole;
    double data, forward, backward, hidden;
    bool synchronous;
};

struct report_cell {
    size_t series;
    int64_t column;     /* number of workers, or value of the section's axis */
    char *mode, *words; /* borrowed from its first run */
    unsigned count[RUN_STATUSES], runs, collapsed;
    /* Over the seeds of finished runs; runs of one seed are averaged first. */
    struct sample accuracy, loss, validation, validation_loss;
    struct sample updates_per_second, samples_per_second, seconds, staleness;
    struct sample step_us; /* of runs with `drawn` */
    struct curve_point *curve;
    size_t points;
    struct staleness_count *histogram; /* by staleness, ascending */
    size_t bins;
    struct time_sums time;
    /* The run with the largest ratio of its slowest worker to the mean; borrowed; NULL: no run has
     * times of several workers. */
    const struct report_run *uneven;
    bool copied; /* another cell owns curve and histogram: a cell of several panels is copied */
};

struct report_series {
    char *label; /* owned */
    const char *arm, *mode;
    struct plot_style style;
    size_t section;
};

/* An experiment, one panel of it, or the runs without experiment. */
struct report_section {
    const char *name;  /* "": no experiment */
    const char *panel; /* "": the experiment has no further axes */
    bool first;        /* the first of its experiment: shows the claims and the map */
    const struct report_experiment *about; /* NULL: no claims and texts */
    bool trials;                           /* name is NAME/tuning */
    char axis[64]; /* the key of the columns as title in a table: "#workers", "#delay" */
    bool by_loss;  /* the metric is a loss, or no finished run has a test accuracy */
    /* The loss is that of the validation split: no run has a test loss, the section shows trials
     * (tuning compares validation losses), or the experiment's metric is on that split. */
    bool of_validation;
    bool in_nats; /* of_validation: it is a cross-entropy, because the data have classes */
    struct {
        bool accuracy, loss, validation, validation_loss;
    } measured; /* results that some finished run has */
    size_t first_series, series_count;
    unsigned count[RUN_STATUSES], runs, collapsed;
};

struct report_data {
    struct report_run *runs;
    struct report_cell *cells;
    struct report_series *series;
    struct report_section *sections;
    size_t run_count, cell_count, series_count, section_count;
    unsigned count[RUN_STATUSES];
    struct figures *figures; /* NULL: the parts draw for the page; borrowed */
};

/* Call it within a transaction of the caller; request->experiments must outlive *out. */
struct sqlite3;
status report_data_read(struct report_data *out, struct sqlite3 *db,
                        const struct report_request *request) MUST_CHECK;
void report_data_close(struct report_data *d);

/* Prepares the query results/report/NAME.sql. */
struct sqlite3_stmt;
status report_query(struct sqlite3 *db, struct sqlite3_stmt **out, const char *name,
                    const char *experiment) MUST_CHECK;

/* The i-th cell of a series, by column; NULL: i is too large. */
const struct report_cell *report_cell_of(const struct report_data *d, size_t series, size_t i);
/* Whether the cell belongs to the section. */
bool report_is_of(const struct report_data *d, const struct report_section *s,
                  const struct report_cell *c);
/* Writes the columns of the cells of a section in ascending order, at most `room`. */
size_t report_columns(const struct report_data *d, const struct report_section *s, int64_t *out,
                      size_t room);
/* The result of a cell: accuracy or loss on the test split, or loss on the validation split. */
const struct sample *report_outcome_of(const struct report_section *s, const struct report_cell *c);
/* Its diverged runs, and its finished seeds whose result is not finite. */
unsigned report_diverged(const struct report_section *s, const struct report_cell *c);
const char *run_status_name(enum run_status s);

#endif
