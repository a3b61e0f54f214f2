/*
 * tuning.h — settings that an arm chooses for itself: a trial for each point of its grid, and the
 * point whose trials did best on the validation split. The test set plays no part in it.
 *
 * A grid of one point needs no trials. Trials are runs of the experiment NAME/tuning, so that
 * nobody takes them for the arm's own.
 */
#ifndef GRADLAG_EXPERIMENTS_TUNING_H
#define GRADLAG_EXPERIMENTS_TUNING_H

#include "experiments/experiment.h"
#include "experiments/plan.h"

struct choice {
    const struct arm *arm;
    const struct grid *grid;
    int64_t workers;
    struct settings settings; /* the best point; none: not known */
    /* Of the best point's trials: mean validation accuracy as a fraction, or, where the data have
     * no classes, mean validation loss. */
    double accuracy, loss;
    bool edge; /* the best value of some key is the first or last that was tried */
    size_t points;
};
struct tuning { /* zero-initialise */
    struct plan trials;
    size_t *choice_of; /* of each trial; as many as trials.count */
    size_t *point_of;
    struct choice *choices;
    size_t count, room;
    const struct experiment *experiment;
};

/* The trials that (--quick: the quick part of) an experiment needs. `more`: the command line's
 * settings, under the grid's. The experiment must outlive it. */
status tuning_lay_out(struct tuning *out, const struct experiment *e, bool quick,
                      const struct settings *more) MUST_CHECK;
void tuning_close(struct tuning *t);
/* Once trials are made or looked up: fills the choices in whose trials have all ended. One that
 * diverged is worse than any that did not. */
status tuning_choose(struct tuning *t) MUST_CHECK;
/* The settings to lay over the arm's; NULL: not known. */
const struct settings *tuning_settings(const struct tuning *t, const struct arm *arm,
                                       int64_t workers);
void tuning_print(const struct tuning *t, FILE *to);

#endif
