#include "base/memory.h"
#include "base/suggestion.h"
#include "base/text.h"
#include "experiments/command.h"

#include "experiments/claims/experiment.h"
#include "experiments/config/keys.h"
#include "experiments/sweep/search.h"
#include "results/query/query.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void print_range(const struct option *option)
{
    struct text names = {0};
    key_add_names(option, "|", &names);
    if (option->type == OPTION_INTEGER)
        printf("[%.0f, %.0f]", option->minimum, option->maximum);
    else if (option->type == OPTION_REAL)
        printf("[%.15g, %.15g]", option->minimum, option->maximum);
    else
        printf("%s", option->type == OPTION_TEXT ? "text" : names.at);
    text_free(&names);
}

void command_print_option(const struct option *option, int indent)
{
    printf("%*s%s=%s  ", indent, "", option->key,
           option->initial[0] == '\0' ? "\"\"" : option->initial);
    print_range(option);
    printf("\n%*s%s\n", indent + 4, "", option->help);
}

/* The compiled-in experiments. The caller frees them with close_experiments(). */
struct experiments {
    struct experiment *at;
    size_t count;
};

static status open_experiments(struct experiments *out)
{
    status result = OK;
    char name[64];
    for (size_t i = 0; experiment_at(i, name); i++) {
        struct experiment one;
        TRY(experiment_open(&one, name));
        *(struct experiment *)memory_append(&out->at, &out->count, sizeof one) = one;
    }
done:
    return result;
}

static void close_experiments(struct experiments *e)
{
    for (size_t i = 0; i < e->count; i++)
        experiment_close(&e->at[i]);
    free(e->at);
}

/* Prints the experiments that set the key to this value, so that a rule without an experiment is
 * seen. Experiment files need not set a key to its default. */
static void print_experiments_with(const struct experiments *all, const char *key,
                                   const char *value)
{
    const char *before = "               experiments: ";
    const struct option *global = keys_find(key);
    bool any = false;
    if (global == NULL)
        return;
    if (strcmp(global->initial, value) == 0) {
        printf("%sall that name no other\n", before);
        return;
    }
    for (size_t i = 0; i < all->count; i++) {
        if (experiment_uses(&all->at[i], key, value)) {
            printf("%s%s", before, all->at[i].name);
            before = ", ";
            any = true;
        }
    }
    printf("%s\n", any ? "" : "               no experiment");
}

static void print_registry(const struct registry *r, const struct experiments *all)
{
    for (size_t i = 0; i < r->count; i++) {
        const struct about *about = r->entries[i];
        printf("%-14s %s\n", about->name, about->description);
        if (about->source != NULL)
            printf("               source: %s\n", about->source);
        print_experiments_with(all, r->kind, about->name);
        for (const struct option *o = about->options; o != NULL && o->key != NULL; o++)
            command_print_option(o, 15);
    }
}

static void print_key(const struct option *key)
{
    struct option shown = *key;
    struct text help = {0};
    key_add_help(key, &help);
    shown.help = help.at;
    command_print_option(&shown, 0);
    text_free(&help);
}

/* True if the key's name, description or values contain `word`, or if `word` is NULL. */
static bool matches(const struct option *key, const char *word)
{
    struct text about = {0};
    key_add_names(key, " ", &about);
    text_add(&about, " %s %s", key->key, key->help);
    bool found = word == NULL || strcasestr(about.at, word) != NULL;
    text_free(&about);
    return found;
}

/* Prints the heading once, before the first key of a group. */
static void print_heading(const char **heading)
{
    if (*heading != NULL) {
        printf("%s", *heading);
        *heading = NULL;
    }
}

static size_t print_group(const char *heading, bool defines, const char *word)
{
    size_t count = 0;
    for (const struct option *o = global_keys; o->key != NULL; o++) {
        const bool belongs = defines ? key_defines(o->key) : key_use_of(o->key) == KEY_BESIDE;
        if (belongs && matches(o, word)) {
            print_heading(&heading);
            print_key(o);
            count++;
        }
    }
    return count;
}

static size_t print_part(const char *kind, const struct about *part, const char *word)
{
    size_t count = 0;
    char text[96];
    const char *heading = text;
    snprintf(text, sizeof text, "\nwith %s=%s:\n", kind, part->name);
    for (const struct option *o = part->options; o != NULL && o->key != NULL; o++) {
        if (matches(o, word)) {
            print_heading(&heading);
            command_print_option(o, 0);
            count++;
        }
    }
    return count;
}

static status print_keys(const char *word)
{
    status result = OK;
    size_t count = print_group("Keys that define the computation:\n", true, word);
    count += print_group("\nOther keys; runs that differ only in these count as the same run:\n",
                         false, word);
    for (const struct option *o = global_keys; o->key != NULL; o++)
        for (size_t i = 0; o->registry != NULL && i < o->registry->count; i++)
            count += print_part(o->key, o->registry->entries[i], word);
    if (count == 0) {
        FAIL(ERROR_USAGE,
             "list keys: no key has '%s' in its name, values or description; `gradlag list keys` "
             "lists all keys",
             word);
    }
done:
    return result;
}

void command_print_queries(FILE *to)
{
    struct query_description query;
    for (size_t i = 0; query_at(i, &query); i++)
        fprintf(to, "%-28s %s\n", query.name, query.description);
}

/* Prints the keys of every search (search.seed, search.per): `list keys` lists only keys of
 * runs. */
static void print_keys_of_every_search(void)
{
    printf("each\n");
    for (const struct option *o = search_keys; o->key != NULL; o++)
        if (o->registry == NULL)
            command_print_option(o, 15);
}

/* "dataset" or "datasets": the registry of that global key; NULL: there is none. */
static const struct registry *find_registry(const char *kind)
{
    size_t length = strlen(kind);
    for (const struct option *o = global_keys; o->key != NULL; o++) {
        size_t own = strlen(o->key);
        bool plural = length == own + 1 && kind[own] == 's';
        if (o->registry != NULL && strncmp(o->key, kind, own) == 0 && (length == own || plural))
            return o->registry;
    }
    bool searches = strcmp(kind, "search") == 0 || strcmp(kind, "searches") == 0;
    return searches ? &search_registry : NULL;
}

void command_list_kinds(struct text *out, const char *between)
{
    text_add(out, "keys%squeries%sexperiments%ssearches", between, between, between);
    for (const struct option *o = global_keys; o->key != NULL; o++) {
        if (o->registry != NULL) {
            bool many = strcmp(o->key, "damping") != 0 && strcmp(o->key, "consistency") != 0;
            text_add(out, "%s%s%s", between, o->key, many ? "s" : "");
        }
    }
}

const char command_list_help[] =
    "gradlag list KIND [WORD]\n\n"
    "`gradlag list keys WORD` lists only keys whose name, values or description contain WORD.\n"
    "`gradlag list searches` lists the keys of searches.\n\n"
    "  gradlag list keys warmup\n\n";

void command_print_kinds(FILE *to)
{
    struct text kinds = {0};
    command_list_kinds(&kinds, ", ");
    fprintf(to, "KIND is one of %s.\n", kinds.at);
    text_free(&kinds);
}

/* Fails with the nearest kind. Names of kinds contain no spaces. */
static status fail_for_kind(const char *kind)
{
    struct text kinds = {0};
    struct suggestion known = {.wanted = kind};
    command_list_kinds(&kinds, " ");
    for (char *rest = NULL, *each = strtok_r(kinds.at, " ", &rest); each != NULL;
         each = strtok_r(NULL, " ", &rest))
        suggestion_add(&known, each);
    status result = suggestion_fail(&known, NULL, "list: there is no kind");
    text_free(&kinds);
    return result;
}

status command_list(int argc, char **argv)
{
    status result = OK;
    struct experiments experiments = {0};
    const bool keys = argc > 0 && strcmp(argv[0], "keys") == 0;
    if (argc != 1 && !(keys && argc == 2)) {
        command_print_kinds(stderr);
        FAIL(ERROR_USAGE,
             "list: name one kind, as in `gradlag list damping`; only keys accept a word: `gradlag "
             "list keys WORD`");
    }
    const char *kind = argv[0];
    const struct registry *registry = find_registry(kind);
    if (keys) {
        TRY(print_keys(argc == 2 ? argv[1] : NULL));
    } else if (strcmp(kind, "queries") == 0) {
        command_print_queries(stdout);
    } else if (strcmp(kind, "experiments") == 0) {
        experiment_print_all(stdout);
    } else if (registry != NULL) {
        TRY(open_experiments(&experiments));
        print_registry(registry, &experiments);
        if (registry == &search_registry)
            print_keys_of_every_search();
    } else {
        TRY(fail_for_kind(kind));
    }
done:
    close_experiments(&experiments);
    return result;
}
