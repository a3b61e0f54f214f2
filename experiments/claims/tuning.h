/*
 * tuning.h — settings that an arm chooses for itself: a search per arm and worker count, and the
 * point whose trials did best on the validation split. The test set plays no part in it.
 *
 * A grid of one point needs no trials. Trials are runs of the experiment NAME/tuning, so that they
 * are not mistaken for the arm's own runs.
 *
 * With --part an arm's choice at one worker count belongs to one part: that part makes all of its
 * trials, and all runs that have its settings.
 */
#ifndef GRADLAG_EXPERIMENTS_CLAIMS_TUNING_H
#define GRADLAG_EXPERIMENTS_CLAIMS_TUNING_H

#include "experiments/claims/experiment.h"
#include "experiments/sweep/trials.h"

struct choice {
    const struct arm *arm;
    const struct grid *grid;
    int64_t workers;
    struct settings settings; /* the best point; none: not known */
    size_t contest;           /* among the trials'; SIZE_MAX: it needs none */
};
struct tuning { /* zero-initialise */
    struct trials trials;
    struct choice *choices;
    size_t count;
    size_t of_all_parts; /* how many choices all parts have together */
    const struct experiment *experiment;
};

/* Lays out the searches that an experiment (with `quick` its quick part) needs, those of `part`
 * alone. `more`: the command line's settings, under the trials'. The experiment must outlive it. */
status tuning_lay_out(struct tuning *out, const struct experiment *e, bool quick,
                      const struct plan_part *part, const struct settings *more) MUST_CHECK;
void tuning_close(struct tuning *t);
/* Once trials are made or looked up (trials_extend()): fills the choices in whose searches have
 * ended. */
void tuning_choose(struct tuning *t);
/* Whether this part has the choice of an arm that tunes itself. */
bool tuning_has(const struct tuning *t, const struct arm *arm, int64_t workers);
/* The settings to lay over the arm's; NULL: not known. */
const struct settings *tuning_settings(const struct tuning *t, const struct arm *arm,
                                       int64_t workers);
void tuning_print(const struct tuning *t, FILE *to);

#endif
