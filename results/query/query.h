/*
 * query.h — asking a results file: named questions, SQL, a run, one number. Reads only: a statement
 * that would change the file is refused.
 *
 * A named question is a file results/query/queries/NAME.sql, compiled in. Its comment lines at the
 * top say what it answers (first line) and declare its parameters:
 *
 *     -- Time to reach a test accuracy, per arm
 *     -- :accuracy = 0.85  the test accuracy to reach
 *     -- :run  the run, see 'gradlag query runs'      (no default: it must be given)
 *     -- No rows: why there may be none
 *
 * All errors with the file are ERROR_RESULTS; with a name, a parameter or SQL, ERROR_USAGE.
 */
#ifndef GRADLAG_RESULTS_QUERY_QUERY_H
#define GRADLAG_RESULTS_QUERY_QUERY_H

#include "base/status.h"

#include <stdio.h>

enum query_format {
    QUERY_TABLE, /* aligned, numbers rounded for reading */
    QUERY_CSV,   /* RFC 4180 with a header line; numbers in full */
    QUERY_JSON,  /* an array of objects, one per line; numbers in full, infinities as ±1e999 */
    QUERY_MARKDOWN,
};

struct query_request {
    const char *path;            /* results file */
    const char *question;        /* a name, or SQL */
    const char *const *settings; /* "key=value", for the question's parameters */
    size_t setting_count;
    enum query_format format;
};

/* Writes the answer to `out`; *rows (may be NULL) is how many it has. */
status query_run(const struct query_request *request, FILE *out, size_t *rows) MUST_CHECK;
/* Why a named question may have no answer, to say after "no rows: ", or NULL. Into `out`. */
const char *query_why_nothing(const char *name, char out[256]);

/* The named questions, by name; description is the first comment line. False past the last. */
struct query_description {
    const char *name, *description;
};
bool query_at(size_t index, struct query_description *out);
/* A named question as it stands in its file, or NULL. Valid as long as the program runs. */
const char *query_text(const char *name);
/* The same; where there is none, ERROR_USAGE that names the nearest. */
status query_find(const char *name, const char **text) MUST_CHECK;

/* ---- for experiments/: one number, one run ------------------------------------------------------
 */

/* What is asked of this file from here to query_end(), by this thread, goes through one opening of
 * it: that costs more than a small question. A file that is not there yet is no error. */
status query_begin(const char *path) MUST_CHECK;
void query_end(void);

/* The first column of the first row that `sql` (a SELECT) yields; settings fill its :parameters.
 * *known is false, and *value NaN, where there is no row or it is NULL. */
status query_number(const char *path, const char *sql, const char *const *settings,
                    size_t setting_count, double *value, bool *known) MUST_CHECK;

/* The first `count` columns of the first row, as of one moment; NaN where there is no row, or where
 * one is NULL. */
status query_numbers(const char *path, const char *sql, double *values, size_t count) MUST_CHECK;

/* The first column as text: *value is a copy owned by the caller (memory_free), or NULL. A
 * parameter :run is set as users name a run: "run=3", "run=last". */
status query_value(const char *path, const char *sql, const char *const *settings,
                   size_t setting_count, char **value) MUST_CHECK;

/* What finds a run again. NULL fields match anything; config_hash, experiment, arm or
 * tag must be given. */
struct run_key {
    const char *config_hash, *experiment, *arm, *tag;
    const char *config; /* JSON object of keys that the run's config must hold with these values */
    bool waiting_first; /* one that waits in the queue (run_queue.h) counts before one that ended */
};
struct found_run {
    int64_t id;
    char status[16]; /* queued, running, finished, diverged, failed, stopped */
    bool taken;      /* queued or running: a process answers for it */
};
/* The best match: finished before diverged before queued or running before any other, then the
 * newest. *found is false where there is none, and where the file does not exist yet. */
status query_find_run(const char *path, const struct run_key *key, struct found_run *out,
                      bool *found) MUST_CHECK;
/* The last checkpoint of the newest run with this configuration, among those after the last one
 * that finished: *path is a copy owned by the caller, NULL where there is none. */
status query_find_checkpoint(const char *results, const char *config_hash, char **path) MUST_CHECK;
/* Of all runs but `run_id`, the newest one that wrote this checkpoint or went on from it: a file
 * with these bytes, wherever it was then, or one at this path with this configuration (a run that
 * was killed may not have recorded what it wrote). */
struct origin_run {
    int64_t id;       /* 0: none is known */
    uint64_t updates; /* that it made, as far as they were recorded */
};
status query_find_origin(const char *results, const char *config_hash, const char *path,
                         const char *sha256, int64_t run_id, struct origin_run *out) MUST_CHECK;

#endif
