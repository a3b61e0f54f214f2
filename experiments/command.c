#include "experiments/command.h"

#include "experiments/mailbox.h"
#include "experiments/print.h"

#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

struct command {
    const char *name, *arguments, *help;
    command_function *run;
    bool only_prints; /* nothing is lost if it ends as soon as nobody reads what it prints */
};

static const struct command commands[] = {
    {"run", "[FILE.yaml] key=value…", "one run: mode=async|sync", command_run, false},
    {"sweep", "[FILE.yaml] key=v1,v2,…", "every combination, resumable; prints the count first",
     command_sweep, false},
    {"reproduce", "NAME|FILE.yaml [--quick]",
     "an experiment: its table, each claim with PASS or FAIL, the verdict", command_reproduce,
     false},
    {"query", "NAME|\"SELECT …\"", "a named question or SQL on the results file", command_query,
     true},
    {"show", "RUN", "one run: configuration, curve, staleness, where the time went", command_show,
     true},
    {"report", "[-o report.html] [--watch]",
     "one HTML page from the results file: claims, plots, tables, runs", command_report, false},
    {"replay", "RUN [key=value…]", "a recorded run once more, bit for bit; or under other rules",
     command_replay, false},
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
    {0},
};

static void print_help(FILE *to)
{
    fprintf(to, "gradlag: asynchronous parameter-server training against synchronous allreduce, on "
                "the same workers\n\n");
    for (const struct command *c = commands; c->name != NULL; c++) {
        fprintf(to, "  gradlag %-9s ", c->name);
        print_padded(to, c->arguments, 33);
        fprintf(to, "%s\n", c->help);
    }
    fprintf(to,
            "\nSettings are key=value; `gradlag list keys` shows them all, `gradlag COMMAND --help`"
            "\nwhat one command takes. Try:  gradlag run workers=4 epochs=1\n"
            "\nExit codes: 0 ok, 1 other (and a claim that failed), 2 usage, 3 data, 4 a process "
            "was\nlost, 5 protocol, 6 diverged, 7 results file, 75 stopped on request.\n"
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

static status dispatch(int argc, char **argv)
{
    if (argc < 2) {
        print_help(stderr);
        return error_set(ERROR_USAGE, __FILE__, __LINE__,
                         "which command? The list is above; a first one to try is `gradlag run`");
    }
    const char *name = argv[1];
    if (strcmp(name, "help") == 0 || strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0) {
        print_help(stdout);
        return OK;
    }
    for (const struct command *c = commands; c->name != NULL; c++) {
        if (strcmp(c->name, name) == 0) {
            if (c->only_prints) {
                signal(SIGPIPE, SIG_DFL);
            }
            return c->run(argc - 2, argv + 2);
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

int command_main(int argc, char **argv)
{
    memory_keep_large_blocks();
    signal(SIGPIPE, SIG_IGN);
    prctl(PR_SET_NAME, "gradlag"); /* processes of a run are started through /proc/PID/exe */
    follow_starter();
    status result = check_output(dispatch(argc, argv));
    /* A process that was started by `gradlag run` has told its starter, who tells the user. */
    if (result != OK && !mailbox_exists()) {
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
