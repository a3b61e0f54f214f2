/*
 * sweep_search.h — `gradlag sweep search=…`: a search over the keys that have several values or a
 * range, for the best accuracy on the validation split.
 */
#ifndef GRADLAG_EXPERIMENTS_SWEEP_SWEEP_SEARCH_H
#define GRADLAG_EXPERIMENTS_SWEEP_SWEEP_SEARCH_H

#include "experiments/config/config.h"
#include "experiments/sweep/plan.h"

/* `read`: the command line's settings. Several seeds are those of each trial. */
status sweep_search(const struct settings *read, const struct plan_options *how, bool dry,
                    bool again) MUST_CHECK;

#endif
