/*
 * database.h — a results file as an SQLite connection. Internal to results/: no other folder
 * includes sqlite3.h.
 *
 * A file is ours if its application_id is DATABASE_APPLICATION_ID; user_version is the version of
 * its schema. A file of another program or of another version is refused with ERROR_RESULTS, for
 * reading and for writing, and stays unchanged. Queries on a connection see the views of views.sql,
 * whatever views the file has (reader_views.h). Files are in WAL mode, so several processes may
 * write and read at the same time. When the last connection closes, SQLite moves the content of the
 * -wal file into the file and removes -wal and -shm.
 *
 * Errors are ERROR_RESULTS, or STOPPED after a request to stop. One thread at a time uses a
 * connection; a child after fork() must not use it.
 */
#ifndef GRADLAG_RESULTS_STORE_DATABASE_H
#define GRADLAG_RESULTS_STORE_DATABASE_H

#include "base/status.h"

#include <sqlite3.h>
#include <stdio.h>

enum {
    DATABASE_APPLICATION_ID = 0x474c6167, /* "GLag" */
    DATABASE_VERSION = 1,
    DATABASE_BUSY_TIMEOUT_MS = 120000, /* how long to wait for a lock */
    DATABASE_BUSY_NOTICE_MS = 5000,    /* a longer wait is logged */
};

/* The cause in error messages about a full disk. */
#define DATABASE_FULL "the disk is full, or a quota or ulimit -f is reached"

/* Opens a file for writing. Creates a missing file, and the tables in an empty one. */
status database_open(sqlite3 **out, const char *path) MUST_CHECK;
/* An empty file in memory, to check statements against. */
status database_open_empty(sqlite3 **out) MUST_CHECK;
/* Opens an existing file for reading: statements that write fail. If a killed writer left a -wal
 * file, closing the connection moves its content into the file. In a folder without write
 * permission, rows in a -wal file may be unreadable; then a warning is logged. A run whose process
 * no longer exists shows as failed (reader_views.h). */
status database_open_reader(sqlite3 **out, const char *path) MUST_CHECK;
/* Like database_open_reader(). *out is NULL if the file does not exist or has no tables yet,
 * because another process may be creating it. */
status database_open_reader_if_any(sqlite3 **out, const char *path) MUST_CHECK;
/* NULL-safe. All statements must have been finalized. */
void database_close(sqlite3 **db);

/* OK for SQLITE_OK, SQLITE_ROW and SQLITE_DONE. Any other code sets an error message that says what
 * to do; `doing` completes "could not …". STOPPED: the statement or the wait for a lock was stopped
 * on request. */
status database_check(sqlite3 *db, int code, const char *doing) MUST_CHECK;

/* The text of a column; "" for NULL. Valid until the next step. */
static inline const char *database_column_text(sqlite3_stmt *s, int column)
{
    const char *text = (const char *)sqlite3_column_text(s, column);
    return text != NULL ? text : "";
}
/* The same into `out`, cut to `room` bytes. */
static inline void database_copy_text(sqlite3_stmt *s, int column, char *out, size_t room)
{
    snprintf(out, room, "%s", database_column_text(s, column));
}
status database_execute(sqlite3 *db, const char *sql, const char *doing) MUST_CHECK;
status database_prepare(sqlite3 *db, sqlite3_stmt **out, const char *sql) MUST_CHECK;
/* Whether the last error of this connection was a full disk. */
bool database_is_full(sqlite3 *db);
/* ERROR_RESULTS: the file was deleted, renamed or replaced since it was opened, so new rows would
 * be lost. */
status database_check_there(sqlite3 *db) MUST_CHECK;
/* See recorder_give_up_when(). */
void database_set_stop_check(bool (*is_requested)(void));
/* The result of the stop check; false if none is set. */
bool database_stop_requested(void);
/* From now on a request to stop also interrupts the statements of this connection (STOPPED). */
void database_stop_statements(sqlite3 *db);
/* A text file compiled into the program, such as results/store/views.sql. */
const char *database_text(const char *path);
/* Rolls back an open transaction, if there is one. */
void database_rollback(sqlite3 *db);

#endif
