/*
 * options.h — the composed configuration of one run: key=value settings checked against tables.
 *
 * Tables (`struct option`) are static and declared by the part that reads them. The keys of a part
 * that was not chosen (say damping.power when damping=inverse) are not declared, so setting one is
 * an error that says which choice it belongs to.
 *
 * Thread: one `options` is written by one thread; after that it is read-only and any thread may
 * read it.
 */
#ifndef GRADLAG_BASE_OPTIONS_H
#define GRADLAG_BASE_OPTIONS_H

#include "base/status.h"

enum option_type {
    OPTION_FLAG,    /* true|false; yes and no are also accepted */
    OPTION_INTEGER, /* int64, within [minimum, maximum] */
    OPTION_REAL,    /* double, finite, within [minimum, maximum] */
    OPTION_TEXT,
    OPTION_NAME, /* one of `names`, or of `registry` */
};

struct registry;

struct option {
    const char *key;
    enum option_type type;
    const char *initial; /* the default, as text */
    double minimum, maximum;
    const char *names;               /* OPTION_NAME: "async|sync|pipeline" */
    const struct registry *registry; /* OPTION_NAME: or the registry that holds the names */
    const char *help;                /* one line, no full stop */
};

typedef struct options options;

status options_open(options **out) MUST_CHECK;
void options_close(options **o);
/* Adds a table (ended by key == NULL) with its defaults. Contract: no key is declared twice. */
status options_declare(options *o, const struct option *table) MUST_CHECK;

/* Sets one key. ERROR_USAGE for an unknown key (names the nearest), a wrong type or a value out of
 * range (names the range). `origin` says where it was written, e.g. "command line", "a.yaml:12". */
status options_set(options *o, const char *key, const char *value, const char *origin) MUST_CHECK;

/* Values. The key must be declared with that type (a contract). */
const char *options_text(const options *o, const char *key); /* OPTION_TEXT and OPTION_NAME */
int64_t options_integer(const options *o, const char *key);
double options_real(const options *o, const char *key); /* OPTION_REAL or OPTION_INTEGER */
bool options_flag(const options *o, const char *key);

bool options_declared(const options *o, const char *key);
bool options_was_set(const options *o, const char *key); /* by options_set, not by default */
/* Whether the value is `text`, or the default. Numbers are compared by value: 0.0 is 0. */
bool options_is(const options *o, const char *key, const char *text);
bool options_is_initial(const options *o, const char *key);
const char *options_origin(const options *o, const char *key);
/* Iteration in order of declaration, then the value as text. */
size_t options_count(const options *o);
const struct option *options_at(const options *o, size_t index);
const char *options_value(const options *o, const char *key); /* as text, any type */

#endif
