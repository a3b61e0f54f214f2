/*
 * registry.h — one table per kind of part (damping rules, models, datasets, …).
 *
 * Every entry's struct begins with `struct about`, so that help, `gradlag list`, validation and
 * docs read the same words. Adding a part is one new file and one line in a *.def file.
 */
#ifndef GRADLAG_BASE_REGISTRY_H
#define GRADLAG_BASE_REGISTRY_H

#include "base/options.h"

struct about {
    const char *name;
    const char *description;      /* one line, no full stop */
    const char *source;           /* paper or standard it comes from, or NULL */
    const struct option *options; /* its own dotted keys, ended by key == NULL; or NULL */
    bool any_options;             /* other dotted keys are texts that it passes on */
};

struct registry {
    const char *kind; /* "damping": also the key whose value names an entry */
    const struct about *const *entries;
    size_t count;
};

/* The entry called `name`, or NULL. Cast it to the entry's own type. */
const struct about *registry_find(const struct registry *r, const char *name);
/* Likewise, but a missing entry is ERROR_USAGE: lists all names and suggests the nearest. */
status registry_require(const struct registry *r, const char *name,
                        const struct about **out) MUST_CHECK;
/* The values of an entry's options, all numbers or flags (0 or 1), in the order of its table; the
 * rest of out[0..capacity) becomes 0. Its options must be declared. */
void registry_parameters(const struct about *about, const options *o, double *out, size_t capacity);

#endif
