/*
 * config.h — from a YAML file and key=value arguments to the checked settings of one run.
 *
 * Settings are a list; a later setting overrides an earlier one. Composition has three steps:
 *   1. set the keys without a dot;
 *   2. declare the dotted keys of the chosen parts (damping=polynomial declares damping.power);
 *   3. set the dotted keys.
 *
 * A dotted setting is dropped if a later layer chooses a part that has no such key. So a file may
 * contain damping=polynomial damping.power=0.5 while the command line has damping=inverse. Layers
 * are: each file, the command line, and each map of settings in an experiment file. In one layer
 * the order does not matter: damping.power=0.5 damping=inverse is an error.
 *
 * A setting without effect (damping with mode=sync) is an error if it was given for this run: on
 * the command line, or in the same file as the choice that makes it idle. It is dropped if the
 * choice comes from elsewhere: a file's damping=inverse with mode=sync on the command line, or a
 * setting for all arms of an experiment in a synchronous arm. A setting of one arm is never
 * dropped.
 */
#ifndef GRADLAG_EXPERIMENTS_CONFIG_CONFIG_H
#define GRADLAG_EXPERIMENTS_CONFIG_CONFIG_H

#include "base/text.h"
#include "base/options.h"

#include <stdio.h>

#define COMMAND_LINE "command line" /* the origin of its settings */

struct setting {
    char *key, *value, *origin; /* owned; origin: COMMAND_LINE, "base.yaml:12" */
    bool shared;                /* given for all arms: dropped from arms where it has no effect */
    bool own;                   /* of one arm: never dropped for having no effect */
    bool whole;                 /* one value although it has a comma: a sweep does not split it */
    bool overruled; /* a later layer chooses the part of this dotted key; or the key is a length of
                       training, and a later layer sets the length */
};
struct settings { /* zero-initialise */
    struct setting *at;
    size_t count;
};
void settings_add(struct settings *s, const char *key, const char *value, const char *origin);
void settings_add_all(struct settings *s, const struct settings *more);
/* Adds `more` as a later layer than all settings in `s`, also if their origins are equal. */
void settings_add_layer(struct settings *s, const struct settings *more);
/* Like settings_add_layer, but the dotted keys of `more` form a layer before its other keys. So
 * composition drops a dotted key if `more` chooses a part that does not declare it. */
void settings_add_dotted_first(struct settings *s, const struct settings *more);
/* Whether a later layer chooses the part of this dotted setting. Composition then drops the setting
 * if that part does not declare its key. False for a key that no part has. */
bool settings_is_overruled(const struct settings *s, size_t index);
/* Whether the setting is a length of training (config_is_length()) and a later layer or origin sets
 * the length. */
bool settings_length_is_overruled(const struct settings *s, size_t index);
void settings_remove(struct settings *s, size_t index);
void settings_free(struct settings *s);
/* The value of the last setting of `key`, borrowed; NULL: there is none. */
const char *settings_find(const struct settings *s, const char *key);

struct int_list {
    int64_t *at; /* owned */
    size_t count;
};

/* Whether an argument names a file: one that exists and either has no '=' or ends in .yaml or .yml
 * (lr=0.1/base.yaml). */
bool settings_is_file(const char *argument);
/* Whether a value has a comma that is not in a pair of parentheses around the whole value. */
bool settings_is_list(const char *value);
/* Reads "FILE.yaml" (a flat map of keys) and key=value arguments, in order. ERROR_USAGE, also if a
 * file has two lengths (config_check_lengths). */
status settings_read_arguments(struct settings *s, int argc, char **argv) MUST_CHECK;

/* ERROR_USAGE: a key of the processes that gradlag starts, except run_token. */
status settings_refuse_internal(const struct settings *s) MUST_CHECK;

/* Adds workers=SLOTS if the settings of a real run have hosts but no workers. ERROR_USAGE: hosts
 * cannot be read (hosts.h). */
status settings_add_workers_of_hosts(struct settings *s) MUST_CHECK;

/* ERROR_USAGE: unknown key, wrong type, out of range, or keys that contradict each other. */
status config_compose(options **out, const struct settings *s) MUST_CHECK;
/* The two halves of config_compose: check each key; check keys against each other. */
status config_compose_unchecked(options **out, const struct settings *s) MUST_CHECK;
status config_check(const options *o) MUST_CHECK;
/* config_check for `gradlag replay`, which alone may have engine=replay. */
status config_check_replay(const options *o) MUST_CHECK;
/* config_compose_unchecked for "key=value" texts of our own code: `base`, then the layer `more`.
 * Each list ends with NULL; either may be NULL. `origin` names them in error messages. */
status config_compose_texts(options **out, const char *const *base, const char *const *more,
                            const char *origin) MUST_CHECK;

/* Every key and value as one JSON object, keys sorted, numbers in their shortest form. */
void config_json(const options *o, struct text *out);
/* Only keys that define the computation (keys.h), without the seed: equal for runs that may be
 * averaged. */
void config_settings_json(const options *o, struct text *out);
/* Adds "key":value as in config_json; nothing if the key is not declared. */
void config_member_json(const options *o, const char *key, struct text *out);
/* SHA-256 of the keys that define the computation, and their values. */
void config_hash(const options *o, char hex[65]);
/* The first 8 bytes of config_hash. */
uint64_t config_hash_number(const options *o);
/* Prints YAML that composes to the same settings, with the origin of each value. `epochs` is left
 * out if another key sets the length. */
void config_print(const options *o, FILE *to);
/* Adds all settings that were set, as "key=value" arguments, internal keys too. */
void config_arguments(const options *o, struct settings *out);
/* True if there is a built-in experiment of this name. */
bool config_is_experiment(const char *name);
/* The text, or NULL if it is empty. */
const char *config_text_or_null(const options *o, const char *key);

#endif
