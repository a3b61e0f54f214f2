/*
 * experiment.h — an experiment file: a question, arms over worker counts and seeds, and claims with
 * bands. docs/experiment-files.md describes the format.
 */
#ifndef GRADLAG_EXPERIMENTS_CLAIMS_EXPERIMENT_H
#define GRADLAG_EXPERIMENTS_CLAIMS_EXPERIMENT_H

#include "experiments/config/config.h"
#include "experiments/sweep/search.h"

#include <stdio.h>

enum { EXPERIMENT_SEEDS = 3 }; /* seeds of each cell if the file has no key `seeds` */

/* Settings for one worker count. */
struct at_workers {
    int64_t workers;
    struct settings settings;
};

/* The source's figure for a cell: test accuracy in percent, or the loss without classes. */
struct expected_cell {
    int64_t workers;
    double value;
};

/* Seeds of --quick at one worker count; count 0: the seeds of the quick part. */
struct at_seeds {
    int64_t workers;
    struct int_list seeds;
};

/* The key `tune` of an arm: settings chosen on the validation split before its runs (tuning.h). */
struct tune_space {
    struct space space;     /* without a dimension: the arm does not tune */
    struct settings search; /* keys of the search; none: a grid */
    struct int_list seeds;  /* of the trials; count 0: the first seed of the experiment */
};

struct arm {
    char *name, *label;
    /* The pace is fitted to the run of arm `fit` with the same seed and workers; NULL: no fit. */
    char *fit;
    struct tune_space tune, quick_tune; /* --quick uses quick_tune if it has a dimension */
    struct settings settings;
    struct int_list workers; /* count 0: all of the experiment's */
    struct at_workers *at;
    size_t at_count;
    struct expected_cell *expected;
    size_t expected_count;
    bool quick;                /* has runs in the quick part */
    struct at_seeds *quick_at; /* the quick part has only these worker counts; */
    size_t quick_at_count;     /* 0: all worker counts of the arm */
};

struct claim {
    char *text, *source; /* source may be NULL */
    char *value, *sql;   /* an expression (expression.h) or a SELECT; the other is NULL */
    double low, high, quick_low, quick_high;
    unsigned line;
};

/* The role of arms in the verdict; NULL: no arm has it. */
struct verdict_arms {
    char *alone, *undamped, *tuned, *synchronous;
    char **damped; /* [damped_count] */
    size_t damped_count;
    int64_t workers; /* the worker count of the verdict */
};

struct experiment {
    char *name, *file, *question, *source; /* source may be NULL */
    char *discussion; /* Markdown: the meaning of the results, why claims fail; or NULL */
    struct settings settings, quick_settings;
    struct at_workers *at;
    size_t at_count;
    struct int_list workers, seeds, quick_workers, quick_seeds;
    struct arm *arms;
    size_t arm_count;
    struct claim *claims;
    size_t claim_count;
    struct verdict_arms verdict;
};

/* Opens a file by its path, or a compiled-in one by its name. ERROR_USAGE "file:line: …". */
status experiment_open(struct experiment *out, const char *name_or_path) MUST_CHECK;
void experiment_close(struct experiment *e);
const struct arm *experiment_arm(const struct experiment *e, const char *name);
/* Adds the settings of one run; `more` (the command line's) overrides the file. Tuned and fitted
 * settings are not included. */
void experiment_settings(const struct experiment *e, const struct arm *arm, int64_t workers,
                         int64_t seed, bool quick, const struct settings *more,
                         struct settings *out);
/* The worker counts of the whole experiment or of its quick part; borrowed. */
const struct int_list *experiment_workers(const struct experiment *e, bool quick);
/* The seeds of any arm, likewise, each once. The caller frees out->at with free(). */
void experiment_seeds(const struct experiment *e, bool quick, struct int_list *out);
/* Whether the experiment (`quick`: its quick part) has this run. */
bool experiment_has(const struct experiment *e, const struct arm *arm, int64_t workers,
                    int64_t seed, bool quick);
bool experiment_arm_has(const struct experiment *e, const struct arm *arm, int64_t workers);
/* What the arm tunes; NULL: nothing. */
const struct tune_space *experiment_tune_space(const struct arm *arm, bool quick);

/* The name of compiled-in experiment `index`; false after the last. */
bool experiment_at(size_t index, char name[64]);
/* One line for each compiled-in experiment: its name and its question. */
void experiment_print_all(FILE *to);

#endif
