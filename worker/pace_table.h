/*
 * pace_table.h — measured durations of steps, worker by worker.
 *
 * As CSV (RFC 4180 without quotes): a header line, then one line per step. Of its columns `worker`
 * (0, 1, …) and `compute_us` (microseconds ≥ 0) are used, and the first of `step`, `batch` and
 * `sequence` that there is, which orders a worker's lines; else they stand in their order. Other
 * columns are passed over, so that what `gradlag replay RUN --export` writes is read as it is.
 */
#ifndef GRADLAG_WORKER_PACE_TABLE_H
#define GRADLAG_WORKER_PACE_TABLE_H

#include "worker/base.h"

struct pace_row {
    uint64_t worker, step, place;
    double ns;
};
struct pace_moments { /* of a worker's times: mean, and coefficient of variation */
    double mean_ns, cv;
};
struct pace_table { /* zero-initialise */
    struct pace_row *rows;
    size_t count, capacity;
    /* Once finished: */
    unsigned workers;
    size_t *first;                /* [workers + 1]: where each worker's rows begin */
    struct pace_moments *moments; /* [workers] */
};

status pace_table_add(struct pace_table *t, uint64_t worker, uint64_t step, double us) MUST_CHECK;
/* After the last row. ERROR_DATA: there is none. */
status pace_table_finish(struct pace_table *t) MUST_CHECK;
/* Adds a file's rows and finishes. ERROR_DATA names the line. */
status pace_table_read(struct pace_table *t, const char *path) MUST_CHECK;
void pace_table_free(struct pace_table *t);

/* The rows of a worker: where there are fewer workers in the table than in the run, worker w does
 * as recorded worker w mod their number. */
const struct pace_row *pace_table_of(const struct pace_table *t, unsigned worker, size_t *count);
struct pace_moments pace_table_moments(const struct pace_table *t, unsigned worker);

#endif
