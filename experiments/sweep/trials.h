/*
 * trials.h — searches with the runs that they ask for: several contests at once, each a search over
 * settings that share a base, all their trials in one plan.
 *
 * A trial's score is the mean, over the contest's seeds, of the accuracy on the validation split at
 * the end, or of minus the loss there where the data have no classes. The test set plays no part. A
 * trial that diverged is worse than any that did not.
 */
#ifndef GRADLAG_EXPERIMENTS_SWEEP_TRIALS_H
#define GRADLAG_EXPERIMENTS_SWEEP_TRIALS_H

#include "base/text.h"
#include "experiments/config/config.h"
#include "experiments/sweep/plan.h"
#include "experiments/sweep/search.h"

struct contest {
    struct search search;
    struct settings base;  /* under the search's; owned */
    struct int_list seeds; /* owned */
    size_t *run_of;        /* [trial × seeds.count + seed]: its place in the plan */
    bool by_loss;          /* scores are minus losses */
};
struct trials { /* zero-initialise */
    struct plan plan;
    struct contest *at;
    size_t count;
};

/* Begins a contest; the space must outlive it. `search`: its own keys (search.h). `base` and
 * `seeds` are copied. ERROR_USAGE */
status trials_begin(struct trials *t, const struct space *space, const struct settings *search,
                    const struct settings *base, const struct int_list *seeds) MUST_CHECK;
void trials_close(struct trials *t);
/* Reads the scores of trials whose runs have ended, and adds the runs of the rounds that follow to
 * the plan; *added counts those: 0, all has ended or waits for runs. */
status trials_extend(struct trials *t, size_t *added) MUST_CHECK;
/* Runs that further rounds will ask for. */
size_t trials_to_come(const struct trials *t);
/* The trials of all searches together, each of as many runs as there are seeds. */
size_t trials_in_all(const struct trials *t);

/* A score in words: "accuracy 88.41%", "loss 0.0123" or "diverged". */
void trials_score(const struct contest *c, const struct trial *trial, struct text *out);
/* Whether an earlier trial of the contest is at the same point, so that both are the same runs. */
bool trials_is_repeat(const struct contest *c, size_t trial);
/* "best of 40", how many of them were different, and what they cost where they were not all full
 * runs. */
void trials_budget(const struct contest *c, struct text *out);

#endif
