/*
 * rule_combinations.h — every consistency × damping × (correction or outer rule) of the registries,
 * for tests over all of them. An outer rule takes the place of a correction, because the two
 * exclude each other.
 */
#ifndef GRADLAG_TESTS_PS_RULES_RULE_COMBINATIONS_H
#define GRADLAG_TESTS_PS_RULES_RULE_COMBINATIONS_H

#include "ps/rules/consistency/consistency.h"
#include "ps/rules/correction/correction.h"
#include "ps/rules/damping/damping.h"
#include "ps/rules/outer/outer.h"

struct combination {
    const struct consistency_policy *policy;
    const struct damping_rule *damping;
    const struct correction_rule *correction;
    const struct outer_rule *outer; /* NULL: outer=none */
};

/* Number of third rules: all corrections, then all outer rules except none. */
size_t third_rule_count(void);
/* By index in each registry, modulo its size. An elastic outer rule always gets asp and no damping,
 * because it excludes all others. */
struct combination combination_at(size_t policy, size_t damping, size_t third);
uint64_t combinations(void);
struct combination combination_of(uint64_t number);

/* An update may have more than one gradient. */
bool has_sums(const struct combination *c);
/* False for combinations that the core refuses (tests/ps/rules/test_correction.c). */
bool combination_is_valid(const struct combination *c);
/* A compatible optimizer, with momentum if possible. */
const char *optimizer_for(const struct combination *c);

/* "key=value" of all its rules, and of that optimizer. */
enum { COMBINATION_SETTINGS = 5 };
struct combination_settings {
    char text[COMBINATION_SETTINGS][48];
};
struct combination_settings settings_of(const struct combination *c);

#endif
