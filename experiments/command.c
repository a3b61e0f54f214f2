#include "experiments/command.h"

#include "base/text.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/suggestion.h"
#include "base/thread.h"
#include "experiments/config/config.h"
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
    const char *details;    /* text of --help */
    void (*more)(FILE *to); /* prints the rest of --help; or NULL */
    bool only_prints; /* has no other effect: may end by SIGPIPE when its reader closes stdout */
};

#define COMMAND(name_, arguments_, help_)                                                          \
    .name = #name_, .arguments = arguments_, .help = help_, .run = command_##name_,                \
    .details = command_##name_##_help

static const struct command_entry commands[] = {
    {COMMAND(run, "[FILE.yaml] key=value…", "one run: mode=async|sync|pipeline")},
    {COMMAND(sweep, "[FILE.yaml] key=v1,v2,…",
             "every combination of values, or a search; resumable, with a queue")},
    {COMMAND(reproduce, "NAME|FILE.yaml [--quick]",
             "one experiment: its runs, its table, PASS or FAIL for each claim")},
    {COMMAND(query, "NAME|\"SELECT …\"", "a named query, or SQL, on the results file"),
     .only_prints = true},
    {COMMAND(advise, "key=value…", "which mode was ahead on clusters like yours"),
     .only_prints = true},
    {COMMAND(show, "RUN…", "one run: curve, staleness, times, settings; several: a comparison"),
     .only_prints = true},
    {COMMAND(report, "[-o report.html] [--figures FOLDER]",
             "one HTML page about the results file: claims, plots, tables, runs; figures")},
    {COMMAND(watch, "[results=FILE]",
             "live view of running runs: progress, curves, staleness, slow workers")},
    {COMMAND(export, "csv|parquet [RUN…]",
             "writes the tables of a results file as CSV or Parquet files")},
    {COMMAND(replay, "RUN [key=value…]",
             "repeats a recorded run bit for bit, or under other rules")},
    {COMMAND(merge, "FILE… -o OUT", "merges several results files into one")},
    {COMMAND(list, "KIND [WORD]", "lists keys, rules, models, …, with ranges and sources"),
     .more = command_print_kinds, .only_prints = true},
    {COMMAND(check, "[--links] key=value…",
             "tests this machine: versions, devices and their speed, files")},
    {COMMAND(bench, "NAME key=value…", "benchmarks, one line per measurement"),
     .more = command_print_benchmarks},
    {COMMAND(server, "key=value…", "starts one parameter server by hand")},
    {COMMAND(worker, "endpoint=… worker=N …", "starts one asynchronous worker by hand")},
    {COMMAND(keygen, "FOLDER",
             "creates keys for a server and workers on different hosts (curve=FOLDER)")},
    {COMMAND(rank, "key=value…", "one synchronous rank, started by mpirun or srun")},
    {COMMAND(completion, "bash", "prints a bash completion of commands, keys and values"),
     .only_prints = true},
    {0},
};

static const struct {
    int code;
    const char *meaning;
} exit_codes[] = {
    {OK, "ok"},
    {ERROR_OTHER, "another error, or a failed claim"},
    {ERROR_USAGE, "wrong command line or settings"},
    {ERROR_DATA, "dataset or other input file"},
    {ERROR_PEER, "a process died or did not answer"},
    {ERROR_PROTOCOL, "protocol or authentication"},
    {ERROR_DIVERGED, "training diverged: a loss or gradient was not finite"},
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
    fprintf(to,
            "gradlag compares asynchronous parameter-server training with synchronous allreduce "
            "training\non the same workers.\n\n");
    for (const struct command_entry *c = commands; c->name != NULL; c++) {
        fprintf(to, "  gradlag %-10s ", c->name);
        print_padded(to, c->arguments, 33);
        fprintf(to, "%s\n", c->help);
    }
    fprintf(to,
            "\nTo begin: gradlag run workers=4 epochs=2\n\n"
            "Settings are written key=value; `gradlag list keys` describes all of them.\n"
            "`gradlag COMMAND --help` describes one command, `gradlag --version` prints versions.\n"
            "\nExit codes:\n");
    for (size_t i = 0; i < COUNT_OF(exit_codes); i++)
        fprintf(to, "  %2d  %s\n", exit_codes[i].code, exit_codes[i].meaning);
    fprintf(
        to,
        "If the reader of stdout exits, report -o - and commands that only print end by SIGPIPE;\n"
        "a run continues.\n");
}

/* Sets *out to NULL if the command does not exist; the result is then an error. */
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
    return suggestion_fail(&known, "`gradlag help` lists all commands", "there is no command");
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

/* `gradlag bench NAME --help` is handled in bench.c. */
static bool requests_help(const struct command_entry *c, int argc, char **argv)
{
    bool found = false;
    for (int i = 0; i < (c->run == command_bench && argc > 1 ? 1 : argc); i++)
        found = found || is_help(argv[i]);
    return found;
}

/* Rejects `gradlag run sweep lr=0.1,0.2`: a command name where settings are expected. */
static status check_one_command(const struct command_entry *c, int argc, char **argv)
{
    status result = OK;
    bool settings = strstr(c->arguments, "key=") != NULL;
    for (int i = 0; settings && i < argc; i++) {
        for (const struct command_entry *other = commands; other->name != NULL; other++) {
            if (strcmp(other->name, argv[i]) == 0) {
                FAIL(ERROR_USAGE,
                     "'%s' and '%s' are both commands: use one at a time, for example `gradlag %s`",
                     c->name, argv[i], argv[i]);
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
        FAIL(ERROR_USAGE, "no command was given: `gradlag help` lists all commands; `gradlag run` "
                          "starts a first run");
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
    if (requests_help(c, argc - 2, argv + 2)) {
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

/* A reader that exits early (`gradlag run | head -1`) is no error. */
static status check_output(status result)
{
    struct pollfd out = {.fd = STDOUT_FILENO};
    bool lost = fflush(stdout) != 0 || ferror(stdout);
    bool reader_gone = poll(&out, 1, 0) == 1 && (out.revents & POLLERR) != 0;
    if (result == OK && lost && !reader_gone) {
        result = error_set(ERROR_OTHER, __FILE__, __LINE__,
                           "output is incomplete: writing to standard output failed; check that "
                           "the disk is not full");
    }
    return result;
}

/* A process of a run dies with its parent, which is the starter or mpirun. If the starter ended
 * before prctl() took effect, the kernel sends no signal, so exit here. */
static void follow_starter(void)
{
    if (status_pipe_exists()) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (!status_pipe_has_reader())
            _exit(ERROR_PEER);
    }
}

/* If stdin, stdout or stderr is closed, the next opened file would get its number. */
static void open_standard_files(void)
{
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++)
        if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", O_RDWR) != fd)
            return;
}

static bool error_reported;

void command_error_is_reported(void)
{
    error_reported = true;
}

int command_main(int argc, char **argv)
{
    open_standard_files();
    memory_keep_large_blocks();
    thread_flush_subnormals();
    signal(SIGPIPE, SIG_IGN);
    signal(SIGCHLD, SIG_DFL); /* the parent may ignore it, and children inherit that; waitpid()
                                 needs the default */
    signal(SIGXFSZ,
           SIG_IGN); /* a write beyond the file size limit then fails like one to a full disk */
    prctl(PR_SET_NAME, "gradlag"); /* else "exe": processes are started through /proc/PID/exe */
    follow_starter();
    status result = check_output(dispatch(argc, argv));
    /* A process started by `gradlag run` has sent its error to the starter, which prints it. */
    if (result != OK && !status_pipe_exists() && !error_reported) {
        if (result == STOPPED)
            log_info("%s", error_message());
        else
            log_error("%s", error_message());
        log_debug("raised at %s, exit code %d (%s)", error_origin(), (int)result,
                  status_name(result));
    }
    if (threads_abandoned() > 0) { /* an abandoned thread may still use what exit() would destroy */
        fflush(NULL);
        _exit((int)result);
    }
    return (int)result;
}

static void remove_arguments(int *argc, char **argv, int at, int count)
{
    memmove(&argv[at], &argv[at + count], (size_t)(*argc - at - count) * sizeof *argv);
    *argc -= count;
}

bool command_flag(int *argc, char **argv, const char *flag)
{
    for (int i = 0; i < *argc; i++) {
        if (strcmp(argv[i], flag) == 0) {
            remove_arguments(argc, argv, i, 1);
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
            FAIL(ERROR_USAGE, "%s needs a value, as in %s VALUE", flag, flag);
        *value = parts == 1 ? after + 1 : argv[i + 1];
        remove_arguments(argc, argv, i, parts);
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
            remove_arguments(argc, argv, i, 1);
        } else {
            i++;
        }
    }
    return last;
}

/* "--workers=4", "--lr": a key written like a flag. */
static bool is_dashed_key(const char *flag)
{
    char key[64];
    const char *name = flag + strspn(flag, "-");
    snprintf(key, sizeof key, "%.*s", (int)strcspn(name, "="), name);
    return keys_find(key) != NULL;
}

/* `known`: the flags that the command has, in one text, or NULL. */
static status unknown_flag(const char *command, const char *flag, const char *known)
{
    struct suggestion names = {.wanted = flag};
    struct text all = {0}, hint = {0};
    bool twice = false;
    if (is_dashed_key(flag)) {
        const char *key = flag + strspn(flag, "-");
        return error_set(ERROR_USAGE, __FILE__, __LINE__,
                         "%s: '%s' is a setting; write it without dashes: %s%s", command, flag, key,
                         strchr(key, '=') == NULL ? "=VALUE" : "");
    }
    text_add(&all, "%s", known != NULL ? known : "");
    if (known != NULL)
        text_add(&hint, "It has the options %s; settings are written key=value", known);
    else
        text_add(&hint, "It has no options; see `gradlag help %s`", command);
    for (char *rest = NULL, *each = strtok_r(all.at, " ,", &rest); each != NULL;
         each = strtok_r(NULL, " ,", &rest)) {
        twice = twice || strcmp(each, flag) == 0; /* the command took the first one */
        if (each[0] == '-')
            suggestion_add(&names, each);
    }
    status result = twice ? error_set(ERROR_USAGE, __FILE__, __LINE__,
                                      "%s: option %s is given twice; give it once", command, flag)
                          : suggestion_fail(&names, hint.at, "%s has no option", command);
    text_free(&all);
    text_free(&hint);
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
        if (strchr(argv[i], '=') != NULL && !settings_is_file(argv[i])) {
            return error_set(ERROR_USAGE, __FILE__, __LINE__,
                             "%s: '%s' is not a setting of this command, which takes %s", command,
                             argv[i], known);
        }
    }
    return OK;
}
