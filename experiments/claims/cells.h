/*
 * cells.h — the results of an experiment's runs: one cell for each arm and column, over the seeds.
 */
#ifndef GRADLAG_EXPERIMENTS_CLAIMS_CELLS_H
#define GRADLAG_EXPERIMENTS_CLAIMS_CELLS_H

#include "experiments/claims/experiment.h"
#include "experiments/claims/expression.h"
#include "experiments/run/run_summary_text.h"
#include "experiments/sweep/plan.h"

/* A planned run counts in this arm and column. If the settings of several columns have the same
 * effect on an arm, these columns share its runs: a run then has several uses. */
struct run_use {
    size_t run; /* index in the plan */
    const struct arm *arm;
    int64_t column;
    bool further; /* has a seed that only undecided columns of a map get */
};
struct run_uses {
    struct run_use *at;
    size_t count;
};

struct cell {
    const struct arm *arm;
    int64_t column;
    char title[64]; /* "16 workers", "delay=1" */
    unsigned planned, finished, diverged, failed;
    unsigned unmeasured; /* runs with the experiment's own seeds that failed or have not ended */
    unsigned unscored;   /* runs with these own seeds that diverged or have no finite score */
    double choice; /* mean over finished runs with the experiment's own seeds: the score on the
                      validation split, or on the test split if the data have no validation split.
                      NaN: no finished run */
    unsigned staleness_spread_too_wide; /* finished runs whose staleness spreads wider than their
                                           pace explains: other work delayed the steps */
    /* Means over finished runs; NaN: no finished run. Accuracy and validation in percent. */
    double accuracy, loss, validation, validation_loss;
    double score;               /* in the experiment's metric: percent or loss */
    double deviation, interval; /* of the score; interval: half of the 95 % interval. NaN for fewer
                                   than two finished runs, or if a score is not finite */
    double seconds, updates;    /* of training; with engine=virtual in virtual seconds */
    double updates_per_second, samples_per_second;
    double staleness, staleness_cv, staleness_max; /* max: over all runs */
    /* The share of ended runs that died: diverged or, if the metric is accuracy, below 20 %. */
    double died;
};
/* Score of one cell − score of another, over the seeds that both have finished. */
struct paired {
    unsigned n, missing;              /* missing: pairs of runs of which one has no finite score */
    double mean, deviation, interval; /* mean NaN for n < 1; the others NaN for n < 2 */
};
struct cells {
    struct cell *at;
    size_t count;
    const struct experiment *experiment;
    const struct plan *plan;
    const struct run_uses *uses;
    enum metric metric;          /* the experiment's; METRIC_LOSS if its runs have no accuracy */
    struct run_figures *figures; /* [plan->count]; those of cells_without() are borrowed */
    double *scores;              /* [plan->count]; NaN: the run has not finished, or is left out */
    bool quick;
    bool partial; /* the runs with seed `left_out` do not count */
    int64_t left_out;
    int64_t *columns; /* [column_count], ascending */
    size_t column_count;
};

/* Makes a cell for each arm and column of the plan, and fills it from the results file. `quick`:
 * the plan is of the quick part. All arguments must outlive the cells. */
status cells_open(struct cells *out, const struct experiment *e, const struct plan *p,
                  const struct run_uses *uses, bool quick) MUST_CHECK;
void cells_close(struct cells *c);
/* The cells of `whole` without the runs of one seed, for intervals by the jackknife. `whole` must
 * outlive them. */
status cells_without(struct cells *out, const struct cells *whole, int64_t seed) MUST_CHECK;
/* Whether the run counts in these cells. */
bool cells_have_run(const struct cells *c, const struct planned_run *r);
static inline bool cell_has(const struct cell *cell, const struct run_use *use)
{
    return use->arm == cell->arm && use->column == cell->column;
}
/* The cell, or NULL. */
const struct cell *cells_find(const struct cells *c, const char *arm, int64_t column);
/* Compares `a` with `b`. */
void cells_pair(const struct cells *c, const struct cell *a, const struct cell *b,
                struct paired *out);
/* The cells that one claim reads. `incomplete` is set to a cell whose planned runs have not all
 * finished; the measure is then NaN, because a mean over survivors is misleading. died() needs only
 * ended runs. `delayed` is set to the first cell with staleness_spread_too_wide. */
struct cells_reading { /* zero-initialise; the caller frees seeds.at with free() */
    const struct cells *cells;
    const struct cell *incomplete, *delayed;
    const struct cell *without_value; /* a cell whose finished runs have no finite figure */
    const struct cell *single; /* a cell with too few seeds: a deviation or an interval needs two
                                  seeds, a pair needs a common seed */
    bool absent;               /* a cell is not in this part of the experiment */
    /* The seeds of the runs that the claim reads, each once. For a pair: the seeds that both cells
     * have. */
    struct int_list seeds;
    unsigned fewest; /* smallest number of seeds of a cell or pair; 0: none was read */
};
/* The measures of claims; docs/experiment-files.md lists them. `r` must outlive them. */
struct measures cells_measures(struct cells_reading *r);
/* ERROR_USAGE: the expression is malformed, or names a measure, arm or column that the
 * experiment does not have. Needs no runs. */
status cells_check(const struct experiment *e, const char *expression) MUST_CHECK;

/* Which side of the experiment's map is ahead in a column. The arm with the best score on the
 * validation split, over the experiment's own seeds, represents its side. So the choice does not
 * use the test split, which `margin` compares, and does not change with further seeds. */
struct lead {
    const struct cell *best, *second; /* representing the best two sides; NULL: not known */
    const struct map_side *ahead;     /* of `best` */
    struct paired margin;             /* best − second in the metric's better direction */
    bool decided; /* the 95 % interval of the margin lies above 0, and `best` has no unscored run,
                     whose seed the margin lacks */
    unsigned arms, missing; /* arms of all sides in this column; those that are not measured there,
                               which the margin ignores */
    double seeds; /* estimated number of seeds that would decide the lead; NaN: it is decided, or
                     not known */
};
void cells_lead(const struct cells *c, int64_t column, struct lead *out);
/* Tables: the lead in each column, if the file has a map; score by arm and column, with expected
 * values; rates and staleness of each cell; differences on the same seeds. */
void cells_print(const struct cells *c, FILE *to);
/* The same in Markdown; all tables but the first are in a <details> element. */
void cells_print_markdown(const struct cells *c, FILE *to);
/* In sentences: what asynchrony cost, what damping and tuning recovered, … */
void verdict_print(const struct cells *c, FILE *to);

#endif
