/*
 * cells.h — what an experiment's runs came to: one cell per arm and worker count, over the seeds.
 */
#ifndef GRADLAG_EXPERIMENTS_CLAIMS_CELLS_H
#define GRADLAG_EXPERIMENTS_CLAIMS_CELLS_H

#include "experiments/claims/experiment.h"
#include "experiments/claims/expression.h"
#include "experiments/sweep/plan.h"

struct cell {
    const struct arm *arm;
    int64_t workers;
    unsigned planned, finished, diverged, failed;
    unsigned staleness_spread_too_wide; /* of the finished: staleness spreads wider than its pace
                                           explains */
    /* Means over finished runs, NaN where there is none; accuracy in percent. */
    double accuracy, loss, validation;
    double deviation, interval; /* half of the 95 % one; NaN unless two runs or more finished */
    double seconds, updates;    /* seconds of training: with engine=virtual the cluster's */
    double updates_per_second, samples_per_second;
    double staleness, staleness_cv, staleness_max; /* max: over all of them */
    /* The part of the runs that ended that is dead: diverged, or no better than guessing twice. */
    double died;
};
/* Accuracy of one cell less that of another, in points, over the seeds that both have finished. */
struct paired {
    unsigned n;
    double mean, deviation, interval; /* NaN: none; fewer than two */
};
struct cells {
    struct cell *at;
    size_t count;
    const struct experiment *experiment;
    const struct plan *plan;
    double *accuracies; /* of each run of the plan, in percent; NaN unless it finished */
    int64_t *workers;   /* the columns, ascending */
    size_t worker_count;
};

/* Lays the cells out as the plan does, and fills them in from the results file. The experiment and
 * the plan must outlive them. */
status cells_open(struct cells *out, const struct experiment *e, const struct plan *p) MUST_CHECK;
void cells_close(struct cells *c);
/* The cell, or NULL. */
const struct cell *cells_find(const struct cells *c, const char *arm, int64_t workers);
void cells_pair(const struct cells *c, const struct cell *a, const struct cell *b,
                struct paired *out);
/* What a claim reads. `lacking` is set to a cell that it needs and whose planned runs did not all
 * finish: a mean over the survivors says nothing. died() needs only runs that ended. `delayed` is
 * set to the first cell it reads of which staleness spreads too wide in some run. */
struct cells_reading {
    const struct cells *cells;
    const struct cell *lacking, *delayed;
};
/* Measures of claims: accuracy, deviation, died and so on; see docs/experiment-files.md. */
struct measures cells_measures(struct cells_reading *r);
/* Checks an expression against an experiment without any runs: unknown measures and arms. */
status cells_check(const struct experiment *e, const char *expression) MUST_CHECK;

/* Accuracy as arms × workers, beside what the file expects; rates and staleness cell by cell;
 * differences on the same seeds. */
void cells_print(const struct cells *c, FILE *to);
/* The same; all but the first is folded away. */
void cells_print_markdown(const struct cells *c, FILE *to);
/* In words: what asynchrony cost, what damping gave back, … */
void verdict_print(const struct cells *c, FILE *to);

#endif
