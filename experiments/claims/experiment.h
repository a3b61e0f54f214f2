/*
 * experiment.h — an experiment file: a question, arms over columns (worker counts) and seeds, and
 * claims with bands. docs/experiment-files.md describes the format.
 *
 * A column is one level of each axis. Most files have one axis of whole numbers, workers or another
 * key; then a column is that number. With key `axes` there are several axes, and a column is the
 * number of a combination; the last axis varies fastest.
 */
#ifndef GRADLAG_EXPERIMENTS_CLAIMS_EXPERIMENT_H
#define GRADLAG_EXPERIMENTS_CLAIMS_EXPERIMENT_H

#include "experiments/config/config.h"
#include "experiments/sweep/search.h"

#include <stdio.h>

enum { NO_COLUMN = -1, EXPERIMENT_AXES = 6 /* at most */ };
enum { EXPERIMENT_SEEDS = 3 }; /* seeds of each cell if the file has no key `seeds` */

/* A level of an axis: a value of a key, or a name for some settings. */
struct experiment_level {
    char *name;
    struct settings settings; /* of a named level */
};
struct experiment_axis {
    char *name; /* of the key, or of the axis */
    bool named; /* its levels are names */
    struct experiment_level *levels;
    size_t count;
};

/* Settings for some columns. */
struct at_column {
    struct int_list columns;
    struct settings settings;
};

/* The source's figure for a cell, in the experiment's metric. */
struct expected_cell {
    int64_t column;
    double value;
};

/* Seeds of --quick in one column; count 0: the seeds of the quick part. */
struct at_seeds {
    int64_t column;
    struct int_list seeds;
};

/* The key `tune` of an arm: settings chosen on the validation split before its runs (tuning.h). */
struct tune_space {
    struct space space;     /* without a dimension: the arm does not tune */
    struct settings search; /* keys of the search; none: a grid */
    struct int_list seeds;  /* of the trials; count 0: experiment_trial_seed() */
    /* Bit l of shared[a] marks level l of axis a. Columns that differ only in marked levels share
     * the choice of the first of these columns. */
    uint64_t shared[EXPERIMENT_AXES];
};

struct arm {
    char *name, *label;
    /* The pace is fitted to the run of arm `fit` with the same seed and workers; NULL: no fit. */
    char *fit;
    struct tune_space tune, quick_tune; /* --quick uses quick_tune if it has a dimension */
    struct settings settings;
    struct int_list columns; /* count 0: all of the experiment's */
    struct at_column *at;
    size_t at_count;
    struct expected_cell *expected;
    size_t expected_count;
    bool quick;                /* has runs in the quick part */
    struct at_seeds *quick_at; /* the quick part has only these columns; */
    size_t quick_at_count;     /* 0: all columns of the arm */
};

/* The figure that the tables show and that the claims' measures `score`, `paired`, … compare.
 * Tuning optimises it on the validation split. */
enum metric {
    METRIC_ACCURACY, /* of the test split, in percent; the loss if the data have no classes */
    METRIC_LOSS,     /* of the test split */
    METRIC_VALIDATION_LOSS, /* of the validation split */
};

struct claim {
    char *text, *source; /* source may be NULL */
    char *value, *sql;   /* an expression (expression.h) or a SELECT; the other is NULL */
    double low, high, quick_low, quick_high;
    bool equivalence; /* the whole interval must lie in the band */
    unsigned line;
};

/* The role of arms in the verdict; NULL: no arm has it. `compared`: for each of these arms the
 * verdict lists what the other columns cost against the first column. */
struct verdict_arms {
    char *alone, *undamped, *tuned, *synchronous;
    char **damped; /* [damped_count] */
    size_t damped_count;
    char **compared; /* [compared_count] */
    size_t compared_count;
    int64_t column; /* the column of these roles; NO_COLUMN: none */
};

/* A side of key `map`; the best of its arms represents it (cells.h). */
struct map_side {
    char *name;
    char **arms; /* [count] */
    size_t count;
};

struct experiment {
    char *name, *file, *question, *source; /* source may be NULL */
    char *discussion; /* Markdown: the meaning of the results, why claims fail; or NULL */
    struct settings settings, quick_settings;
    struct at_column *at;
    size_t at_count;
    /* The one axis of whole numbers: "workers", or the key that `columns` of the file names. NULL:
     * the file has `axes`. */
    char *axis;
    struct experiment_axis *axes;
    size_t axis_count;
    enum metric metric;
    struct int_list columns, seeds, quick_columns, quick_seeds;
    struct arm *arms;
    size_t arm_count;
    struct claim *claims;
    size_t claim_count;
    struct verdict_arms verdict;
    struct map_side *sides; /* [side_count]; none, or at least two */
    size_t side_count;
    unsigned map_seeds; /* seeds of the best arms in a column that further seeds may decide; 0: no
                           further seeds */
};

/* Opens a file by its path, or a compiled-in one by its name. ERROR_USAGE "file:line: …". */
status experiment_open(struct experiment *out, const char *name_or_path) MUST_CHECK;
void experiment_close(struct experiment *e);
const struct arm *experiment_arm(const struct experiment *e, const char *name);
/* Adds the settings of one run; `more` (the command line's) overrides the file. Tuned and fitted
 * settings are not included. */
void experiment_settings(const struct experiment *e, const struct arm *arm, int64_t column,
                         int64_t seed, bool quick, const struct settings *more,
                         struct settings *out);
/* "16 workers"; "delay=16"; with several axes "slow, 10g, 16 workers". */
void experiment_column_text(const struct experiment *e, int64_t column, char out[64]);
/* The index of the column's level on an axis. Contract: the file has `axes`. */
size_t experiment_level(const struct experiment *e, int64_t column, size_t axis);
/* The index of the level with this name; a->count: none. */
size_t experiment_find_level(const struct experiment_axis *a, const char *name);
/* The axis that has a level of this name; axis_count: none. If the file has one axis of whole
 * numbers: 0 for a whole number, else 1. */
size_t experiment_axis_of_level(const struct experiment *e, const char *level);
/* Levels in a column's name: 1, or the number of axes. */
size_t experiment_level_count(const struct experiment *e);
/* The column with these levels, one of each axis, in any order. ERROR_USAGE: there is none. */
status experiment_find_column(const struct experiment *e, const char (*levels)[64],
                              int64_t *out) MUST_CHECK;
/* The columns of the whole experiment or of its quick part; borrowed. */
const struct int_list *experiment_columns(const struct experiment *e, bool quick);
/* The seeds that any arm has in the whole experiment or in its quick part, each once. The caller
 * frees out->at with free(). */
void experiment_seeds(const struct experiment *e, bool quick, struct int_list *out);
/* A seed for trials that no run has: it is larger than the seeds of the experiment, of its quick
 * part and of its map. So no arm is scored on the seed for which its settings were chosen. */
int64_t experiment_trial_seed(const struct experiment *e);
/* Whether the experiment (`quick`: its quick part) has this run. */
bool experiment_has(const struct experiment *e, const struct arm *arm, int64_t column, int64_t seed,
                    bool quick);
bool experiment_arm_has(const struct experiment *e, const struct arm *arm, int64_t column);
/* What the arm tunes; NULL: nothing. */
const struct tune_space *experiment_tune_space(const struct arm *arm, bool quick);

/* ERROR_USAGE: `more` would change what the experiment compares. It sets a key that an axis, an arm
 * or the experiment itself decides; or a length of training, and one of these decides the length;
 * or it chooses a part, and one of these decides a dotted key of the part. */
status experiment_check_override(const struct experiment *e,
                                 const struct settings *more) MUST_CHECK;
/* Whether the file may give runs of one arm different values of this key: it sets the key for some
 * columns, or an arm tunes it. */
bool experiment_varies(const struct experiment *e, const char *key);
/* Whether any run has this setting. */
bool experiment_uses(const struct experiment *e, const char *key, const char *value);
/* The name of compiled-in experiment `index`; false after the last. */
bool experiment_at(size_t index, char name[64]);
/* One line for each compiled-in experiment: its name and its question. */
void experiment_print_all(FILE *to);

#endif
