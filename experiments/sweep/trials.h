/*
 * trials.h — searches together with the runs of their trials. Several searches (studies) share one
 * plan, so that their runs can be executed at the same time.
 *
 * The score of a trial is the mean, over the study's seeds, of the accuracy on the validation split
 * at the end. With by_loss, or if the data have no classes, it is the negative loss. The test set
 * is not used. A trial that diverged scores lower than every trial that did not.
 */
#ifndef GRADLAG_EXPERIMENTS_SWEEP_TRIALS_H
#define GRADLAG_EXPERIMENTS_SWEEP_TRIALS_H

#include "base/text.h"
#include "experiments/config/config.h"
#include "experiments/sweep/plan.h"
#include "experiments/sweep/search.h"

struct search_study {
    struct search search;
    struct settings base;  /* the settings that all trials share; owned */
    struct int_list seeds; /* owned */
    size_t *run_of;        /* [trial × seeds.count + seed]: index in the plan */
    bool by_loss;          /* scores are negative losses; the caller may set it */
    bool scored;           /* a trial has a score, so by_loss stays */
};
struct trials { /* zero-initialise */
    struct plan plan;
    struct search_study *at;
    size_t count;
};

/* Adds a study. The space must outlive it. `search` has the search's own keys (search.h). `base`
 * and `seeds` (at least one) are copied. ERROR_USAGE */
status trials_begin(struct trials *t, const struct space *space, const struct settings *search,
                    const struct settings *base, const struct int_list *seeds) MUST_CHECK;
void trials_close(struct trials *t);
/* Scores the trials whose runs have ended, and adds the runs of the next rounds to the plan. *added
 * is the number of added runs; 0: all searches have ended, or wait for runs. */
status trials_extend(struct trials *t, size_t *added) MUST_CHECK;
/* Number of runs that later rounds will add. */
size_t trials_remaining_runs(const struct trials *t);
/* Number of trials of all studies; each has one run for each seed. */
size_t trials_total(const struct trials *t);

/* "accuracy 88.41%", "loss 0.0123" or "diverged". */
void trials_score(const struct search_study *c, const struct trial *trial, struct text *out);
/* Whether an earlier trial of the study has the same runs, because its point is the same. */
bool trials_is_repeat(const struct search_study *c, size_t trial);
/* "best of 40", the number of different trials, and their cost if not all were full runs. */
void trials_budget(const struct search_study *c, struct text *out);

#endif
