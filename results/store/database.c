#include "results/store/database.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/text.h"
#include "results/store/database_path.h"
#include "results/store/kept_connections.h"
#include "results/store/reader_views.h"
#include "base/embedded.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char *path_of(sqlite3 *db)
{
    const char *path = sqlite3_db_filename(db, "main");
    return path == NULL || path[0] == '\0' ? "results file" : path;
}

/* SQLite has a code for ENOSPC only. For a quota or ulimit -f it returns an I/O error, and does not
 * always keep the system's error number. */
static bool is_full(sqlite3 *db, int code)
{
    int system_error = sqlite3_system_errno(db);
    return (code & 0xff) == SQLITE_FULL || (code == SQLITE_IOERR_WRITE && system_error == 0) ||
           ((code & 0xff) == SQLITE_IOERR &&
            (system_error == ENOSPC || system_error == EDQUOT || system_error == EFBIG));
}

bool database_is_full(sqlite3 *db)
{
    return is_full(db, sqlite3_extended_errcode(db));
}

status database_check_there(sqlite3 *db)
{
    status result = OK;
    int moved = 0;
    int code = sqlite3_file_control(db, "main", SQLITE_FCNTL_HAS_MOVED, &moved);
    if (code == SQLITE_OK && moved != 0) {
        FAIL(
            ERROR_RESULTS,
            "%s: the results file was deleted, renamed or replaced while a run wrote to it; do not "
            "move a results file before its runs have ended",
            path_of(db));
    }
done:
    return result;
}

static bool (*stop_check)(void); /* NULL: never */

void database_set_stop_check(bool (*is_requested)(void))
{
    stop_check = is_requested;
}

bool database_stop_requested(void)
{
    return stop_check != NULL && stop_check();
}

static int on_progress(void *context)
{
    (void)context;
    return database_stop_requested();
}

void database_stop_statements(sqlite3 *db)
{
    enum { INSTRUCTIONS = 10000 }; /* about a millisecond */
    sqlite3_progress_handler(db, INSTRUCTIONS, on_progress, NULL);
}

/* Waits like sqlite3_busy_timeout(). Logs a warning after DATABASE_BUSY_NOTICE_MS, so that users
 * know why gradlag waits. */
static int wait_for_lock(void *context, int times)
{
    enum { SHORT_MS = 5, LONG_MS = 50, SHORT_ONES = 20 };
    sqlite3 *db = context;
    int waited_ms = times <= SHORT_ONES ? times * SHORT_MS
                                        : SHORT_ONES * SHORT_MS + (times - SHORT_ONES) * LONG_MS;
    int now_ms = times < SHORT_ONES ? SHORT_MS : LONG_MS;
    if (waited_ms >= DATABASE_BUSY_TIMEOUT_MS || database_stop_requested())
        return 0;
    if (waited_ms < DATABASE_BUSY_NOTICE_MS && waited_ms + now_ms >= DATABASE_BUSY_NOTICE_MS) {
        log_warning("%s: another process keeps the file locked; waiting for up to %d s; 'fuser %s' "
                    "shows the "
                    "process",
                    path_of(db), DATABASE_BUSY_TIMEOUT_MS / 1000, path_of(db));
    }
    clock_sleep_until_ns(clock_ns() + (uint64_t)now_ms * 1000000);
    return 1;
}

status database_check(sqlite3 *db, int code, const char *doing)
{
    status result = OK;
    const char *path = path_of(db);
    if (code == SQLITE_OK || code == SQLITE_ROW || code == SQLITE_DONE)
        return OK;
    int system_error = sqlite3_system_errno(db);
    if (is_full(db, code)) {
        FAIL(ERROR_RESULTS,
             "%s: could not %s: " DATABASE_FULL "; free some space, or name a file on another disk "
             "with results=PATH. Committed rows are kept",
             path, doing);
    }
    switch (code & 0xff) {
    case SQLITE_INTERRUPT:
        FAIL(STOPPED, "stopped on request");
    case SQLITE_BUSY:
    case SQLITE_LOCKED:
        if (database_stop_requested()) {
            FAIL(STOPPED,
                 "%s: stopped while another process kept the file locked; 'fuser %s' shows the "
                 "process",
                 path, path);
        }
        FAIL(
            ERROR_RESULTS,
            "%s: could not %s: another process has kept the file locked for %d s; 'fuser %s' shows "
            "the process; wait for it, or name another file with results=PATH",
            path, doing, DATABASE_BUSY_TIMEOUT_MS / 1000, path);
    case SQLITE_NOTADB:
        FAIL(ERROR_RESULTS,
             "%s: not a results file: it is not an SQLite database; it was not changed. Name "
             "another file with results=PATH",
             path);
    case SQLITE_CORRUPT:
        FAIL(ERROR_RESULTS,
             "%s: could not %s: the file is damaged (%s); recover its rows with 'sqlite3 %s "
             ".recover', and name another file with results=PATH",
             path, doing, sqlite3_errmsg(db), path);
    case SQLITE_READONLY:
    case SQLITE_PERM:
        FAIL(ERROR_RESULTS,
             "%s: could not %s: the file or its folder is not writable for this user; change its "
             "permissions or name another file with results=PATH",
             path, doing);
    case SQLITE_IOERR:
        FAIL(ERROR_RESULTS, "%s: could not %s: %s (%s); check that the disk works and is mounted",
             path, doing, sqlite3_errmsg(db),
             system_error == 0 ? "no system error" : strerror(system_error));
    default:
        FAIL(ERROR_RESULTS, "%s: could not %s: %s", path, doing, sqlite3_errmsg(db));
    }
done:
    return result;
}

status database_execute(sqlite3 *db, const char *sql, const char *doing)
{
    return database_check(db, sqlite3_exec(db, sql, NULL, NULL, NULL), doing);
}

status database_prepare(sqlite3 *db, sqlite3_stmt **out, const char *sql)
{
    return database_check(db, sqlite3_prepare_v2(db, sql, -1, out, NULL), "prepare a statement");
}

void database_rollback(sqlite3 *db)
{
    if (!sqlite3_get_autocommit(db))
        (void)sqlite3_exec(db, "ROLLBACK", NULL, NULL, NULL);
}

/* Reads the single integer that `sql` returns. */
static status read_integer(sqlite3 *db, const char *sql, int64_t *out)
{
    status result = OK;
    sqlite3_stmt *statement = NULL;
    TRY(database_check(db, sqlite3_prepare_v2(db, sql, -1, &statement, NULL), "read the file"));
    TRY(database_check(db, sqlite3_step(statement), "read the file"));
    *out = sqlite3_column_int64(statement, 0);
done:
    sqlite3_finalize(statement);
    return result;
}

enum owner { OWNER_NONE /* the database is empty */, OWNER_GRADLAG };

/* When the last connection of a file closes, SQLite moves the rows of the -wal file into it. A
 * refused file must not change, so this connection does not do that. */
static void keep_wal(sqlite3 *db)
{
    const char *path = sqlite3_db_filename(db, "main");
    struct stat about;
    if (path != NULL && path[0] != '\0' && stat(sqlite3_filename_wal(path), &about) == 0 &&
        about.st_size > 0)
        (void)sqlite3_db_config(db, SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1, NULL);
}

/* Finds which program wrote the file. ERROR_RESULTS: another program, or another version. */
static status identify(sqlite3 *db, enum owner *owner)
{
    status result = OK;
    int64_t application = 0, version = 0, objects = 0;
    /* One transaction, because another process may create the tables between two reads. */
    bool alone = sqlite3_get_autocommit(db);
    if (alone)
        TRY(database_execute(db, "BEGIN", "read the file"));
    TRY(read_integer(db, "PRAGMA application_id", &application));
    TRY(read_integer(db, "PRAGMA user_version", &version));
    TRY(read_integer(db, "SELECT count(*) FROM sqlite_master", &objects));
    *owner = OWNER_NONE;
    if (application == 0 && version == 0 && objects == 0)
        goto done;
    if (application != DATABASE_APPLICATION_ID) {
        keep_wal(db);
        FAIL(ERROR_RESULTS,
             "%s: not a results file: an SQLite database of another program (application_id "
             "0x%08x, ours is 0x%08x); it was not changed. Name another file with results=PATH",
             path_of(db), (unsigned)application, (unsigned)DATABASE_APPLICATION_ID);
    }
    if (version != DATABASE_VERSION) {
        keep_wal(db);
        FAIL(
            ERROR_RESULTS,
            "%s: a results file of version %lld, but this gradlag supports only version %d; it was "
            "not changed. Use the gradlag that wrote it, or name a new file with results=PATH",
            path_of(db), (long long)version, DATABASE_VERSION);
    }
    *owner = OWNER_GRADLAG;
done:
    if (alone)
        database_rollback(db);
    return result;
}

const char *database_text(const char *path)
{
    for (const struct embedded_file *f = embedded_files; f->path != NULL; f++)
        if (strcmp(f->path, path) == 0)
            return f->text;
    contract_broken("the text is compiled into the program", __FILE__, __LINE__, __func__);
}

/* Changing the journal mode needs a lock for which SQLite does not always call the busy handler. If
 * several processes create one file at the same time, this function retries. */
static status enter_wal_mode(sqlite3 *db)
{
    status result = OK;
    uint64_t deadline = clock_ns() + DATABASE_BUSY_TIMEOUT_MS * UINT64_C(1000000);
    int code;
    do {
        code = sqlite3_exec(db, "PRAGMA journal_mode = WAL", NULL, NULL, NULL);
        if ((code & 0xff) == SQLITE_BUSY)
            clock_sleep_until_ns(clock_ns() + 5000000);
    } while ((code & 0xff) == SQLITE_BUSY && clock_ns() < deadline && !database_stop_requested());
    TRY(database_check(db, code, "switch the file to write-ahead logging"));
done:
    return result;
}

static status create_tables(sqlite3 *db)
{
    status result = OK;
    enum owner owner;
    char identity[96];
    static const char doing[] = "create the tables";
    TRY(enter_wal_mode(db));
    TRY(database_execute(db, "BEGIN IMMEDIATE", doing));
    TRY(identify(db, &owner)); /* another process may have created the tables since */
    if (owner == OWNER_NONE) {
        TRY(database_execute(db, database_text("results/store/schema.sql"), doing));
        TRY(database_execute(db, database_text("results/store/run_summaries.sql"), doing));
        TRY(database_execute(db, database_text("results/store/views.sql"), doing));
        snprintf(identity, sizeof identity, "PRAGMA application_id = %d; PRAGMA user_version = %d",
                 DATABASE_APPLICATION_ID, DATABASE_VERSION);
        TRY(database_execute(db, identity, doing));
    }
    TRY(database_execute(db, "COMMIT", doing));
done:
    database_rollback(db);
    return result;
}

/* A file may come from an untrusted source, so SQLite must refuse direct writes to its schema.
 * (SQLite loads no extensions by default. TRUSTED_SCHEMA = 0 is not possible: before 3.41 it
 * forbids json_valid() in the CHECKs of tables.) */
static status set_up(sqlite3 *db)
{
    status result = OK;
    static const char doing[] = "set up the connection";
    TRY(database_check(db, sqlite3_db_config(db, SQLITE_DBCONFIG_DEFENSIVE, 1, NULL), doing));
    /* Temporary views must work in a folder without write permission. */
    TRY(database_execute(db, "PRAGMA temp_store = MEMORY", doing));
done:
    return result;
}

/* Closes the connection instead of keeping it (kept_connections.h). The connection may be set up
 * only in part. */
static void close_now(sqlite3 *db)
{
    int code = sqlite3_close(db); /* NULL: no effect */
    REQUIRE(code == SQLITE_OK);   /* SQLITE_BUSY: a statement was not finalized */
}

status database_open(sqlite3 **out, const char *path)
{
    status result = OK;
    sqlite3 *db = NULL;
    enum owner owner;
    if (kept_take(KEPT_WRITER, path, out))
        return OK;
    TRY(database_path_writable(path));
    int code = sqlite3_open_v2(path, &db, SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE, NULL);
    if (code != SQLITE_OK) {
        int system_error = db == NULL ? ENOMEM : sqlite3_system_errno(db);
        FAIL(ERROR_RESULTS,
             "%s: the results file can be neither opened nor created: %s; check that its folder "
             "exists and is writable, or name another file with results=PATH",
             path, system_error == 0 ? sqlite3_errstr(code) : strerror(system_error));
    }
    sqlite3_extended_result_codes(db, 1);
    sqlite3_busy_handler(db, wait_for_lock, db);
    TRY(set_up(db));
    TRY(identify(db, &owner));
    if (sqlite3_db_readonly(db, "main") == 1)
        TRY(database_check(db, SQLITE_READONLY, "open the file for writing"));
    if (owner == OWNER_NONE)
        TRY(create_tables(db));
    TRY(reader_views_add(db));
    /* NORMAL: a killed process loses no commit; a power failure loses the last second at most. */
    TRY(database_execute(db, "PRAGMA synchronous = NORMAL; PRAGMA foreign_keys = ON", "set up"));
    *out = db;
    db = NULL;
done:
    close_now(db);
    return result;
}

status database_open_empty(sqlite3 **out)
{
    status result = OK;
    sqlite3 *db = NULL;
    TRY(database_check(db, sqlite3_open(":memory:", &db), "open an empty file in memory"));
    TRY(create_tables(db));
    *out = db;
    db = NULL;
done:
    close_now(db);
    return result;
}

/* A connection opened by open_unchanging() does not see the rows in a -wal file. */
static void warn_of_unread_rows(const char *path)
{
    struct text wal = {0};
    struct stat about;
    text_add(&wal, "%s-wal", path);
    if (stat(wal.at, &about) == 0 && about.st_size > 0) {
        log_warning("%s: the last rows are in %s, which cannot be read in a folder without write "
                    "permission; copy both files into a writable folder to read these rows",
                    path, wal.at);
    }
    text_free(&wal);
}

/* Opens the file as immutable, so SQLite creates no files beside it. The path becomes part of a
 * URI; special characters are written as %XX. */
static int open_unchanging(sqlite3 **db, const char *path)
{
    struct text uri = {0};
    text_add(&uri, path[0] == '/' ? "file://" : "file:");
    for (const char *c = path; *c != '\0'; c++)
        text_add(&uri, strchr("?#%", *c) != NULL ? "%%%02X" : "%c", (unsigned char)*c);
    text_add(&uri, "?immutable=1");
    int code = sqlite3_open_v2(uri.at, db, SQLITE_OPEN_READONLY | SQLITE_OPEN_URI, NULL);
    text_free(&uri);
    if (code == SQLITE_OK)
        sqlite3_extended_result_codes(*db, 1);
    return code;
}

static bool is_there_with(const char *path, const char *suffix)
{
    struct text other = {0};
    text_add(&other, "%s%s", path, suffix);
    bool there = access(other.at, F_OK) == 0;
    text_free(&other);
    return there;
}

/* Whether -shm could not be made: without permission, or on a full disk. */
static bool lacks_shared_memory(int code, const char *path)
{
    const int kind = code & 0xff;
    struct stat wal;
    struct text name = {0};
    text_add(&name, "%s-wal", path);
    const bool unread = stat(name.at, &wal) == 0 && wal.st_size > 0;
    text_free(&name);
    return kind == SQLITE_CANTOPEN || kind == SQLITE_READONLY ||
           ((kind == SQLITE_FULL || kind == SQLITE_IOERR) && !unread);
}

/* Opens read-write if permitted, because only such a connection can remove a -wal file; query_only
 * prevents other writes. Without write permission but with a -wal file, another process may be
 * writing, so SQLite opens the file read-only. Without a -wal file, or if -shm cannot be created,
 * the file is opened as immutable. */
static int open_for_reading(sqlite3 **db, const char *path)
{
    if (access(path, W_OK) != 0 && !is_there_with(path, "-wal"))
        return open_unchanging(db, path);
    int code = sqlite3_open_v2(path, db, SQLITE_OPEN_READWRITE, NULL);
    if (code != SQLITE_OK)
        return code;
    sqlite3_extended_result_codes(*db, 1);
    sqlite3_busy_handler(*db, wait_for_lock, *db);
    code = sqlite3_exec(*db, "SELECT count(*) FROM sqlite_master", NULL, NULL, NULL);
    if (!lacks_shared_memory(code, path))
        return SQLITE_OK;
    sqlite3_close(*db);
    code = open_unchanging(db, path);
    warn_of_unread_rows(path);
    return code;
}

/* `maybe`: a file that does not exist or is empty is no error; then *out is NULL. */
static status open_reader(sqlite3 **out, const char *path, bool maybe)
{
    status result = OK;
    sqlite3 *db = NULL;
    enum owner owner;
    *out = NULL;
    if (kept_take(KEPT_READER, path, out))
        return OK;
    if (maybe && access(path, F_OK) != 0)
        return OK;
    if (access(path, R_OK) != 0) {
        FAIL(ERROR_RESULTS,
             "%s: the results file cannot be read: %s; name the file with results=PATH, or create "
             "one "
             "with 'gradlag run'",
             path, strerror(errno));
    }
    TRY(database_path_regular(path));
    int code = open_for_reading(&db, path);
    if (code != SQLITE_OK)
        TRY(database_check(db, code, "open the file"));
    TRY(set_up(db));
    TRY(identify(db, &owner));
    if (owner == OWNER_NONE && maybe)
        goto done;
    if (owner == OWNER_NONE) {
        FAIL(ERROR_RESULTS,
             "%s: the results file is empty; name another file with results=PATH, or create one "
             "with "
             "'gradlag run'",
             path);
    }
    TRY(reader_views_add_gone_runs(db));
    TRY(reader_views_add(db));
    TRY(database_execute(db, "PRAGMA query_only = ON", "set up"));
    *out = db;
    db = NULL;
done:
    close_now(db);
    return result;
}

status database_open_reader(sqlite3 **out, const char *path)
{
    return open_reader(out, path, false);
}

status database_open_reader_if_any(sqlite3 **out, const char *path)
{
    return open_reader(out, path, true);
}

void database_close(sqlite3 **db)
{
    if (*db != NULL && !kept_put(*db))
        close_now(*db);
    *db = NULL;
}
