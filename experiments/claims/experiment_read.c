/* experiment_read.c — reads an experiment from a YAML tree; each error has its line. */
#include "experiments/claims/experiment_read.h"

#include "base/memory.h"
#include "base/text.h"
#include "experiments/config/config_effect.h"
#include "experiments/config/keys.h"

#include <stdlib.h>
#include <string.h>

status experiment_read_text(const struct yaml_tree *d, const struct node *map, const char *key,
                            bool required, char **out)
{
    status result = OK;
    const struct node *n = node_child(map, key);
    *out = NULL;
    if (n == NULL && required)
        FAIL(ERROR_USAGE, "%s:%u: key '%s' is missing", d->name, map->line, key);
    if (n != NULL) {
        TRY(node_require(d, n, NODE_SCALAR, key));
        *out = text_copy(n->text);
        /* A folded YAML text ends with a newline. */
        for (size_t end = strlen(*out); end > 0 && (*out)[end - 1] == '\n'; end--)
            (*out)[end - 1] = '\0';
    }
    if (required && (*out)[0] == '\0')
        FAIL(ERROR_USAGE, "%s:%u: %s is empty; give a text", d->name, n->line, key);
done:
    return result;
}

/* A repeated number would plan the same run twice, and --part could put it into two parts. */
static status check_distinct(const struct yaml_tree *d, const struct node *n, const char *key,
                             const struct int_list *list)
{
    status result = OK;
    for (size_t i = 0; i < list->count; i++) {
        for (size_t k = 0; k < i; k++) {
            if (list->at[i] == list->at[k]) {
                FAIL(ERROR_USAGE, "%s:%u: %s has the number %lld twice; give each number once",
                     d->name, n->children[i].line, key, (long long)list->at[i]);
            }
        }
    }
done:
    return result;
}

status experiment_read_list(const struct yaml_tree *d, const struct node *n, const char *key,
                            struct int_list *out)
{
    status result = OK;
    TRY(node_require(d, n, NODE_LIST, key));
    if (n->count == 0)
        FAIL(ERROR_USAGE, "%s:%u: %s is an empty list; give at least one number", d->name, n->line,
             key);
    TRY(memory_new(&out->at, n->count, sizeof *out->at, key));
    for (size_t i = 0; i < n->count; i++) {
        TRY(node_integer(d, &n->children[i], key, &out->at[i]));
        out->count++;
    }
    TRY(check_distinct(d, n, key, out));
done:
    return result;
}

static status read_integers(const struct yaml_tree *d, const struct node *map, const char *key,
                            struct int_list *out)
{
    const struct node *n = node_child(map, key);
    return n != NULL ? experiment_read_list(d, n, key, out) : OK;
}

status experiment_read_settings(const struct yaml_tree *d, const struct node *map,
                                struct settings *out)
{
    status result = OK;
    if (map == NULL)
        goto done;
    TRY(node_require(d, map, NODE_MAP, "settings"));
    TRY(config_check_lengths(d, map));
    for (size_t i = 0; i < map->count; i++) {
        struct text origin = {0};
        TRY(node_require(d, &map->children[i], NODE_SCALAR, map->keys[i]));
        text_add(&origin, "%s:%u", d->name, map->children[i].line);
        settings_add(out, map->keys[i], map->children[i].text, origin.at);
        text_free(&origin);
    }
done:
    return result;
}

/* at: {8: {lr: 0.1}, 16: {lr: 0.05}} */
static status read_at(const struct yaml_tree *d, const struct experiment *e, const struct node *map,
                      struct at_column **out, size_t *count)
{
    status result = OK;
    if (map == NULL)
        goto done;
    TRY(node_require(d, map, NODE_MAP, "at"));
    TRY(memory_new(out, map->count, sizeof **out, "at"));
    for (size_t i = 0; i < map->count; i++) {
        *count = i + 1;
        TRY(experiment_read_columns(d, e, &map->children[i], map->keys[i], &(*out)[i].columns));
        TRY(experiment_read_settings(d, &map->children[i], &(*out)[i].settings));
    }
done:
    return result;
}

/* expected: {8: 79.8, 16: 73.5} */
static status read_expected(const struct yaml_tree *d, const struct experiment *e,
                            const struct node *map, struct arm *out)
{
    status result = OK;
    if (map == NULL)
        goto done;
    TRY(node_require(d, map, NODE_MAP, "expected"));
    TRY(memory_new(&out->expected, map->count, sizeof *out->expected, "expected"));
    for (size_t i = 0; i < map->count; i++) {
        struct expected_cell *cell = &out->expected[out->expected_count++];
        TRY(experiment_read_column(d, e, &map->children[i], map->keys[i], &cell->column));
        TRY(node_real(d, &map->children[i], "expected", &cell->value));
    }
done:
    return result;
}

/* One entry of key quick for each column that `text` selects. */
static status add_quick(const struct yaml_tree *d, const struct experiment *e, const struct node *n,
                        const char *text, const struct node *seeds, struct arm *out)
{
    status result = OK;
    struct int_list columns = {0};
    TRY(experiment_read_columns(d, e, n, text, &columns));
    for (size_t i = 0; i < columns.count; i++) {
        struct at_seeds *at = memory_append(&out->quick_at, &out->quick_at_count, sizeof *at);
        *at = (struct at_seeds){.column = columns.at[i]};
        if (seeds != NULL)
            TRY(experiment_read_list(d, seeds, "quick", &at->seeds));
    }
done:
    memory_free(columns.at);
    return result;
}

/* quick: false, [16] or {4: [1, 2, 3], 16: [1]} */
static status read_arm_quick(const struct yaml_tree *d, const struct experiment *e,
                             const struct node *n, struct arm *out)
{
    status result = OK;
    out->quick = true;
    if (n == NULL)
        goto done;
    if (n->kind == NODE_SCALAR && strcmp(n->text, "false") == 0) {
        out->quick = false;
        goto done;
    }
    if (n->kind == NODE_SCALAR || n->count == 0) {
        FAIL(ERROR_USAGE,
             "%s:%u: quick of an arm must be false, a list of columns, or {COLUMN: [SEEDS]}",
             d->name, n->line);
    }
    for (size_t i = 0; i < n->count; i++) {
        const struct node *each = &n->children[i];
        if (n->kind == NODE_MAP) {
            TRY(add_quick(d, e, each, n->keys[i], each, out));
        } else {
            TRY(node_require(d, each, NODE_SCALAR, "quick"));
            TRY(add_quick(d, e, each, each->text, NULL, out));
        }
    }
done:
    return result;
}

static status read_arm(const struct yaml_tree *d, const struct experiment *e, const char *name,
                       const struct node *n, struct arm *out)
{
    status result = OK;
    static const char *const known[] = {"label", "settings", "at",       "quick",
                                        "tune",  "fit",      "expected", NULL};
    TRY(node_require(d, n, NODE_MAP, name));
    TRY(experiment_known_keys(d, e, n, known));
    out->name = text_copy(name);
    TRY(experiment_read_text(d, n, "label", true, &out->label));
    TRY(experiment_read_settings(d, node_child(n, "settings"), &out->settings));
    TRY(experiment_read_part(d, e, n, &out->columns));
    TRY(read_at(d, e, node_child(n, "at"), &out->at, &out->at_count));
    TRY(read_arm_quick(d, e, node_child(n, "quick"), out));
    TRY(experiment_read_tune(d, e, node_child(n, "tune"), out));
    TRY(experiment_read_text(d, n, "fit", false, &out->fit));
    TRY(read_expected(d, e, node_child(n, "expected"), out));
done:
    return result;
}

static status read_band(const struct yaml_tree *d, const struct node *n, const char *what,
                        double *low, double *high)
{
    status result = OK;
    TRY(node_require(d, n, NODE_LIST, what));
    if (n->count != 2)
        FAIL(ERROR_USAGE, "%s:%u: a %s must be two numbers, [low, high]", d->name, n->line, what);
    TRY(node_real(d, &n->children[0], what, low));
    TRY(node_real(d, &n->children[1], what, high));
    if (*low > *high)
        FAIL(ERROR_USAGE, "%s:%u: the low end of the %s exceeds its high end", d->name, n->line,
             what);
done:
    return result;
}

static status read_equivalence(const struct yaml_tree *d, const struct node *n, struct claim *out)
{
    status result = OK;
    if (n == NULL)
        goto done;
    TRY(node_require(d, n, NODE_SCALAR, "equivalence"));
    out->equivalence = strcmp(n->text, "true") == 0;
    if (!out->equivalence)
        FAIL(ERROR_USAGE, "%s:%u: equivalence must be true; to leave it off, remove the key",
             d->name, n->line);
    if (out->value == NULL)
        FAIL(ERROR_USAGE,
             "%s:%u: equivalence requires 'value', because a claim with 'sql' has no interval",
             d->name, n->line);
done:
    return result;
}

static status read_claim(const struct yaml_tree *d, const struct node *n, struct claim *out)
{
    status result = OK;
    static const char *const known[] = {"claim", "source", "value",       "sql",
                                        "band",  "quick",  "equivalence", NULL};
    TRY(node_require(d, n, NODE_MAP, "a claim"));
    TRY(node_known_keys(d, n, known));
    out->line = n->line;
    TRY(experiment_read_text(d, n, "claim", true, &out->text));
    TRY(experiment_read_text(d, n, "source", false, &out->source));
    TRY(experiment_read_text(d, n, "value", false, &out->value));
    TRY(experiment_read_text(d, n, "sql", false, &out->sql));
    if ((out->value == NULL) == (out->sql == NULL))
        FAIL(ERROR_USAGE, "%s:%u: a claim must have either 'value' or 'sql'", d->name, n->line);
    const struct node *band = node_child(n, "band"), *quick = node_child(n, "quick");
    if (band == NULL)
        FAIL(ERROR_USAGE, "%s:%u: a claim needs a band, [low, high]", d->name, n->line);
    TRY(read_band(d, band, "band", &out->low, &out->high));
    out->quick_low = out->low;
    out->quick_high = out->high;
    if (quick != NULL)
        TRY(read_band(d, quick, "quick band", &out->quick_low, &out->quick_high));
    TRY(read_equivalence(d, node_child(n, "equivalence"), out));
done:
    return result;
}

static status known_arm(const struct experiment *e, const struct yaml_tree *d, const struct node *n,
                        const char *name)
{
    if (experiment_arm(e, name) == NULL) {
        return error_set(ERROR_USAGE, __FILE__, __LINE__,
                         "%s:%u: there is no arm '%s'; define it "
                         "under 'arms'",
                         d->name, n->line, name);
    }
    return OK;
}

/* A list of names of arms. */
static status read_arms(const struct yaml_tree *d, const struct node *n, const char *key,
                        const struct experiment *e, char ***out, size_t *count)
{
    status result = OK;
    if (n == NULL)
        goto done;
    TRY(node_require(d, n, NODE_LIST, key));
    TRY(memory_new(out, n->count, sizeof **out, key));
    for (size_t i = 0; i < n->count; i++) {
        TRY(node_require(d, &n->children[i], NODE_SCALAR, "an arm"));
        TRY(known_arm(e, d, n, n->children[i].text));
        (*out)[(*count)++] = text_copy(n->children[i].text);
    }
done:
    return result;
}

static status read_verdict(const struct yaml_tree *d, const struct node *n, struct experiment *e)
{
    status result = OK;
    const char *const key = e->axis != NULL ? e->axis : "at";
    const char *const known[] = {key,     "alone",       "undamped", "damped",
                                 "tuned", "synchronous", "compared", NULL};
    struct verdict_arms *v = &e->verdict;
    const struct node *column;
    v->column = NO_COLUMN;
    if (n == NULL)
        goto done;
    TRY(node_require(d, n, NODE_MAP, "verdict"));
    TRY(node_known_keys(d, n, known));
    TRY(read_arms(d, node_child(n, "compared"), "compared", e, &v->compared, &v->compared_count));
    column = node_child(n, key);
    if (column == NULL && v->compared_count == 0) {
        FAIL(ERROR_USAGE,
             "%s:%u: the verdict needs key '%s', the column that it describes, or key 'compared'",
             d->name, n->line, key);
    }
    if (column != NULL) {
        TRY(node_require(d, column, NODE_SCALAR, key));
        TRY(experiment_read_column(d, e, column, column->text, &v->column));
    }
    TRY(experiment_read_text(d, n, "alone", false, &v->alone));
    if (v->alone != NULL && (e->axis == NULL || strcmp(e->axis, "workers") != 0)) {
        FAIL(ERROR_USAGE,
             "%s:%u: 'alone' is an arm's cell with one worker, but the columns of this experiment "
             "are not worker counts; remove it",
             d->name, n->line);
    }
    TRY(experiment_read_text(d, n, "undamped", false, &v->undamped));
    TRY(experiment_read_text(d, n, "tuned", false, &v->tuned));
    TRY(experiment_read_text(d, n, "synchronous", false, &v->synchronous));
    char *const single[] = {v->alone, v->undamped, v->tuned, v->synchronous};
    for (size_t i = 0; i < COUNT_OF(single); i++)
        if (single[i] != NULL)
            TRY(known_arm(e, d, n, single[i]));
    TRY(read_arms(d, node_child(n, "damped"), "damped", e, &v->damped, &v->damped_count));
done:
    return result;
}

static status read_side(const struct yaml_tree *d, const struct node *n, const char *name,
                        struct experiment *e)
{
    status result = OK;
    struct map_side *s = &e->sides[e->side_count++];
    s->name = text_copy(name);
    TRY(read_arms(d, n, name, e, &s->arms, &s->count));
    if (s->count == 0)
        FAIL(ERROR_USAGE, "%s:%u: side '%s' of the map has no arm; list at least one", d->name,
             n->line, name);
done:
    return result;
}

static status read_map_seeds(const struct yaml_tree *d, const struct node *n, struct experiment *e)
{
    status result = OK;
    int64_t seeds = 0;
    struct int_list own = {0};
    TRY(node_integer(d, n, "seeds", &seeds));
    experiment_seeds(e, false, &own);
    if (seeds <= (int64_t)own.count || seeds > 1000) {
        FAIL(ERROR_USAGE,
             "%s:%u: seeds: %lld is invalid: in a map it is the number of seeds of undecided "
             "cells; set more than the %zu of the experiment, at most 1000",
             d->name, n->line, (long long)seeds, own.count);
    }
    e->map_seeds = (unsigned)seeds;
done:
    free(own.at);
    return result;
}

/* map: {synchronous: [sync, backup], asynchronous: [tuned, damped], seeds: 8} */
static status read_map(const struct yaml_tree *d, const struct node *n, struct experiment *e)
{
    status result = OK;
    if (n == NULL)
        goto done;
    TRY(node_require(d, n, NODE_MAP, "map"));
    TRY(memory_new(&e->sides, n->count, sizeof *e->sides, "map"));
    for (size_t i = 0; i < n->count; i++)
        if (strcmp(n->keys[i], "seeds") == 0)
            TRY(read_map_seeds(d, &n->children[i], e));
        else
            TRY(read_side(d, &n->children[i], n->keys[i], e));
    if (e->side_count < 2)
        FAIL(ERROR_USAGE, "%s:%u: a map compares at least two sides, {NAME: [ARMS]}", d->name,
             n->line);
done:
    return result;
}

static status read_quick(const struct yaml_tree *d, const struct node *n, struct experiment *e)
{
    status result = OK;
    static const char *const known[] = {"seeds", "settings", NULL};
    if (n == NULL)
        goto done;
    TRY(node_require(d, n, NODE_MAP, "quick"));
    TRY(experiment_known_keys(d, e, n, known));
    TRY(experiment_read_part(d, e, n, &e->quick_columns));
    TRY(read_integers(d, n, "seeds", &e->quick_seeds));
    TRY(experiment_read_settings(d, node_child(n, "settings"), &e->quick_settings));
done:
    return result;
}

/* A fit needs an earlier arm with the same columns that is not fitted itself. */
static status check_fit(const struct yaml_tree *d, const struct node *n, const struct experiment *e,
                        const struct arm *arm)
{
    status result = OK;
    const struct arm *from = arm->fit == NULL ? NULL : experiment_arm(e, arm->fit);
    if (arm->fit != NULL && (from == NULL || from == arm || from->fit != NULL)) {
        FAIL(ERROR_USAGE,
             "%s:%u: fit is '%s', but must name an earlier arm that is not fitted itself", d->name,
             n->line, arm->fit);
    }
    if (from != NULL && arm->quick && !from->quick) {
        FAIL(ERROR_USAGE,
             "%s:%u: arm '%s' is fitted to arm '%s', which has no runs in the quick part "
             "(quick: false); give arm '%s' quick: false, too",
             d->name, n->line, arm->name, arm->fit, arm->name);
    }
    for (size_t i = 0; from != NULL && i < e->columns.count; i++) {
        if (experiment_arm_has(e, arm, e->columns.at[i]) &&
            !experiment_arm_has(e, from, e->columns.at[i])) {
            char column[64];
            experiment_column_text(e, e->columns.at[i], column);
            FAIL(ERROR_USAGE,
                 "%s:%u: arm '%s' is fitted to arm '%s', which has no runs with %s; give both arms "
                 "the same columns",
                 d->name, n->line, arm->name, arm->fit, column);
        }
    }
done:
    return result;
}

static status check_expected(const struct yaml_tree *d, const struct node *n,
                             const struct experiment *e, const struct arm *arm)
{
    status result = OK;
    for (size_t i = 0; i < arm->expected_count; i++) {
        if (!experiment_arm_has(e, arm, arm->expected[i].column)) {
            char column[64];
            experiment_column_text(e, arm->expected[i].column, column);
            FAIL(ERROR_USAGE,
                 "%s:%u: expected has a figure for %s, but arm %s has no runs there; remove the "
                 "figure or add the column",
                 d->name, node_child(n, "expected")->line, column, arm->name);
        }
    }
done:
    return result;
}

static status read_lists(const struct yaml_tree *d, struct experiment *e)
{
    status result = OK;
    const struct node *arms = node_child(&d->root, "arms");
    const struct node *claims = node_child(&d->root, "claims");
    if (arms == NULL)
        FAIL(ERROR_USAGE, "%s:%u: key 'arms' is missing", d->name, d->root.line);
    TRY(node_require(d, arms, NODE_MAP, "arms"));
    TRY(memory_new(&e->arms, arms->count, sizeof *e->arms, "arms"));
    for (size_t i = 0; i < arms->count; i++) {
        e->arm_count = i + 1;
        TRY(read_arm(d, e, arms->keys[i], &arms->children[i], &e->arms[i]));
        TRY(check_fit(d, &arms->children[i], e, &e->arms[i]));
        TRY(check_expected(d, &arms->children[i], e, &e->arms[i]));
    }
    if (claims != NULL) {
        TRY(node_require(d, claims, NODE_LIST, "claims"));
        TRY(memory_new(&e->claims, claims->count, sizeof *e->claims, "claims"));
        for (size_t i = 0; i < claims->count; i++) {
            e->claim_count = i + 1;
            TRY(read_claim(d, &claims->children[i], &e->claims[i]));
        }
    }
done:
    return result;
}

static status default_seeds(struct int_list *out)
{
    status result = OK;
    TRY(memory_new(&out->at, EXPERIMENT_SEEDS, sizeof *out->at, "seeds"));
    for (; out->count < EXPERIMENT_SEEDS; out->count++)
        out->at[out->count] = (int64_t)out->count + 1;
done:
    return result;
}

static status read_metric(const struct yaml_tree *d, struct experiment *e)
{
    static const char *const names[] = {[METRIC_ACCURACY] = "accuracy",
                                        [METRIC_LOSS] = "loss",
                                        [METRIC_VALIDATION_LOSS] = "validation_loss"};
    status result = OK;
    const struct node *n = node_child(&d->root, "metric");
    size_t i = 0;
    if (n == NULL)
        goto done;
    TRY(node_require(d, n, NODE_SCALAR, "metric"));
    while (i < COUNT_OF(names) && strcmp(names[i], n->text) != 0)
        i++;
    if (i == COUNT_OF(names)) {
        FAIL(ERROR_USAGE, "%s:%u: metric is '%s'; give accuracy, loss or validation_loss", d->name,
             n->line, n->text);
    }
    e->metric = (enum metric)i;
done:
    return result;
}

/* Queries select by name: `all` selects every experiment, and NAME/tuning has the trials of NAME.
 */
static status check_name(const struct yaml_tree *d, const char *name)
{
    status result = OK;
    const char *last = strrchr(name, '/');
    if (strcmp(name, "all") == 0 || (last != NULL && strcmp(last, "/tuning") == 0)) {
        FAIL(ERROR_USAGE, "%s:%u: an experiment cannot have the name '%s'; choose another", d->name,
             node_child(&d->root, "name")->line, name);
    }
done:
    return result;
}

status experiment_read(const struct yaml_tree *d, struct experiment *e)
{
    status result = OK;
    TRY(node_require(d, &d->root, NODE_MAP, "an experiment"));
    if (node_child(&d->root, "name") == NULL && node_child(&d->root, "arms") == NULL) {
        FAIL(ERROR_USAGE,
             "%s: not an experiment: it has neither 'name' nor 'arms' (docs/experiment-files.md); "
             "run "
             "a file of settings with `gradlag run %s`",
             d->name, d->name);
    }
    static const char *const known[] = {
        "name",    "question", "source",  "settings", "at",  "seeds",  "arms",       "claims",
        "verdict", "quick",    "columns", "axes",     "map", "metric", "discussion", NULL};
    TRY(experiment_read_axes(d, e));
    TRY(experiment_known_keys(d, e, &d->root, known));
    TRY(read_metric(d, e));
    TRY(experiment_list_columns(d, e));
    TRY(experiment_read_text(d, &d->root, "name", true, &e->name));
    TRY(check_name(d, e->name));
    TRY(experiment_read_text(d, &d->root, "question", true, &e->question));
    TRY(experiment_read_text(d, &d->root, "source", false, &e->source));
    TRY(experiment_read_text(d, &d->root, "discussion", false, &e->discussion));
    TRY(experiment_read_settings(d, node_child(&d->root, "settings"), &e->settings));
    TRY(read_at(d, e, node_child(&d->root, "at"), &e->at, &e->at_count));
    TRY(read_integers(d, &d->root, "seeds", &e->seeds));
    if (e->seeds.count == 0)
        TRY(default_seeds(&e->seeds));
    TRY(read_lists(d, e));
    TRY(read_verdict(d, node_child(&d->root, "verdict"), e));
    TRY(read_map(d, node_child(&d->root, "map"), e));
    TRY(read_quick(d, node_child(&d->root, "quick"), e));
    TRY(experiment_check_settings(e));
    TRY(experiment_check_fitted(d, e));
    TRY(experiment_check_trial_seeds(d, e));
    TRY(experiment_check_budgets(e, false));
    TRY(experiment_check_budgets(e, true));
done:
    return result;
}
