/* rule_combinations.c — see rule_combinations.h. */
#include "tests/ps/rules/rule_combinations.h"

#include <stdio.h>
#include <string.h>

size_t third_rule_count(void)
{
    return correction_registry.count + outer_registry.count - 1;
}

static struct combination with_outer(struct combination c, const struct about *outer)
{
    c.outer = (const struct outer_rule *)outer;
    if (c.outer->elastic) {
        c.policy = (const struct consistency_policy *)registry_find(&consistency_registry, "asp");
        c.damping = (const struct damping_rule *)registry_find(&damping_registry, "none");
    }
    return c;
}

struct combination combination_at(size_t policy, size_t damping, size_t third)
{
    const struct registry *c = &consistency_registry, *d = &damping_registry;
    const struct registry *r = &correction_registry, *o = &outer_registry;
    third %= third_rule_count();
    bool is_outer = third >= r->count;
    REQUIRE(strcmp(r->entries[0]->name, "none") == 0 && strcmp(o->entries[0]->name, "none") == 0);
    struct combination all = {(const struct consistency_policy *)c->entries[policy % c->count],
                              (const struct damping_rule *)d->entries[damping % d->count],
                              (const struct correction_rule *)r->entries[is_outer ? 0 : third],
                              NULL};
    return is_outer ? with_outer(all, o->entries[third - r->count + 1]) : all;
}

uint64_t combinations(void)
{
    return consistency_registry.count * damping_registry.count * third_rule_count();
}

struct combination combination_of(uint64_t number)
{
    const struct registry *c = &consistency_registry, *d = &damping_registry;
    return combination_at(number % c->count, number / c->count % d->count,
                          number / c->count / d->count % third_rule_count());
}

bool has_sums(const struct combination *c)
{
    return c->policy->holds || c->policy->takes;
}

bool combination_is_valid(const struct combination *c)
{
    return !(c->correction->single_gradient && has_sums(c));
}

const char *optimizer_for(const struct combination *c)
{
    bool elastic = c->outer != NULL && c->outer->elastic;
    return c->correction->own_momentum ? "sgd" : elastic ? "nesterov" : "momentum";
}

struct combination_settings settings_of(const struct combination *c)
{
    const struct {
        const char *key, *value;
    } all[COMBINATION_SETTINGS] = {
        {"consistency", c->policy->about.name},
        {"damping", c->damping->about.name},
        {"correction", c->correction->about.name},
        {"outer", c->outer != NULL ? c->outer->about.name : "none"},
        {"optimizer", optimizer_for(c)},
    };
    struct combination_settings out;
    for (size_t i = 0; i < COMBINATION_SETTINGS; i++)
        snprintf(out.text[i], sizeof out.text[i], "%s=%s", all[i].key, all[i].value);
    return out;
}
