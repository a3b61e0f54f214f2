/*
 * core_rig.h — settings and a server core with its slots, for the tests of ps/.
 */
#ifndef GRADLAG_TESTS_PS_CORE_CORE_RIG_H
#define GRADLAG_TESTS_PS_CORE_CORE_RIG_H

#include "ps/core/server_core.h"

/* The keys that the core reads, then "key=value" texts (ended by NULL): first the undotted ones,
 * then the dotted ones of what they chose. An error is left to the caller. */
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

/* Fails the test if anything goes wrong. `o`: slots, slot_count, settings and initial are filled in
 * here; initial parameters are those given, else numbers around 0. */
void core_rig_open(struct core_rig *rig, struct server_core_options o,
                   const char *const *assignments);
void core_rig_close(struct core_rig *rig);

#define RIG(...) ((const char *const[]){__VA_ARGS__ __VA_OPT__(, ) NULL})

/* Numbers in [-1, 1) from a seed, independent of the house's own streams. */
uint64_t core_rig_random(uint64_t *state);
void core_rig_fill(float *out, size_t count, uint64_t seed);

#endif
