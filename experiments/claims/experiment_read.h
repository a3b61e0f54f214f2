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

/* ---- for experiment_read*.c only ---- */

/* A list of different integers. */
status experiment_read_list(const struct yaml_tree *d, const struct node *n, const char *key,
                            struct int_list *out) MUST_CHECK;
/* The map of key `tune`; NULL: none. */
status experiment_read_tune(const struct yaml_tree *d, const struct node *map,
                            struct arm *out) MUST_CHECK;
/* Searched arms must have equal budgets. Grids may differ; the table shows their sizes. */
status experiment_check_budgets(const struct experiment *e, bool quick) MUST_CHECK;

#endif
