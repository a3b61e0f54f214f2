/*
 * rows.h — one recorded row, and the prepared statements that insert it. Internal to results/.
 */
#ifndef GRADLAG_RESULTS_ROWS_H
#define GRADLAG_RESULTS_ROWS_H

#include "results/database.h"
#include "results/recorder.h"

enum row_kind {
    ROW_PUSH,
    ROW_STEP,
    ROW_PASS,
    ROW_EVALUATION,
    ROW_EVENT,
    ROW_CHECKPOINT,
    ROW_PROGRESS, /* of the run's own row */
    ROW_ORIGIN,   /* likewise */
    ROW_KINDS
};

enum {
    SCALES_AT_MOST =
        100,           /* of a run in push_scale: a code takes one byte; rows hold what is more */
    SCALE_SLOTS = 256, /* a power of two */
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
/* Frees what a row owns. */
void row_free(struct row *row);

/* The statements of one run on one connection. */
struct row_writer {
    sqlite3 *db; /* borrowed */
    int64_t run_id, next_push;
    uint64_t written; /* rows of push and step */
    sqlite3_stmt *insert[ROW_KINDS], *insert_scale, *insert_more;
    double scales[SCALES_AT_MOST]; /* by code */
    int scale_count;
    short scale_slots[SCALE_SLOTS]; /* code + 1, or 0: where its bits lead, or the next free one */
};
/* Push numbers go on after those the run has. Call rows_end also after an error. */
status rows_begin(struct row_writer *w, sqlite3 *db, int64_t run_id) MUST_CHECK;
status rows_insert(struct row_writer *w, const struct row *row) MUST_CHECK;
/* After a transaction that was rolled back: what is in the file counts. */
status rows_begin_again(struct row_writer *w) MUST_CHECK;
void rows_end(struct row_writer *w);

/* Binds a measured number by the file's rule: NaN as NULL, its column's name added to
 * `not_a_number`, a list; NOT_MEASURED as NULL alone. */
struct nan_list {
    char names[192];
    size_t length;
};
void bind_real(sqlite3_stmt *s, int index, double value, const char *column, struct nan_list *nan);
void bind_nan_list(sqlite3_stmt *s, int index, const struct nan_list *nan);

#endif
