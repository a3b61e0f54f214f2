#include "base/text.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/suggestion.h"
#include "base/registry.h"

#include <stdlib.h>
#include <string.h>

struct entry {
    const struct option *option;
    char *value;  /* as text; NULL: the default applies */
    char *origin; /* NULL: the default applies */
    int64_t integer;
    double real;
    bool flag;
    bool owned; /* this entry owns `option` and its key */
};

struct options {
    struct entry *entries;
    size_t count, capacity;
};

status options_open(options **out)
{
    return memory_new(out, 1, sizeof **out, "options");
}

void options_close(options **o)
{
    if (*o == NULL)
        return;
    for (size_t i = 0; i < (*o)->count; i++) {
        memory_free((*o)->entries[i].value);
        memory_free((*o)->entries[i].origin);
        if ((*o)->entries[i].owned) {
            char *key;
            memcpy(&key, &(*o)->entries[i].option->key, sizeof key);
            memory_free(key);
            memory_free((void *)(uintptr_t)(*o)->entries[i].option);
        }
    }
    free((*o)->entries);
    memory_free(*o);
    *o = NULL;
}

/* Whether the part that the key belongs to passes on keys that it does not declare. */
static bool is_passed_on(const options *o, const char *key)
{
    const size_t length = strcspn(key, ".");
    for (size_t i = 0; key[length] == '.' && key[length + 1] != '\0' && i < o->count; i++) {
        const struct entry *e = &o->entries[i];
        if (e->option->registry == NULL || strlen(e->option->key) != length ||
            strncmp(e->option->key, key, length) != 0)
            continue;
        const struct about *chosen =
            registry_find(e->option->registry, e->value != NULL ? e->value : e->option->initial);
        return chosen != NULL && chosen->any_options;
    }
    return false;
}

/* The first characters are compared here because a plan of thousands of runs looks up millions of
 * keys. */
static struct entry *find(const options *o, const char *key)
{
    for (size_t i = 0; i < o->count; i++) {
        const char *its = o->entries[i].option->key;
        if (its[0] == key[0] && strcmp(its, key) == 0)
            return &o->entries[i];
    }
    return NULL;
}

static bool name_in_list(const char *names, const char *name)
{
    size_t length = strcspn(name, "|");
    if (name[length] != '\0')
        return false;
    for (const char *at = names; at != NULL; at = strchr(at, '|')) {
        at += *at == '|';
        if (strncmp(at, name, length) == 0 && (at[length] == '|' || at[length] == '\0'))
            return true;
    }
    return false;
}

/* Replaces yes by true, false by no, and so on, if the option has the other word. Values are
 * stored, compared and recorded in the words of the option. */
static const char *in_words_of_option(const struct option *option, const char *value)
{
    const bool yes = strcmp(value, "yes") == 0 || strcmp(value, "true") == 0;
    const bool no = strcmp(value, "no") == 0 || strcmp(value, "false") == 0;
    const bool named = option->names != NULL && name_in_list(option->names, "yes") &&
                       name_in_list(option->names, "no");
    if ((!yes && !no) || (option->type != OPTION_FLAG && !named))
        return value;
    return option->type == OPTION_FLAG ? (yes ? "true" : "false") : yes ? "yes" : "no";
}

/* Parses `value` into `e` according to the type of the option. Does not set e->value. */
static status parse(struct entry *e, const char *value, const char *origin)
{
    status result = OK;
    const struct option *option = e->option;
    switch (option->type) {
    case OPTION_FLAG:
        if (strcmp(value, "true") != 0 && strcmp(value, "false") != 0) {
            FAIL(ERROR_USAGE, "%s: %s=%s is not valid; set true or false (yes or no)", origin,
                 option->key, value);
        }
        e->flag = value[0] == 't';
        break;
    case OPTION_INTEGER: {
        int64_t number;
        if (!text_to_integer(value, &number)) {
            FAIL(ERROR_USAGE, "%s: %s=%s is not a whole number; set one from %.0f to %.0f", origin,
                 option->key, value, option->minimum, option->maximum);
        }
        if ((double)number < option->minimum || (double)number > option->maximum) {
            FAIL(ERROR_USAGE, "%s: %s=%s is out of range; set a value from %.0f to %.0f", origin,
                 option->key, value, option->minimum, option->maximum);
        }
        e->integer = number;
        e->real = (double)number;
        break;
    }
    case OPTION_REAL: {
        double number;
        if (!text_to_real(value, &number)) {
            FAIL(ERROR_USAGE, "%s: %s=%s is not a finite number; set one from %g to %g", origin,
                 option->key, value, option->minimum, option->maximum);
        }
        if (number < option->minimum || number > option->maximum) {
            FAIL(ERROR_USAGE, "%s: %s=%s is out of range; set a value from %g to %g", origin,
                 option->key, value, option->minimum, option->maximum);
        }
        e->real = number == 0 ? 0 : number; /* not -0 */
        break;
    }
    case OPTION_TEXT:
        break;
    case OPTION_NAME:
        if (option->registry != NULL) {
            const struct about *found;
            status known = registry_require(option->registry, value, &found);
            if (known != OK) {
                result = error_add_context(known, "%s", origin);
                goto done;
            }
        } else if (!name_in_list(option->names, value)) {
            FAIL(ERROR_USAGE, "%s: %s=%s is not valid; set one of %s", origin, option->key, value,
                 option->names);
        }
        break;
    }
done:
    return result;
}

status options_declare(options *o, const struct option *table)
{
    status result = OK;
    for (const struct option *option = table; option != NULL && option->key != NULL; option++) {
        REQUIRE(find(o, option->key) == NULL);
        if (o->count == o->capacity) {
            size_t capacity = o->capacity == 0 ? 64 : 2 * o->capacity;
            struct entry *grown = realloc(o->entries, capacity * sizeof *grown);
            if (grown == NULL)
                FAIL(ERROR_OTHER, "out of memory for %zu options", capacity);
            o->entries = grown;
            o->capacity = capacity;
        }
        struct entry *e = &o->entries[o->count++];
        *e = (struct entry){.option = option};
        result = parse(e, option->initial, "default");
        REQUIRE(result == OK);
    }
done:
    return result;
}

/* A key that no table has: a text, empty by default. */
static status declare_text(options *o, const char *key)
{
    status result = OK;
    struct option *table = NULL;
    TRY(memory_new(&table, 2, sizeof *table, "an option"));
    table[0] = (struct option){.key = text_copy(key),
                               .type = OPTION_TEXT,
                               .initial = "",
                               .help = "passed on to the program of model.command"};
    result = options_declare(o, table);
    o->entries[o->count - 1].owned = true;
done:
    return result;
}

/* The whole key for its last part: "damping.power" for "power". NULL: there is none. */
static const char *whole_key_of(const options *o, const char *key)
{
    for (size_t i = 0; i < o->count; i++) {
        const struct registry *r = o->entries[i].option->registry;
        for (size_t j = 0; r != NULL && j < r->count; j++) {
            const struct option *its = r->entries[j]->options;
            for (; its != NULL && its->key != NULL; its++) {
                const char *dot = strrchr(its->key, '.');
                if (dot != NULL && strcmp(dot + 1, key) == 0)
                    return its->key;
            }
        }
    }
    return NULL;
}

/* If the key belongs to entries that are not chosen (damping.power, damping=inverse), the error
 * names them. */
static status unknown_key(const options *o, const char *key, const char *origin)
{
    enum { FEW = 24 }; /* most keys that the message lists, for example those of a benchmark */
    status result = OK;
    struct text owners = {0};
    const char *dot = strchr(key, '.');
    for (size_t i = 0; dot != NULL && i < o->count; i++) {
        const struct option *chooser = o->entries[i].option;
        size_t length = (size_t)(dot - key);
        if (chooser->registry == NULL || strlen(chooser->key) != length ||
            strncmp(chooser->key, key, length) != 0)
            continue;
        for (size_t j = 0; j < chooser->registry->count; j++) {
            const struct about *about = chooser->registry->entries[j];
            for (const struct option *its = about->options; its && its->key; its++)
                if (strcmp(its->key, key) == 0)
                    text_add(&owners, "%s%s", owners.length > 0 ? ", " : "", about->name);
        }
        if (owners.length > 0) {
            FAIL(ERROR_USAGE, "%s: key %s belongs to %s=%s, but %s=%s is set", origin, key,
                 chooser->key, owners.at, chooser->key, options_value(o, chooser->key));
        }
    }
    struct suggestion known = {.wanted = key};
    for (size_t i = 0; i < o->count; i++)
        suggestion_add(&known, o->entries[i].option->key);
    const char *whole = whole_key_of(o, key);
    if (whole != NULL && known.distance > 1) { /* distance 1: a typing error is more likely */
        known.nearest = whole;
        known.distance = 0;
    }
    const char *instead = o->count > FEW ? "`gradlag list keys` shows all" : NULL;
    result = suggestion_fail(&known, instead, "%s: there is no key", origin);
done:
    text_free(&owners);
    return result;
}

status options_set(options *o, const char *key, const char *value, const char *origin)
{
    status result = OK;
    struct entry *e = find(o, key);
    if (e == NULL && is_passed_on(o, key)) {
        TRY(declare_text(o, key));
        e = find(o, key);
    }
    if (e == NULL)
        return unknown_key(o, key, origin);
    struct entry fresh = *e;
    value = in_words_of_option(e->option, value);
    TRY(parse(&fresh, value, origin));
    char *kept_value = text_copy(value), *kept_origin = text_copy(origin);
    memory_free(e->value);
    memory_free(e->origin);
    *e = fresh;
    e->value = kept_value;
    e->origin = kept_origin;
done:
    return result;
}

static const struct entry *require_entry(const options *o, const char *key)
{
    const struct entry *e = find(o, key);
    if (e == NULL)
        log_error("key '%s' was read but not declared", key);
    REQUIRE(e != NULL);
    return e;
}

const char *options_text(const options *o, const char *key)
{
    const struct entry *e = require_entry(o, key);
    REQUIRE(e->option->type == OPTION_TEXT || e->option->type == OPTION_NAME);
    return e->value != NULL ? e->value : e->option->initial;
}

int64_t options_integer(const options *o, const char *key)
{
    const struct entry *e = require_entry(o, key);
    REQUIRE(e->option->type == OPTION_INTEGER);
    return e->integer;
}

double options_real(const options *o, const char *key)
{
    const struct entry *e = require_entry(o, key);
    REQUIRE(e->option->type == OPTION_REAL || e->option->type == OPTION_INTEGER);
    return e->real;
}

bool options_flag(const options *o, const char *key)
{
    const struct entry *e = require_entry(o, key);
    REQUIRE(e->option->type == OPTION_FLAG);
    return e->flag;
}

bool options_declared(const options *o, const char *key)
{
    return find(o, key) != NULL;
}

bool options_was_set(const options *o, const char *key)
{
    return require_entry(o, key)->value != NULL;
}

bool options_is(const options *o, const char *key, const char *text)
{
    const struct entry *e = require_entry(o, key);
    const bool number = e->option->type == OPTION_INTEGER || e->option->type == OPTION_REAL;
    return number ? e->real == strtod(text, NULL) : strcmp(options_value(o, key), text) == 0;
}

bool options_is_initial(const options *o, const char *key)
{
    return options_is(o, key, require_entry(o, key)->option->initial);
}

const char *options_origin(const options *o, const char *key)
{
    const struct entry *e = require_entry(o, key);
    return e->origin != NULL ? e->origin : "default";
}

size_t options_count(const options *o)
{
    return o->count;
}

const struct option *options_at(const options *o, size_t index)
{
    REQUIRE(index < o->count);
    return o->entries[index].option;
}

const char *options_value(const options *o, const char *key)
{
    const struct entry *e = require_entry(o, key);
    return e->value != NULL ? e->value : e->option->initial;
}
