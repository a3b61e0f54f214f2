/*
 * push_series.h — reduces the gradients of a run to a curve. Each point is the mean over the used
 * gradients in one stretch of the run. Internal to results/.
 */
#ifndef GRADLAG_RESULTS_QUERY_PUSH_SERIES_H
#define GRADLAG_RESULTS_QUERY_PUSH_SERIES_H

#include "results/store/database.h"

struct series_point { /* NaN: not measured */
    int64_t updates;  /* version at its end */
    double seconds;   /* training seconds at its end */
    double loss, staleness, greatest_staleness, scale, gap, gradient_norm;
    double updates_per_second;
    int64_t gradients;
};
struct series { /* zero-initialise; owns its points */
    struct series_point *at;
    size_t count;
};

/* Reads at most `points` points with equal numbers of gradients. Rows come from table push if the
 * run has rows there (asynchronous, or a pipeline without flushes), else from step. */
status push_series_read(sqlite3 *db, int64_t run, unsigned points, struct series *out) MUST_CHECK;
void push_series_free(struct series *s);

/* Counts each staleness in at most `stretches` parts of the run. Calls `visit` once for each pair
 * of part and staleness, in order. updates, seconds: at the end of the part. */
struct staleness_bin {
    int64_t stretch, updates, staleness, gradients;
    double seconds;
};
typedef status staleness_visitor(void *context, const struct staleness_bin *count);
status push_series_staleness(sqlite3 *db, int64_t run, unsigned stretches, staleness_visitor *visit,
                             void *context) MUST_CHECK;

#endif
