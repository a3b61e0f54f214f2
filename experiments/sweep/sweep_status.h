/*
 * sweep_status.h — `gradlag sweep --status`: what waits, what is being made, how long it may take.
 */
#ifndef GRADLAG_EXPERIMENTS_SWEEP_SWEEP_STATUS_H
#define GRADLAG_EXPERIMENTS_SWEEP_SWEEP_STATUS_H

#include "base/status.h"

#include <stdio.h>

status sweep_status_print(const char *results, FILE *to) MUST_CHECK;

#endif
