/*
 * keys.h — the global keys, and which of them choose a part that brings keys of its own.
 */
#ifndef GRADLAG_EXPERIMENTS_KEYS_H
#define GRADLAG_EXPERIMENTS_KEYS_H

#include "worker/registry.h"

extern const struct option global_keys[]; /* ended by key == NULL */

enum key_use {
    KEY_DEFINES, /* decides what is computed: part of config_hash */
    /* Where a run reads and writes, what it is called, how long it may wait, by which way bytes
     * travel: two runs that differ in those alone are the same run. */
    KEY_BESIDE,
    KEY_INTERNAL, /* set by `run` for the processes that it starts; like BESIDE else */
};
/* Keys of chosen parts (damping.power) define. */
enum key_use key_use_of(const char *key);

#endif
