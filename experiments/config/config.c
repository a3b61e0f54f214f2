#include "experiments/config/config.h"

#include "base/text.h"
#include "base/memory.h"
#include "base/sha256.h"
#include "experiments/config/config_effect.h"
#include "experiments/config/keys.h"
#include "worker/model/model.h"

#include <stdlib.h>
#include <string.h>

/* ---- composition --------------------------------------------------------------------------------
 */

/* Whether `choice` chooses the part of a dotted setting (damping for damping.power). */
static bool chooses_part_of(const struct setting *choice, const struct setting *dotted)
{
    const size_t length = strcspn(dotted->key, ".");
    return dotted->key[length] == '.' && strlen(choice->key) == length &&
           strncmp(choice->key, dotted->key, length) == 0;
}

static bool sets_length(const struct setting *s)
{
    return config_is_length(s->key) && strtod(s->value, NULL) != 0;
}

static void overrule(struct settings *s, const struct settings *by)
{
    for (size_t i = 0; i < s->count; i++)
        for (size_t k = 0; k < by->count; k++)
            if (chooses_part_of(&by->at[k], &s->at[i]) ||
                (config_is_length(s->at[i].key) && sets_length(&by->at[k])))
                s->at[i].overruled = true;
}

void settings_add_layer(struct settings *s, const struct settings *more)
{
    overrule(s, more);
    settings_add_all(s, more);
}

void settings_add_dotted_first(struct settings *s, const struct settings *more)
{
    overrule(s, more);
    for (int dotted = 1; dotted >= 0; dotted--) {
        for (size_t i = 0; i < more->count; i++) {
            const struct setting *each = &more->at[i];
            if ((strchr(each->key, '.') != NULL) == dotted) {
                settings_add(s, each->key, each->value, each->origin);
                s->at[s->count - 1].overruled = dotted;
            }
        }
    }
}

/* True if both settings are from the command line, or from the same file. */
static bool same_origin(const struct setting *a, const struct setting *b)
{
    size_t length = strcspn(a->origin, ":");
    return length == strcspn(b->origin, ":") && strncmp(a->origin, b->origin, length) == 0;
}

static status declare_chosen(options *o)
{
    status result = OK;
    for (const struct option *key = global_keys; key->key != NULL; key++) {
        if (key->registry == NULL)
            continue;
        const struct about *chosen = registry_find(key->registry, options_text(o, key->key));
        REQUIRE(chosen != NULL);
        if (chosen->options != NULL)
            TRY(options_declare(o, chosen->options));
    }
done:
    return result;
}

bool settings_length_is_overruled(const struct settings *s, size_t index)
{
    const struct setting *it = &s->at[index];
    bool later = it->overruled;
    for (size_t i = index + 1; i < s->count; i++)
        later = later || (sets_length(&s->at[i]) && strcmp(s->at[i].origin, it->origin) != 0);
    return config_is_length(it->key) && later;
}

/* A file of a sweep may be the base of one run: a list or range in it is dropped if a later origin
 * sets the key. */
static bool is_overridden_list(const struct settings *s, size_t index)
{
    const struct setting *each = &s->at[index];
    bool later = false;
    for (size_t i = index + 1; i < s->count; i++) {
        later = later || (strcmp(s->at[i].key, each->key) == 0 &&
                          strcmp(s->at[i].origin, each->origin) != 0);
    }
    return later && (strchr(each->value, ',') != NULL || strstr(each->value, "..") != NULL);
}

/* Whether the settings choose a model that is another program (`external`), or one that is not. */
static bool any_model(const struct settings *s, bool external)
{
    for (size_t i = 0; i < s->count; i++)
        if (strcmp(s->at[i].key, "model") == 0 &&
            (strcmp(s->at[i].value, "external") == 0) == external)
            return true;
    return false;
}

bool settings_is_overruled(const struct settings *s, size_t index)
{
    const struct setting *it = &s->at[index];
    const bool of_model = strncmp(it->key, "model.", strlen("model.")) == 0;
    if (keys_find(it->key) == NULL && !(of_model && any_model(s, true)))
        return false; /* a typing error */
    for (size_t i = index + 1; i < s->count; i++)
        if (chooses_part_of(&s->at[i], it) && (it->overruled || !same_origin(&s->at[i], it)))
            return true;
    return false;
}

/* Whether a dotted key is dropped: no chosen part declares it, and a later layer chose its part. An
 * external model accepts any key model.*, so such a key stays unless the settings also choose
 * another model. */
static bool falls_with_its_part(const struct settings *s, size_t index, const options *o)
{
    const char *key = s->at[index].key;
    if (options_declared(o, key) || !settings_is_overruled(s, index))
        return false;
    return !model_is_external(o) || strncmp(key, "model.", strlen("model.")) != 0 ||
           any_model(s, false);
}

static status compose(options **out, const struct settings *s)
{
    status result = OK;
    TRY(options_open(out));
    TRY(options_declare(*out, global_keys));
    for (size_t i = 0; i < s->count; i++)
        if (strchr(s->at[i].key, '.') == NULL && !settings_length_is_overruled(s, i) &&
            !is_overridden_list(s, i))
            TRY(options_set(*out, s->at[i].key, s->at[i].value, s->at[i].origin));
    if (model_is_external(*out) && !options_was_set(*out, "dataset"))
        TRY(options_set(*out, "dataset", "external", "model=external"));
    TRY(declare_chosen(*out));
    for (size_t i = 0; i < s->count; i++) {
        const struct setting *each = &s->at[i];
        if (strchr(each->key, '.') == NULL || is_overridden_list(s, i) ||
            falls_with_its_part(s, i, *out))
            continue;
        TRY(options_set(*out, each->key, each->value, each->origin));
    }
done:
    if (result != OK)
        options_close(out);
    return result;
}

/* True if a setting without effect is dropped instead of being an error: it was given for several
 * arms, or a file set it and another origin chose later what makes it idle. */
static bool may_be_dropped(const struct settings *s, size_t index, const char *with)
{
    const struct setting *it = &s->at[index];
    if (it->shared || it->own || strcmp(it->origin, COMMAND_LINE) == 0)
        return it->shared;
    for (size_t i = 0; i < s->count; i++) {
        const struct setting *chooser = &s->at[i];
        bool later = i > index || strcmp(chooser->origin, COMMAND_LINE) == 0;
        bool chooses =
            strcmp(chooser->key, with) == 0 || (config_is_length(with) && sets_length(chooser));
        if (chooses && later && !same_origin(chooser, it))
            return true;
    }
    return false;
}

/* Removes the settings of an idle key and its dotted keys (damping, damping.power). False: one of
 * them is an error instead. */
static bool remove_idle(struct settings *s, const struct ineffective *idle)
{
    size_t length = strlen(idle->key);
    bool removed = false;
    for (size_t i = s->count; i-- > 0;) {
        const char *key = s->at[i].key;
        if (strncmp(key, idle->key, length) != 0 || (key[length] != '\0' && key[length] != '.'))
            continue;
        if (!may_be_dropped(s, i, idle->with))
            return false;
        settings_remove(s, i);
        removed = true;
    }
    return removed;
}

status config_compose_unchecked(options **out, const struct settings *s)
{
    status result = OK;
    struct settings left = {0};
    struct ineffective idle;
    settings_add_all(&left, s);
    TRY(compose(out, &left));
    while (config_any_ineffective(*out, &idle) && remove_idle(&left, &idle)) {
        options_close(out);
        TRY(compose(out, &left));
    }
done:
    settings_free(&left);
    return result;
}

status config_compose(options **out, const struct settings *s)
{
    status result = OK;
    TRY(config_compose_unchecked(out, s));
    TRY(config_check(*out));
done:
    if (result != OK)
        options_close(out);
    return result;
}

static void add_texts(struct settings *s, const char *const *texts, const char *origin)
{
    for (; texts != NULL && *texts != NULL; texts++) {
        char key[64];
        const char *equals = strchr(*texts, '=');
        REQUIRE(equals != NULL && (size_t)(equals - *texts) < sizeof key);
        snprintf(key, sizeof key, "%.*s", (int)(equals - *texts), *texts);
        settings_add(s, key, equals + 1, origin);
    }
}

status config_compose_texts(options **out, const char *const *base, const char *const *more,
                            const char *origin)
{
    struct settings s = {0}, later = {0};
    add_texts(&s, base, origin);
    add_texts(&later, more, origin);
    settings_add_layer(&s, &later);
    status result = config_compose_unchecked(out, &s);
    settings_free(&later);
    settings_free(&s);
    return result;
}

/* ---- output -------------------------------------------------------------------------------
 */

static void add_value(struct text *out, const options *o, const struct option *option)
{
    switch (option->type) {
    case OPTION_FLAG:
        text_add(out, "%s", options_flag(o, option->key) ? "true" : "false");
        break;
    case OPTION_INTEGER:
        text_add(out, "%lld", (long long)options_integer(o, option->key));
        break;
    case OPTION_REAL:
        text_add_real(out, options_real(o, option->key));
        break;
    case OPTION_TEXT:
    case OPTION_NAME:
        text_add_json(out, options_text(o, option->key));
        break;
    }
}

static void add_member(const options *o, const struct option *option, struct text *out)
{
    text_add_json(out, option->key);
    text_add(out, ":");
    add_value(out, o, option);
}

void config_member_json(const options *o, const char *key, struct text *out)
{
    for (size_t i = 0; i < options_count(o); i++) {
        if (strcmp(options_at(o, i)->key, key) == 0) {
            add_member(o, options_at(o, i), out);
            return;
        }
    }
}

static int by_key(const void *a, const void *b)
{
    const struct option *const *x = a, *const *y = b;
    return strcmp((*x)->key, (*y)->key);
}

/* A key of the virtual cluster in a run without one. */
static bool is_idle(const options *o, const struct option *option)
{
    return (key_where_of(option->key) & KEY_VIRTUAL) != 0 &&
           strcmp(options_text(o, "engine"), "virtual") != 0;
}

/* A key that later versions added, with its default. */
static bool is_unused(const options *o, const struct option *option)
{
    return key_use_of(option->key) == KEY_OPTIONAL && options_is_initial(o, option->key);
}

/* Which keys a JSON object of settings holds. */
enum config_part { ALL, DEFINING, DEFINING_BUT_SEED };

static bool belongs(const options *o, const struct option *option, enum config_part part)
{
    bool seed = strcmp(option->key, "seed") == 0;
    if (part == ALL)
        return key_use_of(option->key) != KEY_INTERNAL;
    return key_defines(option->key) && !is_idle(o, option) && !is_unused(o, option) &&
           !(seed && part == DEFINING_BUT_SEED);
}

static void add_json(const options *o, enum config_part part, struct text *out)
{
    size_t count = options_count(o);
    const struct option **sorted = NULL;
    REQUIRE(memory_new(&sorted, count, sizeof *sorted, "keys") == OK);
    for (size_t i = 0; i < count; i++)
        sorted[i] = options_at(o, i);
    qsort(sorted, count, sizeof *sorted, by_key);
    const char *between = "{";
    for (size_t i = 0; i < count; i++) {
        if (belongs(o, sorted[i], part)) {
            text_add(out, "%s", between);
            between = ",";
            add_member(o, sorted[i], out);
        }
    }
    text_add(out, "}");
    memory_free(sorted);
}

void config_json(const options *o, struct text *out)
{
    add_json(o, ALL, out);
}

void config_settings_json(const options *o, struct text *out)
{
    add_json(o, DEFINING_BUT_SEED, out);
}

void config_hash(const options *o, char hex[65])
{
    struct text json = {0};
    struct sha256 hash;
    add_json(o, DEFINING, &json);
    sha256_begin(&hash);
    sha256_add(&hash, json.at, json.length);
    sha256_end(&hash, hex);
    text_free(&json);
}

uint64_t config_hash_number(const options *o)
{
    char hex[65];
    config_hash(o, hex);
    hex[16] = '\0';
    return strtoull(hex, NULL, 16);
}

/* `epochs` if another key sets the length: a file must not have both. */
static bool is_overruled_length(const options *o, const char *key)
{
    return strcmp(key, "epochs") == 0 &&
           (options_real(o, "samples") > 0 || options_real(o, "updates") > 0 ||
            options_real(o, "seconds") > 0);
}

void config_print(const options *o, FILE *to)
{
    for (size_t i = 0; i < options_count(o); i++) {
        const struct option *option = options_at(o, i);
        struct text line = {0};
        if (key_use_of(option->key) == KEY_INTERNAL || is_overruled_length(o, option->key))
            continue;
        const bool whole = settings_is_list(options_value(o, option->key)); /* a list of one */
        text_add(&line, whole ? "%s: [" : "%s: ", option->key);
        add_value(&line, o, option);
        text_add(&line, whole ? "]" : "");
        fprintf(to, "%-36s # %s\n", line.at, options_origin(o, option->key));
        text_free(&line);
    }
}

const char *config_text_or_null(const options *o, const char *key)
{
    const char *value = options_text(o, key);
    return value[0] == '\0' ? NULL : value;
}

void config_arguments(const options *o, struct settings *out)
{
    for (size_t i = 0; i < options_count(o); i++) {
        const char *key = options_at(o, i)->key;
        if (options_was_set(o, key))
            settings_add(out, key, options_value(o, key), COMMAND_LINE);
    }
}
