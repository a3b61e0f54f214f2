#include "results/store/reader_views.h"

#include "base/text.h"
#include "results/store/run_owner.h"

#include <string.h>

static const char doing[] = "read the file";

status reader_views_add(sqlite3 *db)
{
    static const char create[] = "CREATE VIEW ";
    struct text sql = {0};
    const char *from = database_text("results/store/views.sql"), *at;
    while ((at = strstr(from, create)) != NULL) {
        text_add(&sql, "%.*sCREATE TEMP VIEW ", (int)(at - from), from);
        from = at + sizeof create - 1;
    }
    text_add(&sql, "%s", from);
    status result = database_execute(db, sql.at, doing);
    text_free(&sql);
    return result;
}

/* Quotes a column name, because a file from elsewhere may contain SQL in its names. */
static void add_name(struct text *sql, const char *name)
{
    char *quoted = sqlite3_mprintf("\"%w\"", name);
    REQUIRE(quoted != NULL);
    text_add(sql, "%s", quoted);
    sqlite3_free(quoted);
}

/* Appends "1,2" to `ids` and " WHEN 1 THEN 'why' WHEN 2 THEN …" to `whys`. */
static void add_cases(const struct gone_runs *gone, struct text *ids, struct text *whys)
{
    for (size_t i = 0; i < gone->count; i++) {
        char *why = sqlite3_mprintf("%Q", gone->at[i].why);
        REQUIRE(why != NULL);
        text_add(ids, "%s%lld", i > 0 ? "," : "", (long long)gone->at[i].id);
        text_add(whys, " WHEN %lld THEN %s", (long long)gone->at[i].id, why);
        sqlite3_free(why);
    }
}

/* Creates "CREATE TEMP VIEW run AS SELECT id, …, 'failed' AS status, … FROM main.run". */
static status show_as_failed(sqlite3 *db, const struct gone_runs *gone)
{
    status result = OK;
    sqlite3_stmt *s = NULL;
    struct text sql = {0}, ids = {0}, whys = {0};
    int code;
    add_cases(gone, &ids, &whys);
    text_add(&sql, "CREATE TEMP VIEW run AS SELECT ");
    TRY(database_prepare(db, &s, "SELECT name, cid FROM pragma_table_info('run', 'main')"));
    while ((code = sqlite3_step(s)) == SQLITE_ROW) {
        const char *name = (const char *)sqlite3_column_text(s, 0);
        text_add(&sql, "%s", sqlite3_column_int(s, 1) > 0 ? ", " : "");
        if (strcmp(name, "status") == 0)
            text_add(&sql, "CASE WHEN id IN (%s) THEN 'failed' ELSE status END AS status", ids.at);
        else if (strcmp(name, "error") == 0)
            text_add(&sql, "CASE id%s ELSE error END AS error", whys.at);
        else
            add_name(&sql, name);
    }
    TRY(database_check(db, code, doing));
    text_add(&sql, " FROM main.run");
    TRY(database_execute(db, sql.at, doing));
done:
    sqlite3_finalize(s);
    text_free(&sql);
    text_free(&ids);
    text_free(&whys);
    return result;
}

status reader_views_add_gone_runs(sqlite3 *db)
{
    status result = OK;
    struct gone_runs gone = {0};
    TRY(run_owner_find_gone(db, &gone));
    if (gone.count > 0)
        TRY(show_as_failed(db, &gone));
done:
    run_owner_free_gone(&gone);
    return result;
}
