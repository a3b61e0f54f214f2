#include "experiments/claims/experiment.h"

#include "base/text.h"
#include "base/memory.h"
#include "base/suggestion.h"
#include "experiments/claims/experiment_read.h"
#include "experiments/config/config_effect.h"
#include "base/embedded.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define FOLDER "experiments/questions/"
#define ENDING ".yaml"

/* The next compiled-in experiment at or after *index, or NULL. */
static const struct embedded_file *next_embedded(size_t *index)
{
    for (; embedded_files[*index].path != NULL; ++*index) {
        const char *path = embedded_files[*index].path;
        size_t length = strlen(path), ending = strlen(ENDING);
        if (strncmp(path, FOLDER, strlen(FOLDER)) == 0 && length > ending &&
            strcmp(path + length - ending, ENDING) == 0)
            return &embedded_files[(*index)++];
    }
    return NULL;
}

static void embedded_name(const struct embedded_file *f, char name[64])
{
    const char *start = f->path + strlen(FOLDER);
    snprintf(name, 64, "%.*s", (int)(strlen(start) - strlen(ENDING)), start);
}

bool experiment_at(size_t index, char name[64])
{
    size_t at = 0;
    const struct embedded_file *f;
    while ((f = next_embedded(&at)) != NULL) {
        if (index-- == 0) {
            embedded_name(f, name);
            return true;
        }
    }
    return false;
}

static bool is_file(const char *path)
{
    struct stat about;
    return stat(path, &about) == 0 && !S_ISDIR(about.st_mode);
}

static status open_document(struct yaml_tree *d, const char *name)
{
    size_t at = 0;
    const struct embedded_file *f;
    struct suggestion known = {.wanted = name};
    char names[64][64]; /* `known` points into it */
    *d = (struct yaml_tree){0};
    if (strchr(name, '/') != NULL || is_file(name))
        return yaml_tree_read_file(d, name);
    for (size_t i = 0; (f = next_embedded(&at)) != NULL && i < COUNT_OF(names); i++) {
        embedded_name(f, names[i]);
        suggestion_add(&known, names[i]);
        if (strcmp(names[i], name) == 0) {
            text_free(&known.all);
            return yaml_tree_read_text(d, f->path, f->text);
        }
    }
    return suggestion_fail(&known, NULL, "there is no experiment or file named");
}

status experiment_open(struct experiment *out, const char *name_or_path)
{
    status result = OK;
    struct yaml_tree d;
    *out = (struct experiment){0};
    TRY(open_document(&d, name_or_path));
    out->file = text_copy(d.name);
    TRY(experiment_read(&d, out));
done:
    yaml_tree_close(&d);
    if (result != OK)
        experiment_close(out);
    return result;
}

static void at_free(struct at_column *at, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        settings_free(&at[i].settings);
        memory_free(at[i].columns.at);
    }
    memory_free(at);
}

static void axes_free(struct experiment_axis *axes, size_t count)
{
    for (struct experiment_axis *a = axes; a < axes + count; a++) {
        for (size_t i = 0; i < a->count; i++) {
            memory_free(a->levels[i].name);
            settings_free(&a->levels[i].settings);
        }
        memory_free(a->levels);
        memory_free(a->name);
    }
    memory_free(axes);
}

static void texts_free(char **const *texts, size_t count)
{
    for (size_t i = 0; i < count; i++)
        memory_free(*texts[i]);
}

static void tune_space_free(struct tune_space *g)
{
    space_close(&g->space);
    settings_free(&g->search);
    memory_free(g->seeds.at);
}

void experiment_close(struct experiment *e)
{
    struct verdict_arms *v = &e->verdict;
    char **const own[] = {&e->name, &e->file,  &e->question, &e->source, &e->discussion,
                          &e->axis, &v->alone, &v->undamped, &v->tuned,  &v->synchronous};
    texts_free(own, COUNT_OF(own));
    for (size_t i = 0; i < v->damped_count; i++)
        memory_free(v->damped[i]);
    memory_free(v->damped);
    for (size_t i = 0; i < v->compared_count; i++)
        memory_free(v->compared[i]);
    memory_free(v->compared);
    for (struct map_side *s = e->sides; s < e->sides + e->side_count; s++) {
        for (size_t i = 0; i < s->count; i++)
            memory_free(s->arms[i]);
        memory_free(s->arms);
        memory_free(s->name);
    }
    memory_free(e->sides);
    for (size_t i = 0; i < e->arm_count; i++) {
        struct arm *a = &e->arms[i];
        memory_free(a->name);
        memory_free(a->label);
        memory_free(a->fit);
        tune_space_free(&a->tune);
        tune_space_free(&a->quick_tune);
        memory_free(a->columns.at);
        for (size_t k = 0; k < a->quick_at_count; k++)
            memory_free(a->quick_at[k].seeds.at);
        memory_free(a->quick_at);
        memory_free(a->expected);
        settings_free(&a->settings);
        at_free(a->at, a->at_count);
    }
    for (size_t i = 0; i < e->claim_count; i++) {
        struct claim *c = &e->claims[i];
        char **const texts[] = {&c->text, &c->source, &c->value, &c->sql};
        texts_free(texts, COUNT_OF(texts));
    }
    at_free(e->at, e->at_count);
    axes_free(e->axes, e->axis_count);
    memory_free(e->arms);
    memory_free(e->claims);
    struct int_list *const lists[] = {&e->columns, &e->seeds, &e->quick_columns, &e->quick_seeds};
    for (size_t i = 0; i < COUNT_OF(lists); i++)
        memory_free(lists[i]->at);
    settings_free(&e->settings);
    settings_free(&e->quick_settings);
    *e = (struct experiment){0};
}

const struct arm *experiment_arm(const struct experiment *e, const char *name)
{
    for (size_t i = 0; i < e->arm_count; i++)
        if (strcmp(e->arms[i].name, name) == 0)
            return &e->arms[i];
    return NULL;
}

static bool contains(const struct int_list *list, int64_t number)
{
    for (size_t i = 0; i < list->count; i++)
        if (list->at[i] == number)
            return true;
    return false;
}

bool experiment_arm_has(const struct experiment *e, const struct arm *arm, int64_t column)
{
    return contains(arm->columns.count > 0 ? &arm->columns : &e->columns, column);
}

const struct tune_space *experiment_tune_space(const struct arm *arm, bool quick)
{
    bool own = quick && arm->quick_tune.space.count > 0;
    const struct tune_space *g = own ? &arm->quick_tune : &arm->tune;
    return g->space.count > 0 ? g : NULL;
}

size_t experiment_level(const struct experiment *e, int64_t column, size_t axis)
{
    size_t rest = (size_t)column;
    for (size_t i = e->axis_count; --i > axis;)
        rest /= e->axes[i].count;
    return rest % e->axes[axis].count;
}

size_t experiment_level_count(const struct experiment *e)
{
    return e->axis_count > 0 ? e->axis_count : 1;
}

size_t experiment_find_level(const struct experiment_axis *a, const char *name)
{
    size_t i = 0;
    while (i < a->count && strcmp(a->levels[i].name, name) != 0)
        i++;
    return i;
}

size_t experiment_axis_of_level(const struct experiment *e, const char *level)
{
    int64_t number;
    size_t axis = 0;
    if (e->axis != NULL)
        return text_to_integer(level, &number) ? 0 : 1;
    while (axis < e->axis_count &&
           experiment_find_level(&e->axes[axis], level) == e->axes[axis].count)
        axis++;
    return axis;
}

static status no_level(const struct experiment *e, const char *name)
{
    struct suggestion known = {.wanted = name};
    for (const struct experiment_axis *a = e->axes; a < e->axes + e->axis_count; a++)
        for (size_t i = 0; i < a->count; i++)
            suggestion_add(&known, a->levels[i].name);
    return suggestion_fail(&known, NULL, "no axis has a level");
}

/* Finds a column of the one axis of whole numbers. */
static status find_value(const struct experiment *e, const char *text, int64_t *out)
{
    status result = OK;
    struct text all = {0};
    if (!text_to_integer(text, out) || !contains(&e->columns, *out)) {
        for (size_t i = 0; i < e->columns.count; i++)
            text_add(&all, "%s%lld", i > 0 ? ", " : "", (long long)e->columns.at[i]);
        FAIL(ERROR_USAGE, "'%s' is not a column; give one of '%s: [%s]'", text, e->axis, all.at);
    }
done:
    text_free(&all);
    return result;
}

status experiment_find_column(const struct experiment *e, const char (*levels)[64], int64_t *out)
{
    status result = OK;
    bool has[EXPERIMENT_AXES] = {false};
    size_t at[EXPERIMENT_AXES] = {0};
    *out = 0;
    if (e->axis != NULL)
        return find_value(e, levels[0], out);
    for (size_t i = 0; i < e->axis_count; i++) {
        const size_t axis = experiment_axis_of_level(e, levels[i]);
        if (axis == e->axis_count)
            TRY(no_level(e, levels[i]));
        if (has[axis]) {
            FAIL(ERROR_USAGE, "'%s' is a second level of axis '%s'; give one level of each axis",
                 levels[i], e->axes[axis].name);
        }
        has[axis] = true;
        at[axis] = experiment_find_level(&e->axes[axis], levels[i]);
    }
    for (size_t i = 0; i < e->axis_count; i++)
        *out = *out * (int64_t)e->axes[i].count + (int64_t)at[i];
done:
    return result;
}

/* "16 workers", "delay=16", or the name of a named level. */
static void level_text(const char *key, const char *level, bool named, char out[64])
{
    if (named)
        snprintf(out, 64, "%s", level);
    else if (strcmp(key, "workers") == 0)
        snprintf(out, 64, "%s worker%s", level, strcmp(level, "1") == 0 ? "" : "s");
    else
        snprintf(out, 64, "%s=%s", key, level);
}

void experiment_column_text(const struct experiment *e, int64_t column, char out[64])
{
    char number[32], each[64];
    size_t length = 0;
    snprintf(number, sizeof number, "%lld", (long long)column);
    if (e->axis != NULL)
        level_text(e->axis, number, false, out);
    for (size_t i = 0; i < e->axis_count && length < 64; i++) {
        const struct experiment_axis *a = &e->axes[i];
        level_text(a->name, a->levels[experiment_level(e, column, i)].name, a->named, each);
        length += (size_t)snprintf(out + length, 64 - length, "%s%s", i > 0 ? ", " : "", each);
    }
}

const struct int_list *experiment_columns(const struct experiment *e, bool quick)
{
    return quick && e->quick_columns.count > 0 ? &e->quick_columns : &e->columns;
}

static const struct int_list *part_seeds(const struct experiment *e, bool quick)
{
    return quick && e->quick_seeds.count > 0 ? &e->quick_seeds : &e->seeds;
}

static void add_seeds(struct int_list *out, const struct int_list *more)
{
    out->at = realloc(out->at, (out->count + more->count) * sizeof *out->at);
    REQUIRE(out->at != NULL || out->count + more->count == 0);
    for (size_t i = 0; i < more->count; i++)
        if (!contains(out, more->at[i]))
            out->at[out->count++] = more->at[i];
}

void experiment_seeds(const struct experiment *e, bool quick, struct int_list *out)
{
    *out = (struct int_list){0};
    add_seeds(out, part_seeds(e, quick));
    for (size_t a = 0; quick && a < e->arm_count; a++)
        for (size_t i = 0; i < e->arms[a].quick_at_count; i++)
            add_seeds(out, &e->arms[a].quick_at[i].seeds);
}

int64_t experiment_trial_seed(const struct experiment *e)
{
    int64_t largest = e->seeds.at[0];
    for (int quick = 0; quick <= 1; quick++) {
        struct int_list seeds;
        experiment_seeds(e, quick, &seeds);
        for (size_t i = 0; i < seeds.count; i++)
            largest = seeds.at[i] > largest ? seeds.at[i] : largest;
        free(seeds.at);
    }
    return largest + (e->map_seeds > 100 ? e->map_seeds : 100);
}

bool experiment_has(const struct experiment *e, const struct arm *arm, int64_t column, int64_t seed,
                    bool quick)
{
    const struct int_list *seeds = part_seeds(e, quick);
    bool has = experiment_arm_has(e, arm, column);
    if (quick && arm->quick_at_count > 0) {
        const struct at_seeds *at = arm->quick_at, *end = at + arm->quick_at_count;
        while (at < end && at->column != column)
            at++;
        has = has && at < end;
        seeds = has && at->seeds.count > 0 ? &at->seeds : seeds;
    }
    return has && (!quick || arm->quick) && contains(seeds, seed);
}

/* Marks settings of all arms, from `first` on: config_compose() drops those that have no effect on
 * an arm. */
static void mark_shared(struct settings *s, size_t first)
{
    for (size_t i = first; i < s->count; i++)
        s->at[i].shared = true;
}

static void add_at(const struct at_column *at, size_t count, int64_t column, struct settings *out)
{
    for (size_t i = 0; i < count; i++)
        if (contains(&at[i].columns, column))
            settings_add_layer(out, &at[i].settings);
}

/* Adds the settings of the column's named levels. */
static void add_levels(const struct experiment *e, int64_t column, struct settings *out)
{
    for (size_t i = 0; i < e->axis_count; i++)
        settings_add_layer(out, &e->axes[i].levels[experiment_level(e, column, i)].settings);
}

/* Adds the column's values of axes that are keys. */
static void add_values(const struct experiment *e, int64_t column, struct settings *out)
{
    char number[32];
    struct settings values = {0};
    snprintf(number, sizeof number, "%lld", (long long)column);
    if (e->axis != NULL)
        settings_add(out, e->axis, number, e->file);
    for (size_t i = 0; i < e->axis_count; i++) {
        const struct experiment_axis *a = &e->axes[i];
        if (!a->named)
            settings_add(&values, a->name, a->levels[experiment_level(e, column, i)].name, e->file);
    }
    mark_shared(&values, 0);
    settings_add_layer(out, &values);
    settings_free(&values);
}

void experiment_settings(const struct experiment *e, const struct arm *arm, int64_t column,
                         int64_t seed, bool quick, const struct settings *more,
                         struct settings *out)
{
    char number[32];
    settings_add_all(out, &e->settings);
    add_levels(e, column, out);
    add_at(e->at, e->at_count, column, out);
    mark_shared(out, 0);
    const size_t own = out->count;
    settings_add_layer(out, &arm->settings);
    add_at(arm->at, arm->at_count, column, out);
    for (size_t i = own; i < out->count; i++)
        out->at[i].own = true;
    if (quick) {
        const size_t first = out->count;
        settings_add_layer(out, &e->quick_settings);
        mark_shared(out, first);
    }
    settings_add_layer(out, more);
    add_values(e, column, out);
    snprintf(number, sizeof number, "%lld", (long long)seed);
    settings_add(out, "seed", number, e->file);
    settings_add(out, "experiment", e->name, e->file);
    settings_add(out, "arm", arm->name, e->file);
}

/* In sets(), sets_at() and tunes() a NULL value matches any value. */
static bool sets(const struct settings *s, const char *key, const char *value)
{
    for (size_t i = 0; i < s->count; i++)
        if (strcmp(s->at[i].key, key) == 0 && (value == NULL || strcmp(s->at[i].value, value) == 0))
            return true;
    return false;
}

static bool sets_at(const struct at_column *at, size_t count, const char *key, const char *value)
{
    bool any = false;
    for (size_t i = 0; i < count; i++)
        any = any || sets(&at[i].settings, key, value);
    return any;
}

static bool tunes(const struct space *s, const char *key, const char *value)
{
    for (size_t i = 0; i < s->count; i++) {
        if (strcmp(s->at[i].key, key) != 0)
            continue;
        for (size_t k = 0; value != NULL && k < s->at[i].count; k++)
            if (strcmp(s->at[i].values[k], value) == 0)
                return true;
        if (value == NULL)
            return true;
    }
    return false;
}

bool experiment_uses(const struct experiment *e, const char *key, const char *value)
{
    bool any = sets(&e->settings, key, value) || sets_at(e->at, e->at_count, key, value);
    for (const struct experiment_axis *a = e->axes; a < e->axes + e->axis_count; a++)
        for (const struct experiment_level *l = a->levels; l < a->levels + a->count; l++)
            any = any || sets(&l->settings, key, value) ||
                  (!a->named && strcmp(a->name, key) == 0 && strcmp(l->name, value) == 0);
    for (const struct arm *a = e->arms; a < e->arms + e->arm_count && !any; a++)
        any = sets(&a->settings, key, value) || sets_at(a->at, a->at_count, key, value) ||
              tunes(&a->tune.space, key, value);
    return any;
}

/* The axis that decides a key, by its name or in a level; NULL: none. */
static const char *axis_of_key(const struct experiment *e, const char *key)
{
    if (e->axis != NULL && strcmp(e->axis, key) == 0)
        return e->axis;
    for (const struct experiment_axis *a = e->axes; a < e->axes + e->axis_count; a++) {
        if (!a->named && strcmp(a->name, key) == 0)
            return a->name;
        for (const struct experiment_level *l = a->levels; l < a->levels + a->count; l++)
            if (sets(&l->settings, key, NULL))
                return a->name;
    }
    return NULL;
}

bool experiment_varies(const struct experiment *e, const char *key)
{
    bool any = axis_of_key(e, key) != NULL || sets_at(e->at, e->at_count, key, NULL);
    for (const struct arm *a = e->arms; a < e->arms + e->arm_count && !any; a++)
        any = sets_at(a->at, a->at_count, key, NULL) || tunes(&a->tune.space, key, NULL) ||
              tunes(&a->quick_tune.space, key, NULL);
    return any;
}

/* Adds the keys of `from`. `by`, the name of what decides them, takes the place of a value. */
static void add_decided(const struct settings *from, const char *by, struct settings *out)
{
    for (size_t i = 0; i < from->count; i++)
        settings_add(out, from->at[i].key, by, "");
}

static void add_decided_at(const struct at_column *at, size_t count, const char *by,
                           struct settings *out)
{
    for (size_t i = 0; i < count; i++)
        add_decided(&at[i].settings, by, out);
}

static void add_tuned(const struct space *s, const char *by, struct settings *out)
{
    for (size_t i = 0; i < s->count; i++)
        settings_add(out, s->at[i].key, by, "");
}

/* All keys that the experiment decides. */
static void list_decided(const struct experiment *e, struct settings *out)
{
    static const char *const own[] = {"seed", "experiment", "arm"};
    char by[80];
    for (size_t i = 0; i < COUNT_OF(own); i++)
        settings_add(out, own[i], "the experiment", "");
    if (e->axis != NULL) {
        snprintf(by, sizeof by, "axis %s", e->axis);
        settings_add(out, e->axis, by, "");
    }
    for (const struct experiment_axis *a = e->axes; a < e->axes + e->axis_count; a++) {
        snprintf(by, sizeof by, "axis %s", a->name);
        if (!a->named)
            settings_add(out, a->name, by, "");
        for (const struct experiment_level *l = a->levels; l < a->levels + a->count; l++)
            add_decided(&l->settings, by, out);
    }
    for (const struct arm *a = e->arms; a < e->arms + e->arm_count; a++) {
        snprintf(by, sizeof by, "arm %s", a->name);
        add_decided(&a->settings, by, out);
        add_decided_at(a->at, a->at_count, by, out);
        add_tuned(&a->tune.space, by, out);
        add_tuned(&a->quick_tune.space, by, out);
    }
    add_decided_at(e->at, e->at_count, "its part `at`", out);
}

/* Whether a setting of `key` may remove one of `decided`: the same key, another length of training,
 * or the choice of the part that has the dotted key. */
static bool may_remove(const char *key, const char *decided)
{
    const size_t part = strcspn(decided, ".");
    return strcmp(key, decided) == 0 || (config_is_length(key) && config_is_length(decided)) ||
           (decided[part] == '.' && strlen(key) == part && strncmp(key, decided, part) == 0);
}

status experiment_check_override(const struct experiment *e, const struct settings *more)
{
    status result = OK;
    struct settings decided = {0};
    list_decided(e, &decided);
    for (const struct setting *s = more->at; s < more->at + more->count; s++) {
        for (const struct setting *d = decided.at; d < decided.at + decided.count; d++) {
            if (may_remove(s->key, d->key)) {
                FAIL(ERROR_USAGE,
                     "%s: %s=%s would change what %s compares: %s sets %s. Edit a copy of its file "
                     "and reproduce that (docs/experiment-files.md)",
                     s->origin, s->key, s->value, e->name, d->value, d->key);
            }
        }
    }
done:
    settings_free(&decided);
    return result;
}

void experiment_print_all(FILE *to)
{
    char name[64];
    for (size_t i = 0; experiment_at(i, name); i++) {
        struct experiment e;
        if (experiment_open(&e, name) == OK) {
            fprintf(to, "%-24s %s\n", name, e.question);
            experiment_close(&e);
        } else {
            fprintf(to, "%-24s %s\n", name, error_message());
        }
    }
}
