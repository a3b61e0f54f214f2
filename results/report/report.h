/*
 * report.h — a results file as one page of HTML with its plots in it: nothing is fetched, no script
 * runs, it reads in light and dark.
 *
 * What an experiment claims, and whether it holds, is known to experiments/: it comes in here as
 * words and numbers.
 */
#ifndef GRADLAG_RESULTS_REPORT_REPORT_H
#define GRADLAG_RESULTS_REPORT_REPORT_H

#include "base/status.h"

enum report_outcome { REPORT_PASS, REPORT_FAIL, REPORT_OPEN /* not measured */ };

/* All texts are borrowed until report_write returns. */
struct report_claim {
    const char *text, *source; /* source may be NULL */
    enum report_outcome outcome;
    double observed, low, high; /* observed is NaN where it is open */
    const char *why;            /* NULL, or what keeps it from being judged */
};
/* What the experiment's source has for a cell: in percent, or a loss. */
struct report_expected {
    int64_t workers;
    double value;
};
struct report_arm {
    const char *name, *label;
    const struct report_expected *expected;
    size_t expected_count;
};
struct report_experiment {
    const char *name, *question, *source; /* source may be NULL */
    const char *part;                     /* NULL, or of what the claims speak: "the quick part" */
    const char *verdict;                  /* lines, or NULL */
    const char *tuning;            /* what tuning chose, of how many trials: lines, or NULL */
    const char *discussion;        /* what the results mean, as html_prose() takes it, or NULL */
    const struct report_arm *arms; /* in the order in which they shall stand */
    size_t arm_count;
    const struct report_claim *claims;
    size_t claim_count;
};
struct report_request {
    const char *path;                            /* results file */
    const char *experiment;                      /* NULL: all in the file */
    const struct report_experiment *experiments; /* those that something is known of */
    size_t experiment_count;
    unsigned reload_s; /* the page reloads itself after so long; 0: it does not */
};
struct report_outline {
    size_t runs, going_on, bytes; /* going_on: running or queued; bytes: of the page */
};

/* Writes the page to a file beside `out` and renames it, so that whoever reads `out` sees a whole
 * page. ERROR_RESULTS: the results file; ERROR_USAGE: it has no such experiment; ERROR_OTHER: the
 * page cannot be written. `outline` may be NULL. */
status report_write(const struct report_request *request, const char *out,
                    struct report_outline *outline) MUST_CHECK;

/* The experiments in the file, for whoever judges their claims: calls `each` with every name. */
status report_experiments(const char *path, void (*each)(void *context, const char *name),
                          void *context) MUST_CHECK;

#endif
