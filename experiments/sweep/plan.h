/*
 * plan.h — a list of runs to be made, as a sweep or an experiment lays it out: which are there
 * already (plan.c), and making the others (plan_make.c).
 */
#ifndef GRADLAG_EXPERIMENTS_SWEEP_PLAN_H
#define GRADLAG_EXPERIMENTS_SWEEP_PLAN_H

#include "base/text.h"
#include "results/query/query.h"
#include "base/options.h"

#include <stdio.h>

enum planned_state {
    PLANNED_MISSING,
    PLANNED_FINISHED,
    PLANNED_DIVERGED,
    PLANNED_FAILED,
    PLANNED_ELSEWHERE, /* another process makes it */
    PLANNED_DROPPED,   /* it waited, and was taken out of the queue */
    PLANNED_STATES,
};

enum { PLAN_VARIED = 32 };

/* On the validation split, at a run's last evaluation; NaN: there is none. */
struct plan_score {
    double accuracy, loss;
};

struct planned_run {
    options *settings; /* owned */
    char title[128], hash[65];
    struct text varied; /* JSON object of the plan's `varied` keys and their values here */
    enum planned_state state;
    bool waiting;     /* it is run_id, which was in the queue before there was this plan */
    int64_t run_id;   /* of the row, where there is one */
    unsigned attempt; /* the how-manieth that row is, from 1 */
};
struct plan { /* zero-initialise */
    /* Keys that do not define an experiment, but are varied on purpose: runs that differ in them
     * are different runs of this plan. Borrowed; set before plan_add. */
    const char *varied[PLAN_VARIED];
    size_t varied_count;
    struct planned_run *runs;
    size_t count;
    bool again; /* what has ended is made once more */
};

/* --part K/N: this process makes the K-th of N parts. The parts of one command are disjoint, and
 * together they are all of its runs. Which part has a run depends on the command and on N alone,
 * not on what a results file holds. */
struct plan_part {
    unsigned number, of; /* number: from 1 to of; of 0: not divided */
};
struct plan_options {
    unsigned jobs; /* runs at a time; 0: 1 */
    bool oversubscribe, quiet;
    struct plan_part part;
};

/* Takes the settings over. False (and frees them) where the plan has this very run already: the
 * same configuration, experiment, arm and varied keys. */
bool plan_add(struct plan *p, options **settings);
/* The same; the place of that run among the plan's. */
size_t plan_place(struct plan *p, options **settings);
/* A run that waits in the queue of its results file. */
void plan_add_waiting(struct plan *p, options **settings, int64_t run_id);
void plan_close(struct plan *p);

/* Whether the part has item `index` of a list. The sizes of two parts differ by one item at most.
 */
bool plan_part_has(const struct plan_part *part, size_t index);
/* Drops the runs that are not of this part. Call it before plan_look_up(). */
void plan_keep_part(struct plan *p, const struct plan_part *part);
/* What finds a run again in its results file; it points into the run. */
void plan_key(const struct planned_run *r, struct run_key *out);
/* Looks those up in their results files that are missing so far: a finished or diverged one is not
 * made again. */
status plan_look_up(struct plan *p) MUST_CHECK;
size_t plan_missing(const struct plan *p);
size_t plan_failed(const struct plan *p);
/* The score of a run that finished. */
status plan_score(const struct planned_run *r, struct plan_score *out) MUST_CHECK;
/* ERROR_OTHER where runs failed: how many, and what to do. */
status plan_check_failed(const struct plan *p) MUST_CHECK;
/* "4 finished (1 collapsed to one class), 0 diverged, 0 failed", and what else there is to say once
 * they are made. */
status plan_print_outcome(const struct plan *p, const struct plan_options *o, FILE *to) MUST_CHECK;
/* One line per run: its title and whether it is there. */
void plan_print(const struct plan *p, FILE *to);

/* For qsort() of pointers into a plan's runs: those of a higher priority first, else in order. */
int plan_by_priority(const void *a, const void *b);
/* ERROR_USAGE where runs would write over each other's checkpoint. */
status plan_check_checkpoints(const struct plan *p) MUST_CHECK;

/* Takes "--jobs N", "--oversubscribe" and "--part K/N" out of argv. ERROR_USAGE */
status plan_options_read(struct plan_options *out, int *argc, char **argv) MUST_CHECK;
/* Puts what is missing into the queue of its results file and makes it, each run in a process of
 * its own, several at a time, on cores and GPUs of their own (core_allocation.h). A run that fails
 * is recorded as failed, made again as often as its `retries` says, and the next one starts; one
 * line per run on `to`. What other processes take from the queue meanwhile is waited for, if they
 * are on this host, and left to them. STOPPED on request, ERROR_RESULTS where a file cannot be
 * written. */
status plan_make(struct plan *p, const struct plan_options *o, FILE *to) MUST_CHECK;

#endif
