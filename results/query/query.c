#include "results/query/query.h"

#include "base/text.h"
#include "base/memory.h"
#include "base/suggestion.h"
#include "results/query/query_output.h"
#include "results/query/query_bind.h"

#include "base/embedded.h"

#include <math.h>
#include <string.h>

static const char query_folder[] = "results/query/queries/";
static const char query_suffix[] = ".sql";

/* Copies the name of a query's file to `name`; false for other files. */
static bool name_of(const struct embedded_file *f, char name[64])
{
    size_t folder = sizeof query_folder - 1, suffix = sizeof query_suffix - 1;
    size_t length = strlen(f->path);
    if (strncmp(f->path, query_folder, folder) != 0 || length <= folder + suffix ||
        length - folder - suffix >= 64 || strcmp(f->path + length - suffix, query_suffix) != 0)
        return false;
    snprintf(name, 64, "%.*s", (int)(length - folder - suffix), f->path + folder);
    return true;
}

/* Names and first lines, read once. */
enum { QUERIES_AT_MOST = 64 };
static struct {
    char name[64], description[160];
} queries[QUERIES_AT_MOST];
static size_t query_count;

static void read_queries(void)
{
    if (query_count > 0)
        return;
    for (const struct embedded_file *f = embedded_files; f->path != NULL; f++) {
        char name[64];
        if (name_of(f, name)) {
            REQUIRE(query_count < QUERIES_AT_MOST);
            const char *line = f->text + strspn(f->text, "- ");
            snprintf(queries[query_count].name, sizeof queries[0].name, "%s", name);
            snprintf(queries[query_count].description, sizeof queries[0].description, "%.*s",
                     (int)strcspn(line, "\n"), line);
            query_count++;
        }
    }
}

bool query_at(size_t index, struct query_description *out)
{
    read_queries();
    if (index >= query_count)
        return false;
    *out = (struct query_description){queries[index].name, queries[index].description};
    return true;
}

const char *query_text(const char *name)
{
    char each[64];
    for (const struct embedded_file *f = embedded_files; f->path != NULL; f++)
        if (name_of(f, each) && strcmp(each, name) == 0)
            return f->text;
    return NULL;
}

status query_find(const char *name, const char **text)
{
    struct suggestion known = {.wanted = name};
    struct query_description each;
    *text = query_text(name);
    if (*text != NULL)
        return OK;
    for (size_t i = 0; query_at(i, &each); i++)
        suggestion_add(&known, each.name);
    return suggestion_fail(&known, NULL, "query: there is no named query");
}

/* ---- a shared connection -----------------------------------------------------------------------
 */

static _Thread_local struct {
    sqlite3 *db;
    char *path;
} shared;

status query_begin(const char *path)
{
    REQUIRE(shared.db == NULL);
    status result = database_open_reader_if_any(&shared.db, path);
    if (shared.db != NULL)
        shared.path = text_copy(path);
    return result;
}

void query_end(void)
{
    database_close(&shared.db);
    memory_free(shared.path);
    shared.path = NULL;
}

static bool is_shared(const char *path)
{
    return shared.db != NULL && strcmp(shared.path, path) == 0;
}

static status get_connection(const char *path, sqlite3 **db)
{
    if (is_shared(path)) {
        *db = shared.db;
        return OK;
    }
    return database_open_reader(db, path);
}

static void release_connection(sqlite3 **db)
{
    if (*db != shared.db)
        database_close(db);
}

/* ---- one query ---------------------------------------------------------------------------------
 */

/* *sql ← the text of a named query, or the question; `what` names it in errors. */
static status find_text(const char *question, const char **sql, char what[80])
{
    status result = OK;
    *sql = question;
    snprintf(what, 80, "SQL");
    if (query_is_name(question)) {
        TRY(query_find(question, sql));
        snprintf(what, 80, "query %.64s", question);
    }
done:
    return result;
}

/* Opens the file and prepares a query with its parameters. */
static status prepare(const char *path, const char *question, const char *const *settings,
                      size_t setting_count, sqlite3 **db, sqlite3_stmt **s)
{
    status result = OK;
    const char *sql;
    char what[80];
    TRY(find_text(question, &sql, what));
    TRY(get_connection(path, db));
    TRY(query_prepare(*db, s, sql, what));
    TRY(query_bind(*db, *s, sql, what, settings, setting_count));
done:
    return result;
}

status query_check(const char *question)
{
    status result = OK;
    sqlite3 *db = NULL;
    sqlite3_stmt *s = NULL;
    const char *sql;
    char what[80];
    TRY(find_text(question, &sql, what));
    TRY(database_open_empty(&db));
    TRY(query_prepare(db, &s, sql, what));
    TRY(query_bind(db, s, sql, what, NULL, 0));
done:
    sqlite3_finalize(s);
    database_close(&db);
    return result;
}

const char *query_no_rows_reason(const char *name, char out[256])
{
    static const char mark[] = "\n-- No rows: ";
    const char *text = query_is_name(name) ? query_text(name) : NULL;
    const char *why = text != NULL ? strstr(text, mark) : NULL;
    if (why == NULL)
        return NULL;
    why += sizeof mark - 1;
    snprintf(out, 256, "%.*s", (int)strcspn(why, "\n"), why);
    return out;
}

status query_run(const struct query_request *request, FILE *out, size_t *rows)
{
    status result = OK;
    char complete[128];
    sqlite3 *db = NULL;
    sqlite3_stmt *s = NULL;
    TRY(prepare(request->path, request->question, request->settings, request->setting_count, &db,
                &s));
    snprintf(complete, sizeof complete, "gradlag query %.64s -v (or --csv)",
             query_is_name(request->question) ? request->question : "SELECT…");
    struct query_style style = {request->format, request->width, complete};
    TRY(query_output_write(db, s, &style, out, rows));
done:
    sqlite3_finalize(s);
    release_connection(&db);
    return result;
}

/* ERROR_USAGE: the result, whose first row was read, has more than one value. */
static status check_single(sqlite3 *db, sqlite3_stmt *s, const char *sql)
{
    status result = OK;
    const int code = sqlite3_step(s);
    TRY(database_check(db, code, "read a number"));
    if (sqlite3_column_count(s) > 1 || code == SQLITE_ROW) {
        FAIL(ERROR_USAGE,
             "SQL: the query must return one number, but it returned several %s; select one value, "
             "for example with max() or LIMIT 1: %.200s",
             code == SQLITE_ROW ? "rows" : "columns", sql);
    }
done:
    return result;
}

static status read_number(const char *path, const char *sql, const char *const *settings,
                          size_t setting_count, bool single, double *value, bool *known)
{
    status result = OK;
    sqlite3 *db = NULL;
    sqlite3_stmt *s = NULL;
    *value = NAN;
    *known = false;
    TRY(prepare(path, sql, settings, setting_count, &db, &s));
    int code = sqlite3_step(s);
    TRY(database_check(db, code, "read a number"));
    if (code == SQLITE_ROW && sqlite3_column_type(s, 0) != SQLITE_NULL) {
        if (sqlite3_column_type(s, 0) == SQLITE_TEXT || sqlite3_column_type(s, 0) == SQLITE_BLOB) {
            FAIL(ERROR_USAGE,
                 "SQL: the query must return a number, but it returned the text '%.60s': %.200s",
                 (const char *)sqlite3_column_text(s, 0), sql);
        }
        *value = sqlite3_column_double(s, 0);
        *known = true;
    }
    if (code == SQLITE_ROW && single)
        TRY(check_single(db, s, sql));
done:
    sqlite3_finalize(s);
    release_connection(&db);
    return result;
}

status query_number(const char *path, const char *sql, const char *const *settings,
                    size_t setting_count, double *value, bool *known)
{
    return read_number(path, sql, settings, setting_count, false, value, known);
}

status query_single_number(const char *path, const char *sql, double *value, bool *known)
{
    return read_number(path, sql, NULL, 0, true, value, known);
}

status query_numbers(const char *path, const char *sql, double *values, size_t count)
{
    status result = OK;
    sqlite3 *db = NULL;
    sqlite3_stmt *s = NULL;
    TRY(prepare(path, sql, NULL, 0, &db, &s));
    int code = sqlite3_step(s);
    TRY(database_check(db, code, "read numbers"));
    REQUIRE((int)count <= sqlite3_column_count(s));
    for (int i = 0; i < (int)count; i++) {
        bool known = code == SQLITE_ROW && sqlite3_column_type(s, i) != SQLITE_NULL;
        values[i] = known ? sqlite3_column_double(s, i) : NAN;
    }
done:
    sqlite3_finalize(s);
    release_connection(&db);
    return result;
}

status query_value(const char *path, const char *sql, const char *const *settings,
                   size_t setting_count, char **value)
{
    status result = OK;
    sqlite3 *db = NULL;
    sqlite3_stmt *s = NULL;
    *value = NULL;
    TRY(prepare(path, sql, settings, setting_count, &db, &s));
    int code = sqlite3_step(s);
    TRY(database_check(db, code, "read a value"));
    if (code == SQLITE_ROW && sqlite3_column_type(s, 0) != SQLITE_NULL)
        *value = text_copy((const char *)sqlite3_column_text(s, 0));
done:
    sqlite3_finalize(s);
    release_connection(&db);
    return result;
}

status query_find_run(const char *path, const struct run_key *key, struct found_run *out,
                      bool *found)
{
    status result = OK;
    sqlite3 *db = NULL;
    *found = false;
    if (is_shared(path))
        db = shared.db;
    else
        TRY(database_open_reader_if_any(&db, path));
    if (db != NULL)
        TRY(query_bind_find_run(db, key, out, found));
done:
    release_connection(&db);
    return result;
}

status query_find_checkpoint(const char *results, const char *config_hash, char **path,
                             int64_t *running)
{
    status result = OK;
    sqlite3 *db = NULL;
    sqlite3_stmt *s = NULL;
    *path = NULL;
    *running = 0;
    TRY(database_open_reader_if_any(&db, results));
    if (db == NULL)
        goto done;
    TRY(database_prepare(db, &s,
                         "SELECT max(id) FROM run WHERE config_hash = ?1 AND status = 'running'"));
    sqlite3_bind_text(s, 1, config_hash, -1, SQLITE_STATIC);
    TRY(database_check(db, sqlite3_step(s), "look up a running run"));
    *running = sqlite3_column_int64(s, 0);
    sqlite3_finalize(s);
    s = NULL;
    TRY(database_prepare(db, &s,
                         "SELECT path FROM checkpoint JOIN run ON run.id = checkpoint.run_id "
                         "WHERE config_hash = ?1 AND run.id > (SELECT coalesce(max(id), 0) FROM "
                         "run WHERE config_hash = ?1 AND status = 'finished') "
                         "ORDER BY run.id DESC, version DESC LIMIT 1"));
    sqlite3_bind_text(s, 1, config_hash, -1, SQLITE_STATIC);
    int code = sqlite3_step(s);
    TRY(database_check(db, code, "look up a checkpoint"));
    if (code == SQLITE_ROW)
        *path = text_copy((const char *)sqlite3_column_text(s, 0));
done:
    sqlite3_finalize(s);
    release_connection(&db);
    return result;
}

status query_find_origin(const char *results, const char *config_hash, const char *path,
                         const char *sha256, int64_t run_id, struct origin_run *out)
{
    status result = OK;
    sqlite3 *db = NULL;
    sqlite3_stmt *s = NULL;
    *out = (struct origin_run){0};
    TRY(database_open_reader_if_any(&db, results));
    if (db == NULL)
        goto done;
    TRY(database_prepare(
        db, &s,
        "SELECT id, uuid, coalesce(updates,"
        " (SELECT max(update_version) FROM push WHERE run_id = id AND outcome IN ('applied', "
        "'aggregated')),"
        " (SELECT max(update_version) FROM step WHERE run_id = id),"
        " (SELECT max(version) FROM checkpoint WHERE run_id = id), 0),"
        " CASE engine WHEN 'real' THEN sent_bytes ELSE host ->> '$.device' END IS NULL FROM run "
        "WHERE id <> ?3 AND (host ->> '$.resumed.sha256' = ?4 OR "
        "id IN (SELECT run_id FROM checkpoint WHERE sha256 = ?4) OR "
        "config_hash = ?1 AND (host ->> '$.resumed.path' = ?2 OR "
        "id IN (SELECT run_id FROM checkpoint WHERE path = ?2))) ORDER BY id DESC LIMIT 1"));
    sqlite3_bind_text(s, 1, config_hash, -1, SQLITE_STATIC);
    sqlite3_bind_text(s, 2, path, -1, SQLITE_STATIC);
    sqlite3_bind_int64(s, 3, run_id);
    sqlite3_bind_text(s, 4, sha256, -1, SQLITE_STATIC);
    int code = sqlite3_step(s);
    TRY(database_check(db, code, "look up the run of a checkpoint"));
    if (code == SQLITE_ROW) {
        out->id = sqlite3_column_int64(s, 0);
        snprintf(out->uuid, sizeof out->uuid, "%s", (const char *)sqlite3_column_text(s, 1));
        out->updates = (uint64_t)sqlite3_column_int64(s, 2);
        out->was_killed = sqlite3_column_int(s, 3) != 0;
    }
done:
    sqlite3_finalize(s);
    release_connection(&db);
    return result;
}
