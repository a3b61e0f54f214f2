/*
 * run_summary_text.h — what one run came to, in a few lines on stdout, from its row.
 */
#ifndef GRADLAG_EXPERIMENTS_RUN_RUN_SUMMARY_TEXT_H
#define GRADLAG_EXPERIMENTS_RUN_RUN_SUMMARY_TEXT_H

#include "base/text.h"

#include <stdio.h>

struct run_figures { /* NaN where the row has none */
    double accuracy, best_accuracy, validation_accuracy, loss, samples_per_second, updates,
        train_seconds;
    double mean_staleness, staleness_cv, max_staleness;
    double expected_cv; /* what the pace explains, where staleness_cv is too wide
                           (staleness_spread.h) */
    bool is_virtual;    /* times and rates are those of the simulated cluster */
    bool collapsed;     /* at least 99 % of the test predictions are one class */
};
/* `o`: the run's settings; NULL: expected_cv is NaN. */
struct options;
status run_summary_read(const char *results, int64_t run_id, const struct options *o,
                        struct run_figures *out) MUST_CHECK;
/* Several lines (run) or one (sweep). The first warns on stderr if staleness spreads too wide. */
status run_summary_print(const char *results, int64_t run_id, const struct options *o,
                         FILE *to) MUST_CHECK;
void run_summary_line(const struct run_figures *f, struct text *out);

/* "async ×4 inverse seed 2", from the composed settings. */
void run_summary_title(const struct options *o, char out[128]);

#endif
