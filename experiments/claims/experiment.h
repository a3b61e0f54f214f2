/*
 * experiment.h — an experiment file: a question, arms over worker counts and seeds, and claims with
 * bands. docs/experiment-files.md describes the format.
 */
#ifndef GRADLAG_EXPERIMENTS_CLAIMS_EXPERIMENT_H
#define GRADLAG_EXPERIMENTS_CLAIMS_EXPERIMENT_H

#include "experiments/config/config.h"
#include "experiments/sweep/search.h"

#include <stdio.h>

enum { EXPERIMENT_SEEDS = 3 }; /* of each cell, unless the file says otherwise */

/* Settings that hold at one worker count. */
struct at_workers {
    int64_t workers;
    struct settings settings;
};

/* What the source has for a cell: test accuracy in percent, or the loss where data have no classes.
 */
struct expected_cell {
    int64_t workers;
    double value;
};

/* Seeds that --quick makes at one worker count; count 0: the quick part's own. */
struct at_seeds {
    int64_t workers;
    struct int_list seeds;
};

/* Settings that an arm chooses on the validation split before its runs are made (tuning.h). */
struct grid {
    struct space space;     /* no dimension: nothing to choose */
    struct settings search; /* which search, and its keys; none: a grid */
    struct int_list seeds;  /* of the trials; count 0: the first of the experiment's */
};

struct arm {
    char *name, *label;
    char *fit; /* an arm whose run of the same seed and workers its pace is fitted to, or NULL */
    struct grid tune, quick_tune; /* quick_tune: with --quick, where it has any */
    struct settings settings;
    struct int_list workers; /* count 0: all of the experiment's */
    struct at_workers *at;
    size_t at_count;
    struct expected_cell *expected;
    size_t expected_count;
    bool quick;                /* part of --quick too */
    struct at_seeds *quick_at; /* there with these workers alone; */
    size_t quick_at_count;     /* 0: all of its own */
};

struct claim {
    char *text, *source; /* source may be NULL */
    char *value, *sql;   /* one of them: an expression (expression.h), or a SELECT */
    double low, high, quick_low, quick_high;
    unsigned line;
};

/* Which arm plays which part in the verdict; NULL where none does. */
struct verdict_arms {
    char *alone, *undamped, *tuned, *synchronous;
    char **damped; /* as many as damped_count */
    size_t damped_count;
    int64_t workers; /* the worker count it speaks of */
};

struct experiment {
    char *name, *file, *question, *source; /* source may be NULL */
    char *discussion; /* Markdown: what its results mean, and why claims fail; or NULL */
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

/* A file's path, or the name of one that is compiled in. ERROR_USAGE "file:line: …". */
status experiment_open(struct experiment *out, const char *name_or_path) MUST_CHECK;
void experiment_close(struct experiment *e);
const struct arm *experiment_arm(const struct experiment *e, const char *name);
/* The settings of one run, `more` (the command line's) after all of the file's. What the arm tunes
 * or fits is not among them. */
void experiment_settings(const struct experiment *e, const struct arm *arm, int64_t workers,
                         int64_t seed, bool quick, const struct settings *more,
                         struct settings *out);
/* The worker counts, and the seeds that any arm has, of the whole or of --quick. The first is
 * borrowed; the second is the caller's to free (out->at). */
const struct int_list *experiment_workers(const struct experiment *e, bool quick);
void experiment_seeds(const struct experiment *e, bool quick, struct int_list *out);
/* Whether the experiment (--quick: its quick part) makes this run. */
bool experiment_has(const struct experiment *e, const struct arm *arm, int64_t workers,
                    int64_t seed, bool quick);
bool experiment_arm_has(const struct experiment *e, const struct arm *arm, int64_t workers);
/* What the arm tunes; NULL where nothing. */
const struct grid *experiment_grid(const struct arm *arm, bool quick);

/* The compiled-in ones: name and question; false past the last. */
bool experiment_at(size_t index, char name[64]);
void experiment_print_all(FILE *to);

#endif
