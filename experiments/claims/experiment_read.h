/*
 * experiment_read.h — reads the YAML tree of an experiment file; a part of experiment.c.
 */
#ifndef GRADLAG_EXPERIMENTS_CLAIMS_EXPERIMENT_READ_H
#define GRADLAG_EXPERIMENTS_CLAIMS_EXPERIMENT_READ_H

#include "experiments/config/yaml_tree.h"
#include "experiments/claims/experiment.h"

/* The caller closes `e`, also after an error. ERROR_USAGE "file:line: …": an unknown key, a missing
 * or wrong value, a repeated number in a list of seeds or columns. */
status experiment_read(const struct yaml_tree *d, struct experiment *e) MUST_CHECK;

/* ---- for experiment_read*.c only ---- */

/* The characters that the name of a level may have. */
#define LEVEL_CHARACTERS "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-."

/* A list of different integers. */
status experiment_read_list(const struct yaml_tree *d, const struct node *n, const char *key,
                            struct int_list *out) MUST_CHECK;
/* *out is NULL without the key, which is an error if `required`. */
status experiment_read_text(const struct yaml_tree *d, const struct node *map, const char *key,
                            bool required, char **out) MUST_CHECK;
status experiment_read_settings(const struct yaml_tree *d, const struct node *map,
                                struct settings *out) MUST_CHECK;

/* ---- experiment_read_axes.c ---- */

/* Reads the axis of whole numbers (e->axis), or the axes (e->axes). */
status experiment_read_axes(const struct yaml_tree *d, struct experiment *e) MUST_CHECK;
/* Fills e->columns with all columns. */
status experiment_list_columns(const struct yaml_tree *d, struct experiment *e) MUST_CHECK;
/* Like node_known_keys(), but the names of the axes are known keys, too. `known` has at most 15
 * keys. */
status experiment_known_keys(const struct yaml_tree *d, const struct experiment *e,
                             const struct node *map, const char *const *known) MUST_CHECK;
/* The columns of a part of the experiment: lists of levels under the names of axes. An axis without
 * a list keeps all levels. Without any list *out is empty. */
status experiment_read_part(const struct yaml_tree *d, const struct experiment *e,
                            const struct node *map, struct int_list *out) MUST_CHECK;
/* The columns with all levels in `text`: "16", "slow", "slow 16". */
status experiment_read_columns(const struct yaml_tree *d, const struct experiment *e,
                               const struct node *n, const char *text,
                               struct int_list *out) MUST_CHECK;
/* Like experiment_read_columns(). ERROR_USAGE unless `text` names exactly one column. */
status experiment_read_column(const struct yaml_tree *d, const struct experiment *e,
                              const struct node *n, const char *text, int64_t *out) MUST_CHECK;

/* Reads the map of key `tune`; NULL: the arm has none. */
status experiment_read_tune(const struct yaml_tree *d, const struct experiment *e,
                            const struct node *map, struct arm *out) MUST_CHECK;
/* ERROR_USAGE: two arms that use a search have different budgets. Grids may differ; the table shows
 * their sizes. */
status experiment_check_budgets(const struct experiment *e, bool quick) MUST_CHECK;
/* ERROR_USAGE: a fitted arm is tuned, is in a map with further seeds, or lacks a run to fit in the
 * quick part. Its pace is known only after the runs of another arm, which is too late for trials
 * and for further seeds. */
status experiment_check_fitted(const struct yaml_tree *d, const struct experiment *e) MUST_CHECK;

/* ---- experiment_read_check.c ---- */

/* Whether each run of every experiment has its own value of this key (seed, experiment, arm). */
bool experiment_is_of_run(const char *key);
/* Whether the experiment sets this key in each run, so that no arm, level or search may have it. */
bool experiment_sets_itself(const struct experiment *e, const char *key);
/* ERROR_USAGE: a setting would have no effect, because the experiment sets its key itself or two
 * axes set it. */
status experiment_check_settings(const struct experiment *e) MUST_CHECK;
/* ERROR_USAGE: a run of the experiment has or may get the seed of a trial. Then a tuned arm would
 * be compared on seeds for which its settings were chosen. */
status experiment_check_trial_seeds(const struct yaml_tree *d,
                                    const struct experiment *e) MUST_CHECK;

#endif
