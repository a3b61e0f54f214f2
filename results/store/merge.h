/*
 * merge.h — several results files into one.
 *
 * A run's uuid says which run it is; its number may be another one in the file that it is copied
 * into. Copied is all that has ended, with every row of every table; what is still going on, or
 * only waits in a queue, is left for another time. A file is copied whole or not at all.
 *
 * A file that is not there yet is made under another name beside it, and gets its own at the end:
 * it is there whole, or not. One that is there gets one file after the other.
 */
#ifndef GRADLAG_RESULTS_STORE_MERGE_H
#define GRADLAG_RESULTS_STORE_MERGE_H

#include "base/text.h"

typedef struct merge merge;

struct merge_outcome {
    size_t copied;  /* runs */
    size_t there;   /* the same, there already */
    size_t left;    /* going on or waiting: left out */
    size_t repeats; /* of those copied: the like of a finished run that was there */
};

/* Of all of these: STOPPED where recorder_give_up_when()'s function wants it. */
status merge_open(merge **out, const char *into) MUST_CHECK;
/* Copies the runs of `from`. ERROR_RESULTS: a run of that uuid is there that says something else;
 * or the files themselves. */
status merge_add(merge *m, const char *from, struct merge_outcome *out) MUST_CHECK;
/* integrity_check and foreign_key_check; *runs is how many there are. A new file gets its name. */
status merge_finish(merge *m, size_t *runs) MUST_CHECK;
/* Without merge_finish() nothing is left of a new file. NULL-safe. */
void merge_close(merge **m);

/* What there is of `into` after an error, in words. */
void merge_describe(const merge *m, struct text *out);

#endif
