/*
 * export_csv.c — one CSV file per table of schema.sql, RFC 4180 with a header line.
 */
#include "base/text.h"
#include "results/query/query_output.h"
#include "results/export/export_internal.h"

#include <string.h>

/* Whether the file has the table, and the name of its column of run ids. */
static status describe(struct export *e, const char *table, bool *there, const char **run)
{
    status result = OK;
    sqlite3_stmt *s = NULL;
    int code;
    *there = false;
    *run = strcmp(table, "run") == 0 ? "id" : NULL;
    TRY(database_prepare(e->db, &s, "SELECT name FROM pragma_table_info(?1)"));
    sqlite3_bind_text(s, 1, table, -1, SQLITE_STATIC);
    while ((code = sqlite3_step(s)) == SQLITE_ROW) {
        *there = true;
        if (strcmp((const char *)sqlite3_column_text(s, 0), "run_id") == 0)
            *run = "run_id";
    }
    TRY(database_check(e->db, code, "read a table"));
done:
    sqlite3_finalize(s);
    return result;
}

static status write_table(struct export *e, const char *table)
{
    status result = OK;
    sqlite3_stmt *s = NULL;
    struct text sql = {0}, name = {0};
    struct output_file file = {0};
    const char *run;
    bool there;
    TRY(describe(e, table, &there, &run));
    if (!there)
        goto done; /* the table was dropped */
    text_add(&sql, "SELECT * FROM %s", table);
    if (run != NULL && !e->all)
        text_add(&sql, " WHERE %s IN (SELECT value FROM json_each(?1))", run);
    if (run != NULL) /* rows of concurrent runs are interleaved */
        text_add(&sql, " ORDER BY %s", run);
    text_add(&name, "%s.csv", table);
    TRY(database_prepare(e->db, &s, sql.at));
    sqlite3_bind_text(s, 1, e->ids.at, -1, SQLITE_STATIC);
    TRY(export_open(e, &file, name.at));
    TRY(query_output_write(e->db, s, &(struct query_style){.format = QUERY_CSV}, file.to, NULL));
    TRY(export_close(e, &file));
done:
    sqlite3_finalize(s);
    output_file_abandon(&file);
    text_free(&sql);
    text_free(&name);
    return result;
}

static status count_run(struct export *e, sqlite3_stmt *s, void *context)
{
    (void)s;
    (void)context;
    e->runs++;
    return OK;
}

/* Table names come from the schema, because the file may be untrusted. */
status export_csv(struct export *e)
{
    static const char create[] = "CREATE TABLE ";
    status result = OK;
    TRY(export_each(e, "SELECT id FROM run WHERE " EXPORT_CHOSEN, count_run, NULL));
    const char *at = database_text("results/store/schema.sql");
    while ((at = strstr(at, create)) != NULL) {
        char table[64];
        at += sizeof create - 1;
        snprintf(table, sizeof table, "%.*s", (int)strcspn(at, " ("), at);
        TRY(write_table(e, table));
    }
done:
    return result;
}
