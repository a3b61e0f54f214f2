#include "results/export_csv.h"

#include "base/memory.h"
#include "base/output_file.h"
#include "base/text.h"
#include "results/query/query_bind.h"
#include "results/query/query_output.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>

struct csv_writer {
    sqlite3 *db; /* within one transaction */
    const char *folder;
    bool all;
    struct text ids; /* JSON array of the ids of the runs, if not all */
};

static status choose_runs(struct csv_writer *w, const struct csv_export *request)
{
    status result = OK;
    w->all = request->run_count == 0;
    text_add(&w->ids, "[");
    for (size_t i = 0; i < request->run_count; i++) {
        int64_t id;
        TRY(query_run_id(w->db, request->runs[i], &id));
        text_add(&w->ids, "%s%lld", i > 0 ? "," : "", (long long)id);
    }
    text_add(&w->ids, "]");
done:
    return result;
}

/* Creates `path` and the folders above it. */
static status make_folder(const char *path)
{
    status result = OK;
    char *copy = text_copy(path);
    size_t length = strlen(copy);
    for (size_t i = 1; i <= length; i++) {
        char c = copy[i];
        if (c != '/' && c != '\0')
            continue;
        copy[i] = '\0';
        if (mkdir(copy, 0777) != 0 && errno != EEXIST) {
            FAIL(ERROR_OTHER, "the folder %s cannot be created: %s; name another folder with -o",
                 copy, strerror(errno));
        }
        copy[i] = c;
    }
done:
    memory_free(copy);
    return result;
}

/* Whether the file has the table, and the name of its column of run ids. */
static status describe(struct csv_writer *w, const char *table, bool *there, const char **run)
{
    status result = OK;
    sqlite3_stmt *s = NULL;
    int code;
    *there = false;
    *run = strcmp(table, "run") == 0 ? "id" : NULL;
    TRY(database_prepare(w->db, &s, "SELECT name FROM pragma_table_info(?1)"));
    sqlite3_bind_text(s, 1, table, -1, SQLITE_STATIC);
    while ((code = sqlite3_step(s)) == SQLITE_ROW) {
        *there = true;
        if (strcmp((const char *)sqlite3_column_text(s, 0), "run_id") == 0)
            *run = "run_id";
    }
    TRY(database_check(w->db, code, "read a table"));
done:
    sqlite3_finalize(s);
    return result;
}

static status write_table(struct csv_writer *w, const char *table, size_t *rows)
{
    status result = OK;
    sqlite3_stmt *s = NULL;
    struct text sql = {0}, path = {0};
    struct output_file file = {0};
    const char *run;
    bool there;
    TRY(describe(w, table, &there, &run));
    if (!there)
        goto done; /* the table was dropped */
    text_add(&sql, "SELECT * FROM %s", table);
    if (run != NULL && !w->all)
        text_add(&sql, " WHERE %s IN (SELECT value FROM json_each(?1))", run);
    if (run != NULL) /* rows of concurrent runs are interleaved */
        text_add(&sql, " ORDER BY %s", run);
    text_add(&path, "%s/%s.csv", w->folder, table);
    TRY(database_prepare(w->db, &s, sql.at));
    sqlite3_bind_text(s, 1, w->ids.at, -1, SQLITE_STATIC);
    TRY(output_file_open(&file, path.at));
    result =
        query_output_write(w->db, s, &(struct query_style){.format = QUERY_CSV}, file.to, rows);
    if (result != OK) {
        error_add_context(result, "%s", path.at);
        goto done;
    }
    TRY(output_file_close(&file, false));
done:
    sqlite3_finalize(s);
    output_file_abandon(&file);
    text_free(&sql);
    text_free(&path);
    return result;
}

/* Table names come from the schema, because the file may be untrusted. */
static status write_tables(struct csv_writer *w, const char *schema, size_t *runs)
{
    static const char create[] = "CREATE TABLE ";
    status result = OK;
    const char *at = database_text(schema);
    while ((at = strstr(at, create)) != NULL) {
        char table[64];
        size_t rows = 0;
        at += sizeof create - 1;
        snprintf(table, sizeof table, "%.*s", (int)strcspn(at, " ("), at);
        TRY(write_table(w, table, &rows));
        if (strcmp(table, "run") == 0)
            *runs = rows;
    }
done:
    return result;
}

status export_csv(const struct csv_export *request, size_t *runs)
{
    status result = OK;
    struct csv_writer w = {.folder = request->folder};
    *runs = 0;
    TRY(database_open_reader(&w.db, request->results));
    TRY(database_execute(w.db, "BEGIN", "read the runs"));
    TRY(choose_runs(&w, request));
    TRY(make_folder(w.folder));
    TRY(write_tables(&w, "results/store/schema.sql", runs));
    TRY(write_tables(&w, "results/store/run_summaries.sql", runs));
done:
    if (w.db != NULL)
        database_rollback(w.db);
    database_close(&w.db);
    text_free(&w.ids);
    return result;
}
