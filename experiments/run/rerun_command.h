/*
 * rerun_command.h — prints a shell command that repeats a recorded run.
 */
#ifndef GRADLAG_EXPERIMENTS_RUN_RERUN_COMMAND_H
#define GRADLAG_EXPERIMENTS_RUN_RERUN_COMMAND_H

#include "base/text.h"

/* Adds one line: the recorded environment variables, then `gradlag run` with every setting that
 * differs from its default; for a what-if replay `gradlag replay` with the changed settings. The
 * line has no names (tag, experiment, arm) and no files that the run wrote; results=FILE only if it
 * is not results.db. Logs why a repetition may differ: another commit, an instruction set that this
 * processor lacks, or an order of arrivals that does not repeat. ERROR_USAGE: no such run.
 * ERROR_RESULTS: its row lacks the settings. */
status rerun_command(const char *results, const char *run, struct text *out) MUST_CHECK;

/* Adds the word, quoted for a shell if necessary. */
void rerun_add_word(struct text *out, const char *word);
/* Adds " results=FILE", quoted; nothing for results.db. */
void rerun_add_results(struct text *out, const char *results);

#endif
