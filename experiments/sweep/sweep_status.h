/*
 * sweep_status.h — `gradlag sweep --status`: the queue, the running runs, and the time left.
 */
#ifndef GRADLAG_EXPERIMENTS_SWEEP_SWEEP_STATUS_H
#define GRADLAG_EXPERIMENTS_SWEEP_SWEEP_STATUS_H

#include "base/status.h"

#include <stdio.h>

status sweep_status_print(const char *results, FILE *to) MUST_CHECK;

#endif
