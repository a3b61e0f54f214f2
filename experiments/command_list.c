#include "experiments/command.h"

#include "experiments/experiment.h"
#include "experiments/keys.h"
#include "experiments/search.h"
#include "results/query.h"

#include <stdio.h>
#include <string.h>

static void print_range(const struct option *option)
{
    struct text names = {0};
    key_add_names(option, "|", &names);
    if (option->type == OPTION_INTEGER) {
        printf("[%.0f, %.0f]", option->minimum, option->maximum);
    } else if (option->type == OPTION_REAL) {
        printf("[%.15g, %.15g]", option->minimum, option->maximum);
    } else {
        printf("%s", option->type == OPTION_TEXT ? "text" : names.at);
    }
    text_free(&names);
}

void command_print_option(const struct option *option, int indent)
{
    printf("%*s%s=%s  ", indent, "", option->key,
           option->initial[0] == '\0' ? "\"\"" : option->initial);
    print_range(option);
    printf("\n%*s%s\n", indent + 4, "", option->help);
}

static void print_registry(const struct registry *r)
{
    for (size_t i = 0; i < r->count; i++) {
        const struct about *about = r->entries[i];
        printf("%-14s %s\n", about->name, about->description);
        if (about->source != NULL) {
            printf("               source: %s\n", about->source);
        }
        for (const struct option *o = about->options; o != NULL && o->key != NULL; o++) {
            command_print_option(o, 15);
        }
    }
}

static void print_key(const struct option *key)
{
    struct option said = *key;
    struct text help = {0};
    key_add_help(key, &help);
    said.help = help.at;
    command_print_option(&said, 0);
    text_free(&help);
}

static void print_keys(void)
{
    puts("What is computed:");
    for (const struct option *o = global_keys; o->key != NULL; o++) {
        if (key_defines(o->key)) {
            print_key(o);
        }
    }
    puts("\nWhere and how; runs that differ in these alone are the same run:");
    for (const struct option *o = global_keys; o->key != NULL; o++) {
        if (key_use_of(o->key) == KEY_BESIDE) {
            print_key(o);
        }
    }
    for (const struct option *o = global_keys; o->key != NULL; o++) {
        for (size_t i = 0; o->registry != NULL && i < o->registry->count; i++) {
            const struct about *about = o->registry->entries[i];
            if (about->options != NULL) {
                printf("\nwith %s=%s:\n", o->key, about->name);
            }
            for (const struct option *its = about->options; its != NULL && its->key; its++) {
                command_print_option(its, 0);
            }
        }
    }
}

void command_print_queries(FILE *to)
{
    struct query_description query;
    for (size_t i = 0; query_at(i, &query); i++) {
        fprintf(to, "%-28s %s\n", query.name, query.description);
    }
}

/* "dataset", "datasets": the registry that holds a global key's names. */
static const struct registry *registry_called(const char *kind)
{
    size_t length = strlen(kind);
    for (const struct option *o = global_keys; o->key != NULL; o++) {
        size_t own = strlen(o->key);
        bool plural = length == own + 1 && kind[own] == 's';
        if (o->registry != NULL && strncmp(o->key, kind, own) == 0 && (length == own || plural)) {
            return o->registry;
        }
    }
    bool searches = strcmp(kind, "search") == 0 || strcmp(kind, "searches") == 0;
    return searches ? &search_registry : NULL;
}

void command_list_kinds(struct text *out, const char *between)
{
    text_add(out, "keys%squeries%sexperiments%ssearches%sexports", between, between, between,
             between);
    for (const struct option *o = global_keys; o->key != NULL; o++) {
        if (o->registry != NULL) {
            bool many = strcmp(o->key, "damping") != 0 && strcmp(o->key, "consistency") != 0;
            text_add(out, "%s%s%s", between, o->key, many ? "s" : "");
        }
    }
}

const char command_list_help[] = "gradlag list KIND\n\n";

void command_print_kinds(FILE *to)
{
    struct text kinds = {0};
    command_list_kinds(&kinds, ", ");
    fprintf(to, "KIND is one of %s.\n", kinds.at);
    text_free(&kinds);
}

/* The kinds are separated by blanks; their names hold none. */
static status no_such_kind(const char *kind)
{
    struct text kinds = {0};
    struct text_names known = {.wanted = kind};
    command_list_kinds(&kinds, " ");
    for (char *rest = NULL, *each = strtok_r(kinds.at, " ", &rest); each != NULL;
         each = strtok_r(NULL, " ", &rest)) {
        text_names_add(&known, each);
    }
    status result = text_names_fail(&known, NULL, "list: there is no kind");
    text_free(&kinds);
    return result;
}

status command_list(int argc, char **argv)
{
    status result = OK;
    if (argc != 1) {
        command_print_kinds(stderr);
        FAIL(ERROR_USAGE, "list: one kind at a time, of those above");
    }
    const char *kind = argv[0];
    if (strcmp(kind, "keys") == 0) {
        print_keys();
    } else if (strcmp(kind, "queries") == 0) {
        command_print_queries(stdout);
    } else if (strcmp(kind, "experiments") == 0) {
        experiment_print_all(stdout);
    } else if (strcmp(kind, "exports") == 0) {
        command_print_exports(stdout);
    } else if (registry_called(kind) != NULL) {
        print_registry(registry_called(kind));
    } else {
        TRY(no_such_kind(kind));
    }
done:
    return result;
}
