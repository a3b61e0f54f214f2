/*
 * experiment_read.h — the reading half of experiment.c.
 */
#ifndef GRADLAG_EXPERIMENTS_CLAIMS_EXPERIMENT_READ_H
#define GRADLAG_EXPERIMENTS_CLAIMS_EXPERIMENT_READ_H

#include "experiments/config/yaml_tree.h"
#include "experiments/claims/experiment.h"

/* What was read before an error is the caller's to close. */
status experiment_read(const struct yaml_tree *d, struct experiment *e) MUST_CHECK;

#endif
