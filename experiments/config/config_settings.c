/* config_settings.c — lists of settings, from files and arguments. */
#include "experiments/config/config.h"

#include "base/embedded.h"
#include "base/memory.h"
#include "base/suggestion.h"
#include "base/text.h"
#include "experiments/config/config_effect.h"
#include "experiments/config/hosts.h"
#include "experiments/config/keys.h"
#include "experiments/config/yaml_tree.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

void settings_add(struct settings *s, const char *key, const char *value, const char *origin)
{
    struct setting *last = memory_append(&s->at, &s->count, sizeof *last);
    *last = (struct setting){
        .key = text_copy(key), .value = text_copy(value), .origin = text_copy(origin)};
}

void settings_add_all(struct settings *s, const struct settings *more)
{
    for (size_t i = 0; i < more->count; i++) {
        const struct setting *each = &more->at[i];
        settings_add(s, each->key, each->value, each->origin);
        struct setting *last = &s->at[s->count - 1];
        last->shared = each->shared;
        last->own = each->own;
        last->whole = each->whole;
        last->overruled = each->overruled;
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

bool settings_is_list(const char *text)
{
    const char *end = strchr(text, ')');
    const bool whole = text[0] == '(' && end != NULL && end[1] == '\0';
    return !whole && strchr(text, ',') != NULL;
}

/* A YAML list becomes the values of a sweep: "1,2,4". An element with a comma is one value: it gets
 * parentheses or, if it is the only element, the mark `whole`. */
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
        bool whole = count > 1 && settings_is_list(each[i].text);
        text_add(&value, "%s%s%s%s", i > 0 ? "," : "", whole ? "(" : "", each[i].text,
                 whole ? ")" : "");
    }
    settings_add(s, key, value.at != NULL ? value.at : "", origin.at);
    s->at[s->count - 1].whole =
        n->kind == NODE_LIST && count == 1 && settings_is_list(each[0].text);
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

status settings_refuse_internal(const struct settings *s)
{
    status result = OK;
    for (size_t i = 0; i < s->count; i++) {
        const char *key = s->at[i].key;
        if (key_use_of(key) == KEY_INTERNAL && strcmp(key, "run_token") != 0)
            FAIL(ERROR_USAGE, "%s: gradlag sets %s itself; leave it out", s->at[i].origin, key);
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
