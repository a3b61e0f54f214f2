/*
 * run_summary_text.h — the result of one run as text, from its row.
 */
#ifndef GRADLAG_EXPERIMENTS_RUN_RUN_SUMMARY_TEXT_H
#define GRADLAG_EXPERIMENTS_RUN_RUN_SUMMARY_TEXT_H

#include "base/text.h"

#include <stdio.h>

struct run_figures {                      /* NaN: the row has no value */
    double accuracy, best_accuracy, loss; /* of the test split */
    double validation_accuracy, validation_loss, samples_per_second, updates, train_seconds;
    double mean_staleness, staleness_cv, max_staleness;
    double expected_cv; /* the cv that the pace explains, if staleness_cv is too wide
                           (staleness_spread.h); else NaN */
    bool is_virtual;    /* times and rates are those of the simulated cluster */
    bool collapsed;     /* at least 99 % of the test predictions are one class */
    /* The loss of this split was measured and is infinite or NaN. */
    bool loss_diverged, validation_loss_diverged;
};
/* `o`: the run's settings; NULL: expected_cv is NaN. */
struct options;
status run_summary_read(const char *results, int64_t run_id, const struct options *o,
                        struct run_figures *out) MUST_CHECK;
/* Prints several lines (for `run`). Warns on stderr if staleness spreads wider than the pace
 * explains. */
status run_summary_print(const char *results, int64_t run_id, const struct options *o,
                         FILE *to) MUST_CHECK;
/* Only that warning (for `run --json`). */
status run_summary_warn(const char *results, int64_t run_id, const struct options *o) MUST_CHECK;
/* Adds one line (for `sweep`). */
void run_summary_line(const struct run_figures *f, struct text *out);

/* "async ×4 inverse seed 2", from the composed settings. */
void run_summary_title(const struct options *o, char out[128]);

#endif
