/*
 * merge.h — several results files into one.
 *
 * A run's uuid says which run it is; its number may be another one in the file that it is copied
 * into. Copied is all that has ended, with every row of every table; what is still going on, or
 * only waits in a queue, is left for another time. A file is copied whole or not at all.
 */
#ifndef GRADLAG_RESULTS_MERGE_H
#define GRADLAG_RESULTS_MERGE_H

#include "worker/base.h"

struct merge_outcome {
    size_t copied;  /* runs */
    size_t there;   /* the same, there already */
    size_t left;    /* going on or waiting: left out */
    size_t repeats; /* of those copied: the like of a finished run that was there */
};

/* Copies the runs of `from` into `into`, which is created where it is not there. ERROR_RESULTS: a
 * run of that uuid is there that says something else; or the files themselves. */
status merge_file(const char *into, const char *from, struct merge_outcome *out) MUST_CHECK;
/* integrity_check and foreign_key_check; *runs is how many there are. */
status merge_check(const char *path, size_t *runs) MUST_CHECK;

#endif
