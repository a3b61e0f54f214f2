/*
 * database.h — a results file as an SQLite connection. Internal to results/: sqlite3.h ends here.
 *
 * A file is ours if its application_id is DATABASE_APPLICATION_ID; user_version is the version of
 * its schema. A file of another program or of another version is refused with ERROR_RESULTS, by
 * readers and writers alike, and not one byte of it changes. Queries on a connection see the views
 * of views.sql, whatever views the file has (reader_views.h). Files are in WAL mode, so several
 * processes may write and read at once; when the last connection closes, SQLite folds the -wal file
 * in and removes it and -shm.
 *
 * All errors are ERROR_RESULTS. A connection belongs to one thread at a time and is not carried
 * across fork().
 */
#ifndef GRADLAG_RESULTS_STORE_DATABASE_H
#define GRADLAG_RESULTS_STORE_DATABASE_H

#include "base/status.h"

#include <sqlite3.h>

enum {
    DATABASE_APPLICATION_ID = 0x474c6167, /* "GLag" */
    DATABASE_VERSION = 1,
    DATABASE_BUSY_TIMEOUT_MS = 120000, /* and it says so after DATABASE_BUSY_NOTICE_MS */
    DATABASE_BUSY_NOTICE_MS = 5000,
};

/* What an error says where there is no room. */
#define DATABASE_FULL "the disk is full, or a quota or ulimit -f is reached"

/* Opens a file for writing. Creates the file if there is none, and the tables if it is empty. */
status database_open(sqlite3 **out, const char *path) MUST_CHECK;
/* Opens an existing file for reading alone: statements that write fail. The connection itself may
 * fold in a -wal file that a killed writer left behind. Works in a folder one may not write in;
 * says so where rows in a -wal file cannot be read there. A run whose process is gone shows as
 * failed (reader_views.h). */
status database_open_reader(sqlite3 **out, const char *path) MUST_CHECK;
/* The same; *out is NULL where there is no file yet, or one in which nobody has made tables yet: it
 * may just be being created. */
status database_open_reader_if_any(sqlite3 **out, const char *path) MUST_CHECK;
/* NULL-safe. All statements must have been finalized. */
void database_close(sqlite3 **db);

/* OK for SQLITE_OK, SQLITE_ROW and SQLITE_DONE; else the error, as a message that says what to do.
 * `doing` completes "could not …". */
status database_check(sqlite3 *db, int code, const char *doing) MUST_CHECK;
status database_execute(sqlite3 *db, const char *sql, const char *doing) MUST_CHECK;
status database_prepare(sqlite3 *db, sqlite3_stmt **out, const char *sql) MUST_CHECK;
/* Whether the last error of this connection was that the disk is full. */
bool database_is_full(sqlite3 *db);
/* ERROR_RESULTS: the file was deleted, renamed or replaced since it was opened, so that what is
 * written would be lost. */
status database_check_there(sqlite3 *db) MUST_CHECK;
/* See recorder_give_up_when(). */
void database_give_up_when(bool (*wanted)(void));
bool database_gives_up(void);
/* Statements of this connection, too, end when that is wanted: STOPPED. */
void database_heed_stop(sqlite3 *db);
/* A compiled-in text, such as results/store/views.sql. */
const char *database_text(const char *path);
/* Undoes an open transaction, if there is one. */
void database_rollback(sqlite3 *db);

#endif
