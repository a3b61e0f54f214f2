/*
 * config.h — from a YAML file and key=value arguments to the checked settings of one run.
 *
 * Settings are a list; later ones win. Composition sets the undotted keys first, then declares the
 * keys of the parts that were chosen (damping=polynomial brings damping.power), then sets the
 * dotted ones. A dotted setting that was written before a later choice of another part falls away:
 * a file may say damping=polynomial damping.power=0.5 and the command line damping=inverse.
 *
 * A setting that has no effect (damping with mode=sync) is an error where it was written for this
 * very run: on the command line, or in a file beside the choice that makes it idle. Where it is a
 * base that the choice was laid over, it falls away: a file's damping=inverse with mode=sync on the
 * command line, or the settings of all arms of an experiment with those of a synchronous arm.
 */
#ifndef GRADLAG_EXPERIMENTS_CONFIG_CONFIG_H
#define GRADLAG_EXPERIMENTS_CONFIG_CONFIG_H

#include "base/text.h"
#include "base/options.h"

#include <stdio.h>

#define COMMAND_LINE "command line" /* the origin of its settings */

struct setting {
    char *key, *value, *origin; /* owned; origin: COMMAND_LINE, "base.yaml:12" */
    bool shared;                /* by several arms: falls away from those that have no use for it */
};
struct settings { /* zero-initialise */
    struct setting *at;
    size_t count;
};
void settings_add(struct settings *s, const char *key, const char *value, const char *origin);
void settings_add_all(struct settings *s, const struct settings *more);
/* Dotted keys first: they then stand before the choices of `more`, so that those of a part that is
 * not chosen fall away. */
void settings_add_dotted_first(struct settings *s, const struct settings *more);
void settings_remove(struct settings *s, size_t index);
void settings_free(struct settings *s);
/* The value of the last setting of `key`, or NULL. */
const char *settings_find(const struct settings *s, const char *key);

struct int_list {
    int64_t *at; /* owned */
    size_t count;
};

/* Reads "FILE.yaml" (a flat map of keys) and key=value arguments in the order they stand. */
status settings_read_arguments(struct settings *s, int argc, char **argv) MUST_CHECK;

/* ERROR_USAGE: unknown key, wrong type, out of range, or keys that do not fit together. */
status config_compose(options **out, const struct settings *s) MUST_CHECK;
/* The two halves of it: each key by itself; then whether they fit together. */
status config_compose_unchecked(options **out, const struct settings *s) MUST_CHECK;
status config_check(const options *o) MUST_CHECK;
/* The first half for "key=value" texts of our own code: those of `base`, then those of `more`, each
 * ended by NULL; either may be NULL. `origin` is theirs in error messages. */
status config_compose_texts(options **out, const char *const *base, const char *const *more,
                            const char *origin) MUST_CHECK;

/* Every key and value as one JSON object, keys sorted, numbers in their shortest form. */
void config_json(const options *o, struct text *out);
/* The same of the keys that define what is computed (keys.h), but the seed: what runs share that
 * may be averaged. */
void config_settings_json(const options *o, struct text *out);
/* "key":value, as it stands in config_json; nothing where the key is not declared. */
void config_member_json(const options *o, const char *key, struct text *out);
/* SHA-256 of the keys that define what is computed. */
void config_hash(const options *o, char hex[65]);
/* Its first 8 bytes. */
uint64_t config_hash_number(const options *o);
/* YAML that composes to the same, with where each value came from. */
void config_print(const options *o, FILE *to);
/* The settings that differ from the defaults, as "key=value" arguments, internal ones too. */
void config_arguments(const options *o, struct settings *out);
/* True if an experiment of this name is compiled in. */
bool config_is_experiment(const char *name);
/* A text as SQL keeps it: NULL where it is empty. */
const char *config_text_or_null(const options *o, const char *key);

#endif
