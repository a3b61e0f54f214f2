/*
 * plan.h — the runs of a sweep or an experiment. plan.c looks up which of them the results file has
 * already; plan_execute.c executes the others. One thread uses a plan.
 */
#ifndef GRADLAG_EXPERIMENTS_SWEEP_PLAN_H
#define GRADLAG_EXPERIMENTS_SWEEP_PLAN_H

#include "base/text.h"
#include "results/query/query.h"
#include "base/options.h"

#include <stdio.h>

struct settings;

enum planned_state {
    PLANNED_MISSING, /* not executed yet, or stopped */
    PLANNED_FINISHED,
    PLANNED_DIVERGED,
    PLANNED_FAILED,
    PLANNED_ELSEWHERE, /* another process executes it */
    PLANNED_DROPPED,   /* was taken out of the queue */
    PLANNED_STATES,
};

enum { PLAN_VARIED = 32 };

/* On the validation split, at a run's last evaluation; NaN: not measured. */
struct plan_score {
    double accuracy, loss;
};

struct planned_run {
    options *settings; /* owned */
    char title[128], hash[65];
    struct text varied; /* JSON object: the plan's `varied` keys and their values in this run */
    enum planned_state state;
    bool waiting;     /* was in the queue, as run_id, before this plan existed */
    int64_t run_id;   /* of its row, if it has one */
    unsigned attempt; /* number of that row's attempt, from 1 */
};
struct plan { /* zero-initialise */
    /* The keys of plan_vary(). */
    const char *varied[PLAN_VARIED];
    size_t varied_count;
    struct planned_run *runs;
    size_t count;
    bool of_trials;      /* runs are trials of searches: each finished one must have a score */
    bool again;          /* execute ended runs again */
    bool reads_only;     /* nothing will be executed: a failed run stays failed, and precision=auto
                            makes no trials */
    bool warned_of_path; /* internal */
};

/* --part K/N: this process executes part K of N. The parts of one command are disjoint, and
 * together they have all of its runs. The part of a run depends only on the command and on N, not
 * on the content of a results file. */
struct plan_part {
    unsigned number, of; /* number: 1 to of; of 0: not divided */
};
struct plan_options {
    unsigned jobs; /* runs at a time; 0: 1 */
    bool oversubscribe, quiet;
    struct plan_part part;
};

/* Resolves precision=auto (precision_choice.h). Call it before the settings are added. */
status plan_choose_precision(const struct plan *p, options *settings) MUST_CHECK;
/* For a key that does not define the computation (KEY_BESIDE): runs that differ only in this key
 * become different runs of the plan, so that payload=shm,frames compares the two. Ignores other
 * keys. Call it before the settings are added. The key is borrowed. */
void plan_vary(struct plan *p, const char *key);
/* Takes ownership of the settings. If the plan already has this run (same configuration,
 * experiment, arm and varied keys), frees them and returns false. */
bool plan_add(struct plan *p, options **settings);
/* Like plan_add; returns the index of the run in the plan. */
size_t plan_find_or_add(struct plan *p, options **settings);
/* Adds a run that waits in the queue of its results file. */
void plan_add_waiting(struct plan *p, options **settings, int64_t run_id);
void plan_close(struct plan *p);

/* Whether the part has item `index` of a list. The sizes of two parts differ by at most one. */
bool plan_part_has(const struct plan_part *part, size_t index);
/* The position of the run with these settings among the different runs of `seen`; adds a new run to
 * `seen`. Equal runs have the same position, and so belong to the same part. */
status plan_position(struct plan *seen, const struct settings *s, size_t *out) MUST_CHECK;
/* Removes the runs of other parts. Call it before plan_look_up(). */
void plan_keep_part(struct plan *p, const struct plan_part *part);
/* The key that finds the run in its results file; it points into `r`. */
void plan_key(const struct planned_run *r, struct run_key *out);
/* Looks up the missing runs in their results files. A finished or diverged run is not executed
 * again; a failed one is, so it counts as missing unless the plan reads only. */
status plan_look_up(struct plan *p) MUST_CHECK;
size_t plan_missing(const struct plan *p);
size_t plan_failed(const struct plan *p);
/* The score of a finished run. ERROR_USAGE: its data have no validation split. */
status plan_score(const struct planned_run *r, struct plan_score *out) MUST_CHECK;
/* ERROR_OTHER if runs failed, another host still executes some, or some were taken out of the
 * queue: how many, and what to do. */
status plan_check_failed(const struct plan *p) MUST_CHECK;
/* "4 finished (1 collapsed to one class), 0 diverged, 0 failed", and remarks. */
status plan_print_outcome(const struct plan *p, const struct plan_options *o, FILE *to) MUST_CHECK;
/* One line for each run: its state and its title. */
void plan_print(const struct plan *p, FILE *to);

/* For qsort() of pointers into a plan's runs: by priority, the highest first, then in order. */
int plan_by_priority(const void *a, const void *b);
/* ERROR_USAGE if runs are missing and two runs would write the same checkpoint or trace. */
status plan_check_files(const struct plan *p) MUST_CHECK;

/* Warns once if missing runs end before their warm-up does. Runs whose length and warm-up have
 * different units are not checked, because the number of samples in an epoch is not known here. */
void plan_warn_of_warmup(const struct plan *p);

/* Removes "--jobs N", "--oversubscribe" and "--part K/N" from argv. ERROR_USAGE */
status plan_options_read(struct plan_options *out, int *argc, char **argv) MUST_CHECK;
/* Puts the missing runs into the queue of their results file and executes them, several at a time,
 * each in a process of its own, on cores and GPUs of its own (core_allocation.h). A failed run is
 * recorded as failed and repeated up to key `retries` times; then the next run starts. Writes one
 * line for each run to `to`. Waits for runs that other processes of this host took from the queue.
 * STOPPED: on request. ERROR_RESULTS: a results file cannot be written. */
status plan_execute(struct plan *p, const struct plan_options *o, FILE *to) MUST_CHECK;

#endif
