/* experiment_read_axes.c — axes and columns of an experiment file (experiment.h). */
#include "experiments/claims/experiment_read.h"

#include "base/memory.h"
#include "base/text.h"
#include "experiments/config/keys.h"

#include <stdlib.h>
#include <string.h>

enum { KNOWN_KEYS = 16, MOST_COLUMNS = 10000 };

/* ---- the axes ----------------------------------------------------------------------------------
 */

/* columns: delay */
static status read_one_axis(const struct yaml_tree *d, struct experiment *e)
{
    status result = OK;
    const struct node *n = node_child(&d->root, "columns");
    TRY(experiment_read_text(d, &d->root, "columns", false, &e->axis));
    if (e->axis == NULL)
        e->axis = text_copy("workers");
    const struct option *key = keys_find(e->axis);
    if (key == NULL || key->type != OPTION_INTEGER || !key_defines(e->axis) ||
        experiment_is_of_run(e->axis)) {
        FAIL(ERROR_USAGE,
             "%s:%u: columns: '%s' must be a key that defines a run and has whole numbers, such as "
             "workers",
             d->name, n->line, e->axis);
    }
done:
    return result;
}

/* A name must not belong to two levels: claims and `at` name a level without its axis. */
static status check_name(const struct yaml_tree *d, const struct experiment *e,
                         const struct node *n, const char *name)
{
    status result = OK;
    if (strlen(name) > 40 || name[0] == '\0' || strspn(name, LEVEL_CHARACTERS) < strlen(name)) {
        FAIL(ERROR_USAGE,
             "%s:%u: '%s' cannot name a level; use at most 40 letters, digits, '_', '-' and '.'",
             d->name, n->line, name);
    }
    if (experiment_axis_of_level(e, name) < e->axis_count) {
        FAIL(ERROR_USAGE,
             "%s:%u: two levels are named '%s'; give the levels of one of the axes other names",
             d->name, n->line, name);
    }
done:
    return result;
}

/* workers: [4, 8], or network: {free: {}, slow: {network.gbps: 1}} */
static status read_axis(const struct yaml_tree *d, struct experiment *e, const char *name,
                        const struct node *n, struct experiment_axis *out)
{
    status result = OK;
    out->name = text_copy(name);
    out->named = n->kind == NODE_MAP;
    const bool known = strchr(name, '.') != NULL || keys_find(name) != NULL;
    if (!out->named &&
        (n->kind != NODE_LIST || !known || !key_defines(name) || experiment_is_of_run(name))) {
        FAIL(ERROR_USAGE,
             "%s:%u: axis '%s' must be a list of values of a key that defines a run, or named "
             "settings: {NAME: {KEY: VALUE}}",
             d->name, n->line, name);
    }
    if (n->count == 0)
        FAIL(ERROR_USAGE, "%s:%u: axis '%s' has no levels", d->name, n->line, name);
    TRY(memory_new(&out->levels, n->count, sizeof *out->levels, "an axis"));
    for (size_t i = 0; i < n->count; i++) {
        const struct node *level = &n->children[i];
        if (!out->named)
            TRY(node_require(d, level, NODE_SCALAR, name));
        const char *text = out->named ? n->keys[i] : level->text;
        TRY(check_name(d, e, level, text));
        out->levels[i].name = text_copy(text);
        out->count = i + 1;
        if (out->named)
            TRY(experiment_read_settings(d, level, &out->levels[i].settings));
    }
done:
    return result;
}

status experiment_read_axes(const struct yaml_tree *d, struct experiment *e)
{
    status result = OK;
    const struct node *n = node_child(&d->root, "axes");
    if (n == NULL)
        return read_one_axis(d, e);
    TRY(node_require(d, n, NODE_MAP, "axes"));
    if (n->count == 0 || n->count > EXPERIMENT_AXES)
        FAIL(ERROR_USAGE, "%s:%u: axes must have 1 to %d axes", d->name, n->line, EXPERIMENT_AXES);
    if (node_child(&d->root, "columns") != NULL) {
        FAIL(ERROR_USAGE, "%s:%u: a file with axes has no key 'columns'; remove it", d->name,
             node_child(&d->root, "columns")->line);
    }
    TRY(memory_new(&e->axes, n->count, sizeof *e->axes, "axes"));
    for (size_t i = 0; i < n->count; i++) {
        e->axis_count = i + 1;
        TRY(read_axis(d, e, n->keys[i], &n->children[i], &e->axes[i]));
    }
done:
    return result;
}

status experiment_list_columns(const struct yaml_tree *d, struct experiment *e)
{
    status result = OK;
    size_t count = 1;
    if (e->axis != NULL) {
        const struct node *list = node_child(&d->root, e->axis);
        if (list == NULL) {
            FAIL(ERROR_USAGE, "%s: key '%s' is missing; give a list, for example [1, 2, 4]",
                 d->name, e->axis);
        }
        TRY(experiment_read_list(d, list, e->axis, &e->columns));
        goto done;
    }
    for (size_t i = 0; i < e->axis_count && count <= MOST_COLUMNS; i++)
        count *= e->axes[i].count;
    if (count > MOST_COLUMNS) {
        FAIL(ERROR_USAGE, "%s:%u: the axes have more than %d combinations; remove levels", d->name,
             node_child(&d->root, "axes")->line, MOST_COLUMNS);
    }
    TRY(memory_new(&e->columns.at, count, sizeof *e->columns.at, "columns"));
    for (; e->columns.count < count; e->columns.count++)
        e->columns.at[e->columns.count] = (int64_t)e->columns.count;
done:
    return result;
}

status experiment_known_keys(const struct yaml_tree *d, const struct experiment *e,
                             const struct node *map, const char *const *known)
{
    const char *all[KNOWN_KEYS + EXPERIMENT_AXES] = {NULL};
    size_t count = 0;
    for (; known[count] != NULL; count++)
        all[count] = known[count];
    REQUIRE(count < KNOWN_KEYS);
    if (e->axis != NULL)
        all[count++] = e->axis;
    for (size_t i = 0; i < e->axis_count && map != &d->root; i++)
        all[count++] = e->axes[i].name;
    return node_known_keys(d, map, all);
}

/* ---- columns ------------------------------------------------------------------------------------
 */

/* Clears in `on` the columns without one of the levels in the list. */
static status keep_levels(const struct yaml_tree *d, const struct experiment *e, size_t axis,
                          const struct node *list, bool *on)
{
    status result = OK;
    const struct experiment_axis *a = &e->axes[axis];
    bool *wanted = NULL;
    TRY(memory_new(&wanted, a->count, sizeof *wanted, "levels"));
    TRY(node_require(d, list, NODE_LIST, a->name));
    if (list->count == 0)
        FAIL(ERROR_USAGE,
             "%s:%u: the list of levels of axis '%s' is empty; give at least one, or "
             "remove the list",
             d->name, list->line, a->name);
    for (size_t i = 0; i < list->count; i++) {
        const struct node *n = &list->children[i];
        size_t at = 0;
        TRY(node_require(d, n, NODE_SCALAR, a->name));
        while (at < a->count && strcmp(a->levels[at].name, n->text) != 0)
            at++;
        if (at == a->count)
            FAIL(ERROR_USAGE, "%s:%u: axis '%s' has no level '%s'; give one of its levels", d->name,
                 n->line, a->name, n->text);
        if (wanted[at])
            FAIL(ERROR_USAGE, "%s:%u: level '%s' of axis '%s' is listed twice; keep one", d->name,
                 n->line, n->text, a->name);
        wanted[at] = true;
    }
    for (size_t c = 0; c < e->columns.count; c++)
        on[c] = on[c] && wanted[experiment_level(e, (int64_t)c, axis)];
done:
    memory_free(wanted);
    return result;
}

static status collect(const struct experiment *e, const bool *on, struct int_list *out)
{
    status result = OK;
    TRY(memory_new(&out->at, e->columns.count, sizeof *out->at, "columns"));
    for (size_t c = 0; c < e->columns.count; c++)
        if (on[c])
            out->at[out->count++] = (int64_t)c;
done:
    return result;
}

static status all_on(const struct experiment *e, bool **out)
{
    status result = OK;
    TRY(memory_new(out, e->columns.count, sizeof **out, "columns"));
    memset(*out, true, e->columns.count * sizeof **out);
done:
    return result;
}

/* A value of the one axis of whole numbers. */
static status find_number(const struct yaml_tree *d, const struct experiment *e,
                          const struct node *n, const char *text, int64_t *out)
{
    char level[1][64];
    snprintf(level[0], sizeof level[0], "%s", text);
    status result = experiment_find_column(e, level, out);
    return result == OK ? OK : error_add_context(result, "%s:%u", d->name, n->line);
}

/* Some values of the one axis of whole numbers. */
static status read_numbers(const struct yaml_tree *d, const struct experiment *e,
                           const struct node *list, struct int_list *out)
{
    status result = OK;
    int64_t ignored;
    TRY(experiment_read_list(d, list, e->axis, out));
    for (size_t i = 0; i < list->count; i++)
        TRY(find_number(d, e, &list->children[i], list->children[i].text, &ignored));
done:
    return result;
}

status experiment_read_part(const struct yaml_tree *d, const struct experiment *e,
                            const struct node *map, struct int_list *out)
{
    status result = OK;
    bool *on = NULL, any = false;
    if (e->axis != NULL) {
        const struct node *list = node_child(map, e->axis);
        return list != NULL ? read_numbers(d, e, list, out) : OK;
    }
    TRY(all_on(e, &on));
    for (size_t i = 0; i < e->axis_count; i++) {
        const struct node *list = node_child(map, e->axes[i].name);
        any = any || list != NULL;
        if (list != NULL)
            TRY(keep_levels(d, e, i, list, on));
    }
    if (any)
        TRY(collect(e, on, out));
done:
    memory_free(on);
    return result;
}

/* Clears in `on` the columns without this level. */
static status keep_named(const struct yaml_tree *d, const struct experiment *e,
                         const struct node *n, const char *level, bool *on)
{
    status result = OK;
    const size_t axis = experiment_axis_of_level(e, level);
    if (axis == e->axis_count) {
        FAIL(ERROR_USAGE,
             "%s:%u: no axis has a level '%s'; give levels of the axes, separated by "
             "spaces",
             d->name, n->line, level);
    }
    for (size_t c = 0; c < e->columns.count; c++) {
        const size_t its = experiment_level(e, (int64_t)c, axis);
        on[c] = on[c] && strcmp(e->axes[axis].levels[its].name, level) == 0;
    }
done:
    return result;
}

static status read_number(const struct yaml_tree *d, const struct experiment *e,
                          const struct node *n, const char *text, struct int_list *out)
{
    status result = OK;
    TRY(memory_new(&out->at, 1, sizeof *out->at, "a column"));
    TRY(find_number(d, e, n, text, &out->at[0]));
    out->count = 1;
done:
    return result;
}

status experiment_read_columns(const struct yaml_tree *d, const struct experiment *e,
                               const struct node *n, const char *text, struct int_list *out)
{
    status result = OK;
    bool *on = NULL;
    char *words = NULL, *rest = NULL;
    if (e->axis != NULL)
        return read_number(d, e, n, text, out);
    words = text_copy(text);
    TRY(all_on(e, &on));
    for (char *word = strtok_r(words, " ,", &rest); word != NULL;
         word = strtok_r(NULL, " ,", &rest))
        TRY(keep_named(d, e, n, word, on));
    TRY(collect(e, on, out));
    if (out->count == 0)
        FAIL(ERROR_USAGE, "%s:%u: '%s' names two levels of one axis", d->name, n->line, text);
done:
    memory_free(words);
    memory_free(on);
    return result;
}

status experiment_read_column(const struct yaml_tree *d, const struct experiment *e,
                              const struct node *n, const char *text, int64_t *out)
{
    status result = OK;
    struct int_list columns = {0};
    TRY(experiment_read_columns(d, e, n, text, &columns));
    if (columns.count != 1) {
        FAIL(ERROR_USAGE, "%s:%u: '%s' names %zu columns; give a level of each axis", d->name,
             n->line, text, columns.count);
    }
    *out = columns.at[0];
done:
    memory_free(columns.at);
    return result;
}
