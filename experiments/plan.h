/*
 * plan.h — a list of runs to be made, as a sweep or an experiment lays it out: which are there
 * already, and making the others, one after the other.
 */
#ifndef GRADLAG_EXPERIMENTS_PLAN_H
#define GRADLAG_EXPERIMENTS_PLAN_H

#include "worker/options.h"

#include <stdio.h>

enum planned_state { PLANNED_MISSING, PLANNED_FINISHED, PLANNED_DIVERGED, PLANNED_FAILED };

enum { PLAN_VARIED = 32 };

struct planned_run {
    options *settings; /* owned */
    char title[128], hash[65];
    struct text varied; /* JSON object of the plan's `varied` keys and their values here */
    enum planned_state state;
    int64_t run_id; /* of the row, where there is one */
};
struct plan { /* zero-initialise */
    /* Keys that do not define an experiment, but are varied on purpose: runs that differ in them
     * are different runs of this plan. Borrowed; set before plan_add. */
    const char *varied[PLAN_VARIED];
    size_t varied_count;
    struct planned_run *runs;
    size_t count, capacity;
};

/* Takes the settings over. False (and frees them) where the plan has this very run already: the
 * same configuration, experiment, arm and varied keys. */
bool plan_add(struct plan *p, options **settings);
void plan_close(struct plan *p);

/* Looks those up in their results files that are missing so far: a finished or diverged one is not
 * made again. */
status plan_look_up(struct plan *p) MUST_CHECK;
size_t plan_missing(const struct plan *p);
/* One line per run: its title and whether it is there. */
void plan_print(const struct plan *p, FILE *to);

/* Makes what is missing. A run that fails is recorded as failed, and the next one starts; one line
 * per run on `to`. STOPPED on request, ERROR_RESULTS where the file cannot be written. */
status plan_make(struct plan *p, bool quiet, FILE *to) MUST_CHECK;

#endif
