#include "results/store/merge.h"

#include "base/memory.h"
#include "base/text.h"
#include "results/store/database.h"
#include "results/store/atomic_file.h"
#include "results/store/run_row.h"
#include "results/store/run_owner.h"
#include "base/output_file.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char doing[] = "merge a file";

struct merge {
    char *into;
    struct atomic_file
        draft;    /* a new target under its temporary name; not open: `into` itself is written */
    size_t files; /* number of files added */
    bool summaries;
};

#define ENDED(run) run ".status NOT IN ('queued', 'running')"

/* ---- source files -------------------------------------------------------------------------------
 */

static status number(sqlite3 *db, const char *sql, size_t *out)
{
    status result = OK;
    sqlite3_stmt *s = NULL;
    TRY(database_prepare(db, &s, sql));
    TRY(database_check(db, sqlite3_step(s), doing));
    *out = (size_t)sqlite3_column_int64(s, 0);
done:
    sqlite3_finalize(s);
    return result;
}

/* Whether the source must be copied first: it contains runs whose process no longer exists and
 * whose rows are not ended yet, or it is not writable, and reading a -wal file requires write
 * access. */
static status needs_a_copy(sqlite3 *db, const char *path, bool *out)
{
    status result = OK;
    struct gone_runs gone = {0};
    TRY(run_owner_find_gone(db, &gone));
    *out = gone.count > 0 || access(path, W_OK) != 0;
done:
    run_owner_free_gone(&gone);
    return result;
}

/* A copy would start again after each commit of another process, so a read transaction holds the
 * state of `from`. The transaction begins with the first read. */
static status hold_state(sqlite3 *from)
{
    status result = OK;
    TRY(database_execute(from, "BEGIN", "copy a file"));
    TRY(database_execute(from, "SELECT count(*) FROM main.sqlite_master", "copy a file"));
done:
    return result;
}

static status copy_and_end_gone(sqlite3 *from, const char *path)
{
    enum { PAGES = 1000 };
    status result = OK;
    sqlite3 *to = NULL;
    sqlite3_backup *backup = NULL;
    int code = sqlite3_open(path, &to);
    TRY(database_check(to, code, "copy a file"));
    TRY(hold_state(from));
    backup = sqlite3_backup_init(to, "main", from, "main");
    code = backup != NULL ? SQLITE_OK : sqlite3_errcode(to);
    while (code == SQLITE_OK && backup != NULL)
        code = database_stop_requested() ? SQLITE_INTERRUPT : sqlite3_backup_step(backup, PAGES);
    sqlite3_backup_finish(backup);
    database_rollback(from);
    TRY(database_check(to, code, "copy a file"));
    database_close(&to);
    TRY(database_open(&to, path));
    TRY(run_row_end_gone(to));
done:
    database_close(&to);
    return result;
}

/* *path: `from` itself, or a copy of it beside `into`, in which every run whose process no longer
 * exists has ended. */
static status prepare_source(const char *into, const char *from, struct atomic_file *copy,
                             const char **path)
{
    status result = OK;
    sqlite3 *db = NULL;
    bool copying;
    *path = from;
    TRY(database_open_reader(&db, from));
    TRY(needs_a_copy(db, from, &copying));
    if (copying) {
        TRY(atomic_file_open(copy, into));
        TRY(copy_and_end_gone(db, atomic_file_path(copy)));
        *path = atomic_file_path(copy);
    }
done:
    database_close(&db);
    return result;
}

static status check_different(const char *into, const char *from)
{
    status result = OK;
    struct stat a, b;
    if (stat(into, &a) == 0 && stat(from, &b) == 0 && a.st_dev == b.st_dev && a.st_ino == b.st_ino)
        FAIL(ERROR_USAGE,
             "%s: a file cannot be merged into itself; leave it out of the list, or name another "
             "target with -o",
             from);
done:
    return result;
}

/* ---- copying ------------------------------------------------------------------------------------
 */

/* Appends "a, b, c", the stored columns of a table except those of `but` ("d e"), each prefixed
 * with `before`. */
static status columns(sqlite3 *db, const char *table, const char *but, const char *before,
                      struct text *out)
{
    status result = OK;
    sqlite3_stmt *s = NULL;
    int code;
    TRY(database_prepare(db, &s,
                         "SELECT name FROM pragma_table_xinfo(?1, 'main') WHERE hidden = 0 AND "
                         "instr(' ' || ?2 || ' ', ' ' || name || ' ') = 0 ORDER BY cid"));
    sqlite3_bind_text(s, 1, table, -1, SQLITE_STATIC);
    sqlite3_bind_text(s, 2, but, -1, SQLITE_STATIC);
    while ((code = sqlite3_step(s)) == SQLITE_ROW) {
        text_add(out, "%s%s\"%s\"", out->length > 0 ? ", " : "", before,
                 (const char *)sqlite3_column_text(s, 0));
    }
    TRY(database_check(db, code, doing));
done:
    sqlite3_finalize(s);
    return result;
}

/* Calls `each` for every table of the schema with a column run_id; a file may have further tables
 * of its owner. */
static status for_tables(sqlite3 *db, status (*each)(sqlite3 *db, const char *table))
{
    status result = OK;
    sqlite3_stmt *s = NULL;
    int code;
    TRY(database_prepare(
        db, &s,
        "SELECT name FROM main.sqlite_master AS m WHERE type = 'table' AND EXISTS "
        "(SELECT 1 FROM pragma_table_info(m.name, 'main') WHERE name = 'run_id') AND "
        "instr(?1 || ?2, 'CREATE TABLE ' || name || ' (') > 0"));
    sqlite3_bind_text(s, 1, database_text("results/store/schema.sql"), -1, SQLITE_STATIC);
    sqlite3_bind_text(s, 2, database_text("results/store/run_summaries.sql"), -1, SQLITE_STATIC);
    while ((code = sqlite3_step(s)) == SQLITE_ROW)
        TRY(each(db, (const char *)sqlite3_column_text(s, 0)));
    TRY(database_check(db, code, doing));
done:
    sqlite3_finalize(s);
    return result;
}

static status fail_clash(sqlite3 *db, sqlite3_stmt *s, const char *in_what)
{
    return error_set(
        ERROR_RESULTS, __FILE__, __LINE__,
        "run %lld of this file and run %lld of %s have the same uuid (%s) but differ in %s: "
        "one of the two files was edited or is damaged, or the run continued after it was "
        "merged as lost; no run of this file was copied. Merge the files again into a new file "
        "with -o",
        (long long)sqlite3_column_int64(s, 0), (long long)sqlite3_column_int64(s, 1),
        sqlite3_db_filename(db, "main"), (const char *)sqlite3_column_text(s, 2), in_what);
}

static status expect_no_row(sqlite3 *db, const char *sql, const char *in_what)
{
    status result = OK;
    sqlite3_stmt *s = NULL;
    TRY(database_prepare(db, &s, sql));
    int code = sqlite3_step(s);
    TRY(database_check(db, code, doing));
    if (code == SQLITE_ROW)
        TRY(fail_clash(db, s, in_what));
done:
    sqlite3_finalize(s);
    return result;
}

#define PAIRS                                                                                      \
    "SELECT theirs.id, ours.id, ours.uuid FROM source.run AS theirs JOIN main.run AS ours "        \
    "USING (uuid) WHERE " ENDED("theirs") " AND " ENDED("ours") " AND "

/* Whether a file with summaries only lacks the rows of this table. */
static bool has_summary(const char *table)
{
    return strcmp(table, "push") == 0 || strcmp(table, "step") == 0;
}

static status check_rows(sqlite3 *db, const char *table)
{
    struct text sql = {0};
    text_add(&sql,
             PAIRS "(SELECT count(*) FROM source.\"%s\" WHERE run_id = theirs.id) NOT IN "
                   "((SELECT count(*) FROM main.\"%s\" WHERE run_id = ours.id)%s) ",
             table, table, has_summary(table) ? ", 0" : "");
    if (has_summary(table))
        text_add(&sql, "AND EXISTS (SELECT 1 FROM main.\"%s\" WHERE run_id = ours.id) ", table);
    text_add(&sql, "LIMIT 1");
    status result = expect_no_row(db, sql.at, table);
    text_free(&sql);
    return result;
}

/* Does not compare `error`: for a lost run, its text depends on the host that ended the run. */
static status check_clashes(sqlite3 *db)
{
    status result = OK;
    struct text theirs = {0}, ours = {0}, sql = {0};
    TRY(columns(db, "run", "id error", "theirs.", &theirs));
    TRY(columns(db, "run", "id error", "ours.", &ours));
    text_add(&sql, PAIRS "EXISTS (SELECT %s EXCEPT SELECT %s) LIMIT 1", theirs.at, ours.at);
    TRY(expect_no_row(db, sql.at, "table run"));
    TRY(for_tables(db, check_rows));
done:
    text_free(&theirs);
    text_free(&ours);
    text_free(&sql);
    return result;
}

static bool owner_is_gone(const struct gone_runs *gone, int64_t id)
{
    for (size_t i = 0; i < gone->count; i++)
        if (gone->at[i].id == id)
            return true;
    return false;
}

/* A run may count as failed in the source only because no progress reached that copy of the file.
 * It must not replace a run of the target whose owner may still write rows. Any other outcome was
 * written by the owner itself. */
static status check_owners(sqlite3 *db)
{
    status result = OK;
    struct gone_runs gone = {0};
    sqlite3_stmt *s = NULL;
    int code;
    TRY(run_owner_find_gone(db, &gone));
    TRY(database_prepare(db, &s,
                         "SELECT ours.id, theirs.id, ours.uuid FROM source.run AS theirs JOIN "
                         "main.run AS ours USING (uuid) WHERE theirs.status = 'failed' AND "
                         "ours.runner IS NOT NULL AND NOT (" ENDED("ours") ")"));
    while ((code = sqlite3_step(s)) == SQLITE_ROW) {
        const int64_t ours = sqlite3_column_int64(s, 0);
        if (!owner_is_gone(&gone, ours)) {
            FAIL(ERROR_RESULTS,
                 "run %lld of this file has failed, but run %lld of %s is the same run (%s) and "
                 "may still be running: this file is perhaps a copy from before its end; no run of "
                 "this file was copied. Merge it again after that run has ended",
                 (long long)sqlite3_column_int64(s, 1), (long long)ours,
                 sqlite3_db_filename(db, "main"), (const char *)sqlite3_column_text(s, 2));
        }
    }
    TRY(database_check(db, code, doing));
done:
    sqlite3_finalize(s);
    run_owner_free_gone(&gone);
    return result;
}

/* A run in the target that has not ended is replaced by the ended run of the source
 * (check_owners). New ids continue after the target's ids, in the order of the source. */
static const char choose_runs[] = "DELETE FROM main.run WHERE NOT (" ENDED(
    "main.run") ") AND uuid IN "
                "(SELECT uuid FROM source.run AS theirs WHERE " ENDED(
                    "theirs") ");"
                              "DROP TABLE IF EXISTS temp.chosen;"
                              "CREATE TEMP TABLE chosen (theirs INTEGER PRIMARY KEY, ours INTEGER "
                              "NOT NULL);"
                              "INSERT INTO chosen SELECT id, (SELECT coalesce(max(id), 0) FROM "
                              "main.run) + "
                              "row_number() OVER (ORDER BY id) FROM source.run AS theirs "
                              "WHERE " ENDED(
                                  "theirs") " AND uuid NOT IN (SELECT uuid FROM main.run)";

/* `condition`: SQL about `chosen`, or "". */
static status copy_table(sqlite3 *db, const char *table, const char *key, const char *condition)
{
    status result = OK;
    struct text names = {0}, sql = {0};
    TRY(columns(db, table, key, "", &names));
    text_add(&sql,
             "INSERT INTO main.\"%s\" (%s, %s) SELECT chosen.ours, %s FROM chosen JOIN "
             "source.\"%s\" AS theirs ON theirs.%s = chosen.theirs %s",
             table, key, names.at, names.at, table, key, condition);
    TRY(database_execute(db, sql.at, doing));
done:
    text_free(&names);
    text_free(&sql);
    return result;
}

static status copy_rows(sqlite3 *db, const char *table)
{
    return copy_table(db, table, "run_id", "");
}

static status copy_rows_without_summary(sqlite3 *db, const char *table)
{
    return copy_table(
        db, table, "run_id",
        has_summary(table)
            ? "WHERE chosen.theirs IN (SELECT id FROM source.run WHERE summarized IS NULL)"
            : "");
}

static status copy_runs(sqlite3 *db, bool summaries, struct merge_outcome *out)
{
    status result = OK;
    TRY(number(db, "SELECT count(*) FROM source.run AS theirs WHERE NOT (" ENDED("theirs") ")",
               &out->left));
    TRY(number(db,
               "SELECT count(*) FROM source.run AS theirs JOIN main.run AS ours USING (uuid) "
               "WHERE " ENDED("theirs") " AND " ENDED("ours"),
               &out->there));
    TRY(check_clashes(db));
    TRY(check_owners(db));
    TRY(database_execute(db, choose_runs, doing));
    TRY(number(db, "SELECT count(*) FROM chosen", &out->copied));
    TRY(number(db,
               "SELECT count(*) FROM chosen JOIN source.run AS theirs ON theirs.id = chosen.theirs "
               "WHERE status = 'finished' AND EXISTS (SELECT 1 FROM main.run AS ours WHERE "
               "ours.config_hash = theirs.config_hash AND ours.status = 'finished' AND "
               "ours.experiment IS theirs.experiment AND ours.arm IS theirs.arm)",
               &out->repeats));
    TRY(copy_table(db, "run", "id", ""));
    TRY(for_tables(db, summaries ? copy_rows_without_summary : copy_rows));
done:
    return result;
}

static status attach(sqlite3 *db, const char *path)
{
    status result = OK;
    sqlite3_stmt *s = NULL;
    TRY(database_prepare(db, &s, "ATTACH ?1 AS source"));
    sqlite3_bind_text(s, 1, path, -1, SQLITE_STATIC);
    TRY(database_check(db, sqlite3_step(s), "open the file to merge"));
done:
    sqlite3_finalize(s);
    return result;
}

/* ---- a merge ------------------------------------------------------------------------------------
 */

static const char *path_of(const merge *m)
{
    return atomic_file_is_open(&m->draft) ? atomic_file_path(&m->draft) : m->into;
}

status merge_open(merge **out, const char *into, bool summaries)
{
    status result = OK;
    merge *m = NULL;
    struct text target = {0};
    TRY(memory_new(&m, 1, sizeof *m, "a merge"));
    TRY(output_file_follow(into, &target));
    m->into = text_copy(target.at);
    m->summaries = summaries;
    atomic_file_warn_of_others(m->into);
    if (access(m->into, F_OK) != 0)
        TRY(atomic_file_open(&m->draft, m->into));
    *out = m;
    m = NULL;
done:
    text_free(&target);
    merge_close(&m);
    return result;
}

void merge_close(merge **m)
{
    if (*m != NULL) {
        atomic_file_close(&(*m)->draft);
        memory_free((*m)->into);
        memory_free(*m);
        *m = NULL;
    }
}

void merge_describe(const merge *m, status error, struct text *out)
{
    if (atomic_file_is_open(&m->draft))
        text_add(out, "%s was not created", m->into);
    else if (m->files == 0)
        text_add(out, "No file was merged into %s", m->into);
    else
        text_add(out, "%s contains every file listed above, completely%s", m->into,
                 error == ERROR_USAGE ? "" : "; run the same command again to continue");
}

/* Adapts messages of database_check(), which suggest results=PATH, to a merge. */
static status adapt_error(status result, const merge *m, const char *from)
{
    if (strstr(error_message(), DATABASE_FULL) != NULL) {
        return error_set(result, __FILE__, __LINE__,
                         "%s: could not be merged into %s: " DATABASE_FULL
                         ": a merge needs up to twice the size of the merged files. Free some "
                         "space, or name a file on another disk with -o",
                         from, m->into);
    }
    return strncmp(error_message(), from, strlen(from)) != 0 ? error_add_context(result, "%s", from)
                                                             : result;
}

static status check_stop(void)
{
    status result = OK;
    if (database_stop_requested())
        FAIL(STOPPED, "stopped on request");
done:
    return result;
}

status merge_add(merge *m, const char *from, struct merge_outcome *out)
{
    status result = OK;
    sqlite3 *db = NULL;
    struct atomic_file copy = {0};
    const char *path;
    *out = (struct merge_outcome){0};
    TRY(check_stop());
    TRY(check_different(m->into, from));
    TRY(prepare_source(m->into, from, &copy, &path));
    TRY(database_open(&db, path_of(m)));
    database_stop_statements(db);
    TRY(attach(db, path));
    TRY(database_execute(db, "BEGIN IMMEDIATE", doing));
    TRY(copy_runs(db, m->summaries, out));
    TRY(database_execute(db, "COMMIT", doing));
    m->files++;
done:
    if (result != OK)
        result = adapt_error(result, m, from);
    if (db != NULL)
        database_rollback(db);
    database_close(&db);
    atomic_file_close(&copy);
    return result;
}

static status check(const merge *m, size_t *runs)
{
    status result = OK;
    sqlite3 *db = NULL;
    sqlite3_stmt *s = NULL;
    size_t orphans;
    TRY(database_open_reader(&db, path_of(m)));
    database_stop_statements(db);
    TRY(database_prepare(db, &s, "PRAGMA integrity_check(1)"));
    TRY(database_check(db, sqlite3_step(s), "check the file"));
    const char *answer = (const char *)sqlite3_column_text(s, 0);
    if (answer == NULL || strcmp(answer, "ok") != 0) {
        FAIL(ERROR_RESULTS, "%s: integrity_check failed: %s; merge into another file", m->into,
             answer != NULL ? answer : "no answer");
    }
    TRY(number(db, "SELECT count(*) FROM pragma_foreign_key_check", &orphans));
    if (orphans > 0) {
        FAIL(ERROR_RESULTS,
             "%s: %zu rows belong to no run, so the file is damaged; merge into another file",
             m->into, orphans);
    }
    TRY(number(db, "SELECT count(*) FROM main.run", runs));
done:
    sqlite3_finalize(s);
    database_close(&db);
    return result;
}

/* Moves the content of the -wal file into the file, because only the file is renamed. */
static status checkpoint_wal(const merge *m)
{
    status result = OK;
    sqlite3 *db = NULL;
    TRY(database_open(&db, atomic_file_path(&m->draft)));
    int code = sqlite3_wal_checkpoint_v2(db, "main", SQLITE_CHECKPOINT_TRUNCATE, NULL, NULL);
    TRY(database_check(db, code, doing));
done:
    database_close(&db);
    return result;
}

status merge_finish(merge *m, size_t *runs)
{
    status result = OK;
    TRY(check(m, runs));
    TRY(check_stop());
    if (atomic_file_is_open(&m->draft)) {
        TRY(checkpoint_wal(m));
        TRY(atomic_file_publish(&m->draft, m->into));
    }
done:
    return result != OK ? adapt_error(result, m, m->into) : OK;
}
