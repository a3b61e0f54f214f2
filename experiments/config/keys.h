/*
 * keys.h — the global keys: use, mode and engine of each.
 */
#ifndef GRADLAG_EXPERIMENTS_CONFIG_KEYS_H
#define GRADLAG_EXPERIMENTS_CONFIG_KEYS_H

#include "base/text.h"
#include "base/registry.h"

extern const struct option global_keys[]; /* ended by key == NULL */

enum key_use {
    KEY_DEFINES, /* defines the computation: part of config_hash */
    /* Like KEY_DEFINES, but not part of config_hash while it has its default: runs from before the
     * key existed keep their hash. */
    KEY_OPTIONAL,
    /* Files, names, limits of time, ways of transport: runs that differ only in these are the
     * same run. */
    KEY_BESIDE,
    KEY_INTERNAL, /* set by `run` for the processes that it starts; otherwise like KEY_BESIDE */
};
/* A global key, or a dotted key of any part; NULL: there is no such key. */
const struct option *keys_find(const char *key);
/* Dotted keys of parts (damping.power) are KEY_DEFINES, except device.index. */
enum key_use key_use_of(const char *key);
bool key_defines(const char *key);

/* Modes and engines in which a key has an effect; setting it elsewhere is an error. Without a mode
 * bit the key has an effect in all modes, without an engine bit in all engines. */
enum key_where {
    KEY_ANY = 0,
    KEY_ASYNC = 1,
    KEY_SYNC = 2,
    KEY_PIPELINE = 4,
    KEY_REAL = 8,
    KEY_VIRTUAL = 16,
};
unsigned key_where_of(const char *key);
/* key_mode is "async" for KEY_ASYNC | KEY_REAL, key_engine is "real"; NULL: any. */
const char *key_mode(unsigned where);
const char *key_engine(unsigned where);
/* Adds the possible values, separated by `between`: names, or true and false for a flag; nothing
 * for numbers and text. */
void key_add_names(const struct option *key, const char *between, struct text *out);
/* Adds the description, preceded by mode and engine: "mode=sync engine=real: …". */
void key_add_help(const struct option *key, struct text *out);

#endif
