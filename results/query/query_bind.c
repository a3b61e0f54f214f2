#include "results/query/query_bind.h"

#include "base/text.h"
#include "results/query/query.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

bool query_is_name(const char *question)
{
    size_t length = strspn(question, "abcdefghijklmnopqrstuvwxyz0123456789-");
    return length > 0 && question[length] == '\0';
}

/* ---- reading only ------------------------------------------------------------------------------
 */

/* Refuses actions that sqlite3_stmt_readonly() does not detect: other files, transactions,
 * settings. */
static int authorize(void *context, int action, const char *first, const char *second,
                     const char *database, const char *trigger)
{
    static const char *const harmless[] = {
        "table_info",      "table_xinfo",     "table_list",       "index_list",   "index_info",
        "index_xinfo",     "database_list",   "foreign_key_list", "user_version", "application_id",
        "compile_options", "integrity_check", "quick_check",      "page_count",   "page_size",
    };
    (void)context;
    (void)database;
    (void)trigger;
    switch (action) {
    case SQLITE_PRAGMA:
        for (size_t i = 0; i < COUNT_OF(harmless); i++) {
            bool sets = second != NULL &&
                        (strcmp(first, "user_version") == 0 ||
                         strcmp(first, "application_id") == 0 || strcmp(first, "page_size") == 0);
            if (strcmp(first, harmless[i]) == 0 && !sets)
                return SQLITE_OK;
        }
        return SQLITE_DENY;
    case SQLITE_ATTACH:
    case SQLITE_DETACH:
    case SQLITE_TRANSACTION:
    case SQLITE_SAVEPOINT:
        return SQLITE_DENY;
    default:
        return SQLITE_OK;
    }
}

static bool is_blank(const char *sql)
{
    return sql[strspn(sql, " \t\r\n;")] == '\0';
}

status query_prepare(sqlite3 *db, sqlite3_stmt **out, const char *sql, const char *what)
{
    status result = OK;
    sqlite3_stmt *s = NULL;
    const char *rest = NULL;
    sqlite3_set_authorizer(db, authorize, NULL);
    int code = sqlite3_prepare_v2(db, sql, -1, &s, &rest);
    sqlite3_set_authorizer(db, NULL, NULL);
    if ((code & 0xff) == SQLITE_AUTH ||
        (code == SQLITE_OK && s != NULL && !sqlite3_stmt_readonly(s))) {
        FAIL(ERROR_USAGE,
             "%s: refused, because it would do more than read; a query is a SELECT. To change a "
             "results file use the sqlite3 shell on a copy",
             what);
    }
    if ((code & 0xff) == SQLITE_ERROR) {
        FAIL(ERROR_USAGE, "%s: %s; docs/results-file.md lists tables and columns", what,
             sqlite3_errmsg(db));
    }
    TRY(database_check(db, code, "prepare the query"));
    if (s == NULL)
        FAIL(ERROR_USAGE, "%s: it contains no SQL; pass the name of a query or a SELECT", what);
    if (!is_blank(rest)) {
        FAIL(ERROR_USAGE, "%s: one statement at a time; what follows the first ';' is '%.40s'",
             what, rest);
    }
    *out = s;
    s = NULL;
done:
    sqlite3_finalize(s);
    return result;
}

status query_check_step(sqlite3 *db, int code)
{
    status result = OK;
    if ((code & 0xff) == SQLITE_ERROR || (code & 0xff) == SQLITE_MISMATCH)
        FAIL(ERROR_USAGE, "the query failed at a row: %s", sqlite3_errmsg(db));
    TRY(database_check(db, code, "read the answer"));
done:
    return result;
}

/* ---- parameters --------------------------------------------------------------------------------
 */

/* A declaration line: "-- :name = default  help", or "-- :name  help". */
struct declaration {
    char name[48], initial[64];
    bool has_initial;
    const char *help;
    int help_length;
};

/* Reads the declaration on the line at `line`; false if it is not one. */
static bool read_declaration(const char *line, struct declaration *out)
{
    if (strncmp(line, "-- :", 4) != 0)
        return false;
    const char *c = line + 4;
    size_t length = strcspn(c, " \n");
    snprintf(out->name, sizeof out->name, "%.*s", (int)length, c);
    c += length;
    out->has_initial = strncmp(c, " = ", 3) == 0;
    out->initial[0] = '\0';
    if (out->has_initial) {
        c += 3;
        const char *end = c;
        while (*end != '\0' && *end != '\n' && strncmp(end, "  ", 2) != 0)
            end++;
        snprintf(out->initial, sizeof out->initial, "%.*s", (int)(end - c), c);
        c = end;
    }
    c += strspn(c, " ");
    out->help = c;
    out->help_length = (int)strcspn(c, "\n");
    return true;
}

static const char *next_line(const char *line)
{
    const char *end = strchr(line, '\n');
    return end == NULL ? line + strlen(line) : end + 1;
}

static bool find_declaration(const char *sql, const char *name, struct declaration *out)
{
    for (const char *line = sql; strncmp(line, "--", 2) == 0; line = next_line(line))
        if (read_declaration(line, out) && strcmp(out->name, name) == 0)
            return true;
    return false;
}

static void add_parameters(struct text *t, sqlite3_stmt *s, const char *sql)
{
    struct declaration d;
    int count = sqlite3_bind_parameter_count(s);
    for (int i = 1; i <= count; i++) {
        const char *name = sqlite3_bind_parameter_name(s, i);
        text_add(t, "%s%s", i > 1 ? ", " : "", name == NULL ? "?" : name + 1);
        if (name != NULL && find_declaration(sql, name + 1, &d))
            text_add(t, "%s%s (%.*s)", d.has_initial ? "=" : "", d.initial, d.help_length, d.help);
    }
    if (count == 0)
        text_add(t, "none");
}

/* Binds an integer, a number or text. "007" and "1e3" are text: a name must keep its spelling. */
static void bind_plain(sqlite3_stmt *s, int index, const char *value)
{
    char *end, again[32];
    errno = 0;
    const long long integer = strtoll(value, &end, 10);
    const bool is_integer = value[0] != '\0' && *end == '\0' && errno == 0;
    snprintf(again, sizeof again, "%lld", integer);
    const double real = strtod(value, &end);
    const bool is_decimal = value[0] != '\0' && *end == '\0' && !is_integer &&
                            strspn(value, "-.0123456789") == strlen(value);
    if (is_integer && strcmp(again, value) == 0)
        sqlite3_bind_int64(s, index, integer);
    else if (is_decimal)
        sqlite3_bind_double(s, index, real);
    else
        sqlite3_bind_text(s, index, value, -1, SQLITE_TRANSIENT);
}

static bool is_number(const char *value)
{
    char *end;
    const double number = strtod(value, &end);
    return end != value && *end == '\0' && isfinite(number);
}

/* Parameters with a whole number as default are counts. */
static bool is_count(const char *value)
{
    const double number = strtod(value, NULL);
    return number >= 0 && number < 9e15 && number == floor(number);
}

/* Binds a number in any spelling: "9e-1" is 0.9. `value` passes is_number(). */
static void bind_number(sqlite3_stmt *s, int index, const char *value)
{
    char *end;
    errno = 0;
    const long long integer = strtoll(value, &end, 10);
    if (*end == '\0' && errno == 0)
        sqlite3_bind_int64(s, index, integer);
    else
        sqlite3_bind_double(s, index, strtod(value, NULL));
}

/* `is_run`: `value` names a run and is replaced by its id. `initial`: the default, or NULL. If the
 * default is not a number, the value is bound as text. SQLite converts it if the query compares it
 * with a column of integers. */
static status bind_value(sqlite3 *db, sqlite3_stmt *s, int index, bool is_run, const char *initial,
                         const char *value)
{
    status result = OK;
    if (is_run) {
        int64_t id;
        TRY(query_run_id(db, value, &id));
        sqlite3_bind_int64(s, index, id);
    } else if (initial == NULL) {
        bind_plain(s, index, value);
    } else if (is_number(initial)) {
        bind_number(s, index, value);
    } else {
        sqlite3_bind_text(s, index, value, -1, SQLITE_TRANSIENT);
    }
done:
    return result;
}

/* The value of "name=value" among the settings, or NULL. */
static const char *setting_of(const char *name, const char *const *settings, size_t count)
{
    size_t length = strlen(name);
    for (size_t i = count; i-- > 0;)
        if (strncmp(settings[i], name, length) == 0 && settings[i][length] == '=')
            return settings[i] + length + 1;
    return NULL;
}

static bool has_parameter(sqlite3_stmt *s, const char *setting)
{
    char name[64];
    snprintf(name, sizeof name, ":%.*s", (int)strcspn(setting, "="), setting);
    return strchr(setting, '=') != NULL && sqlite3_bind_parameter_index(s, name) > 0;
}

status query_bind(sqlite3 *db, sqlite3_stmt *s, const char *sql, const char *what,
                  const char *const *settings, size_t setting_count)
{
    status result = OK;
    struct text known = {0};
    add_parameters(&known, s, sql);
    for (size_t i = 0; i < setting_count; i++) {
        if (!has_parameter(s, settings[i])) {
            FAIL(ERROR_USAGE, "%s: '%s' is not a parameter; the parameters are: %s", what,
                 settings[i], known.at);
        }
    }
    for (int i = 1; i <= sqlite3_bind_parameter_count(s); i++) {
        struct declaration d;
        const char *name = sqlite3_bind_parameter_name(s, i);
        if (name == NULL || name[0] != ':') {
            FAIL(ERROR_USAGE, "%s: write parameters as :name, not as %s", what,
                 name == NULL ? "?" : name);
        }
        const char *value = setting_of(name + 1, settings, setting_count);
        bool has_initial = find_declaration(sql, name + 1, &d) && d.has_initial;
        if (value == NULL && has_initial)
            value = d.initial;
        if (value == NULL) {
            FAIL(ERROR_USAGE, "%s: parameter %s=VALUE is missing; the parameters are: %s", what,
                 name + 1, known.at);
        }
        if (has_initial && is_number(d.initial) && !is_number(value)) {
            FAIL(ERROR_USAGE, "%s: %s=%s is not a finite number; the default is %s", what, name + 1,
                 value, d.initial);
        }
        if (has_initial && strspn(d.initial, "0123456789") == strlen(d.initial) &&
            d.initial[0] != '\0' && !is_count(value)) {
            FAIL(ERROR_USAGE, "%s: %s=%s is not a whole number of 0 or more; the default is %s",
                 what, name + 1, value, d.initial);
        }
        /* If the default of :run is all, 'all' may also be passed. */
        bool all = has_initial && strcmp(d.initial, "all") == 0 && strcmp(value, "all") == 0;
        TRY(bind_value(db, s, i, strcmp(name, ":run") == 0 && !all, has_initial ? d.initial : NULL,
                       value));
    }
done:
    text_free(&known);
    return result;
}

/* ---- runs --------------------------------------------------------------------------------------
 */

status query_run_id(sqlite3 *db, const char *name, int64_t *run_id)
{
    status result = OK;
    sqlite3_stmt *s = NULL;
    const char *path = sqlite3_db_filename(db, "main");
    /* The search by id is first, because only it uses an index; coalesce() stops at a value. */
    static const char sql[] =
        "SELECT coalesce("
        "(SELECT id FROM run WHERE id = CAST(?1 AS INTEGER) AND CAST(id AS TEXT) = ?1), "
        "(SELECT id FROM run WHERE ?1 = 'last' AND (status <> 'queued' OR runner IS NOT NULL) "
        "ORDER BY id DESC LIMIT 1), "
        "(SELECT id FROM run WHERE length(?1) >= 8 AND substr(uuid, 1, length(?1)) = ?1 "
        "ORDER BY id DESC LIMIT 1))";
    TRY(database_prepare(db, &s, sql));
    sqlite3_bind_text(s, 1, name, -1, SQLITE_STATIC);
    int code = sqlite3_step(s);
    TRY(database_check(db, code, "look up a run"));
    const bool none = sqlite3_column_type(s, 0) == SQLITE_NULL;
    if (none && strcmp(name, "last") == 0)
        FAIL(ERROR_USAGE, "%s: the file contains no runs yet; start one with 'gradlag run'", path);
    if (none) {
        FAIL(ERROR_USAGE,
             "%s: there is no run '%s'; name one by its id (see 'gradlag query runs'), by at least "
             "8 "
             "characters of its uuid, or 'last'",
             path, name);
    }
    *run_id = sqlite3_column_int64(s, 0);
done:
    sqlite3_finalize(s);
    return result;
}

status query_bind_find_run(sqlite3 *db, const struct run_key *key, struct found_run *out,
                           bool *found)
{
    status result = OK;
    sqlite3_stmt *s = NULL;
    struct text sql = {0};
    *found = false;
    REQUIRE(key->config_hash || key->experiment || key->arm || key->tag);
    /* A sweep calls this once per combination, so a search by hash uses the index. */
    text_add(&sql,
             "SELECT id, status, runner IS NOT NULL, "
             "coalesce(config ->> '$.\"dataset.path\"', '') <> ?7 FROM run "
             "WHERE %s AND (?2 IS NULL OR experiment = ?2) "
             "AND (?3 IS NULL OR arm = ?3) AND (?4 IS NULL OR tag = ?4) "
             "AND (?5 IS NULL OR NOT EXISTS (SELECT 1 FROM json_each(?5) AS wanted WHERE"
             " wanted.value IS NOT (SELECT value FROM json_each(run.config) AS its"
             "  WHERE its.key = wanted.key))) "
             "ORDER BY (?6 AND status = 'queued' AND runner IS NULL) DESC,"
             " CASE status WHEN 'finished' THEN 0 WHEN 'diverged' THEN 1 WHEN 'running' THEN 2"
             "  WHEN 'queued' THEN 2 ELSE 3 END, "
             "id DESC LIMIT 1",
             key->config_hash == NULL ? "?1 IS NULL" : "config_hash = ?1");
    TRY(database_prepare(db, &s, sql.at));
    sqlite3_bind_text(s, 1, key->config_hash, -1, SQLITE_STATIC);
    sqlite3_bind_text(s, 2, key->experiment, -1, SQLITE_STATIC);
    sqlite3_bind_text(s, 3, key->arm, -1, SQLITE_STATIC);
    sqlite3_bind_text(s, 4, key->tag, -1, SQLITE_STATIC);
    sqlite3_bind_text(s, 5, key->config, -1, SQLITE_STATIC);
    sqlite3_bind_int(s, 6, key->waiting_first);
    sqlite3_bind_text(s, 7, key->dataset_path, -1, SQLITE_STATIC);
    int code = sqlite3_step(s);
    TRY(database_check(db, code, "look up a run"));
    if (code == SQLITE_ROW) {
        out->id = sqlite3_column_int64(s, 0);
        const char *its = (const char *)sqlite3_column_text(s, 1);
        snprintf(out->status, sizeof out->status, "%s", its != NULL ? its : "");
        out->taken = sqlite3_column_int(s, 2) != 0;
        out->other_path = sqlite3_column_int(s, 3) != 0; /* 0 without key->dataset_path */
        *found = true;
    }
done:
    text_free(&sql);
    sqlite3_finalize(s);
    return result;
}
