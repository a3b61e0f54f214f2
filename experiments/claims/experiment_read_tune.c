/* experiment_read_tune.c — the key `tune` of an arm: what it searches. */
#include "base/memory.h"
#include "base/text.h"
#include "experiments/claims/experiment_read.h"

#include <stdlib.h>
#include <string.h>

/* tune: {search: tpe, lr: 0.001..0.1:log, momentum: [0, 0.9], seeds: [1]} */
static status read_dimension(const struct yaml_tree *d, const struct experiment *e, const char *key,
                             const struct node *n, struct space *out)
{
    status result = OK;
    struct text origin = {0};
    const char **values = NULL;
    text_add(&origin, "%s:%u", d->name, n->line);
    if (strcmp(key, "seed") == 0) {
        FAIL(ERROR_USAGE,
             "%s: tune cannot search the seed; list the seeds of the trials in key 'seeds', for "
             "example seeds: [101, 102]",
             origin.at);
    }
    if (experiment_sets_itself(e, key)) {
        FAIL(ERROR_USAGE,
             "%s: tune cannot search %s, because the experiment sets it in each run (arm or "
             "column); remove it",
             origin.at, key);
    }
    if (n->kind == NODE_SCALAR && search_is_range(n->text)) {
        TRY(space_add_range(out, key, n->text, origin.at));
        goto done;
    }
    if (n->kind != NODE_LIST) {
        FAIL(ERROR_USAGE,
             "%s: %s must be a list of values to try, or a range such as 0.001..0.1:log", origin.at,
             key);
    }
    if (n->count == 0)
        FAIL(ERROR_USAGE, "%s: %s has no values to try; list at least one", origin.at, key);
    TRY(memory_new(&values, n->count, sizeof *values, key));
    for (size_t i = 0; i < n->count; i++) {
        TRY(node_require(d, &n->children[i], NODE_SCALAR, key));
        values[i] = n->children[i].text;
    }
    TRY(space_add_choice(out, key, values, n->count, origin.at));
done:
    memory_free(values);
    text_free(&origin);
    return result;
}

static status read_search_key(const struct yaml_tree *d, const char *key, const struct node *n,
                              struct settings *out)
{
    status result = OK;
    struct text origin = {0};
    TRY(node_require(d, n, NODE_SCALAR, key));
    text_add(&origin, "%s:%u", d->name, n->line);
    if (strcmp(key, "search.per") == 0) {
        FAIL(ERROR_USAGE,
             "%s: search.per is a key of `gradlag sweep` only; in an experiment each arm has a "
             "search "
             "for each column; remove the key",
             origin.at);
    }
    settings_add(out, key, n->text, origin.at);
done:
    text_free(&origin);
    return result;
}

/* shared: [free, 10g] */
static status read_shared(const struct yaml_tree *d, const struct experiment *e,
                          const struct node *n, struct tune_space *out)
{
    enum { LEVELS = 64 /* the bits of out->shared[axis] */ };
    status result = OK;
    TRY(node_require(d, n, NODE_LIST, "shared"));
    for (size_t i = 0; i < n->count; i++) {
        const struct node *name = &n->children[i];
        TRY(node_require(d, name, NODE_SCALAR, "shared"));
        const size_t axis = experiment_axis_of_level(e, name->text);
        const size_t level =
            axis < e->axis_count ? experiment_find_level(&e->axes[axis], name->text) : LEVELS;
        if (level >= LEVELS) {
            FAIL(ERROR_USAGE,
                 "%s:%u: '%s' is none of the first %d levels of an axis; tune.shared lists levels "
                 "that share a choice, for example [free, 10g]",
                 d->name, name->line, name->text, LEVELS);
        }
        out->shared[axis] |= 1ULL << level;
    }
done:
    return result;
}

static status read_grid(const struct yaml_tree *d, const struct experiment *e,
                        const struct node *map, struct tune_space *out)
{
    status result = OK;
    struct search checked = {0};
    if (map == NULL)
        goto done;
    TRY(node_require(d, map, NODE_MAP, "tune"));
    for (size_t i = 0; i < map->count; i++) {
        const struct node *n = &map->children[i];
        if (strcmp(map->keys[i], "seeds") == 0)
            TRY(experiment_read_list(d, n, "seeds", &out->seeds));
        else if (strcmp(map->keys[i], "shared") == 0)
            TRY(read_shared(d, e, n, out));
        else if (search_is_key(map->keys[i]))
            TRY(read_search_key(d, map->keys[i], n, &out->search));
        else if (strcmp(map->keys[i], "quick") != 0)
            TRY(read_dimension(d, e, map->keys[i], n, &out->space));
    }
    if (out->space.count == 0) {
        FAIL(ERROR_USAGE,
             "%s:%u: tune needs a key with values to try, for example {lr: [0.1, 0.2]}", d->name,
             map->line);
    }
    TRY(search_open(&checked, &out->space, &out->search));
done:
    search_close(&checked);
    return result;
}

status experiment_read_tune(const struct yaml_tree *d, const struct experiment *e,
                            const struct node *map, struct arm *out)
{
    status result = OK;
    TRY(read_grid(d, e, map, &out->tune));
    if (map != NULL)
        TRY(read_grid(d, e, node_child(map, "quick"), &out->quick_tune));
    for (size_t i = 0; i < EXPERIMENT_AXES; i++)
        out->quick_tune.shared[i] |= out->tune.shared[i];
done:
    return result;
}

static bool same_search(const struct tune_space *a, const struct tune_space *b)
{
    /* Without key `seeds` there is one seed. */
    const size_t seeds_of_a = a->seeds.count > 0 ? a->seeds.count : 1;
    const size_t seeds_of_b = b->seeds.count > 0 ? b->seeds.count : 1;
    bool same = a->search.count == b->search.count && seeds_of_a == seeds_of_b;
    for (size_t i = 0; i < a->search.count && same; i++) {
        const char *other = settings_find(&b->search, a->search.at[i].key);
        same = other != NULL && strcmp(other, a->search.at[i].value) == 0;
    }
    return same;
}

status experiment_check_budgets(const struct experiment *e, bool quick)
{
    status result = OK;
    const struct arm *first = NULL;
    for (size_t i = 0; i < e->arm_count; i++) {
        const struct arm *arm = &e->arms[i];
        const struct tune_space *g = experiment_tune_space(arm, quick);
        if (g == NULL || settings_find(&g->search, "search") == NULL)
            continue;
        first = first == NULL ? arm : first;
        if (!same_search(experiment_tune_space(first, quick), g)) {
            FAIL(ERROR_USAGE,
                 "%s: arms %s and %s tune with different searches, numbers of trials or numbers of "
                 "seeds; give them the same, so that they are compared at equal budgets",
                 g->search.at[0].origin, first->name, arm->name);
        }
    }
done:
    return result;
}

static bool is_in_map(const struct experiment *e, const struct arm *arm)
{
    bool found = false;
    for (size_t i = 0; i < e->side_count; i++)
        for (size_t k = 0; k < e->sides[i].count; k++)
            found = found || strcmp(e->sides[i].arms[k], arm->name) == 0;
    return found;
}

/* A fitted run needs the run of the other arm, in the quick part, too. */
static status check_quick_fit(const struct yaml_tree *d, const struct experiment *e,
                              const struct arm *arm, unsigned line)
{
    status result = OK;
    const struct int_list *columns = experiment_columns(e, true);
    const struct arm *from = experiment_arm(e, arm->fit);
    struct int_list seeds;
    experiment_seeds(e, true, &seeds);
    for (size_t i = 0; i < columns->count * seeds.count; i++) {
        const int64_t column = columns->at[i / seeds.count], seed = seeds.at[i % seeds.count];
        if (experiment_has(e, arm, column, seed, true) &&
            !experiment_has(e, from, column, seed, true)) {
            char text[64];
            experiment_column_text(e, column, text);
            FAIL(ERROR_USAGE,
                 "%s:%u: arm '%s' is fitted to arm '%s', which has no run with %s and seed %lld in "
                 "the quick part; give both arms the same key quick",
                 d->name, line, arm->name, arm->fit, text, (long long)seed);
        }
    }
done:
    free(seeds.at);
    return result;
}

status experiment_check_fitted(const struct yaml_tree *d, const struct experiment *e)
{
    status result = OK;
    const struct node *arms = node_child(&d->root, "arms");
    for (size_t i = 0; i < e->arm_count; i++) {
        const struct arm *arm = &e->arms[i];
        if (arm->fit == NULL)
            continue;
        if (arm->tune.space.count > 0) {
            FAIL(ERROR_USAGE,
                 "%s:%u: arm '%s' has keys fit and tune: its trials would have another pace than "
                 "its runs; tune another arm, and give this one the settings found",
                 d->name, node_child(arms, arm->name)->line, arm->name);
        }
        if (e->map_seeds > 0 && is_in_map(e, arm)) {
            FAIL(ERROR_USAGE,
                 "%s:%u: arm '%s' is fitted, and in a map with key seeds: it would not get the "
                 "further seeds; remove seeds of the map, and give the experiment more seeds",
                 d->name, node_child(arms, arm->name)->line, arm->name);
        }
        TRY(check_quick_fit(d, e, arm, node_child(arms, arm->name)->line));
    }
done:
    return result;
}
