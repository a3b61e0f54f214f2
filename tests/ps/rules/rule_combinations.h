/*
 * rule_combinations.h — every consistency × damping × (correction or outer rule) of the registries,
 * for tests that go through all of them. An outer rule stands in the place of a correction, with
 * which it does not go.
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

/* Corrections, then outer rules but for none. */
size_t third_rules(void);
/* By their places in the registries, from 0 again behind the last. Elastic averaging has asp and no
 * damping, whatever is asked for: nothing else goes with it. */
struct combination combination_at(size_t policy, size_t damping, size_t third);
uint64_t combinations(void);
struct combination combination_of(uint64_t number);

/* More than one gradient may go into an update. */
bool has_sums(const struct combination *c);
/* The core refuses what has no meaning, by these very marks (tests/ps/rules/test_correction.c). */
bool goes_together(const struct combination *c);
/* An optimizer that goes with it, with momentum where that may be. */
const char *optimizer_for(const struct combination *c);

/* "key=value" of all of it, and of that optimizer. */
enum { COMBINATION_SETTINGS = 5 };
struct combination_settings {
    char text[COMBINATION_SETTINGS][48];
};
struct combination_settings settings_of(const struct combination *c);

#endif
