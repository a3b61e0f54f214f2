#include "experiments/config/config.h"

#include "base/embedded.h"
#include "base/text.h"
#include "base/memory.h"
#include "base/sha256.h"
#include "base/suggestion.h"
#include "experiments/config/config_effect.h"
#include "experiments/config/hosts.h"
#include "experiments/config/yaml_tree.h"
#include "experiments/config/keys.h"
#include "worker/model/model.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* ---- a list of settings -------------------------------------------------------------------------
 */

void settings_add(struct settings *s, const char *key, const char *value, const char *origin)
{
    struct setting *last = memory_append(&s->at, &s->count, sizeof *last);
    *last = (struct setting){
        .key = text_copy(key), .value = text_copy(value), .origin = text_copy(origin)};
}

void settings_add_all(struct settings *s, const struct settings *more)
{
    for (size_t i = 0; i < more->count; i++) {
        settings_add(s, more->at[i].key, more->at[i].value, more->at[i].origin);
        s->at[s->count - 1].shared = more->at[i].shared;
        s->at[s->count - 1].whole = more->at[i].whole;
        s->at[s->count - 1].overruled = more->at[i].overruled;
    }
}

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

void settings_remove(struct settings *s, size_t index)
{
    memory_free(s->at[index].key);
    memory_free(s->at[index].value);
    memory_free(s->at[index].origin);
    s->count--;
    memmove(&s->at[index], &s->at[index + 1], (s->count - index) * sizeof *s->at);
}

void settings_free(struct settings *s)
{
    for (size_t i = 0; i < s->count; i++) {
        memory_free(s->at[i].key);
        memory_free(s->at[i].value);
        memory_free(s->at[i].origin);
    }
    free(s->at);
    *s = (struct settings){0};
}

const char *settings_find(const struct settings *s, const char *key)
{
    for (size_t i = s->count; i-- > 0;)
        if (strcmp(s->at[i].key, key) == 0)
            return s->at[i].value;
    return NULL;
}

/* A comma that is not in a pair of parentheses around the whole text. */
static bool has_open_comma(const char *text)
{
    return text[0] != '(' && strchr(text, ',') != NULL;
}

/* A YAML list becomes the values of a sweep: "1,2,4". An element with a comma is one value, in
 * parentheses or, if it is the only element, marked. */
static status add_value_of(struct settings *s, const struct yaml_tree *d, const char *key,
                           const struct node *n)
{
    status result = OK;
    struct text value = {0}, origin = {0};
    const struct node *each = n->kind == NODE_LIST ? n->children : n;
    size_t count = n->kind == NODE_LIST ? n->count : 1;
    text_add(&origin, "%s:%u", d->name, n->line);
    for (size_t i = 0; i < count; i++) {
        TRY(node_require(d, &each[i], NODE_SCALAR, key));
        bool whole = count > 1 && has_open_comma(each[i].text);
        text_add(&value, "%s%s%s%s", i > 0 ? "," : "", whole ? "(" : "", each[i].text,
                 whole ? ")" : "");
    }
    settings_add(s, key, value.at != NULL ? value.at : "", origin.at);
    s->at[s->count - 1].whole = n->kind == NODE_LIST && count == 1 && has_open_comma(each[0].text);
done:
    text_free(&value);
    text_free(&origin);
    return result;
}

/* Reads a flat map of keys. */
static status read_settings(struct settings *s, const char *path)
{
    status result = OK;
    struct yaml_tree d = {0};
    TRY(yaml_tree_read_file(&d, path));
    TRY(node_require(&d, &d.root, NODE_MAP, "the file"));
    if (node_child(&d.root, "arms") != NULL)
        FAIL(ERROR_USAGE, "%s is an experiment file; run it with `gradlag reproduce %s`", path,
             path);
    TRY(config_check_lengths(&d, &d.root));
    for (size_t i = 0; i < d.root.count; i++)
        TRY(add_value_of(s, &d, d.root.keys[i], &d.root.children[i]));
done:
    yaml_tree_close(&d);
    return result;
}

bool config_is_experiment(const char *name)
{
    char path[256];
    snprintf(path, sizeof path, "experiments/questions/%s.yaml", name);
    for (const struct embedded_file *f = embedded_files; f->path != NULL; f++)
        if (strcmp(f->path, path) == 0)
            return true;
    return false;
}

static bool ends_like_yaml(const char *word)
{
    const char *dot = strrchr(word, '.');
    return dot != NULL && (strcmp(dot, ".yaml") == 0 || strcmp(dot, ".yml") == 0);
}

bool settings_is_file(const char *argument)
{
    struct stat about;
    return (strchr(argument, '=') == NULL || ends_like_yaml(argument)) &&
           stat(argument, &about) == 0 && !S_ISDIR(about.st_mode);
}

/* Fails for an argument that is neither key=value nor a file, with the likely correction. `next`:
 * the argument after it, or NULL. */
static status fail_for_word(const char *word, const char *next)
{
    struct suggestion known = {.wanted = word};
    if (ends_like_yaml(word))
        return error_set(ERROR_USAGE, __FILE__, __LINE__, "there is no file '%s'; check the path",
                         word);
    if (word[0] == '-') {
        return error_set(
            ERROR_USAGE, __FILE__, __LINE__,
            "'%s' is not an option of this command; settings are written key=value, and --help "
            "lists the options",
            word);
    }
    if (config_is_experiment(word)) {
        return error_set(ERROR_USAGE, __FILE__, __LINE__,
                         "'%s' is an experiment; run it with `gradlag reproduce %s`", word, word);
    }
    if (keys_find(word) != NULL) {
        bool value = next != NULL && strchr(next, '=') == NULL;
        return error_set(ERROR_USAGE, __FILE__, __LINE__,
                         "'%s' is a key without a value; write %s=%s, without spaces", word, word,
                         value ? next : "VALUE");
    }
    for (const struct option *o = global_keys; o->key != NULL; o++)
        suggestion_add(&known, o->key);
    return suggestion_fail(&known,
                           "Write settings without spaces, as in lr=0.03; `gradlag list keys` "
                           "lists all keys",
                           "this is neither key=value nor a file:");
}

status settings_read_arguments(struct settings *s, int argc, char **argv)
{
    status result = OK;
    for (int i = 0; i < argc; i++) {
        const char *equals = strchr(argv[i], '=');
        if (settings_is_file(argv[i])) {
            TRY(read_settings(s, argv[i]));
        } else if (equals == NULL || equals == argv[i]) {
            TRY(fail_for_word(argv[i], i + 1 < argc ? argv[i + 1] : NULL));
        } else {
            struct text key = {0};
            text_add_bytes(&key, argv[i], (size_t)(equals - argv[i]));
            settings_add(s, key.at, equals + 1, COMMAND_LINE);
            text_free(&key);
        }
    }
done:
    return result;
}

status settings_add_workers_of_hosts(struct settings *s)
{
    status result = OK;
    struct hosts hosts = {0};
    char slots[16];
    const char *key = settings_find(s, "hosts"), *engine = settings_find(s, "engine");
    const bool real = engine == NULL || strcmp(engine, "real") == 0;
    if (key == NULL || !real || settings_find(s, "workers") != NULL)
        return OK;
    TRY(hosts_read(&hosts, key));
    snprintf(slots, sizeof slots, "%u", hosts_slots(&hosts));
    if (hosts.count > 0)
        settings_add(s, "workers", slots, "hosts");
done:
    hosts_free(&hosts);
    return result;
}

/* ---- composition --------------------------------------------------------------------------------
 */

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

/* Whether a dotted key that no chosen part declares is dropped. An external model passes on any
 * key, so it keeps the key unless another model was chosen, too. */
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
    if (it->shared || strcmp(it->origin, COMMAND_LINE) == 0)
        return it->shared;
    for (size_t i = 0; i < s->count; i++) {
        const struct setting *chooser = &s->at[i];
        bool later = i > index || strcmp(chooser->origin, COMMAND_LINE) == 0;
        if (strcmp(chooser->key, with) == 0 && later && !same_origin(chooser, it))
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
        const bool whole = has_open_comma(options_value(o, option->key)); /* in a list of one */
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
