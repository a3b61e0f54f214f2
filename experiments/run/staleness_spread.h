/*
 * staleness_spread.h — detects real asynchronous runs whose staleness spreads wider than their pace
 * explains. Then something else delayed their steps, mostly other work on the machine's cores.
 *
 * The reference is a simulation of the same workers, in which each step lasts exactly as long as
 * the pace defines, and messages and updates take no time. The rule: the standard deviation of the
 * staleness exceeds 1.3 times the simulated one plus half a version. The half version allows for
 * scheduling, which with few workers moves some gradients by one place.
 */
#ifndef GRADLAG_EXPERIMENTS_RUN_STALENESS_SPREAD_H
#define GRADLAG_EXPERIMENTS_RUN_STALENESS_SPREAD_H

#include "base/options.h"

struct staleness_spread {
    double mean, cv;    /* of the staleness of applied gradients, in versions */
    uint64_t gradients; /* number of applied gradients */
};

/* The simulated cv if the spread is too wide by this rule, else NaN. NaN also if the rule does not
 * apply: mode or engine is not async and real, consistency is not asp, outer is set, the pace draws
 * no times (none, slow, constant) or reads them from a file, there is one worker, or there are
 * fewer than 20 gradients per worker. */
double staleness_spread_too_wide(const options *o, const struct staleness_spread *observed);

#endif
