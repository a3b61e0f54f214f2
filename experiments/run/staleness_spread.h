/*
 * staleness_spread.h — whether staleness in a real asynchronous run spreads wider than its pace
 * explains. Then something else delayed its steps, mostly other work on the machine's cores.
 *
 * The reference is a simulation of the same workers: each step lasts exactly as the pace says,
 * messages and updates take no time. The rule: the standard deviation of the staleness is above 1.3
 * times the simulated one plus half a version. (Half a version: where workers are few, scheduling
 * alone moves some gradients by one place.)
 */
#ifndef GRADLAG_EXPERIMENTS_RUN_STALENESS_SPREAD_H
#define GRADLAG_EXPERIMENTS_RUN_STALENESS_SPREAD_H

#include "base/options.h"

struct staleness_spread {
    double mean, cv;    /* of the staleness of all gradients that were applied */
    uint64_t gradients; /* how many they are */
};

/* The simulated cv, if the rule holds for the run with these settings; else NaN. NaN as well for
 * runs it cannot be applied to: synchronous or virtual ones, other consistencies than asp, local
 * steps (outer), paces that draw no times (none, slow, constant) or read them from a file, one
 * worker, and fewer than 20 gradients per worker. */
double staleness_spread_too_wide(const options *o, const struct staleness_spread *observed);

#endif
