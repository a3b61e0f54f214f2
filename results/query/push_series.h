/*
 * push_series.h — a run's gradients as a curve of few points: each is a stretch of the run, with
 * means over the gradients in it that were used. Internal to results/.
 */
#ifndef GRADLAG_RESULTS_QUERY_PUSH_SERIES_H
#define GRADLAG_RESULTS_QUERY_PUSH_SERIES_H

#include "results/store/database.h"

struct series_point { /* NaN: not measured */
    int64_t updates;  /* versions at its end */
    double seconds;   /* of training, at its end */
    double loss, staleness, greatest_staleness, scale, gap, gradient_norm;
    double updates_per_second;
    int64_t gradients;
};
struct series { /* zero-initialise; owns its points */
    struct series_point *at;
    size_t count;
};

/* At most `points` of them, as many gradients in each. Of `push` where the run has rows there (it
 * is asynchronous, or a pipeline without flushes), else of `step`. */
status push_series_read(sqlite3 *db, int64_t run, unsigned points, struct series *out) MUST_CHECK;
void push_series_free(struct series *s);

/* How often each staleness occurred in each of at most `stretches` parts of the run; called once
 * for each pair, in order. `updates`: versions at the part's end; likewise seconds. */
struct staleness_bin {
    int64_t stretch, updates, staleness, gradients;
    double seconds;
};
typedef status staleness_visitor(void *context, const struct staleness_bin *count);
status push_series_staleness(sqlite3 *db, int64_t run, unsigned stretches, staleness_visitor *visit,
                             void *context) MUST_CHECK;

#endif
