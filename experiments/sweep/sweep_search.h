/*
 * sweep_search.h — `gradlag sweep search=…`: searches the keys that have several values or a range
 * for the best accuracy on the validation split.
 */
#ifndef GRADLAG_EXPERIMENTS_SWEEP_SWEEP_SEARCH_H
#define GRADLAG_EXPERIMENTS_SWEEP_SWEEP_SEARCH_H

#include "experiments/config/config.h"
#include "experiments/sweep/plan.h"

/* `read`: the settings of the command line. Every trial runs with each of the seeds. ERROR_USAGE: a
 * value of a key in search.per is repeated, or there is nothing to search. */
status sweep_search(const struct settings *read, const struct plan_options *how, bool dry,
                    bool again) MUST_CHECK;

#endif
