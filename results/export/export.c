#include "results/export/export.h"

#include "base/text.h"
#include "base/memory.h"
#include "base/suggestion.h"
#include "results/export/export_internal.h"
#include "results/query/query_bind.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const struct {
    struct export_description about;
    export_function *write;
} formats[] = {
#define EXPORT(name, description, to) {{#name, description, to}, export_##name},
#include "results/export/export.def"
#undef EXPORT
};

bool export_at(size_t index, struct export_description *out)
{
    if (index < COUNT_OF(formats))
        *out = formats[index].about;
    return index < COUNT_OF(formats);
}

static status find_format(const char *name, size_t *out)
{
    struct suggestion known = {.wanted = name};
    for (*out = 0; *out < COUNT_OF(formats); ++*out)
        if (strcmp(formats[*out].about.name, name) == 0)
            return OK;
    for (size_t i = 0; i < COUNT_OF(formats); ++i)
        suggestion_add(&known, formats[i].about.name);
    return suggestion_fail(&known, NULL, "export: there is no format");
}

/* ---- runs ---------------------------------------------------------------------------------------
 */

/* Appends the first column of the first row as text; ?1 is `ids`. */
static status add_answer(struct export *e, const char *sql, struct text *out)
{
    status result = OK;
    sqlite3_stmt *s = NULL;
    TRY(database_prepare(e->db, &s, sql));
    sqlite3_bind_text(s, 1, e->ids.at, -1, SQLITE_STATIC);
    TRY(database_check(e->db, sqlite3_step(s), "read the runs"));
    const char *text = (const char *)sqlite3_column_text(s, 0);
    text_add(out, "%s", text != NULL ? text : "[]");
done:
    sqlite3_finalize(s);
    return result;
}

static status choose_runs(struct export *e, const struct export_request *request)
{
    status result = OK;
    e->all = request->run_count == 0;
    if (e->all) {
        TRY(add_answer(e, "SELECT json_group_array(id) FROM run", &e->ids));
        goto done;
    }
    text_add(&e->ids, "[");
    for (size_t i = 0; i < request->run_count; i++) {
        int64_t id;
        TRY(query_run_id(e->db, request->runs[i], &id));
        text_add(&e->ids, "%s%lld", i > 0 ? "," : "", (long long)id);
    }
    text_add(&e->ids, "]");
done:
    return result;
}

/* Users compare runs by few columns, so only keys that differ and the common ones are exported. */
static status choose_keys(struct export *e)
{
    static const char sql[] =
        "WITH known AS (SELECT coalesce(settings, config) AS settings FROM run"
        "  WHERE " EXPORT_CHOSEN "),"
        " varied AS (SELECT key FROM known, json_each(known.settings) GROUP BY key"
        "  HAVING count(DISTINCT value) > 1 OR count(*) < (SELECT count(*) FROM known)) "
        "SELECT json_group_array(key) FROM ("
        " SELECT key FROM varied UNION"
        " SELECT value FROM json_each('[\"mode\",\"engine\",\"workers\",\"model\",\"dataset\","
        "  \"batch\",\"optimizer\",\"lr\",\"momentum\",\"consistency\",\"damping\",\"correction\","
        "  \"seed\"]'))";
    return add_answer(e, sql, &e->keys);
}

static status each_row(struct export *e, sqlite3_stmt *s, export_row *each, void *context)
{
    status result = OK;
    int code;
    while ((code = sqlite3_step(s)) == SQLITE_ROW)
        TRY(each(e, s, context));
    TRY(database_check(e->db, code, "read the runs"));
done:
    return result;
}

status export_each(struct export *e, const char *sql, export_row *each, void *context)
{
    status result = OK;
    sqlite3_stmt *s = NULL;
    TRY(database_prepare(e->db, &s, sql));
    sqlite3_bind_text(s, 1, e->ids.at, -1, SQLITE_STATIC);
    TRY(each_row(e, s, each, context));
done:
    sqlite3_finalize(s);
    return result;
}

status export_each_of(struct export *e, const char *sql, int64_t run, export_row *each,
                      void *context)
{
    status result = OK;
    sqlite3_stmt *s = NULL;
    TRY(database_prepare(e->db, &s, sql));
    sqlite3_bind_int64(s, 1, run);
    if (sqlite3_bind_parameter_count(s) > 1)
        sqlite3_bind_text(s, 2, e->keys.at, -1, SQLITE_STATIC);
    TRY(each_row(e, s, each, context));
done:
    sqlite3_finalize(s);
    return result;
}

/* ---- files --------------------------------------------------------------------------------------
 */

/* Creates the folders of `path`. */
static status make_folders(const char *path)
{
    status result = OK;
    char *copy = text_copy(path);
    for (char *c = copy + 1; *c != '\0'; c++) {
        if (*c != '/')
            continue;
        *c = '\0';
        if (mkdir(copy, 0777) != 0 && errno != EEXIST) {
            FAIL(ERROR_OTHER, "the folder %s cannot be created: %s; name another folder with -o",
                 copy, strerror(errno));
        }
        *c = '/';
    }
done:
    memory_free(copy);
    return result;
}

/* "-o -" works for formats of one file only. */
static status check_folder(const struct export *e)
{
    status result = OK;
    if (strcmp(e->to, "-") == 0) {
        FAIL(ERROR_USAGE, "export: this format writes a folder of files, which cannot go to "
                          "standard output; name a folder with -o");
    }
done:
    return result;
}

status export_open(struct export *e, struct output_file *f, const char *name)
{
    status result = OK;
    struct text path = {0};
    text_add(&path, "%s%s%s", e->to, name[0] != '\0' ? "/" : "", name);
    if (name[0] != '\0')
        TRY(check_folder(e));
    TRY(make_folders(path.at));
    TRY(output_file_open_or_stdout(f, path.at));
done:
    text_free(&path);
    return result;
}

status export_make_folder(struct export *e, const char *name)
{
    status result = OK;
    struct text below = {0};
    text_add(&below, "%s/%s/", e->to, name);
    TRY(check_folder(e));
    TRY(make_folders(below.at));
done:
    text_free(&below);
    return result;
}

status export_close(struct export *e, struct output_file *f)
{
    status result = OK;
    TRY(output_file_close(f, false));
    e->files++;
done:
    return result;
}

void export_add_name(struct text *out, const char *name)
{
    static const char plain[] =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_=+,";
    for (const char *c = name; *c != '\0'; c++) {
        bool dot = *c == '.' && c > name;
        bool continues = ((unsigned char)*c & 0xc0) == 0x80;
        if (dot || strchr(plain, *c) != NULL)
            text_add_bytes(out, c, 1);
        else if (!continues)
            text_add(out, "_");
    }
}

status export_write(const struct export_request *request, struct export_outcome *out)
{
    status result = OK;
    size_t format = 0;
    struct export e = {0};
    TRY(find_format(request->format, &format));
    e.to = request->to != NULL ? request->to : formats[format].about.to;
    TRY(database_open_reader(&e.db, request->results));
    TRY(database_execute(e.db, "BEGIN", "read the runs"));
    TRY(choose_runs(&e, request));
    TRY(choose_keys(&e));
    TRY(formats[format].write(&e));
    *out = (struct export_outcome){.to = e.to, .runs = e.runs, .files = e.files};
done:
    if (e.db != NULL)
        database_rollback(e.db);
    database_close(&e.db);
    text_free(&e.ids);
    text_free(&e.keys);
    return result;
}
