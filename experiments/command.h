/*
 * command.h — the subcommands of `gradlag`: one table in command.c drives dispatch and help.
 *
 * A command gets the arguments after its name and returns a status, which becomes the exit code. It
 * prints data on stdout and no errors: command_main prints the error, once.
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
command_function command_advise;
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
/* The processes of a run; `run` starts them, and a user can start them by hand. */
command_function command_server;
command_function command_worker;
command_function command_rank;

/* The text of `gradlag NAME --help`. */
extern const char command_run_help[], command_sweep_help[], command_reproduce_help[],
    command_query_help[], command_list_help[], command_show_help[], command_report_help[],
    command_check_help[], command_replay_help[], command_merge_help[], command_keygen_help[],
    command_completion_help[], command_export_help[], command_watch_help[], command_bench_help[],
    command_advise_help[], command_server_help[], command_worker_help[], command_rank_help[];
/* Print the second part of --help, from tables. */
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
/* Adds the complete output of `gradlag NAME --help` for command i. */
void command_help_of(size_t i, struct text *out);

/* Removes the first `flag` ("--json") from argv, at any position; true if there was one. */
bool command_flag(int *argc, char **argv, const char *flag);
/* Removes a flag with a value, "--jobs 4" or "--jobs=4". *value is borrowed from argv; NULL: the
 * flag is absent. ERROR_USAGE: the flag has no value. */
status command_value(int *argc, char **argv, const char *flag, const char **value) MUST_CHECK;
/* The error was printed already, or another process prints it: command_main prints nothing. */
void command_error_is_reported(void);
/* ERROR_USAGE for the first argument that begins with '-'. `known` lists the flags of `command`;
 * NULL: it has none. */
status command_no_flags_left(int argc, char **argv, const char *command,
                             const char *known) MUST_CHECK;
/* ERROR_USAGE for the first argument that contains '='. `known` lists the settings allowed. */
status command_no_settings_left(int argc, char **argv, const char *command,
                                const char *known) MUST_CHECK;
/* Removes results=FILE from argv and returns FILE (borrowed); "results.db" if absent. */
const char *command_results(int *argc, char **argv);
/* Prints the named queries, one a line. */
void command_print_queries(FILE *to);
/* Prints key, default and range on one line, the description on the next. */
struct option;
void command_print_option(const struct option *option, int indent);
/* Adds the kinds that `gradlag list` accepts, separated by `between`. */
void command_list_kinds(struct text *out, const char *between);

#endif
