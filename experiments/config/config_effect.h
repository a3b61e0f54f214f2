/*
 * config_effect.h — finds settings that have no effect with the other settings.
 */
#ifndef GRADLAG_EXPERIMENTS_CONFIG_CONFIG_EFFECT_H
#define GRADLAG_EXPERIMENTS_CONFIG_CONFIG_EFFECT_H

#include "base/options.h"
#include "experiments/config/yaml_tree.h"

/* `key` was set but has no effect because of the value of key `with`, which must be `instead`. */
struct ineffective {
    const char *key, *with, *instead;
};

/* True if there is such a key; *out is the first one found. */
bool config_any_ineffective(const options *o, struct ineffective *out);

/* Whether the key sets the length of training: epochs, samples, updates or seconds. */
bool config_is_length(const char *key);
/* ERROR_USAGE: two keys of a map of settings set the length of training, each with a value that is
 * not 0. */
status config_check_lengths(const struct yaml_tree *d, const struct node *map) MUST_CHECK;

#endif
