/*
 * claims_for_report.h — for the report: what the experiments of a results file ask and claim, and
 * what has come of it so far.
 */
#ifndef GRADLAG_EXPERIMENTS_CLAIMS_CLAIMS_FOR_REPORT_H
#define GRADLAG_EXPERIMENTS_CLAIMS_CLAIMS_FOR_REPORT_H

#include "results/report/report.h"

struct report_claim_set;
struct report_claims { /* zero-initialise */
    struct report_experiment *at;
    size_t count;
    struct report_claim_set *own; /* what the texts of `at` live in */
};

/* Those of the experiments in `results` that are compiled in, or that one of `files` (names or
 * paths) is about; `only`: NULL, or the one of that name. An experiment is judged as the whole or
 * as its quick part, of whichever more is there. One that cannot be laid out is left out, with a
 * warning. */
status report_claims_read(struct report_claims *out, const char *results, const char *only,
                          const char *const *files, size_t file_count) MUST_CHECK;
void report_claims_close(struct report_claims *j);

#endif
