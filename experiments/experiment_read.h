/*
 * experiment_read.h — the reading half of experiment.c.
 */
#ifndef GRADLAG_EXPERIMENTS_EXPERIMENT_READ_H
#define GRADLAG_EXPERIMENTS_EXPERIMENT_READ_H

#include "experiments/document.h"
#include "experiments/experiment.h"

/* What was read before an error is the caller's to close. */
status experiment_read(const struct document *d, struct experiment *e) MUST_CHECK;

#endif
