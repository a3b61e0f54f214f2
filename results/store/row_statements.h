/*
 * row_statements.h — one recorded row, and the prepared statements that insert it. Internal to
 * results/.
 */
#ifndef GRADLAG_RESULTS_STORE_ROW_STATEMENTS_H
#define GRADLAG_RESULTS_STORE_ROW_STATEMENTS_H

#include "results/store/database.h"
#include "results/store/recorder.h"

enum row_kind {
    ROW_PUSH,
    ROW_STEP,
    ROW_PASS,
    ROW_EVALUATION,
    ROW_EVENT,
    ROW_CHECKPOINT,
    ROW_PROGRESS, /* updates the run's row */
    ROW_ORIGIN,   /* updates the run's row */
    ROW_KINDS
};

struct event_row {
    double at_seconds;
    enum severity severity;
    int worker;
    uint32_t server;
    uint64_t push_number; /* or PUSHES_UNKNOWN */
    char *code, *detail;  /* owned; detail may be NULL */
};

struct checkpoint_row {
    uint64_t version;
    char *path, *sha256; /* owned; sha256 may be NULL */
};

struct row {
    enum row_kind kind;
    union {
        struct push_record push;
        struct step_record step;
        struct pass_record pass;
        struct evaluation_record evaluation;
        struct event_row event;
        struct checkpoint_row checkpoint;
        struct progress_record progress;
        char *origin; /* owned; JSON */
    };
};
/* Frees the texts that a row owns. */
void row_free(struct row *row);

/* The prepared statements of one run on one connection. */
struct row_writer {
    sqlite3 *db; /* borrowed */
    int64_t run_id;
    uint64_t next_push; /* push.number of the next row */
    uint64_t written;   /* rows of push and step so far */
    sqlite3_stmt *insert[ROW_KINDS];
};
/* push.number continues after the existing rows of the run. Call rows_end() also after an error. */
status rows_begin(struct row_writer *w, sqlite3 *db, int64_t run_id) MUST_CHECK;
status rows_insert(struct row_writer *w, const struct row *row) MUST_CHECK;
/* Call it after a rollback: reads next_push from the file again. */
status rows_restart(struct row_writer *w) MUST_CHECK;
void rows_end(struct row_writer *w);

/* Converts push.outcome and push.reason from text; a reason of NULL is PUSH_USED. false:
 * rows_insert() never writes this text, so the file is damaged. */
bool row_read_outcome(const char *name, enum push_outcome *out);
bool row_read_reason(const char *name, enum push_reason *out);

/* Binds a measured number. NaN is stored as NULL, and its column's name is added to the list for
 * column not_a_number. NOT_MEASURED is stored as NULL only. */
struct nan_list {
    char names[192];
    size_t length;
};
void bind_real(sqlite3_stmt *s, int index, double value, const char *column, struct nan_list *nan);
void bind_nan_list(sqlite3_stmt *s, int index, const struct nan_list *nan);

#endif
