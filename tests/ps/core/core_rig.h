/*
 * core_rig.h — settings and a server core with its slots, for the tests of ps/.
 */
#ifndef GRADLAG_TESTS_PS_CORE_CORE_RIG_H
#define GRADLAG_TESTS_PS_CORE_CORE_RIG_H

#include "ps/core/server_core.h"

/* Settings of the core: defaults for tests, then "key=value" texts (ended by NULL). Keys without a
 * dot come first, then the dotted keys of the chosen rules. */
status core_rig_settings(options **out, const char *const *assignments) MUST_CHECK;

struct core_rig {
    options *settings;
    server_core *core;
    unsigned workers, slot_count;
    size_t count;
    float *initial;
    float **slots;
    struct server_core_options options;
};

/* Fails the test on an error. Sets slots, slot_count, settings and initial of `o`. Initial
 * parameters are o.initial, or random numbers around 0 if it is NULL. */
void core_rig_open(struct core_rig *rig, struct server_core_options o,
                   const char *const *assignments);
void core_rig_close(struct core_rig *rig);

#define RIG(...) ((const char *const[]){__VA_ARGS__ __VA_OPT__(, ) NULL})

/* Numbers in [-1, 1) from a seed; they share no code with base/random.h. */
uint64_t core_rig_random(uint64_t *state);
void core_rig_fill(float *out, size_t count, uint64_t seed);

#endif
