/*
 * command.h — the subcommands of `gradlag`: one table in command.c drives dispatch and help.
 *
 * A command gets what follows its name and returns a status, which is the program's exit code. It
 * prints data on stdout, never an error: whoever called it does that, once.
 */
#ifndef GRADLAG_EXPERIMENTS_COMMAND_H
#define GRADLAG_EXPERIMENTS_COMMAND_H

#include "base/text.h"

#include <stdio.h>

typedef status command_function(int argc, char **argv);

command_function command_run;
command_function command_sweep;
command_function command_reproduce;
command_function command_query;
command_function command_list;
command_function command_show;
command_function command_report;
command_function command_check;
command_function command_replay;
command_function command_merge;
command_function command_keygen;
command_function command_completion;
command_function command_export;
command_function command_watch;
command_function command_bench;
/* The roles that `run` starts as processes of their own, and that one starts by hand. */
command_function command_server;
command_function command_worker;
command_function command_rank;

/* What `gradlag NAME --help` prints of each. */
extern const char command_run_help[], command_sweep_help[], command_reproduce_help[],
    command_query_help[], command_list_help[], command_show_help[], command_report_help[],
    command_check_help[], command_replay_help[], command_merge_help[], command_keygen_help[],
    command_completion_help[], command_export_help[], command_watch_help[], command_bench_help[],
    command_server_help[], command_worker_help[], command_rank_help[];
/* And what the tables add to it. */
void command_print_exports(FILE *to);
void command_print_benchmarks(FILE *to);
void command_print_kinds(FILE *to);

/* The whole program: finds the command, runs it, prints its error; returns the exit code. */
int command_main(int argc, char **argv);

/* ---- the tables, for the manual and for completion ----------------------------------------------
 */
struct command_about {
    const char *name, *arguments, *help;
};
/* Entry i of the commands, or of the exit codes; false at the end. */
bool command_at(size_t i, struct command_about *out);
bool command_exit_code_at(size_t i, int *code, const char **meaning);
/* What `gradlag NAME --help` prints, of command i. */
void command_help_of(size_t i, struct text *out);

/* Takes `flag` ("--json") out of argv wherever it stands; true if it was there. */
bool command_flag(int *argc, char **argv, const char *flag);
/* The same of a flag with a value, "--jobs 4" or "--jobs=4"; NULL where it is not there.
 * ERROR_USAGE: it has none. */
status command_value(int *argc, char **argv, const char *flag, const char **value) MUST_CHECK;
/* Whoever started this process says how it ended: command_main need not. */
void command_is_told(void);
/* ERROR_USAGE for the first argument that begins with '-', naming what `command` knows. */
status command_no_flags_left(int argc, char **argv, const char *command,
                             const char *known) MUST_CHECK;
/* The same for the first that has a '='. */
status command_no_settings_left(int argc, char **argv, const char *command,
                                const char *known) MUST_CHECK;
/* Takes results=FILE out of argv; "results.db" where it is not there. */
const char *command_results(int *argc, char **argv);
/* The named questions, one a line. */
void command_print_queries(FILE *to);
/* A setting, its default and its range, and below what it is. */
struct option;
void command_print_option(const struct option *option, int indent);
/* What `gradlag list` takes, with `between` between them. */
void command_list_kinds(struct text *out, const char *between);

#endif
