/*
 * report.h — writes a results file as one HTML page with inline plots, and the plots as figures.
 * The page loads nothing and has a light and a dark style. Its one script shows the values of
 * marks.
 *
 * experiments/ judges the claims and passes them to this room as texts and numbers.
 */
#ifndef GRADLAG_RESULTS_REPORT_REPORT_H
#define GRADLAG_RESULTS_REPORT_REPORT_H

#include "base/status.h"

enum report_outcome { REPORT_PASS, REPORT_FAIL, REPORT_OPEN /* not measured */ };

/* All texts are borrowed until report_write returns. */
struct report_claim {
    const char *text, *source; /* source may be NULL */
    enum report_outcome outcome;
    double observed, low, high; /* observed is NaN if the claim is open */
    double interval;            /* half of the 95 % interval of `observed`; NaN: not known */
    const char *why;            /* NULL, or why the claim is open */
};
/* The value of the experiment's source for a cell: percent, or a loss. */
struct report_expected {
    int64_t column; /* value of the experiment's axis */
    double value;
};
struct report_arm {
    const char *name, *label;
    const struct report_expected *expected;
    size_t expected_count;
};
/* A column of an experiment with a map: one level of each axis, and the side that is ahead. */
struct report_map_cell {
    const char *panel, *row, *column; /* levels of the other axes, the last but one, the last */
    int ahead, best_side;    /* indices of sides; ahead -1: undecided; best_side -1: not measured */
    double margin, interval; /* points, or a loss; interval: half of the 95 % interval, or NaN */
    unsigned seeds;
    unsigned arms, missing;   /* arms of all sides; those not measured here, which may be better;
                               0 if best_side is -1 */
    const char *best, *other; /* labels of the arms that the margin compares; NULL: not measured */
};
enum { REPORT_SIDES = 8 };
struct report_map {
    const char *sides[REPORT_SIDES];
    size_t side_count;
    bool by_loss;     /* the margins are of losses */
    const char *unit; /* of the margins: "points of test accuracy" */
    const char *column_axis;
    /* Sorted by panel, row and column; every combination of levels. */
    const struct report_map_cell *cells;
    size_t cell_count;
};
/* A run of an experiment with several axes, and the panel that the run belongs to. `name`: the
 * levels of the axes other than that of the plots. */
struct report_panel {
    int64_t run; /* its id in the file */
    const char *name;
};
struct report_experiment {
    const char *name, *question, *source; /* source may be NULL */
    /* The key whose values are the columns of the plots and of expected values; NULL: workers. If
     * any run's value is not a whole number, the columns of the plots are numbers of workers. */
    const char *axis;
    bool by_loss, of_validation;   /* its metric is a loss; on the validation split */
    const char *part;              /* NULL, or the part that was judged: "the quick part" */
    const char *verdict;           /* lines, or NULL */
    const char *tuning;            /* choices of tuning and numbers of trials: lines, or NULL */
    const char *discussion;        /* discussion of the results, for html_prose(), or NULL */
    const struct report_arm *arms; /* in the order of the page */
    size_t arm_count;
    const struct report_claim *claims;
    size_t claim_count;
    struct report_map map; /* without a cell: none */
    /* Sorted by run. A run may be in several panels; a run without one has plots of its own. */
    const struct report_panel *panels;
    size_t panel_count;
};
struct report_request {
    const char *path;                            /* results file */
    const char *experiment;                      /* NULL: all in the file */
    const struct report_experiment *experiments; /* experiments with claims or texts */
    size_t experiment_count;
    unsigned reload_s;   /* the page reloads itself after this time; 0: never */
    const char *figures; /* a folder for the plots as SVG files; NULL: none */
    /* Called with the path of each figure that was written; its error ends report_write(). NULL:
     * none. */
    status (*each_figure)(void *context, const char *path);
    void *context; /* of each_figure */
};
struct report_outline {
    size_t runs, going_on, bytes; /* going_on: running or queued; bytes: of the page */
    size_t figures;               /* written as files */
};

/* Writes the page to a temporary file and renames it to `out`, so that readers of `out` see
 * complete pages; then the figures, which show the same moment. ERROR_RESULTS: the results file;
 * ERROR_USAGE: the file has no such experiment; ERROR_OTHER: the page or a figure cannot be
 * written. `outline` may be NULL. */
status report_write(const struct report_request *request, const char *out,
                    struct report_outline *outline) MUST_CHECK;

/* Calls `each` with the name of every experiment in the file. */
status report_experiments(const char *path, void (*each)(void *context, const char *name),
                          void *context) MUST_CHECK;

#endif
