#include "experiments/command.h"

#include "base/text.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/suggestion.h"
#include "base/thread.h"
#include "experiments/config/keys.h"
#include "experiments/run/status_pipe.h"
#include "experiments/cli/man_page.h"
#include "experiments/print_columns.h"
#include "experiments/run/provenance.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

struct command_entry {
    const char *name, *arguments, *help;
    command_function *run;
    const char *details;    /* what --help prints, */
    void (*more)(FILE *to); /* and after it; or NULL */
    bool only_prints;       /* nothing is lost if it ends as soon as nobody reads what it prints */
};

#define COMMAND(its_name, its_arguments, its_help)                                                 \
    .name = #its_name, .arguments = its_arguments, .help = its_help, .run = command_##its_name,    \
    .details = command_##its_name##_help

static const struct command_entry commands[] = {
    {COMMAND(run, "[FILE.yaml] key=value…", "one run: mode=async|sync|pipeline")},
    {COMMAND(sweep, "[FILE.yaml] key=v1,v2,…",
             "every combination, or a search; resumable, with a queue")},
    {COMMAND(reproduce, "NAME|FILE.yaml [--quick]",
             "an experiment: its table, each claim with PASS or FAIL, the verdict")},
    {COMMAND(query, "NAME|\"SELECT …\"", "a named question or SQL on the results file"),
     .only_prints = true},
    {COMMAND(show, "RUN", "one run: curve, staleness, where the time went, configuration"),
     .only_prints = true},
    {COMMAND(report, "[-o report.html] [--watch]",
             "one HTML page from the results file: claims, plots, tables, runs")},
    {COMMAND(watch, "[results=FILE]",
             "what goes on, live: how far, curves, staleness, who is slow")},
    {COMMAND(export, "FORMAT [RUN…]", "runs for other tools: TensorBoard, CSV, …"),
     .more = command_print_exports},
    {COMMAND(replay, "RUN [key=value…]",
             "a recorded run once more, bit for bit; or under other rules")},
    {COMMAND(merge, "FILE… -o OUT", "several results files into one")},
    {COMMAND(list, "KIND [WORD]", "what exists, with parameters, ranges and sources"),
     .more = command_print_kinds, .only_prints = true},
    {COMMAND(check, "[--links] key=value…",
             "preflight: versions, devices and what they reach, files")},
    {COMMAND(bench, "NAME key=value…", "benchmarks, one line per measurement"),
     .more = command_print_benchmarks},
    {COMMAND(server, "key=value…", "the parameter server by hand")},
    {COMMAND(worker, "endpoint=… worker=N …", "one asynchronous worker by hand")},
    {COMMAND(keygen, "FOLDER", "keys for a server and workers on different hosts (curve=FOLDER)")},
    {COMMAND(rank, "key=value…", "one synchronous rank; start it with mpirun or srun")},
    {COMMAND(completion, "bash", "what makes bash complete commands, settings and their values"),
     .only_prints = true},
    {0},
};

static const struct {
    int code;
    const char *meaning;
} exit_codes[] = {
    {OK, "ok"},
    {ERROR_OTHER, "other (and a claim that failed)"},
    {ERROR_USAGE, "usage or configuration"},
    {ERROR_DATA, "data"},
    {ERROR_PEER, "a process was lost, or did not answer"},
    {ERROR_PROTOCOL, "protocol or authentication"},
    {ERROR_DIVERGED, "diverged: a loss or gradient was not finite"},
    {ERROR_RESULTS, "results file"},
    {STOPPED, "stopped on request"},
};

bool command_exit_code_at(size_t i, int *code, const char **meaning)
{
    if (i < COUNT_OF(exit_codes)) {
        *code = exit_codes[i].code;
        *meaning = exit_codes[i].meaning;
    }
    return i < COUNT_OF(exit_codes);
}

bool command_at(size_t i, struct command_about *out)
{
    bool there = i + 1 < COUNT_OF(commands);
    if (there) {
        const struct command_entry *c = &commands[i];
        *out = (struct command_about){c->name, c->arguments, c->help};
    }
    return there;
}

static void print_help(FILE *to)
{
    fprintf(to, "gradlag: asynchronous parameter-server training against synchronous allreduce, on "
                "the same workers\n\n");
    for (const struct command_entry *c = commands; c->name != NULL; c++) {
        fprintf(to, "  gradlag %-10s ", c->name);
        print_padded(to, c->arguments, 33);
        fprintf(to, "%s\n", c->help);
    }
    fprintf(to,
            "\nSettings are key=value; `gradlag list keys` shows them all, `gradlag COMMAND --help`"
            "\nwhat one command takes, `gradlag --version` what it is built from. Try:"
            "\n  gradlag run workers=4 epochs=2\n\nExit codes:\n");
    for (size_t i = 0; i < COUNT_OF(exit_codes); i++)
        fprintf(to, "  %2d  %s\n", exit_codes[i].code, exit_codes[i].meaning);
    fprintf(to,
            "If nobody reads stdout any more, query, show and list end at once, by SIGPIPE; a run "
            "goes on.\n");
}

/* NULL in *out: there is no such command, which is the error. */
static status find_command(const char *name, const struct command_entry **out)
{
    struct suggestion known = {.wanted = name};
    for (*out = commands; (*out)->name != NULL; ++*out) {
        if (strcmp((*out)->name, name) == 0) {
            text_free(&known.all);
            return OK;
        }
        suggestion_add(&known, (*out)->name);
    }
    *out = NULL;
    return suggestion_fail(&known, "`gradlag help` shows all", "there is no command");
}

static void print_versions(FILE *to)
{
    struct version v;
    for (size_t i = 0; provenance_version(i, &v); i++)
        if (i == 0)
            fprintf(to, "%s %s\n", v.name, v.value);
        else
            fprintf(to, "%-14s %s\n", v.name, v.value != NULL ? v.value : "unknown");
}

static void print_details(const struct command_entry *c, FILE *to)
{
    fputs(c->details, to);
    if (c->more != NULL)
        c->more(to);
}

void command_help_of(size_t i, struct text *out)
{
    char *written = NULL;
    size_t length = 0;
    REQUIRE(i + 1 < COUNT_OF(commands));
    FILE *memory = open_memstream(&written, &length);
    REQUIRE(memory != NULL);
    print_details(&commands[i], memory);
    REQUIRE(fclose(memory) == 0);
    text_add_bytes(out, written, length);
    free(written);
}

static bool is_help(const char *argument)
{
    return strcmp(argument, "--help") == 0 || strcmp(argument, "-h") == 0;
}

/* A benchmark's own keys are shown by that (bench.c). */
static bool asks_for_help(const struct command_entry *c, int argc, char **argv)
{
    bool asks = false;
    for (int i = 0; i < (c->run == command_bench && argc > 1 ? 1 : argc); i++)
        asks = asks || is_help(argv[i]);
    return asks;
}

/* `gradlag run sweep lr=0.1,0.2`: two commands at a time, where settings are expected. */
static status check_one_command(const struct command_entry *c, int argc, char **argv)
{
    status result = OK;
    bool settings = strstr(c->arguments, "key=") != NULL;
    for (int i = 0; settings && i < argc; i++) {
        for (const struct command_entry *other = commands; other->name != NULL; other++) {
            if (strcmp(other->name, argv[i]) == 0) {
                FAIL(ERROR_USAGE,
                     "'%s' is a command of its own, and '%s' was given already: one at a time, as "
                     "in `gradlag %s`",
                     argv[i], c->name, argv[i]);
            }
        }
    }
done:
    return result;
}

/* `gradlag help`, `gradlag help sweep`, `gradlag help --man`. */
static status print_own_help(int argc, char **argv)
{
    status result = OK;
    const struct command_entry *c;
    if (command_flag(&argc, argv, "--man")) {
        man_page_print(stdout);
    } else if (argc > 0) {
        TRY(find_command(argv[0], &c));
        print_details(c, stdout);
    } else {
        print_help(stdout);
    }
done:
    return result;
}

static status dispatch(int argc, char **argv)
{
    status result = OK;
    const struct command_entry *c;
    TRY(log_check_environment());
    if (argc < 2) {
        print_help(stderr);
        FAIL(ERROR_USAGE, "which command? The list is above; a first one to try is `gradlag run`");
    }
    const char *name = argv[1];
    if (strcmp(name, "help") == 0 || is_help(name)) {
        TRY(print_own_help(argc - 2, argv + 2));
        goto done;
    }
    if (strcmp(name, "--version") == 0 || strcmp(name, "-V") == 0) {
        print_versions(stdout);
        goto done;
    }
    TRY(find_command(name, &c));
    if (asks_for_help(c, argc - 2, argv + 2)) {
        print_details(c, stdout);
        goto done;
    }
    if (c->only_prints)
        signal(SIGPIPE, SIG_DFL);
    TRY(check_one_command(c, argc - 2, argv + 2));
    TRY(c->run(argc - 2, argv + 2));
done:
    return result;
}

/* Where nobody reads any more (`gradlag run | head -1`) nothing is wrong: the run went on. */
static status check_output(status result)
{
    struct pollfd out = {.fd = STDOUT_FILENO};
    bool lost = fflush(stdout) != 0 || ferror(stdout);
    bool nobody_reads = poll(&out, 1, 0) == 1 && (out.revents & POLLERR) != 0;
    if (result == OK && lost && !nobody_reads) {
        result = error_set(ERROR_OTHER, __FILE__, __LINE__,
                           "not all could be written to standard output; is the disk full?");
    }
    return result;
}

/* A process of a run dies with its parent: the starter, or mpirun, which does so too. One whose
 * starter was gone before it came this far would never be told. */
static void follow_starter(void)
{
    if (status_pipe_exists()) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (!status_pipe_has_reader())
            _exit(ERROR_PEER);
    }
}

/* Else a file that is opened would be taken for stdout, or stderr. */
static void open_standard_files(void)
{
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++)
        if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", O_RDWR) != fd)
            return;
}

static bool told;

void command_is_told(void)
{
    told = true;
}

int command_main(int argc, char **argv)
{
    open_standard_files();
    memory_keep_large_blocks();
    signal(SIGPIPE, SIG_IGN);
    signal(SIGCHLD, SIG_DFL);      /* whoever starts us ignoring it: how our own end is told */
    signal(SIGXFSZ, SIG_IGN);      /* a file that may not grow is an error like a full disk */
    prctl(PR_SET_NAME, "gradlag"); /* processes of a run are started through /proc/PID/exe */
    follow_starter();
    status result = check_output(dispatch(argc, argv));
    /* A process that was started by `gradlag run` has told its starter, who tells the user. */
    if (result != OK && !status_pipe_exists() && !told) {
        if (result == STOPPED)
            log_info("%s", error_message());
        else
            log_error("%s", error_message());
        log_debug("made at %s, exit code %d (%s)", error_origin(), (int)result,
                  status_name(result));
    }
    if (threads_abandoned() > 0) { /* what exit() takes apart they may still use */
        fflush(NULL);
        _exit((int)result);
    }
    return (int)result;
}

static void take_out(int *argc, char **argv, int at, int count)
{
    memmove(&argv[at], &argv[at + count], (size_t)(*argc - at - count) * sizeof *argv);
    *argc -= count;
}

bool command_flag(int *argc, char **argv, const char *flag)
{
    for (int i = 0; i < *argc; i++) {
        if (strcmp(argv[i], flag) == 0) {
            take_out(argc, argv, i, 1);
            return true;
        }
    }
    return false;
}

status command_value(int *argc, char **argv, const char *flag, const char **value)
{
    status result = OK;
    size_t length = strlen(flag);
    *value = NULL;
    for (int i = 0; i < *argc; i++) {
        const char *after = argv[i] + length;
        if (strncmp(argv[i], flag, length) != 0 || (*after != '\0' && *after != '='))
            continue;
        int parts = *after == '=' ? 1 : 2;
        if (parts == 2 && i + 1 == *argc)
            FAIL(ERROR_USAGE, "%s needs a value after it", flag);
        *value = parts == 1 ? after + 1 : argv[i + 1];
        take_out(argc, argv, i, parts);
        break;
    }
done:
    return result;
}

const char *command_results(int *argc, char **argv)
{
    const char *last = "results.db";
    for (int i = 0; i < *argc;) {
        if (strncmp(argv[i], "results=", 8) == 0) {
            last = argv[i] + 8;
            take_out(argc, argv, i, 1);
        } else {
            i++;
        }
    }
    return last;
}

/* "--workers=4", "--lr": a key, as other programs would have it. */
static bool is_dashed_key(const char *flag)
{
    char key[64];
    const char *name = flag + strspn(flag, "-");
    snprintf(key, sizeof key, "%.*s", (int)strcspn(name, "="), name);
    return keys_find(key) != NULL;
}

/* The flags that `known` names. */
static status unknown_flag(const char *command, const char *flag, const char *known)
{
    struct suggestion names = {.wanted = flag};
    struct text all = {0}, takes = {0};
    if (is_dashed_key(flag)) {
        const char *key = flag + strspn(flag, "-");
        return error_set(ERROR_USAGE, __FILE__, __LINE__,
                         "%s: '%s' is a setting, which is written without dashes: %s%s", command,
                         flag, key, strchr(key, '=') == NULL ? "=VALUE" : "");
    }
    text_add(&all, "%s", known);
    text_add(&takes, "It takes %s; settings are written key=value", known);
    for (char *rest = NULL, *each = strtok_r(all.at, " ,", &rest); each != NULL;
         each = strtok_r(NULL, " ,", &rest))
        if (each[0] == '-')
            suggestion_add(&names, each);
    status result = suggestion_fail(&names, takes.at, "%s does not know", command);
    text_free(&all);
    text_free(&takes);
    return result;
}

status command_no_flags_left(int argc, char **argv, const char *command, const char *known)
{
    for (int i = 0; i < argc; i++)
        if (argv[i][0] == '-')
            return unknown_flag(command, argv[i], known);
    return OK;
}

status command_no_settings_left(int argc, char **argv, const char *command, const char *known)
{
    for (int i = 0; i < argc; i++) {
        if (strchr(argv[i], '=') != NULL) {
            return error_set(ERROR_USAGE, __FILE__, __LINE__,
                             "%s: '%s' is no setting of it; it takes %s", command, argv[i], known);
        }
    }
    return OK;
}
