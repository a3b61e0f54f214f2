/*
 * claims_for_report.h — the questions, claims and outcomes of the experiments in a results file,
 * for the report.
 */
#ifndef GRADLAG_EXPERIMENTS_CLAIMS_CLAIMS_FOR_REPORT_H
#define GRADLAG_EXPERIMENTS_CLAIMS_CLAIMS_FOR_REPORT_H

#include "results/report/report.h"

struct report_claim_set;
struct report_claims { /* zero-initialise */
    struct report_experiment *at;
    size_t count;
    struct report_claim_set *own; /* owns the texts of `at` */
};

/* Reads the experiments in `results` that are compiled in or defined by one of `files` (names or
 * paths). `only`: read the experiment of that name; NULL: all. Judges the whole experiment or its
 * quick part, whichever has the larger share of its runs. Omits an experiment with an error, and
 * logs a warning. */
status report_claims_read(struct report_claims *out, const char *results, const char *only,
                          const char *const *files, size_t file_count) MUST_CHECK;
void report_claims_close(struct report_claims *j);

#endif
