#include "experiments/command.h"

#include "experiments/mailbox.h"
#include "experiments/manual.h"
#include "experiments/print.h"
#include "experiments/provenance.h"

#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

struct command {
    const char *name, *arguments, *help;
    command_function *run;
    bool only_prints; /* nothing is lost if it ends as soon as nobody reads what it prints */
};

static const struct command commands[] = {
    {"run", "[FILE.yaml] key=value…", "one run: mode=async|sync|pipeline", command_run, false},
    {"sweep", "[FILE.yaml] key=v1,v2,…", "every combination, or a search; resumable, with a queue",
     command_sweep, false},
    {"reproduce", "NAME|FILE.yaml [--quick]",
     "an experiment: its table, each claim with PASS or FAIL, the verdict", command_reproduce,
     false},
    {"query", "NAME|\"SELECT …\"", "a named question or SQL on the results file", command_query,
     true},
    {"show", "RUN", "one run: curve, staleness, where the time went, configuration", command_show,
     true},
    {"report", "[-o report.html] [--watch]",
     "one HTML page from the results file: claims, plots, tables, runs", command_report, false},
    {"watch", "[results=FILE]", "what goes on, live: how far, curves, staleness, who is slow",
     command_watch, false},
    {"export", "FORMAT [RUN…]", "runs for other tools: TensorBoard, CSV, …", command_export, false},
    {"replay", "RUN [key=value…]", "a recorded run once more, bit for bit; or under other rules",
     command_replay, false},
    {"merge", "FILE… -o OUT", "several results files into one", command_merge, false},
    {"list", "KIND", "what exists, with parameters, ranges and sources", command_list, true},
    {"check", "[--links] key=value…", "preflight: versions, devices and what they reach, files",
     command_check, false},
    {"bench", "NAME key=value…", "benchmarks, one line per measurement", command_bench, false},
    {"server", "key=value…", "the parameter server by hand", command_server, false},
    {"worker", "endpoint=… worker=N …", "one asynchronous worker by hand", command_worker, false},
    {"keygen", "FOLDER", "keys for a server and workers on different hosts (curve=FOLDER)",
     command_keygen, false},
    {"rank", "key=value…", "one synchronous rank; start it with mpirun or srun", command_rank,
     false},
    {"completion", "bash", "what makes bash complete commands, settings and their values",
     command_completion, true},
    {0},
};

/* --help of the roles, which leave everything to key=value. */
static const struct {
    const char *command, *details;
} role_details[] = {
    {"server", "Prints where it listens and what workers need to say; ends with the run.\n\n"
               "  gradlag server workers=2 endpoint=tcp://127.0.0.1:*\n"},
    {"worker", "Takes the settings of its server, the endpoint and the run_token that it printed,\n"
               "and its own number from 0 (under mpirun or srun: its rank).\n\n"
               "  gradlag worker endpoint=tcp://127.0.0.1:5555 run_token=… worker=0 key=value…\n"},
    {"rank", "The number of ranks and its own come from the launcher.\n\n"
             "  mpirun -n 4 gradlag rank mode=sync key=value…\n"},
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
        const struct command *c = &commands[i];
        *out = (struct command_about){c->name, c->arguments, c->help};
    }
    return there;
}

static void print_help(FILE *to)
{
    fprintf(to, "gradlag: asynchronous parameter-server training against synchronous allreduce, on "
                "the same workers\n\n");
    for (const struct command *c = commands; c->name != NULL; c++) {
        fprintf(to, "  gradlag %-10s ", c->name);
        print_padded(to, c->arguments, 33);
        fprintf(to, "%s\n", c->help);
    }
    fprintf(to,
            "\nSettings are key=value; `gradlag list keys` shows them all, `gradlag COMMAND --help`"
            "\nwhat one command takes, `gradlag --version` what it is built from. Try:"
            "\n  gradlag run workers=4 epochs=1\n\nExit codes:\n");
    for (size_t i = 0; i < COUNT_OF(exit_codes); i++) {
        fprintf(to, "  %2d  %s\n", exit_codes[i].code, exit_codes[i].meaning);
    }
    fprintf(to,
            "If nobody reads stdout any more, query, show and list end at once, by SIGPIPE; a run "
            "goes on.\n");
}

static status unknown_command(const char *name)
{
    const struct command *nearest = &commands[0];
    for (const struct command *c = commands; c->name != NULL; c++) {
        if (text_distance(name, c->name) < text_distance(name, nearest->name)) {
            nearest = c;
        }
    }
    if (text_distance(name, nearest->name) <= 1 + strlen(nearest->name) / 3) {
        return error_set(ERROR_USAGE, __FILE__, __LINE__,
                         "there is no command '%s'. Did you mean '%s'? `gradlag help` shows all",
                         name, nearest->name);
    }
    return error_set(ERROR_USAGE, __FILE__, __LINE__,
                     "there is no command '%s'. `gradlag help` shows all", name);
}

static void print_versions(FILE *to)
{
    struct version v;
    for (size_t i = 0; provenance_version(i, &v); i++) {
        if (i == 0) {
            fprintf(to, "%s %s\n", v.name, v.value);
        } else {
            fprintf(to, "%-14s %s\n", v.name, v.value != NULL ? v.value : "unknown");
        }
    }
}

/* `gradlag COMMAND --help`. */
static status call(const struct command *c, int argc, char **argv)
{
    for (size_t i = 0; i < COUNT_OF(role_details); i++) {
        if (strcmp(role_details[i].command, c->name) == 0 && command_flag(&argc, argv, "--help")) {
            printf("gradlag %s %s\n\n%s%s", c->name, c->arguments, role_details[i].details,
                   "\n`gradlag list keys` shows what key may be.\n");
            return OK;
        }
    }
    return c->run(argc, argv);
}

status command_help_of(size_t i, struct text *out)
{
    char flag[] = "--help", *argv[] = {flag, NULL}, *written = NULL;
    size_t length = 0;
    REQUIRE(i + 1 < COUNT_OF(commands));
    FILE *kept = stdout, *memory = open_memstream(&written, &length);
    REQUIRE(memory != NULL);
    /* Each command knows its own words and prints them; in glibc stdout is a variable. */
    stdout = memory;
    status result = call(&commands[i], 1, argv);
    stdout = kept;
    REQUIRE(fclose(memory) == 0);
    text_add_bytes(out, written, length);
    free(written);
    return result;
}

static status print_own_help(int argc, char **argv)
{
    status result = OK;
    if (command_flag(&argc, argv, "--man")) {
        TRY(manual_print(stdout));
    } else {
        print_help(stdout);
    }
done:
    return result;
}

static status dispatch(int argc, char **argv)
{
    if (argc < 2) {
        print_help(stderr);
        return error_set(ERROR_USAGE, __FILE__, __LINE__,
                         "which command? The list is above; a first one to try is `gradlag run`");
    }
    const char *name = argv[1];
    if (strcmp(name, "help") == 0 || strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0) {
        return print_own_help(argc - 2, argv + 2);
    }
    if (strcmp(name, "--version") == 0 || strcmp(name, "-V") == 0) {
        print_versions(stdout);
        return OK;
    }
    for (const struct command *c = commands; c->name != NULL; c++) {
        if (strcmp(c->name, name) == 0) {
            if (c->only_prints) {
                signal(SIGPIPE, SIG_DFL);
            }
            return call(c, argc - 2, argv + 2);
        }
    }
    return unknown_command(name);
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
    if (mailbox_exists()) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (!mailbox_is_read()) {
            _exit(ERROR_PEER);
        }
    }
}

static bool told;

void command_is_told(void)
{
    told = true;
}

int command_main(int argc, char **argv)
{
    memory_keep_large_blocks();
    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN);      /* a file that may not grow is an error like a full disk */
    prctl(PR_SET_NAME, "gradlag"); /* processes of a run are started through /proc/PID/exe */
    follow_starter();
    status result = check_output(dispatch(argc, argv));
    /* A process that was started by `gradlag run` has told its starter, who tells the user. */
    if (result != OK && !mailbox_exists() && !told) {
        if (result == STOPPED) {
            log_info("%s", error_message());
        } else {
            log_error("%s", error_message());
        }
        log_debug("made at %s, exit code %d (%s)", error_origin(), (int)result,
                  status_name(result));
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
        if (strncmp(argv[i], flag, length) != 0 || (*after != '\0' && *after != '=')) {
            continue;
        }
        int parts = *after == '=' ? 1 : 2;
        if (parts == 2 && i + 1 == *argc) {
            FAIL(ERROR_USAGE, "%s needs a value after it", flag);
        }
        *value = parts == 1 ? after + 1 : argv[i + 1];
        take_out(argc, argv, i, parts);
        break;
    }
done:
    return result;
}

status command_no_flags_left(int argc, char **argv, const char *command, const char *known)
{
    for (int i = 0; i < argc; i++) {
        if (argv[i][0] == '-') {
            return error_set(ERROR_USAGE, __FILE__, __LINE__,
                             "%s does not know %s. It takes %s; settings are written key=value",
                             command, argv[i], known);
        }
    }
    return OK;
}
