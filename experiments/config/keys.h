/*
 * keys.h — the global keys: what each is for, and in which mode and engine it has an effect.
 */
#ifndef GRADLAG_EXPERIMENTS_CONFIG_KEYS_H
#define GRADLAG_EXPERIMENTS_CONFIG_KEYS_H

#include "base/text.h"
#include "base/registry.h"

extern const struct option global_keys[]; /* ended by key == NULL */

enum key_use {
    KEY_DEFINES, /* decides what is computed: part of config_hash */
    /* Where a run reads and writes, what it is called, how long it may wait, by which way bytes
     * travel: two runs that differ in those alone are the same run. */
    KEY_BESIDE,
    KEY_INTERNAL, /* set by `run` for the processes that it starts; like BESIDE else */
};
/* A global key, or one of any part that can be chosen; NULL: there is none of that name. */
const struct option *keys_find(const char *key);
/* Keys of chosen parts (damping.power) define. */
enum key_use key_use_of(const char *key);
bool key_defines(const char *key);

/* Elsewhere a key has no effect, and setting it is an error. No mode: all; no engine: all. */
enum key_where {
    KEY_ANY = 0,
    KEY_ASYNC = 1,
    KEY_SYNC = 2,
    KEY_PIPELINE = 4,
    KEY_REAL = 8,
    KEY_VIRTUAL = 16,
};
unsigned key_where_of(const char *key);
/* "async" of KEY_ASYNC, "real" of KEY_ASYNC | KEY_REAL; NULL where any will do. */
const char *key_mode(unsigned where);
const char *key_engine(unsigned where);
/* The names that it may be, true and false of a flag, with `between` between them; nothing of
 * numbers and text. */
void key_add_names(const struct option *key, const char *between, struct text *out);
/* What it is, after where it has an effect: "mode=sync engine=real: …". */
void key_add_help(const struct option *key, struct text *out);

#endif
