/*
 * pace_table.h — measured durations of steps, worker by worker.
 *
 * CSV format (RFC 4180 without quotes): a header line, then one line per step. Required columns:
 * `worker` (0, 1, …) and `compute_us` (microseconds ≥ 0). The first existing column of `step`,
 * `batch` and `sequence` orders a worker's lines; without one the file's order counts. Other
 * columns are ignored, so the output of `gradlag replay RUN --export` can be read directly.
 */
#ifndef GRADLAG_WORKER_PACE_PACE_TABLE_H
#define GRADLAG_WORKER_PACE_PACE_TABLE_H

#include "base/status.h"

struct pace_row {
    uint64_t worker, step, place;
    double ns;
};
struct pace_moments { /* mean and coefficient of variation of a worker's times */
    double mean_ns, cv;
};
struct pace_table { /* zero-initialise */
    struct pace_row *rows;
    size_t count, capacity;
    /* After pace_table_finish: */
    unsigned workers;
    size_t *first;                /* [workers + 1]: first row of each worker */
    struct pace_moments *moments; /* [workers] */
};

status pace_table_add(struct pace_table *t, uint64_t worker, uint64_t step, double us) MUST_CHECK;
/* Call it after the last row. ERROR_DATA: the table has no rows, or all times of a
 * worker are 0. */
status pace_table_finish(struct pace_table *t) MUST_CHECK;
/* Adds the rows of a file and finishes the table. ERROR_DATA names the line. */
status pace_table_read(struct pace_table *t, const char *path) MUST_CHECK;
void pace_table_free(struct pace_table *t);

/* The rows of a worker. If the table has no rows of worker w, they are those of recorded worker w
 * mod n, where the n recorded workers are counted from 0 in ascending order. Contract: the table is
 * finished. */
const struct pace_row *pace_table_of(const struct pace_table *t, unsigned worker, size_t *count);
struct pace_moments pace_table_moments(const struct pace_table *t, unsigned worker);

#endif
