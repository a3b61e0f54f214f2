#include "results/store/kept_connections.h"

#include "base/clock.h"
#include "base/log.h"
#include "results/store/recorder.h"
#include "results/store/run_owner.h"

#include <pthread.h>
#include <stdlib.h>
#include <sys/stat.h>

struct kept {
    sqlite3 *db; /* NULL: none */
    dev_t device;
    ino_t file;
};

static struct {
    pthread_mutex_t lock;
    bool enabled;
    struct kept at[KEPT_KINDS];
    uint64_t synced_ns;
} all = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* The file still has the name under which it was opened. */
static bool is_there(sqlite3 *db)
{
    int moved = 0;
    return sqlite3_file_control(db, "main", SQLITE_FCNTL_HAS_MOVED, &moved) == SQLITE_OK && !moved;
}

/* True: a process was killed after this reader was opened. The reader's view, which shows the runs
 * of killed processes as failed, is then out of date. */
static bool has_gone_runs(sqlite3 *db)
{
    struct gone_runs gone = {0};
    const bool any = run_owner_find_gone(db, &gone) != OK || gone.count > 0;
    run_owner_free_gone(&gone);
    return any;
}

/* Closes kept connections whose file has moved. Closing also removes the -wal file, which SQLite
 * would otherwise take for that of a new file of the same name. */
static void close_moved(void)
{
    for (int i = 0; i < KEPT_KINDS; i++) {
        if (all.at[i].db != NULL && !is_there(all.at[i].db)) {
            sqlite3_close(all.at[i].db);
            all.at[i].db = NULL;
        }
    }
}

bool kept_take(enum kept_kind kind, const char *path, sqlite3 **out)
{
    struct stat about;
    sqlite3 *db = NULL;
    struct kept *k = &all.at[kind];
    pthread_mutex_lock(&all.lock);
    close_moved();
    if (k->db != NULL && stat(path, &about) == 0 && about.st_ino == k->file &&
        about.st_dev == k->device) {
        db = k->db;
        k->db = NULL;
    }
    pthread_mutex_unlock(&all.lock);
    if (db == NULL)
        return false;
    if (kind == KEPT_READER && has_gone_runs(db)) {
        sqlite3_close(db);
        return false;
    }
    *out = db;
    return true;
}

static enum kept_kind kind_of(sqlite3 *db)
{
    sqlite3_stmt *s = NULL;
    const bool reader = sqlite3_prepare_v2(db, "PRAGMA query_only", -1, &s, NULL) == SQLITE_OK &&
                        sqlite3_step(s) == SQLITE_ROW && sqlite3_column_int(s, 0) != 0;
    sqlite3_finalize(s);
    return reader ? KEPT_READER : KEPT_WRITER;
}

/* An error is no harm: the last connection of the file does the same when it closes. */
static void sync_once_a_second(sqlite3 *db)
{
    const uint64_t now_ns = clock_ns();
    if (now_ns - all.synced_ns < UINT64_C(1000000000))
        return;
    all.synced_ns = now_ns;
    (void)sqlite3_exec(db, "PRAGMA wal_checkpoint(PASSIVE)", NULL, NULL, NULL);
}

bool kept_put(sqlite3 *db)
{
    struct stat about;
    const char *path = sqlite3_db_filename(db, "main");
    bool put = false;
    pthread_mutex_lock(&all.lock);
    /* An immutable reader (database.c) would not see later rows. */
    if (all.enabled && path != NULL && stat(path, &about) == 0 &&
        sqlite3_db_readonly(db, "main") == 0) {
        const enum kept_kind kind = kind_of(db);
        database_rollback(db);
        sqlite3_progress_handler(db, 0, NULL, NULL);
        if (kind == KEPT_WRITER)
            sync_once_a_second(db);
        put = all.at[kind].db == NULL;
        if (put)
            all.at[kind] = (struct kept){.db = db, .device = about.st_dev, .file = about.st_ino};
    }
    pthread_mutex_unlock(&all.lock);
    return put;
}

/* On a full disk the rows stay in the -wal file, and closing reports no error. */
static void move_rows(sqlite3 *db)
{
    const int code = sqlite3_wal_checkpoint_v2(db, NULL, SQLITE_CHECKPOINT_PASSIVE, NULL, NULL);
    const char *path = sqlite3_db_filename(db, "main");
    if ((code & 0xff) == SQLITE_FULL || (code & 0xff) == SQLITE_IOERR) {
        log_warning(
            "%s: %s; the last rows are in %s-wal, which belongs to the file: free space "
            "and run `gradlag query runs` on the file, which moves them, or copy both files",
            path, sqlite3_errstr(code), path);
    }
}

static void close_all(void)
{
    pthread_mutex_lock(&all.lock);
    if (all.at[KEPT_WRITER].db != NULL)
        move_rows(all.at[KEPT_WRITER].db);
    for (int i = 0; i < KEPT_KINDS; i++) {
        sqlite3_close(all.at[i].db); /* NULL-safe */
        all.at[i].db = NULL;
    }
    pthread_mutex_unlock(&all.lock);
}

void recorder_keep_open(bool keep)
{
    static bool registered;
    if (keep && !registered)
        registered = atexit(close_all) == 0;
    pthread_mutex_lock(&all.lock);
    if (!all.enabled)
        all.synced_ns = clock_ns();
    all.enabled = keep && registered;
    pthread_mutex_unlock(&all.lock);
    if (!keep)
        close_all();
}
