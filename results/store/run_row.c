#include "results/store/run_row.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/text.h"
#include "results/store/row_statements.h"
#include "results/store/run_owner.h"
#include "results/store/run_summaries.h"

#include <errno.h>
#include <string.h>

#include <sys/random.h>

/* A random UUID (RFC 9562, version 4). */
static status make_uuid(char out[37])
{
    status result = OK;
    static const char digits[] = "0123456789abcdef";
    unsigned char random[16];
    if (getrandom(random, sizeof random, 0) != (ssize_t)sizeof random) {
        FAIL(ERROR_OTHER, "no random bytes from the system for the run's uuid: %s",
             strerror(errno));
    }
    random[6] = (unsigned char)((random[6] & 0x0f) | 0x40);
    random[8] = (unsigned char)((random[8] & 0x3f) | 0x80);
    char *c = out;
    for (size_t i = 0; i < sizeof random; i++) {
        if (i == 4 || i == 6 || i == 8 || i == 10)
            *c++ = '-';
        *c++ = digits[random[i] >> 4];
        *c++ = digits[random[i] & 15];
    }
    *c = '\0';
done:
    return result;
}

static void bind_text(sqlite3_stmt *s, const char *parameter, const char *value)
{
    int index = sqlite3_bind_parameter_index(s, parameter);
    REQUIRE(index > 0);
    sqlite3_bind_text(s, index, value, -1, SQLITE_TRANSIENT); /* NULL binds NULL */
}

static void bind_integer(sqlite3_stmt *s, const char *parameter, int64_t value)
{
    int index = sqlite3_bind_parameter_index(s, parameter);
    REQUIRE(index > 0);
    sqlite3_bind_int64(s, index, value);
}

static void bind_number(sqlite3_stmt *s, const char *parameter, double value, struct nan_list *nan)
{
    int index = sqlite3_bind_parameter_index(s, parameter);
    REQUIRE(index > 0);
    bind_real(s, index, value, parameter + 1, nan);
}

static status insert_row(sqlite3 *db, const struct run_description *run, const char *run_status,
                         int64_t *run_id)
{
    static const char sql[] =
        "INSERT INTO run (uuid, experiment, arm, tag, mode, engine, workers, model, dataset, "
        "device, "
        "batch, optimizer, lr, momentum, consistency, damping, correction, communicator, "
        "compression, seed, status, started_at, config, config_hash, host, not_a_number, settings, "
        "runner, progress) VALUES "
        "(:uuid, :experiment, :arm, :tag, :mode, :engine, :workers, :model, :dataset, :device, "
        ":batch, :optimizer, :lr, :momentum, :consistency, :damping, :correction, :communicator, "
        ":compression, :seed, :status, :started_at, :config, :config_hash, :host, :not_a_number, "
        ":settings, :runner, json_object('at', :now))";
    status result = OK;
    sqlite3_stmt *s = NULL;
    struct nan_list nan = {.length = 0};
    struct text runner = {0};
    char uuid[37], now[32];
    run_owner_describe(&runner);
    TRY(make_uuid(uuid));
    TRY(database_prepare(db, &s, sql));
    bind_text(s, ":uuid", uuid);
    bind_text(s, ":experiment", run->experiment);
    bind_text(s, ":arm", run->arm);
    bind_text(s, ":tag", run->tag);
    bind_text(s, ":mode", run->mode);
    bind_text(s, ":engine", run->engine);
    bind_integer(s, ":workers", run->workers);
    bind_text(s, ":model", run->model);
    bind_text(s, ":dataset", run->dataset);
    bind_text(s, ":device", run->device);
    bind_integer(s, ":batch", run->batch);
    bind_text(s, ":optimizer", run->optimizer);
    bind_number(s, ":lr", run->lr, &nan);
    bind_number(s, ":momentum", run->momentum, &nan);
    bind_text(s, ":consistency", run->consistency);
    bind_text(s, ":damping", run->damping);
    bind_text(s, ":correction", run->correction);
    bind_text(s, ":communicator", run->communicator);
    bind_text(s, ":compression", run->compression);
    bind_integer(s, ":seed", (int64_t)run->seed);
    bind_text(s, ":status", run_status);
    clock_utc(now);
    bind_text(s, ":started_at", strcmp(run_status, "running") == 0 ? now : NULL);
    bind_text(s, ":config", run->config);
    bind_text(s, ":config_hash", run->config_hash);
    bind_text(s, ":host", run->host);
    bind_text(s, ":settings", run->settings);
    bind_text(s, ":runner", runner.at);
    bind_text(s, ":now", now);
    bind_nan_list(s, sqlite3_bind_parameter_index(s, ":not_a_number"), &nan);
    TRY(database_check(db, sqlite3_step(s), "add a run"));
    *run_id = sqlite3_last_insert_rowid(db);
done:
    text_free(&runner);
    sqlite3_finalize(s);
    return result;
}

static status insert_precision(sqlite3 *db, int64_t run_id, const char *detail)
{
    status result = OK;
    sqlite3_stmt *s = NULL;
    TRY(database_prepare(db, &s,
                         "INSERT INTO event (run_id, at_seconds, severity, code, detail) "
                         "VALUES (:id, 0, 'info', 'precision', :detail)"));
    bind_integer(s, ":id", run_id);
    bind_text(s, ":detail", detail);
    TRY(database_check(db, sqlite3_step(s), "add an event"));
done:
    sqlite3_finalize(s);
    return result;
}

/* A savepoint, because the queue has a transaction. */
status run_row_insert(sqlite3 *db, const struct run_description *run, const char *run_status,
                      int64_t *run_id)
{
    status result = OK;
    if (run->precision == NULL)
        return insert_row(db, run, run_status, run_id);
    TRY(database_execute(db, "SAVEPOINT run_row", "add a run"));
    TRY(insert_row(db, run, run_status, run_id));
    TRY(insert_precision(db, *run_id, run->precision));
    TRY(database_execute(db, "RELEASE run_row", "add a run"));
done:
    return result;
}

/* ERROR_RESULTS: says why the run cannot be resumed. */
static status explain_no_resume(sqlite3 *db, int64_t run_id)
{
    status result = OK;
    sqlite3_stmt *s = NULL;
    const char *path = sqlite3_db_filename(db, "main");
    TRY(database_prepare(db, &s, "SELECT status FROM run WHERE id = :id"));
    bind_integer(s, ":id", run_id);
    int code = sqlite3_step(s);
    TRY(database_check(db, code, "read the run"));
    if (code == SQLITE_DONE) {
        FAIL(ERROR_RESULTS, "%s: there is no run %lld; 'gradlag query runs' lists the runs", path,
             (long long)run_id);
    }
    FAIL(ERROR_RESULTS, "%s: run %lld has already ended (%s); start a new one", path,
         (long long)run_id, (const char *)sqlite3_column_text(s, 0));
done:
    sqlite3_finalize(s);
    return result;
}

status run_row_resume(sqlite3 *db, int64_t run_id)
{
    status result = OK;
    sqlite3_stmt *s = NULL;
    char now[32];
    TRY(database_prepare(db, &s,
                         "UPDATE run SET status = 'running', "
                         "started_at = coalesce(started_at, :now) "
                         "WHERE id = :id AND status IN ('queued', 'running')"));
    clock_utc(now);
    bind_text(s, ":now", now);
    bind_integer(s, ":id", run_id);
    TRY(database_check(db, sqlite3_step(s), "resume a run"));
    if (sqlite3_changes(db) == 0)
        TRY(explain_no_resume(db, run_id));
done:
    sqlite3_finalize(s);
    return result;
}

/* Executes a statement that may have :id, :version and :detail. *number (may be NULL) ← the value
 * that it returns, or the number of rows that it changed. */
static status execute_at(sqlite3 *db, const char *sql, int64_t run_id, uint64_t version,
                         const char *detail, int64_t *number)
{
    status result = OK;
    sqlite3_stmt *s = NULL;
    TRY(database_prepare(db, &s, sql));
    bind_integer(s, ":id", run_id);
    if (strstr(sql, ":version") != NULL)
        bind_integer(s, ":version", (int64_t)version);
    if (strstr(sql, ":detail") != NULL)
        bind_text(s, ":detail", detail);
    const int code = sqlite3_step(s);
    TRY(database_check(db, code, "take a run back to a checkpoint"));
    if (number != NULL)
        *number = code == SQLITE_ROW ? sqlite3_column_int64(s, 0) : sqlite3_changes(db);
done:
    sqlite3_finalize(s);
    return result;
}

status run_row_roll_back(sqlite3 *db, int64_t run_id, uint64_t version, const char *detail)
{
    static const char *const deletions[] = {
        "DELETE FROM step WHERE run_id = :id AND update_version > :version",
        "DELETE FROM pass WHERE run_id = :id AND update_version > :version",
        "DELETE FROM evaluation WHERE run_id = :id AND updates > :version",
        "DELETE FROM checkpoint WHERE run_id = :id AND version > :version",
    };
    /* The counts and the hash belong to the deleted updates. Member `at` shows that the run
     * continues. */
    static const char clear[] =
        "UPDATE run SET status = 'running', finished_at = NULL, error = NULL, updates = NULL, "
        "samples_used = NULL, samples_computed = NULL, train_seconds = NULL, sent_bytes = NULL, "
        "parameters_sha256 = NULL, "
        "progress = json_object('at', strftime('%Y-%m-%dT%H:%M:%fZ', 'now')) "
        "WHERE id = :id AND status IN ('queued', 'running', 'failed')";
    status result = OK;
    int64_t changed = 0;
    TRY(database_execute(db, "BEGIN IMMEDIATE", "take a run back to a checkpoint"));
    TRY(execute_at(db, clear, run_id, version, NULL, &changed));
    if (changed == 0)
        TRY(explain_no_resume(db, run_id));
    TRY(execute_at(db,
                   "INSERT INTO event (run_id, at_seconds, severity, code, detail) VALUES (:id, "
                   "(SELECT max(at_seconds) FROM step WHERE run_id = :id), 'warning', "
                   "'restarted', :detail)",
                   run_id, version, detail, NULL));
    for (size_t i = 0; i < COUNT_OF(deletions); i++)
        TRY(execute_at(db, deletions[i], run_id, version, NULL, NULL));
    TRY(run_summaries_delete(db, run_id));
    TRY(database_execute(db, "COMMIT", "take a run back to a checkpoint"));
done:
    database_rollback(db);
    return result;
}

/* Computes the columns of run that depend on other rows and columns. Staleness comes from the rows
 * of gradients; if these were not recorded, from `outcome` (may be NULL). */
static status summarize(sqlite3 *db, int64_t run_id, const struct run_outcome *outcome)
{
    static const char sql[] =
        "WITH measured AS ("
        "  SELECT * FROM evaluation WHERE run_id = :id"
        "  AND (test_accuracy IS NOT NULL OR test_loss IS NOT NULL"
        "   OR instr(',' || not_a_number || ',', ',test_loss,') > 0)),"
        " last AS (SELECT * FROM measured ORDER BY updates DESC LIMIT 1),"
        " validated AS ("
        "  SELECT validation_accuracy FROM evaluation"
        "  WHERE run_id = :id AND validation_accuracy IS NOT NULL ORDER BY updates DESC LIMIT 1),"
        " lag AS ("
        "  SELECT 1.0 * sum(staleness * pushes) / sum(pushes) AS mean, max(staleness) AS most"
        "  FROM run_staleness WHERE run_id = :id AND pushes > 0),"
        " late AS ("
        "  SELECT avg(staleness) AS mean, max(staleness) AS most FROM step WHERE run_id = :id) "
        "UPDATE run SET"
        " final_accuracy = (SELECT test_accuracy FROM last),"
        " best_accuracy = (SELECT max(accuracy) FROM time_to_accuracy WHERE run_id = :id),"
        " final_loss = (SELECT test_loss FROM last),"
        " collapsed = (SELECT top_class_share >= 0.99 FROM last),"
        " validation_accuracy = (SELECT validation_accuracy FROM validated),"
        " mean_staleness = coalesce((SELECT mean FROM lag), (SELECT mean FROM late), :mean,"
        "  CASE mode WHEN 'sync' THEN 0.0 END),"
        " max_staleness = coalesce((SELECT most FROM lag), (SELECT most FROM late), :most,"
        "  CASE mode WHEN 'sync' THEN 0 END),"
        " samples_per_second = CASE WHEN train_seconds > 0 THEN samples_used / train_seconds END,"
        " not_a_number = nullif(trim("
        "  coalesce(not_a_number, '') || CASE WHEN EXISTS ("
        "   SELECT 1 FROM last WHERE instr(',' || not_a_number || ',', ',test_loss,') > 0)"
        "  THEN ',final_loss' ELSE '' END, ','), '') "
        "WHERE id = :id";
    status result = OK;
    sqlite3_stmt *s = NULL;
    TRY(run_summaries_write(db, run_id));
    TRY(database_prepare(db, &s, sql));
    bind_integer(s, ":id", run_id);
    if (outcome != NULL && outcome->staleness.gradients > 0) {
        const double gradients = (double)outcome->staleness.gradients;
        struct nan_list none = {.length = 0};
        bind_number(s, ":mean", outcome->staleness.sum / gradients, &none);
        bind_integer(s, ":most", (int64_t)outcome->staleness.most);
    }
    TRY(database_check(db, sqlite3_step(s), "compute the figures of a run"));
done:
    sqlite3_finalize(s);
    return result;
}

status run_row_finish(sqlite3 *db, int64_t run_id, const struct run_outcome *outcome)
{
    static const char sql[] =
        "UPDATE run SET status = :status, error = :error, finished_at = :now, updates = :updates, "
        "samples_used = :samples_used, samples_computed = :samples_computed, "
        "train_seconds = :train_seconds, parameters_sha256 = :parameters_sha256, "
        "sent_bytes = CASE WHEN engine = 'real' OR (mode = 'async' AND engine = 'virtual') "
        "THEN :sent_bytes END, "
        /* json_patch() ignores members that are NULL. */
        "host = json_patch(host, json_object('device', :device, 'program', json(:program), "
        "'communicator', :communicator, 'network', :network)), "
        "progress = NULL, not_a_number = :not_a_number WHERE id = :id";
    status result = OK;
    sqlite3_stmt *s = NULL;
    struct nan_list nan = {.length = 0};
    char now[32];
    TRY(database_execute(db, "BEGIN IMMEDIATE", "end a run"));
    TRY(database_prepare(db, &s, sql));
    clock_utc(now);
    bind_text(s, ":status", outcome->status);
    bind_text(s, ":error", outcome->error);
    bind_text(s, ":now", now);
    bind_integer(s, ":updates", (int64_t)outcome->updates);
    bind_integer(s, ":samples_used", (int64_t)outcome->samples_used);
    bind_integer(s, ":samples_computed", (int64_t)outcome->samples_computed);
    bind_number(s, ":train_seconds", outcome->train_seconds, &nan);
    bind_text(s, ":parameters_sha256", outcome->parameters_sha256);
    bind_integer(s, ":sent_bytes", (int64_t)outcome->sent_bytes);
    bind_text(s, ":device", outcome->device);
    bind_text(s, ":program", outcome->program);
    bind_text(s, ":communicator", outcome->communicator);
    bind_text(s, ":network", outcome->network);
    bind_nan_list(s, sqlite3_bind_parameter_index(s, ":not_a_number"), &nan);
    bind_integer(s, ":id", run_id);
    TRY(database_check(db, sqlite3_step(s), "end a run"));
    TRY(summarize(db, run_id, outcome));
    TRY(database_execute(db, "COMMIT", "end a run"));
done:
    sqlite3_finalize(s);
    database_rollback(db);
    return result;
}

/* Computes the counts of a run that did not record its outcome. An evaluation and a progress report
 * each hold updates, samples and seconds of one moment. (The progress of a virtual run holds
 * seconds of the host, which are not used.) Rows of push and step may be later than the last of
 * them. Each later update of `step` counts as many samples as the updates before it. If
 * decay=batch, batches grow, so later rows of `step` are not used. */
static status compute_counts(sqlite3 *db, int64_t run_id)
{
    static const char sql[] =
        "WITH self AS ("
        "  SELECT *, batch * coalesce(config ->> '$.\"outer.steps\"', 1) AS size,"
        "   coalesce(config ->> '$.decay' = 'batch', 0) AS grows FROM run WHERE id = :id),"
        " reported AS ("
        "  SELECT updates, samples, seconds FROM evaluation WHERE run_id = :id"
        "  UNION ALL SELECT updates, samples_used, train_seconds FROM self"
        "  UNION ALL SELECT progress ->> '$.updates', progress ->> '$.samples',"
        "   CASE WHEN engine IS NOT 'virtual' THEN progress ->> '$.seconds' END FROM self),"
        " last AS (SELECT * FROM reported WHERE updates > 0 ORDER BY updates DESC, seconds DESC "
        "LIMIT "
        "1),"
        " known AS ("
        "  SELECT self.*, coalesce(last.updates, 0) AS since, last.samples, last.seconds,"
        "   CASE WHEN last.updates > 0 THEN last.samples / last.updates"
        "    WHEN mode = 'sync' AND NOT grows THEN batch * workers END AS samples_per_update"
        "  FROM self LEFT JOIN last),"
        " beyond AS ("
        "  SELECT max(update_version) AS updates, count(*) * size AS more,"
        "   max(at_seconds) AS seconds FROM known CROSS JOIN push ON push.run_id = known.id"
        "  WHERE push.server = 0 AND outcome IN ('applied', 'aggregated') AND update_version > "
        "since"
        "  UNION ALL"
        "  SELECT max(update_version), (max(update_version) - since) * samples_per_update,"
        "   max(at_seconds) FROM known CROSS JOIN step ON step.run_id = known.id"
        "  WHERE update_version > since AND (NOT grows OR since = 0)),"
        " reached AS ("
        "  SELECT coalesce(b.updates, nullif(since, 0)) AS updates,"
        "   CASE WHEN b.updates IS NULL THEN samples ELSE coalesce(samples, 0) + more END AS "
        "samples,"
        "   CASE WHEN b.updates IS NULL THEN known.seconds ELSE b.seconds END AS seconds,"
        "   (SELECT nullif(count(*), 0) * size FROM push WHERE run_id = :id AND server = 0)"
        "    + CASE WHEN host ->> '$.resumed' IS NULL THEN 0 ELSE host ->> '$.resumed.computed' END"
        "    AS computed"
        "  FROM known LEFT JOIN beyond AS b ON b.updates IS NOT NULL) "
        "UPDATE run SET progress = NULL, updates = reached.updates, samples_used = reached.samples,"
        " samples_computed = reached.computed, train_seconds = reached.seconds "
        "FROM reached WHERE id = :id";
    status result = OK;
    sqlite3_stmt *s = NULL;
    TRY(database_prepare(db, &s, sql));
    bind_integer(s, ":id", run_id);
    TRY(database_check(db, sqlite3_step(s), "compute the counts of a killed run"));
done:
    sqlite3_finalize(s);
    return result;
}

status run_row_settle(sqlite3 *db, int64_t run_id, const char *run_status, const char *error,
                      const char *at, bool *changed)
{
    static const char sql[] = "UPDATE run SET status = :status, error = :error, finished_at = :now "
                              "WHERE id = :id AND status IN ('queued', 'running')";
    status result = OK;
    sqlite3_stmt *s = NULL;
    char now[32];
    *changed = false;
    TRY(database_execute(db, "BEGIN IMMEDIATE", "end a killed run"));
    TRY(database_prepare(db, &s, sql));
    clock_utc(now);
    bind_text(s, ":status", run_status);
    bind_text(s, ":error", error);
    bind_text(s, ":now", at != NULL ? at : now);
    bind_integer(s, ":id", run_id);
    TRY(database_check(db, sqlite3_step(s), "end a killed run"));
    *changed = sqlite3_changes(db) > 0;
    if (*changed) {
        TRY(compute_counts(db, run_id));
        TRY(summarize(db, run_id, NULL));
    }
    TRY(database_execute(db, "COMMIT", "end a killed run"));
done:
    sqlite3_finalize(s);
    database_rollback(db);
    return result;
}

status run_row_end_gone(sqlite3 *db)
{
    status result = OK;
    struct gone_runs gone = {0};
    TRY(run_owner_find_gone(db, &gone));
    for (size_t i = 0; i < gone.count; i++) {
        bool changed = false;
        const struct gone_run *g = &gone.at[i];
        const char *at = g->heard_at[0] != '\0' ? g->heard_at : NULL;
        TRY(run_row_settle(db, g->id, "failed", g->why, at, &changed));
        if (changed)
            log_info("run %lld is marked as failed: %s", (long long)g->id, g->why);
    }
done:
    run_owner_free_gone(&gone);
    return result;
}
