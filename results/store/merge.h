/*
 * merge.h — merges several results files into one.
 *
 * The uuid identifies a run; its id may differ between files. A merge copies every run that has
 * ended, with all its rows of all tables. It skips runs that are queued or running. Each source
 * file is copied completely or not at all, in one transaction.
 *
 * A new target file is written under a temporary name beside it and renamed at the end, so it is
 * complete or absent. An existing target file receives one source file after another.
 */
#ifndef GRADLAG_RESULTS_STORE_MERGE_H
#define GRADLAG_RESULTS_STORE_MERGE_H

#include "base/text.h"

typedef struct merge merge;

struct merge_outcome {
    size_t copied;  /* runs */
    size_t there;   /* already in the target */
    size_t left;    /* queued or running: skipped */
    size_t repeats; /* copied, and the target had a finished run of the same configuration */
};

/* All functions return STOPPED when the stop check of recorder_give_up_when() returns true. */
/* summaries: the rows of tables push and step of runs that have summaries are not copied. */
status merge_open(merge **out, const char *into, bool summaries) MUST_CHECK;
/* Copies the runs of `from`. ERROR_RESULTS: the target has a run with the same uuid and other
 * content, or a file cannot be read or written. ERROR_USAGE: `from` is the target. */
status merge_add(merge *m, const char *from, struct merge_outcome *out) MUST_CHECK;
/* Checks the target (integrity_check, foreign_key_check) and renames a new file. *runs: the number
 * of runs in it. */
status merge_finish(merge *m, size_t *runs) MUST_CHECK;
/* Without merge_finish(), removes a new target file. NULL-safe. */
void merge_close(merge **m);

/* After `error`: appends a sentence that says what the target file contains. */
void merge_describe(const merge *m, status error, struct text *out);

#endif
