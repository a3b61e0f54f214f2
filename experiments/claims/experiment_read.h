/*
 * experiment_read.h — reads the YAML tree of an experiment file; a part of experiment.c.
 */
#ifndef GRADLAG_EXPERIMENTS_CLAIMS_EXPERIMENT_READ_H
#define GRADLAG_EXPERIMENTS_CLAIMS_EXPERIMENT_READ_H

#include "experiments/config/yaml_tree.h"
#include "experiments/claims/experiment.h"

/* Also after an error the caller closes `e`. ERROR_USAGE "file:line: …": an unknown key, a missing
 * or wrong value, a repeated number in a list of seeds or columns. */
status experiment_read(const struct yaml_tree *d, struct experiment *e) MUST_CHECK;

#endif
