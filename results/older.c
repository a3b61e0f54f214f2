#include "results/older.h"

#include "results/packed.h"
#include "results/runner.h"
#include "results/summaries.h"

#include <stdio.h>
#include <string.h>

/* Of the keys of version 1 those that define what is computed: experiments/keys.def as it was when
 * version 2 came. */
#define DEFINING                                                                                   \
    "json_remove(config, '$.results', '$.tag', '$.experiment', '$.arm', '$.timeout_s', "           \
    "'$.checkpoint', '$.checkpoint_every', '$.endpoint', '$.payload', '$.transport', "             \
    "'$.record', '$.on_lost', '$.bucket_kib', '$.\"dataset.path\"')"
#define SETTINGS "json_remove(" DEFINING ", '$.seed')"
#define HASH     "CASE WHEN config IS NOT NULL THEN gradlag_sha256(" DEFINING ") ELSE config_hash END"

static void sha256_of(sqlite3_context *context, int count, sqlite3_value **values)
{
    struct sha256 sum;
    char hex[65];
    (void)count;
    sha256_begin(&sum);
    sha256_add(&sum, sqlite3_value_text(values[0]), (size_t)sqlite3_value_bytes(values[0]));
    sha256_end(&sum, hex);
    sqlite3_result_text(context, hex, 64, SQLITE_TRANSIENT);
}

static status offer_sha256(sqlite3 *db)
{
    int code = sqlite3_create_function(db, "gradlag_sha256", 1, SQLITE_UTF8 | SQLITE_DETERMINISTIC,
                                       NULL, sha256_of, NULL, NULL);
    return database_check(db, code, "read an older file");
}

static status from_1_to_2(sqlite3 *db)
{
    status result = OK;
    TRY(offer_sha256(db));
    TRY(database_execute(
        db,
        "ALTER TABLE run ADD COLUMN settings TEXT"
        " CHECK (settings IS NULL OR json_valid(settings));"
        "ALTER TABLE run ADD COLUMN runner TEXT CHECK (runner IS NULL OR json_valid(runner));"
        "CREATE INDEX run_going_on ON run (status) WHERE status IN ('queued', 'running');"
        "UPDATE run SET settings = " SETTINGS ", config_hash = " HASH,
        "bring the file up to date"));
done:
    return result;
}

/* Of push, here and in the next one, what pack_pushes() reads. */
static status from_2_to_3(sqlite3 *db)
{
    return database_execute(db,
                            "ALTER TABLE push ADD COLUMN arrival INTEGER;"
                            "ALTER TABLE push ADD COLUMN batch INTEGER;"
                            "ALTER TABLE push ADD COLUMN waited_for INTEGER;"
                            "ALTER TABLE push ADD COLUMN rate REAL;"
                            "ALTER TABLE push ADD COLUMN reason_code INTEGER;"
                            "ALTER TABLE event ADD COLUMN push_number INTEGER",
                            "bring the file up to date");
}

static status from_3_to_4(sqlite3 *db)
{
    return database_execute(db,
                            "ALTER TABLE run ADD COLUMN sent_bytes INTEGER;"
                            "ALTER TABLE step ADD COLUMN data_us REAL;"
                            "ALTER TABLE step ADD COLUMN forward_us REAL;"
                            "ALTER TABLE step ADD COLUMN backward_us REAL;"
                            "ALTER TABLE step ADD COLUMN hidden_us REAL;"
                            "ALTER TABLE step ADD COLUMN staleness INTEGER;"
                            "ALTER TABLE step ADD COLUMN at_seconds REAL;"
                            "ALTER TABLE push ADD COLUMN cosine REAL;"
                            "ALTER TABLE push ADD COLUMN momentum REAL;"
                            "ALTER TABLE push ADD COLUMN total_momentum REAL;"
                            "ALTER TABLE push ADD COLUMN server INTEGER NOT NULL DEFAULT 0;"
                            "ALTER TABLE event ADD COLUMN server INTEGER NOT NULL DEFAULT 0",
                            "bring the file up to date");
}

#define FATE   "(outcome_code + 16 * coalesce(reason_code, 0) + 256 * server)"
#define BEHIND "(update_version - (" FATE " & 255 < 2) - staleness - read_version)"

/* push.sql's own words for each column; codes of scales as rows_insert() gives them. */
static status pack_pushes(sqlite3 *db)
{
    status result = OK;
    TRY(packed_offer_functions(db));
    TRY(database_execute(
        db,
        "INSERT INTO push_scale SELECT run_id, code, scale FROM ("
        " SELECT run_id, scale, row_number() OVER (PARTITION BY run_id ORDER BY first) - 1 AS code"
        " FROM (SELECT run_id, scale, min(number) AS first FROM push_before"
        "  WHERE scale IS NOT NULL GROUP BY run_id, scale)) WHERE code < 100;"
        "INSERT INTO push_packed SELECT p.run_id, number, update_version - number, worker, "
        "sequence, staleness, coalesce(s.code, p.scale), gradlag_fraction(gap),"
        " gradlag_fraction(gradient_norm), gradlag_fraction(loss), " FATE ", pull_us, compute_us,"
        " queue_us, apply_us, gradlag_nanoseconds(at_seconds), arrival - number, waited_for,"
        " gradlag_base_rate(rate, p.scale)"
        " FROM push_before AS p LEFT JOIN push_scale AS s"
        " ON s.run_id = p.run_id AND s.scale = p.scale ORDER BY p.run_id, number;"
        "INSERT INTO push_more SELECT * FROM ("
        " SELECT run_id, number, nullif(" BEHIND ", 0) AS behind,"
        "  nullif(batch - sequence, 0) AS ahead, not_a_number, cosine, momentum, total_momentum,"
        "  NULL, NULL, NULL FROM push_before)"
        " WHERE coalesce(behind, ahead, not_a_number, cosine, momentum, total_momentum)"
        "  IS NOT NULL",
        "bring the file up to date"));
done:
    return result;
}

/* The old rows' pages are free for new ones afterwards; VACUUM would give them back. */
static status from_4_to_5(sqlite3 *db)
{
    static const char doing[] = "bring the file up to date";
    status result = OK;
    TRY(database_execute(db,
                         "ALTER TABLE push RENAME TO push_before;"
                         "ALTER TABLE run ADD COLUMN summarized INTEGER;"
                         "ALTER TABLE run ADD COLUMN progress TEXT"
                         " CHECK (progress IS NULL OR json_valid(progress));"
                         "ALTER TABLE run ADD COLUMN queued_at TEXT;"
                         "ALTER TABLE run ADD COLUMN priority INTEGER;"
                         "ALTER TABLE run ADD COLUMN attempt INTEGER;"
                         "ALTER TABLE evaluation ADD COLUMN took_seconds REAL;"
                         "CREATE TABLE pass (run_id INTEGER NOT NULL REFERENCES run (id)"
                         " ON DELETE CASCADE, update_version INTEGER NOT NULL,"
                         " worker INTEGER NOT NULL, number INTEGER NOT NULL,"
                         " micro_batch INTEGER NOT NULL,"
                         " backward INTEGER NOT NULL CHECK (backward IN (0, 1)),"
                         " version INTEGER NOT NULL, compute_us REAL, at_seconds REAL,"
                         " not_a_number TEXT,"
                         " PRIMARY KEY (run_id, update_version, worker, number))"
                         " STRICT, WITHOUT ROWID;"
                         "CREATE INDEX run_without_summary ON run (id) WHERE summarized IS NULL",
                         doing));
    TRY(database_execute(db, database_text("results/push.sql"), doing));
    TRY(database_execute(db, database_text("results/summaries.sql"), doing));
    TRY(pack_pushes(db));
    TRY(database_execute(db, "DROP TABLE push_before", doing));
done:
    return result;
}

static status from_5_to_6(sqlite3 *db)
{
    return database_execute(db,
                            "ALTER TABLE run ADD COLUMN collapsed INTEGER;"
                            "ALTER TABLE evaluation ADD COLUMN top_class_share REAL",
                            "bring the file up to date");
}

status older_upgrade(sqlite3 *db, int64_t version)
{
    static const char doing[] = "bring the file up to date";
    status result = OK;
    if (version == 5) {
        TRY(from_5_to_6(db));
        return older_renew_views(db);
    }
    /* They name tables and columns that come and go. */
    TRY(database_execute(db,
                         "DROP VIEW IF EXISTS run_with_settings; DROP VIEW run_summary;"
                         "DROP VIEW staleness_histogram; DROP VIEW accuracy_by_workers;"
                         "DROP VIEW time_to_accuracy; DROP VIEW where_time_goes;",
                         doing));
    if (version <= 1) {
        TRY(from_1_to_2(db));
    }
    if (version <= 2) {
        TRY(from_2_to_3(db));
    }
    if (version <= 3) {
        TRY(from_3_to_4(db));
    }
    TRY(from_4_to_5(db));
    TRY(from_5_to_6(db));
    TRY(database_execute(db, database_text("results/views.sql"), doing));
    TRY(summaries_make_all(db));
done:
    return result;
}

/* ---- views --------------------------------------------------------------------------------------
 */

/* views.sql, view by view: *at goes on to the next "CREATE VIEW name …"; false: there is none. */
static bool next_view(const char **at, char name[64])
{
    static const char create[] = "CREATE VIEW ";
    *at = strstr(*at, create);
    if (*at == NULL) {
        return false;
    }
    const char *from = *at + sizeof create - 1;
    snprintf(name, 64, "%.*s", (int)strcspn(from, " "), from);
    return true;
}

/* SQLite keeps a view's text as it was given, up to the semicolon. */
static status is_alike(sqlite3 *db, const char *name, const char *text, bool *out)
{
    status result = OK;
    sqlite3_stmt *s = NULL;
    TRY(database_prepare(db, &s,
                         "SELECT sql FROM main.sqlite_master WHERE type = 'view' AND name = ?1"));
    sqlite3_bind_text(s, 1, name, -1, SQLITE_STATIC);
    int code = sqlite3_step(s);
    TRY(database_check(db, code, "read the file"));
    const char *its = code == SQLITE_ROW ? (const char *)sqlite3_column_text(s, 0) : NULL;
    size_t length = its != NULL ? strlen(its) : 0;
    *out = its != NULL && strncmp(text, its, length) == 0 && text[length] == ';';
done:
    sqlite3_finalize(s);
    return result;
}

status older_views_differ(sqlite3 *db, bool *out)
{
    status result = OK;
    char name[64];
    bool alike = true;
    for (const char *at = database_text("results/views.sql"); alike && next_view(&at, name); at++) {
        TRY(is_alike(db, name, at, &alike));
    }
    *out = !alike;
done:
    return result;
}

status older_renew_views(sqlite3 *db)
{
    static const char doing[] = "renew the views";
    status result = OK;
    sqlite3_stmt *s = NULL;
    char name[64], drop[96];
    bool alike;
    for (const char *at = database_text("results/views.sql"); next_view(&at, name); at++) {
        TRY(is_alike(db, name, at, &alike));
        if (!alike) {
            snprintf(drop, sizeof drop, "DROP VIEW IF EXISTS main.%s", name);
            TRY(database_execute(db, drop, doing));
            TRY(database_prepare(db, &s, at));
            TRY(database_check(db, sqlite3_step(s), doing));
            sqlite3_finalize(s);
            s = NULL;
        }
    }
done:
    sqlite3_finalize(s);
    return result;
}

/* ---- reading ------------------------------------------------------------------------------------
 */

/* A column's name as the file has it, which may be anything, as one identifier. */
static void add_name(struct text *sql, const char *name)
{
    char *quoted = sqlite3_mprintf("\"%w\"", name);
    REQUIRE(quoted != NULL);
    text_add(sql, "%s", quoted);
    sqlite3_free(quoted);
}

/* "SELECT id, …, 'failed' AS status, … FROM main.run", as a temporary view in front of it. */
static status lay_over_run(sqlite3 *db, int64_t version, const struct gone_runs *gone)
{
    status result = OK;
    sqlite3_stmt *s = NULL;
    struct text sql = {0}, ids = {0}, whys = {0};
    int code;
    for (size_t i = 0; i < gone->count; i++) {
        char *why = sqlite3_mprintf("%Q", gone->at[i].why);
        REQUIRE(why != NULL);
        text_add(&ids, "%s%lld", i > 0 ? "," : "", (long long)gone->at[i].id);
        text_add(&whys, " WHEN %lld THEN %s", (long long)gone->at[i].id, why);
        sqlite3_free(why);
    }
    text_add(&sql, "CREATE TEMP VIEW run AS SELECT ");
    TRY(database_prepare(db, &s, "SELECT name, cid FROM pragma_table_info('run', 'main')"));
    while ((code = sqlite3_step(s)) == SQLITE_ROW) {
        const char *name = (const char *)sqlite3_column_text(s, 0);
        text_add(&sql, "%s", sqlite3_column_int(s, 1) > 0 ? ", " : "");
        if (strcmp(name, "status") == 0 && gone->count > 0) {
            text_add(&sql, "CASE WHEN id IN (%s) THEN 'failed' ELSE status END AS status", ids.at);
        } else if (strcmp(name, "error") == 0 && gone->count > 0) {
            text_add(&sql, "CASE id%s ELSE error END AS error", whys.at);
        } else if (strcmp(name, "config_hash") == 0 && version == 1) {
            text_add(&sql, HASH " AS config_hash");
        } else {
            add_name(&sql, name);
        }
    }
    TRY(database_check(db, code, "read the file"));
    text_add(&sql, "%s%s%s%s FROM main.run",
             version == 1 ? ", " SETTINGS " AS settings, NULL AS runner" : "",
             version < 4 ? ", NULL AS sent_bytes" : "",
             version < 5
                 ? ", NULL AS summarized, NULL AS progress, NULL AS queued_at, NULL AS priority, "
                   "NULL AS attempt"
                 : "",
             version < 6 ? ", NULL AS collapsed" : "");
    TRY(database_execute(db, sql.at, "read the file"));
done:
    sqlite3_finalize(s);
    text_free(&sql);
    text_free(&ids);
    text_free(&whys);
    return result;
}

/* The views again, in front of the file's own, so that they see what was laid over `run`. */
static status lay_over_views(sqlite3 *db)
{
    static const char create[] = "CREATE VIEW ";
    struct text sql = {0};
    const char *from = database_text("results/views.sql"), *at;
    while ((at = strstr(from, create)) != NULL) {
        text_add(&sql, "%.*sCREATE TEMP VIEW ", (int)(at - from), from);
        from = at + sizeof create - 1;
    }
    text_add(&sql, "%s", from);
    status result = database_execute(db, sql.at, "read the file");
    text_free(&sql);
    return result;
}

/* A table, with the columns that later versions brought. */
static status lay_over(sqlite3 *db, const char *table, const char *since_3, const char *since_4,
                       const char *since_5, int64_t version)
{
    struct text sql = {0};
    text_add(&sql, "CREATE TEMP VIEW %s AS SELECT *%s%s%s FROM main.%s", table,
             version < 3 ? since_3 : "", version < 4 ? since_4 : "", since_5, table);
    status result = database_execute(db, sql.at, "read the file");
    text_free(&sql);
    return result;
}

/* And tables that no older run has rows in. */
static status lay_over_rows(sqlite3 *db, int64_t version)
{
    static const char doing[] = "read the file";
    status result = OK;
    TRY(lay_over(db, "push",
                 ", NULL AS arrival, NULL AS batch, NULL AS waited_for, NULL AS rate,"
                 " NULL AS reason_code, NULL AS reason",
                 ", NULL AS cosine, NULL AS momentum, NULL AS total_momentum, 0 AS server",
                 ", NULL AS data_us, NULL AS forward_us, NULL AS backward_us", version));
    TRY(lay_over(db, "event", ", NULL AS push_number", ", 0 AS server", "", version));
    TRY(lay_over(db, "step", "",
                 ", NULL AS data_us, NULL AS forward_us, NULL AS backward_us, NULL AS hidden_us,"
                 " NULL AS staleness, NULL AS at_seconds",
                 "", version));
    TRY(database_execute(db,
                         "CREATE TEMP VIEW pass AS SELECT NULL AS run_id, NULL AS worker,"
                         " NULL AS number, NULL AS update_version, NULL AS micro_batch,"
                         " NULL AS backward, NULL AS version, NULL AS compute_us,"
                         " NULL AS at_seconds, NULL AS not_a_number WHERE 0",
                         doing));
    TRY(database_execute(db,
                         "CREATE TEMP VIEW run_staleness AS SELECT NULL AS run_id,"
                         " NULL AS staleness, NULL AS pushes, NULL AS dropped, NULL AS mean_scale"
                         " WHERE 0;"
                         "CREATE TEMP VIEW run_worker_time AS SELECT NULL AS run_id,"
                         " NULL AS worker, NULL AS steps, NULL AS pull_us, NULL AS compute_us,"
                         " NULL AS exchange_us, NULL AS queue_us, NULL AS apply_us,"
                         " NULL AS step_us, NULL AS data_us, NULL AS forward_us,"
                         " NULL AS backward_us, NULL AS hidden_us WHERE 0",
                         doing));
done:
    return result;
}

status older_show_as_present(sqlite3 *db, int64_t version)
{
    status result = OK;
    struct gone_runs gone = {0};
    bool differ;
    TRY(database_execute(db, "PRAGMA temp_store = MEMORY", "set up"));
    if (version == 1) {
        TRY(offer_sha256(db));
    } else {
        TRY(runner_find_gone(db, &gone));
    }
    if (version < 5) {
        TRY(lay_over_rows(db, version));
    }
    if (version < DATABASE_VERSION) {
        TRY(lay_over(db, "evaluation", "", "",
                     version < 5 ? ", NULL AS took_seconds, NULL AS top_class_share"
                                 : ", NULL AS top_class_share",
                     version));
    }
    if (version < DATABASE_VERSION || gone.count > 0) {
        TRY(lay_over_run(db, version, &gone));
    }
    TRY(older_views_differ(db, &differ));
    if (version < DATABASE_VERSION || gone.count > 0 || differ) {
        TRY(lay_over_views(db));
    }
done:
    runner_free_gone(&gone);
    return result;
}
