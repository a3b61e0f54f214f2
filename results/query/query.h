/*
 * query.h — queries on a results file: named queries, SQL, one number, one run. A statement that
 * would change the file is refused.
 *
 * A named query is a file results/query/queries/NAME.sql, compiled into the program. Its first line
 * describes it; further comment lines declare its parameters:
 *
 *     -- Time to reach a test accuracy, per arm
 *     -- :accuracy = 0.85  the test accuracy to reach
 *     -- :run  the run, see 'gradlag query runs'      (no default: required)
 *     -- No rows: why the result may be empty
 *
 * Errors of the file are ERROR_RESULTS; errors in a name, a parameter or SQL are ERROR_USAGE.
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
    QUERY_VERTICAL, /* one line per column of each row; numbers as in a table */
};

struct query_request {
    const char *path;            /* results file */
    const char *question;        /* a name or SQL */
    const char *const *settings; /* "key=value" for the parameters */
    size_t setting_count;
    enum query_format format;
    /* QUERY_TABLE: columns of the terminal. A table that is wider is fitted, and a line below it
     * names the columns that are shortened or left out. 0: the table is written completely. */
    unsigned width;
};

/* Writes the result to `out`. *rows (may be NULL): the number of rows. */
status query_run(const struct query_request *request, FILE *out, size_t *rows) MUST_CHECK;
/* Copies the reason why a named query may return no rows to `out` and returns it; NULL: `name` is
 * no named query, or its file states no reason. */
const char *query_no_rows_reason(const char *name, char out[256]);

/* The named queries, sorted by name. description: the first comment line. false: index too large.
 */
struct query_description {
    const char *name, *description;
};
bool query_at(size_t index, struct query_description *out);
/* The content of the file of a named query, or NULL. Never freed. */
const char *query_text(const char *name);
/* Like query_text(). ERROR_USAGE: no such query; the message names the most similar one. */
status query_find(const char *name, const char **text) MUST_CHECK;

/* ---- for experiments/: one number, one run ------------------------------------------------------
 */

/* Until query_end(), queries of this thread on this file share one connection, because opening a
 * file costs more than a small query. A missing file is no error. */
status query_begin(const char *path) MUST_CHECK;
void query_end(void);

/* ERROR_USAGE: the question is neither a SELECT for a results file nor a named query. */
status query_check(const char *question) MUST_CHECK;
/* Reads the first column of the first row of `sql` (a SELECT); settings fill its :parameters. If
 * there is no row or the value is NULL, *known is false and *value is NaN. */
status query_number(const char *path, const char *sql, const char *const *settings,
                    size_t setting_count, double *value, bool *known) MUST_CHECK;
/* Likewise, and ERROR_USAGE if there are several rows or columns. */
status query_single_number(const char *path, const char *sql, double *value,
                           bool *known) MUST_CHECK;

/* Reads the first `count` columns of the first row; NaN for NULL and if there is no row. */
status query_numbers(const char *path, const char *sql, double *values, size_t count) MUST_CHECK;

/* Reads the first column of the first row as text: *value is a copy owned by the caller
 * (memory_free), or NULL. A parameter :run accepts the names of users: "run=3", "run=last". */
status query_value(const char *path, const char *sql, const char *const *settings,
                   size_t setting_count, char **value) MUST_CHECK;

/* Search criteria for a run. NULL fields match any run. At least one of config_hash, experiment,
 * arm and tag must be set. */
struct run_key {
    const char *config_hash, *experiment, *arm, *tag;
    const char *config;       /* JSON object: the run's config must have these keys and values */
    const char *dataset_path; /* no criterion: sets found_run.other_path; NULL: no comparison */
    bool waiting_first;       /* prefer a queued run (run_queue.h) to an ended one */
};
struct found_run {
    int64_t id;
    char status[16]; /* queued, running, finished, diverged, failed, stopped */
    bool taken;      /* queued or running, and owned by a process */
    bool other_path; /* it has another dataset.path */
};
/* Finds the best match. Order: finished, diverged, queued or running, others; among equals the
 * newest. *found is false if no run matches or the file does not exist. */
status query_find_run(const char *path, const struct run_key *key, struct found_run *out,
                      bool *found) MUST_CHECK;
/* Finds the last checkpoint of the newest run with this configuration that is newer than the last
 * finished run. *path is a copy owned by the caller; NULL: none. *running: the id of a run with
 * this configuration whose process is there; 0: none. */
status query_find_checkpoint(const char *results, const char *config_hash, char **path,
                             int64_t *running) MUST_CHECK;
/* Finds the newest run, except `run_id`, that wrote this checkpoint or resumed from it. A
 * checkpoint matches by its hash at any path, or by path and configuration, because a killed run
 * may not have recorded the hash. */
struct origin_run {
    int64_t id; /* 0: unknown */
    char uuid[40];
    uint64_t updates; /* recorded updates of that run */
    bool was_killed;  /* its writer did not end the row: the last updates may not be recorded */
};
status query_find_origin(const char *results, const char *config_hash, const char *path,
                         const char *sha256, int64_t run_id, struct origin_run *out) MUST_CHECK;

#endif
