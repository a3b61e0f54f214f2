/*
 * tuning.h — tuned settings of arms (key `tune`): one search for each arm and column chooses
 * the point with the best score on the validation split. The test set is not used.
 *
 * Columns that differ only in levels of tune.shared share the choice of the first one.
 *
 * A grid of one point needs no trials. Trials are runs of the experiment NAME/tuning, separate from
 * the arm's own runs.
 *
 * With --part the choice of an arm in one column belongs to one part. That part has all its
 * trials and all runs with its settings. Columns whose trials are the same runs belong to one part.
 */
#ifndef GRADLAG_EXPERIMENTS_CLAIMS_TUNING_H
#define GRADLAG_EXPERIMENTS_CLAIMS_TUNING_H

#include "experiments/claims/experiment.h"
#include "experiments/sweep/trials.h"

struct choice {
    const struct arm *arm;
    const struct tune_space *grid;
    int64_t column;
    struct settings settings; /* the best point; empty: not known yet */
    size_t study;             /* index in trials.at; SIZE_MAX: one point, needs no trials */
};
struct tuning { /* zero-initialise */
    struct trials trials;
    struct choice *choices;
    size_t count;
    struct { /* the choices of all parts together: arm and column, without settings */
        struct choice_place {
            const struct arm *arm;
            int64_t column;
        } * at;
        size_t count;
    } all;
    struct plan seen; /* with a part: the shared settings of trials, of each choice */
    const struct experiment *experiment;
};

/* Opens the searches of an experiment (`quick`: of its quick part) that belong to `part`. `more`:
 * the settings of the command line; those of a trial override them. The experiment must outlive
 * `out`. */
status tuning_lay_out(struct tuning *out, const struct experiment *e, bool quick,
                      const struct plan_part *part, const struct settings *more) MUST_CHECK;
void tuning_close(struct tuning *t);
/* Sets the choices whose searches have ended; call it after trials_extend(). */
void tuning_choose(struct tuning *t);
/* Whether this part has the choice of a tuned arm. */
bool tuning_has(const struct tuning *t, const struct arm *arm, int64_t column);
/* The chosen settings, which override those of the arm; NULL: not known yet. */
const struct settings *tuning_settings(const struct tuning *t, const struct arm *arm,
                                       int64_t column);
void tuning_print(const struct tuning *t, FILE *to);

#endif
