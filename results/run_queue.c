#include "results/run_queue.h"

#include "base/clock.h"
#include "base/memory.h"
#include "base/text.h"
#include "results/query/query_bind.h"
#include "results/store/run_row.h"
#include "results/store/run_owner.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/vfs.h>
#include <unistd.h>

struct queue {
    sqlite3 *db;
    char now[32];
};

status queue_open(queue **out, const char *path)
{
    status result = OK;
    queue *q = NULL;
    TRY(memory_new(&q, 1, sizeof *q, "the queue"));
    TRY(database_open(&q->db, path));
    TRY(run_row_end_gone(q->db));
    clock_utc(q->now);
    TRY(database_execute(q->db, "BEGIN IMMEDIATE", "read the queue"));
    *out = q;
    q = NULL;
done:
    queue_close(&q);
    return result;
}

status queue_commit(queue *q)
{
    return database_execute(q->db, "COMMIT", "add to the queue");
}

void queue_close(queue **q)
{
    if (*q != NULL) {
        if ((*q)->db != NULL)
            database_rollback((*q)->db);
        database_close(&(*q)->db);
        memory_free(*q);
        *q = NULL;
    }
}

static enum queue_state state_of(const char *name, bool has_runner)
{
    static const char *const names[] = {[QUEUE_FINISHED] = "finished",
                                        [QUEUE_DIVERGED] = "diverged",
                                        [QUEUE_FAILED] = "failed",
                                        [QUEUE_STOPPED] = "stopped"};
    for (size_t i = QUEUE_FINISHED; i < COUNT_OF(names); i++)
        if (strcmp(names[i], name) == 0)
            return (enum queue_state)i;
    /* status running without a runner: no process owns the run */
    return has_runner ? QUEUE_TAKEN : strcmp(name, "queued") == 0 ? QUEUE_WAITING : QUEUE_STOPPED;
}

static status read_entry(sqlite3 *db, int64_t id, const char *config_hash, struct queue_entry *out)
{
    static const char sql[] =
        "SELECT status, runner IS NOT NULL, coalesce(attempt, 1),"
        " runner ->> '$.host' || ', process ' || (runner ->> '$.pid'),"
        " coalesce(runner ->> '$.host' = ?2 ->> '$.host' AND runner ->> '$.boot' = ?2 ->> '$.boot'"
        "  AND runner ->> '$.namespace' = ?2 ->> '$.namespace', 0), error "
        "FROM run WHERE id = ?1 AND config_hash = ?3";
    status result = OK;
    sqlite3_stmt *s = NULL;
    struct text self = {0};
    char name[16];
    *out = (struct queue_entry){.id = id, .state = QUEUE_DROPPED};
    run_owner_describe(&self);
    TRY(database_prepare(db, &s, sql));
    sqlite3_bind_int64(s, 1, id);
    sqlite3_bind_text(s, 2, self.at, -1, SQLITE_STATIC);
    sqlite3_bind_text(s, 3, config_hash, -1, SQLITE_STATIC);
    int code = sqlite3_step(s);
    TRY(database_check(db, code, "read a run of the queue"));
    if (code != SQLITE_ROW)
        goto done;
    database_copy_text(s, 0, name, sizeof name);
    out->state = state_of(name, sqlite3_column_int(s, 1) != 0);
    out->attempt = (unsigned)sqlite3_column_int(s, 2);
    database_copy_text(s, 3, out->by, sizeof out->by);
    out->here = sqlite3_column_int(s, 4) != 0;
    database_copy_text(s, 5, out->error, sizeof out->error);
done:
    sqlite3_finalize(s);
    text_free(&self);
    return result;
}

static bool keeps_entry(const struct queue_entry *e, bool again)
{
    bool ended = e->state == QUEUE_FINISHED || e->state == QUEUE_DIVERGED;
    return e->state == QUEUE_WAITING || (!again && (ended || e->state == QUEUE_TAKEN));
}

static status mark_waiting(queue *q, int64_t id, const struct queue_request *request)
{
    static const char sql[] = "UPDATE run SET runner = NULL, progress = NULL, priority = ?2, "
                              "attempt = ?3, queued_at = ?4 "
                              "WHERE id = ?1";
    status result = OK;
    sqlite3_stmt *s = NULL;
    TRY(database_prepare(q->db, &s, sql));
    sqlite3_bind_int64(s, 1, id);
    sqlite3_bind_int64(s, 2, request->priority);
    sqlite3_bind_int64(s, 3, request->attempt);
    sqlite3_bind_text(s, 4, q->now, -1, SQLITE_STATIC);
    TRY(database_check(q->db, sqlite3_step(s), "add a run to the queue"));
done:
    sqlite3_finalize(s);
    return result;
}

/* Gives a waiting run the config, tag and priority of the last command that finds it. These do not
 * change what the run computes. A command with another experiment or arm changes nothing. */
static status update_waiting(queue *q, int64_t id, const struct queue_request *request)
{
    static const char sql[] = "UPDATE run SET config = ?2, tag = ?3, priority = ?4 "
                              "WHERE id = ?1 AND experiment IS ?5 AND arm IS ?6";
    status result = OK;
    sqlite3_stmt *s = NULL;
    TRY(database_prepare(q->db, &s, sql));
    sqlite3_bind_int64(s, 1, id);
    sqlite3_bind_text(s, 2, request->run->config, -1, SQLITE_STATIC);
    sqlite3_bind_text(s, 3, request->run->tag, -1, SQLITE_STATIC);
    sqlite3_bind_int64(s, 4, request->priority);
    sqlite3_bind_text(s, 5, request->run->experiment, -1, SQLITE_STATIC);
    sqlite3_bind_text(s, 6, request->run->arm, -1, SQLITE_STATIC);
    TRY(database_check(q->db, sqlite3_step(s), "update a run in the queue"));
done:
    sqlite3_finalize(s);
    return result;
}

status queue_add(queue *q, const struct queue_request *request, struct queue_entry *out)
{
    status result = OK;
    struct found_run found;
    struct run_description run = *request->run;
    bool is_there = false;
    int64_t id;
    TRY(query_bind_find_run(q->db, &request->key, &found, &is_there));
    if (is_there) {
        TRY(read_entry(q->db, found.id, request->key.config_hash, out));
        if (out->state == QUEUE_WAITING)
            TRY(update_waiting(q, found.id, request));
        if (keeps_entry(out, request->again))
            goto done;
    }
    run.host = NULL;
    TRY(run_row_insert(q->db, &run, "queued", &id));
    TRY(mark_waiting(q, id, request));
    *out = (struct queue_entry){.id = id, .state = QUEUE_WAITING, .attempt = request->attempt};
done:
    return result;
}

status queue_take(const char *path, int64_t id, const char *host, bool *taken)
{
    static const char sql[] =
        "UPDATE run SET runner = ?2, host = ?3, progress = json_object('at', ?4) "
        "WHERE id = ?1 AND status = 'queued' AND runner IS NULL";
    status result = OK;
    sqlite3 *db = NULL;
    sqlite3_stmt *s = NULL;
    struct text self = {0};
    char now[32];
    *taken = false;
    run_owner_describe(&self);
    clock_utc(now);
    TRY(database_open(&db, path));
    TRY(database_prepare(db, &s, sql));
    sqlite3_bind_int64(s, 1, id);
    sqlite3_bind_text(s, 2, self.at, -1, SQLITE_STATIC);
    sqlite3_bind_text(s, 3, host, -1, SQLITE_STATIC);
    sqlite3_bind_text(s, 4, now, -1, SQLITE_STATIC);
    TRY(database_check(db, sqlite3_step(s), "take a run from the queue"));
    *taken = sqlite3_changes(db) == 1;
done:
    sqlite3_finalize(s);
    database_close(&db);
    text_free(&self);
    return result;
}

status queue_look(const char *path, int64_t id, const char *config_hash, struct queue_entry *out)
{
    status result = OK;
    sqlite3 *db = NULL;
    if (access(path, F_OK) != 0) {
        FAIL(ERROR_RESULTS,
             "%s: the results file no longer exists: %s; check whether it was deleted or moved",
             path, strerror(errno));
    }
    TRY(database_open(&db, path));
    TRY(run_row_end_gone(db));
    TRY(read_entry(db, id, config_hash, out));
done:
    database_close(&db);
    return result;
}

status queue_config(const char *path, int64_t id, char **config, char hash[65])
{
    status result = OK;
    sqlite3 *db = NULL;
    sqlite3_stmt *s = NULL;
    *config = NULL;
    TRY(database_open_reader(&db, path));
    TRY(database_prepare(db, &s, "SELECT config, config_hash FROM run WHERE id = ?1"));
    sqlite3_bind_int64(s, 1, id);
    int code = sqlite3_step(s);
    TRY(database_check(db, code, "read a run's configuration"));
    if (code != SQLITE_ROW || sqlite3_column_type(s, 0) != SQLITE_TEXT) {
        FAIL(ERROR_USAGE,
             "%s: there is no run %lld with a configuration; `gradlag sweep --status` lists the "
             "queued runs",
             path, (long long)id);
    }
    *config = text_copy((const char *)sqlite3_column_text(s, 0));
    database_copy_text(s, 1, hash, 65);
done:
    sqlite3_finalize(s);
    database_close(&db);
    return result;
}

status queue_waiting(const char *path, int64_t **ids, size_t *count)
{
    status result = OK;
    sqlite3 *db = NULL;
    sqlite3_stmt *s = NULL;
    int code;
    *ids = NULL;
    *count = 0;
    TRY(database_open_reader(&db, path));
    TRY(database_prepare(db, &s,
                         "SELECT id, count(*) OVER () FROM run "
                         "WHERE status = 'queued' AND runner IS NULL "
                         "ORDER BY priority DESC, id"));
    while ((code = sqlite3_step(s)) == SQLITE_ROW) {
        if (*ids == NULL)
            TRY(memory_new(ids, (size_t)sqlite3_column_int64(s, 1), sizeof **ids, "the queue"));
        (*ids)[(*count)++] = sqlite3_column_int64(s, 0);
    }
    TRY(database_check(db, code, "read the queue"));
done:
    sqlite3_finalize(s);
    database_close(&db);
    return result;
}

status queue_drop(const char *path, size_t *count)
{
    status result = OK;
    sqlite3 *db = NULL;
    *count = 0;
    TRY(database_open_reader(&db, path)); /* a missing file is an error, and is not created */
    database_close(&db);
    TRY(database_open(&db, path));
    TRY(database_execute(db, "DELETE FROM run WHERE status = 'queued' AND runner IS NULL",
                         "empty the queue"));
    *count = (size_t)sqlite3_changes(db);
done:
    database_close(&db);
    return result;
}

const char *queue_network(const char *path)
{
    static const struct {
        unsigned long type;
        const char *name;
    } known[] = {{0x6969, "nfs"},        {0xff534d42, "cifs"}, {0xfe534d42, "smb"},
                 {0x517b, "smb"},        {0x65735546, "FUSE"}, {0x01021997, "9p"},
                 {0x0bd00bd0, "lustre"}, {0x47504653, "gpfs"}, {0x00c36400, "ceph"},
                 {0x19830326, "beegfs"}, {0x5346414f, "afs"},  {0x01161970, "gfs2"},
                 {0x7461636f, "ocfs2"},  {0xaad7aaea, "panfs"}};
    struct statfs about;
    struct text folder = {0};
    const char *slash = strrchr(path, '/'), *name = NULL;
    text_add(&folder, "%.*s", slash != NULL ? (int)(slash + 1 - path) : 1,
             slash != NULL ? path : ".");
    bool found = statfs(path, &about) == 0 || statfs(folder.at, &about) == 0;
    for (size_t i = 0; found && i < COUNT_OF(known); i++)
        name = known[i].type == (unsigned long)about.f_type ? known[i].name : name;
    text_free(&folder);
    return name;
}
