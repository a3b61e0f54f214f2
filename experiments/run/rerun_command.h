/*
 * rerun_command.h — the command that makes a recorded run once more, for a shell.
 */
#ifndef GRADLAG_EXPERIMENTS_RUN_RERUN_COMMAND_H
#define GRADLAG_EXPERIMENTS_RUN_RERUN_COMMAND_H

#include "base/text.h"

/* One line: the variables of the environment that were recorded, `gradlag run` and every setting
 * that is not this program's default; or `gradlag replay`, for a run that asked what if. The run's
 * names (tag, experiment, arm) and what it wrote beside its row are left out. `results` is named
 * unless it is results.db. Says on stderr where the outcome may be another one: another commit, or
 * arrivals that no two runs share. ERROR_USAGE: no such run; ERROR_RESULTS: its row does not say.
 */
status rerun_command(const char *results, const char *run, struct text *out) MUST_CHECK;

/* A word as a shell reads it: in quotes where it needs them. */
void rerun_add_word(struct text *out, const char *word);
/* " results=FILE" so; nothing for results.db. */
void rerun_add_results(struct text *out, const char *results);

#endif
