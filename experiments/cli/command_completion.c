/*
 * command_completion.c — `gradlag completion bash`: prints a shell function made from the program's
 * tables.
 *
 * It completes commands, the first argument of a command, keys, the values of a key after '=', and
 * the flags that `gradlag COMMAND --help` names.
 */
#include "base/text.h"
#include "experiments/bench/bench.h"
#include "experiments/command.h"
#include "experiments/config/keys.h"
#include "results/query/query.h"
#include "base/embedded.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

/* ---- words from the tables, each followed by a space ------------------------------------
 */

static void add_commands(struct text *out)
{
    struct command_about c;
    for (size_t i = 0; command_at(i, &c); i++)
        text_add(out, "%s ", c.name);
    text_add(out, "help --version");
}

static void add_queries(struct text *out)
{
    struct query_description q;
    for (size_t i = 0; query_at(i, &q); i++)
        text_add(out, "%s ", q.name);
}

static void add_experiments(struct text *out)
{
    static const char folder[] = "experiments/questions/";
    for (const struct embedded_file *f = embedded_files; f->path != NULL; f++) {
        const char *name = f->path + sizeof folder - 1, *end = strrchr(f->path, '.');
        if (strncmp(f->path, folder, sizeof folder - 1) == 0 && strcmp(end, ".yaml") == 0)
            text_add(out, "%.*s ", (int)(end - name), name);
    }
}

static void add_benchmarks(struct text *out)
{
    const char *name;
    for (size_t i = 0; (name = bench_name(i)) != NULL; i++)
        text_add(out, "%s ", name);
}

static void add_formats(struct text *out)
{
    text_add(out, "csv parquet");
}

static void add_kinds(struct text *out)
{
    command_list_kinds(out, " ");
}

static void add_shells(struct text *out)
{
    text_add(out, "bash");
}

static void add_runs(struct text *out)
{
    text_add(out, "last");
}

/* The possible first arguments of a command. */
static const struct {
    const char *command;
    void (*add)(struct text *out);
} first_words[] = {
    {"query", add_queries},    {"reproduce", add_experiments}, {"list", add_kinds},
    {"bench", add_benchmarks}, {"completion", add_shells},     {"show", add_runs},
    {"replay", add_runs},      {"export", add_formats},
};

/* Adds each flag in `text` once. */
static void add_flags(struct text *out, const char *text)
{
    for (const char *at = text; (at = strstr(at, "--")) != NULL; at += 2) {
        size_t length = 2;
        char flag[40];
        while (islower((unsigned char)at[length]) || at[length] == '-')
            length++;
        snprintf(flag, sizeof flag, "%.*s ", (int)length, at);
        if (length > 3 && (out->at == NULL || strstr(out->at, flag) == NULL))
            text_add(out, "%s", flag);
    }
}

/* Adds the command to a shell pattern if its help contains `part`. */
static void add_if_help_has(struct text *pattern, const char *help, const char *part,
                            const char *command)
{
    if (strstr(help, part) != NULL)
        text_add(pattern, "%s%s", pattern->length > 0 ? "|" : "", command);
}

static void print_test(FILE *to, const char *name, const char *pattern)
{
    fprintf(to,
            "_gradlag_%s() {\n    case $1 in\n    %s) return 0 ;;\n    esac\n    return 1\n}\n\n",
            name, pattern);
}

/* ---- the script ---------------------------------------------------------------------------------
 */

/* One case of a shell's `case`: WORD) variable="words" ;; */
static void print_case(FILE *to, const char *word, const char *variable, const char *words)
{
    fprintf(to, "    %s) %s=\"%s\" ;;\n", word, variable, words);
}

static void print_first_words(FILE *to)
{
    fputs("_gradlag_first() {\n    case $1 in\n", to);
    for (size_t i = 0; i < COUNT_OF(first_words); i++) {
        struct text words = {0};
        first_words[i].add(&words);
        print_case(to, first_words[i].command, "words", words.at);
        text_free(&words);
    }
    fputs("    esac\n}\n\n", to);
}

static void print_flags(FILE *to)
{
    struct command_about c;
    struct text help = {0}, flags = {0}, settings = {0}, readers = {0};
    fputs("_gradlag_flags() {\n    case $1 in\n", to);
    for (size_t i = 0; command_at(i, &c); i++) {
        help.length = flags.length = 0;
        command_help_of(i, &help);
        text_add(&flags, "--help ");
        add_flags(&flags, help.at);
        print_case(to, c.name, "words", flags.at);
        if (strcmp(c.name, "bench") != 0) /* each benchmark has keys of its own */
            add_if_help_has(&settings, help.at, "key=", c.name);
        add_if_help_has(&readers, help.at, "results=", c.name);
    }
    fputs("    esac\n}\n\n", to);
    print_test(to, "takes_settings", settings.at);
    print_test(to, "reads_results", readers.at);
    text_free(&help);
    text_free(&flags);
    text_free(&settings);
    text_free(&readers);
}

static void print_values(FILE *to, const struct option *o)
{
    struct text values = {0};
    key_add_names(o, " ", &values);
    if (values.length > 0)
        print_case(to, o->key, "words", values.at);
    text_free(&values);
}

/* If several parts have a key of the same name, the first part's values are offered. */
static void add_part_keys(struct text *keys, FILE *values)
{
    for (const struct option *o = global_keys; o->key != NULL; o++) {
        for (size_t i = 0; o->registry != NULL && i < o->registry->count; i++) {
            const struct option *its = o->registry->entries[i]->options;
            for (; its != NULL && its->key != NULL; its++) {
                char word[80];
                snprintf(word, sizeof word, " %s= ", its->key);
                if (strstr(keys->at, word) == NULL) {
                    text_add(keys, "%s", word + 1);
                    print_values(values, its);
                }
            }
        }
    }
}

static void print_settings(FILE *to)
{
    struct text keys = {0}, dotted = {0};
    text_add(&dotted, " ");
    fputs("_gradlag_values() {\n    case $1 in\n", to);
    for (const struct option *o = global_keys; o->key != NULL; o++) {
        if (key_use_of(o->key) != KEY_INTERNAL) {
            text_add(strchr(o->key, '.') != NULL ? &dotted : &keys, "%s= ", o->key);
            print_values(to, o);
        }
    }
    add_part_keys(&dotted, to);
    fprintf(to, "    esac\n}\n\n_gradlag_settings=\"%s\"\n_gradlag_dotted=\"%s\"\n\n", keys.at,
            dotted.at);
    text_free(&keys);
    text_free(&dotted);
}

/* If COMP_WORDBREAKS contains '=', bash completes only the text after it. A value of `sweep` is a
 * list. Keys of parts are offered once the word contains a dot. */
static const char function[] =
    "_gradlag() {\n"
    "    local line=${COMP_LINE:0:COMP_POINT} word words= command before=\n"
    "    word=${line##*[[:space:]]}\n"
    "    read -r _ command _ <<<\"$line\"\n"
    "    COMPREPLY=()\n"
    "    if [[ -z $command || ( $command == \"$word\" && ! $line =~ "
    "^[[:space:]]*[^[:space:]]+[[:space:]]+[^[:space:]]+[[:space:]] ) ]]; then\n"
    "        COMPREPLY=($(compgen -W \"$_gradlag_commands\" -- \"$word\"))\n"
    "        return\n"
    "    fi\n"
    "    if [[ $word == *=* ]]; then\n"
    "        _gradlag_values \"${word%%=*}\"\n"
    "        before=${word%\"${word##*[=,]}\"}\n"
    "        word=${word#\"$before\"}\n"
    "        if [[ -n $words ]]; then\n"
    "            COMPREPLY=($(compgen -W \"$words\" -- \"$word\"))\n"
    "        else\n"
    "            mapfile -t COMPREPLY < <(compgen -f -- \"$word\")\n"
    "            compopt -o filenames 2>/dev/null\n"
    "        fi\n"
    "        [[ $COMP_WORDBREAKS == *=* ]] && before=${before#*=}\n"
    "        COMPREPLY=(\"${COMPREPLY[@]/#/$before}\")\n"
    "        return\n"
    "    fi\n"
    "    if [[ $word == -* ]]; then\n"
    "        _gradlag_flags \"$command\"\n"
    "    else\n"
    "        _gradlag_first \"$command\"\n"
    "        _gradlag_reads_results \"$command\" && words+=\" results=\"\n"
    "        if _gradlag_takes_settings \"$command\"; then\n"
    "            words+=\" $_gradlag_settings\"\n"
    "            [[ $word == *.* ]] && words+=$_gradlag_dotted\n"
    "        fi\n"
    "    fi\n"
    "    COMPREPLY=($(compgen -W \"$words\" -- \"$word\"))\n"
    "    if [[ $command == @(run|sweep|reproduce) && $word != -* ]]; then\n"
    "        mapfile -t -O \"${#COMPREPLY[@]}\" COMPREPLY < <(compgen -f -X '!*.yaml' -- "
    "\"$word\")\n"
    "        [[ ${COMPREPLY[*]} == *.yaml* ]] && compopt -o filenames 2>/dev/null\n"
    "    fi\n"
    "    [[ ${#COMPREPLY[@]} -eq 1 && ${COMPREPLY[0]} == *= ]] && compopt -o nospace 2>/dev/null\n"
    "    return 0\n"
    "}\n"
    "complete -o default -F _gradlag gradlag\n";

static void print_bash(FILE *to)
{
    struct text commands = {0};
    fputs("# bash completion for gradlag, printed by `gradlag completion bash`\n\n", to);
    add_commands(&commands);
    fprintf(to, "_gradlag_commands=\"%s\"\n\n", commands.at);
    print_first_words(to);
    print_flags(to);
    print_settings(to);
    fputs(function, to);
    text_free(&commands);
}

const char command_completion_help[] =
    "gradlag completion bash\n\n"
    "Prints a bash script that completes commands, keys and their values. `make install`\n"
    "installs it. Without `make install`, add this line to ~/.bashrc:\n\n"
    "  source <(gradlag completion bash)\n";

status command_completion(int argc, char **argv)
{
    status result = OK;
    if (argc != 1 || strcmp(argv[0], "bash") != 0)
        FAIL(ERROR_USAGE,
             "completion: name a shell; only bash is supported: `gradlag completion bash`");
    print_bash(stdout);
done:
    return result;
}
