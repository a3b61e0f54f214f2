#include "results/query/live_runs.h"

#include "base/memory.h"
#include "base/text.h"
#include "results/store/database.h"
#include "results/query/query.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum {
    ROWS_PER_POINT = 16, /* rows that are read for a point: the last of its stretch */
    RECENT = 2048,       /* rows from which the slowest worker is computed */
};

static double number(sqlite3_stmt *s, int column)
{
    bool known = sqlite3_column_type(s, column) != SQLITE_NULL;
    return known ? sqlite3_column_double(s, column) : NAN;
}

/* Truncates a long text after a complete character and appends "…". */
static void copy_text(sqlite3_stmt *s, int column, char *out, size_t room)
{
    static const char more[] = "…";
    const char *text = (const char *)sqlite3_column_text(s, column);
    size_t length = text != NULL ? strlen(text) : 0;
    if (length < room) {
        snprintf(out, room, "%s", text != NULL ? text : "");
        return;
    }
    length = room - sizeof more;
    while (length > 0 && ((unsigned char)text[length] & 0xc0) == 0x80)
        length--;
    snprintf(out, room, "%.*s%s", (int)length, text, more);
}

/* ---- rows of runs -------------------------------------------------------------------------------
 */

#define RUN_COLUMNS                                                                                \
    "id, status, mode = 'async' OR EXISTS (SELECT 1 FROM push WHERE run_id = run.id),"             \
    " coalesce(arm || ' ×' || workers, mode || ' ×' || workers || ' ' || model"                  \
    "  || CASE WHEN damping <> 'none' THEN ' ' || damping ELSE '' END) || ' seed ' || seed,"       \
    " progress ->> '$.samples', progress ->> '$.total_samples', progress ->> '$.updates',"         \
    " progress ->> '$.seconds', progress ->> '$.loss',"                                            \
    " coalesce(mean_staleness, progress ->> '$.staleness'),"                                       \
    " (julianday('now') - julianday(coalesce(progress ->> '$.at', started_at))) * 86400,"          \
    " train_seconds, final_accuracy, final_loss, samples_per_second, error,"                       \
    " (julianday(progress ->> '$.at') - julianday(started_at)) * 86400"

enum {
    ID,
    STATUS,
    ASYNCHRONOUS,
    TITLE,
    SAMPLES,
    TOTAL,
    UPDATES,
    SECONDS,
    LOSS,
    STALENESS,
    SILENT,
    TRAINED,
    FINAL_ACCURACY,
    FINAL_LOSS,
    RATE,
    ERROR,
    ELAPSED
};

static double ratio(double a, double b)
{
    return b > 0 ? a / b : NAN;
}

static void read_run(sqlite3_stmt *s, struct live_run *r)
{
    double samples = number(s, SAMPLES), total = number(s, TOTAL), seconds = number(s, SECONDS);
    *r = (struct live_run){.id = sqlite3_column_int64(s, ID),
                           .asynchronous = sqlite3_column_int(s, ASYNCHRONOUS) != 0,
                           .part = ratio(samples, total),
                           .samples_per_second = ratio(samples, seconds),
                           .updates_per_second = ratio(number(s, UPDATES), seconds),
                           .loss = number(s, LOSS),
                           .accuracy = number(s, FINAL_ACCURACY),
                           .staleness = number(s, STALENESS),
                           .silent_seconds = number(s, SILENT),
                           .train_seconds = number(s, TRAINED),
                           .slowest = -1,
                           .slowest_factor = NAN};
    /* Wall-clock time, because it includes evaluations, and a virtual clock is not the host's. */
    r->seconds_left = ratio((total - samples) * number(s, ELAPSED), samples);
    copy_text(s, STATUS, r->status, sizeof r->status);
    copy_text(s, TITLE, r->title, sizeof r->title);
    copy_text(s, ERROR, r->error, sizeof r->error);
    if (!isnan(r->train_seconds)) { /* the run has ended */
        r->loss = number(s, FINAL_LOSS);
        r->samples_per_second = number(s, RATE);
    }
}

static status read_runs(sqlite3 *db, const char *sql, struct live_run *out, size_t room,
                        size_t *count)
{
    status result = OK;
    sqlite3_stmt *s = NULL;
    int code;
    TRY(database_prepare(db, &s, sql));
    sqlite3_bind_int64(s, 1, (sqlite3_int64)room);
    while ((code = sqlite3_step(s)) == SQLITE_ROW && *count < room)
        read_run(s, &out[(*count)++]);
    TRY(database_check(db, code, "read the runs"));
done:
    sqlite3_finalize(s);
    return result;
}

static status count_runs(sqlite3 *db, struct live_runs *l)
{
    static const char sql[] =
        "SELECT count(*) FILTER (WHERE status = 'queued' AND runner IS NULL),"
        " count(*) FILTER (WHERE status = 'finished'), count(*) FILTER (WHERE status = 'diverged'),"
        " count(*) FILTER (WHERE status = 'failed'), count(*) FILTER (WHERE status = 'stopped'),"
        " count(*) FILTER (WHERE status = 'running' OR (status = 'queued' AND runner IS NOT NULL))"
        " FROM run";
    status result = OK;
    sqlite3_stmt *s = NULL;
    TRY(database_prepare(db, &s, sql));
    TRY(database_check(db, sqlite3_step(s), "count the runs"));
    l->waiting = (unsigned)sqlite3_column_int(s, 0);
    l->finished = (unsigned)sqlite3_column_int(s, 1);
    l->diverged = (unsigned)sqlite3_column_int(s, 2);
    l->failed = (unsigned)sqlite3_column_int(s, 3);
    l->stopped = (unsigned)sqlite3_column_int(s, 4);
    size_t all = (size_t)sqlite3_column_int64(s, 5);
    l->more_running = all > LIVE_RUNS ? all - LIVE_RUNS : 0;
done:
    sqlite3_finalize(s);
    return result;
}

static status read_queue(sqlite3 *db, struct live_runs *l)
{
    status result = OK;
    sqlite3_stmt *s = NULL;
    struct text sql = {0};
    const char *rows = query_text("queue");
    size_t running = l->running_count + l->more_running;
    l->queue_seconds_left = NAN;
    if (l->waiting + running == 0)
        goto done;
    text_add(&sql,
             "WITH queue AS (%.*s) SELECT CASE WHEN count(expected_s) = count(*) THEN "
             "sum(max(expected_s - coalesce(elapsed_s, 0), 0)) END FROM queue",
             (int)(strrchr(rows, ';') - rows), rows);
    TRY(database_prepare(db, &s, sql.at));
    TRY(database_check(db, sqlite3_step(s), "judge how long the queue takes"));
    l->queue_seconds_left = number(s, 0) / fmax((double)running, 1);
done:
    sqlite3_finalize(s);
    text_free(&sql);
    return result;
}

/* ---- curves -------------------------------------------------------------------------------------
 */

/* Reads the number that `sql` returns for run ?1 and rows ?2 to ?3; NaN if there is none. */
static status ask(sqlite3 *db, sqlite3_stmt *s, int64_t run, int64_t from, int64_t to, double *out)
{
    status result = OK;
    sqlite3_bind_int64(s, 1, run);
    sqlite3_bind_int64(s, 2, from);
    sqlite3_bind_int64(s, 3, to);
    int code = sqlite3_step(s);
    *out = code == SQLITE_ROW ? number(s, 0) : NAN;
    sqlite3_reset(s);
    TRY(database_check(db, code, "read a run's curve"));
done:
    return result;
}

/* The number of the last row: of push if the run has rows there, else of step. */
static status last_row(sqlite3 *db, const struct live_run *r, int64_t *out)
{
    status result = OK;
    sqlite3_stmt *s = NULL;
    TRY(database_prepare(
        db, &s,
        r->asynchronous
            ? "SELECT number FROM push WHERE run_id = ?1 ORDER BY number DESC LIMIT 1"
            : "SELECT update_version FROM step WHERE run_id = ?1 ORDER BY update_version DESC "
              "LIMIT 1"));
    sqlite3_bind_int64(s, 1, r->id);
    int code = sqlite3_step(s);
    TRY(database_check(db, code, "read a run's rows"));
    *out = code == SQLITE_ROW ? sqlite3_column_int64(s, 0) : -1;
done:
    sqlite3_finalize(s);
    return result;
}

static status read_loss_curve(sqlite3 *db, struct live_run *r, int64_t last)
{
    status result = OK;
    sqlite3_stmt *s = NULL;
    int64_t points = last + 1 < LIVE_POINTS ? last + 1 : LIVE_POINTS;
    TRY(database_prepare(db, &s,
                         r->asynchronous ? "SELECT avg(loss) FROM push WHERE run_id = ?1 AND "
                                           "number BETWEEN ?2 AND ?3"
                                         : "SELECT avg(loss) FROM step WHERE run_id = ?1 AND "
                                           "update_version BETWEEN ?2 AND ?3"));
    for (int64_t i = 0; i < points; i++) {
        int64_t end =
            (last + 1) * (i + 1) / points; /* a point reads the last rows of its stretch */
        double loss;
        TRY(ask(db, s, r->id, end - ROWS_PER_POINT, end, &loss));
        if (!isnan(loss))
            r->loss_curve.at[r->loss_curve.count++] = loss;
    }
done:
    sqlite3_finalize(s);
    return result;
}

static status read_accuracy_curve(sqlite3 *db, struct live_run *r)
{
    status result = OK;
    sqlite3_stmt *s = NULL;
    int code;
    TRY(database_prepare(db, &s,
                         "SELECT test_accuracy FROM (SELECT updates, test_accuracy FROM evaluation"
                         " WHERE run_id = ?1 AND test_accuracy IS NOT NULL"
                         " ORDER BY updates DESC LIMIT ?2) ORDER BY updates"));
    sqlite3_bind_int64(s, 1, r->id);
    sqlite3_bind_int64(s, 2, LIVE_POINTS);
    while ((code = sqlite3_step(s)) == SQLITE_ROW && r->accuracy_curve.count < LIVE_POINTS) {
        r->accuracy = sqlite3_column_double(s, 0);
        r->accuracy_curve.at[r->accuracy_curve.count++] = r->accuracy;
    }
    TRY(database_check(db, code, "read a run's evaluations"));
done:
    sqlite3_finalize(s);
    return result;
}

/* Finds the worker with the longest recent compute time, and its ratio to the median. */
static status read_slowest(sqlite3 *db, struct live_run *r, int64_t last)
{
    static const char form[] =
        "WITH each AS (SELECT worker, avg(compute_us) AS us FROM %s"
        " WHERE run_id = ?1 AND %s > ?2 AND compute_us IS NOT NULL GROUP BY worker),"
        " ranked AS (SELECT *, row_number() OVER (ORDER BY us) AS i, count(*) OVER () AS n FROM "
        "each) "
        "SELECT worker, us / (SELECT us FROM ranked WHERE i = (n + 1) / 2) FROM ranked"
        " WHERE i = n AND n > 1";
    status result = OK;
    sqlite3_stmt *s = NULL;
    char sql[sizeof form + 64];
    int64_t rows = r->asynchronous ? RECENT : RECENT / 16;
    snprintf(sql, sizeof sql, form, r->asynchronous ? "push" : "step",
             r->asynchronous ? "number" : "update_version");
    TRY(database_prepare(db, &s, sql));
    sqlite3_bind_int64(s, 1, r->id);
    sqlite3_bind_int64(s, 2, last - rows);
    int code = sqlite3_step(s);
    TRY(database_check(db, code, "read the slowest worker"));
    if (code == SQLITE_ROW) {
        r->slowest = sqlite3_column_int(s, 0);
        r->slowest_factor = number(s, 1);
    }
done:
    sqlite3_finalize(s);
    return result;
}

static status read_rows(sqlite3 *db, struct live_run *r)
{
    status result = OK;
    int64_t last;
    TRY(last_row(db, r, &last));
    TRY(read_accuracy_curve(db, r));
    if (last >= 0) {
        TRY(read_loss_curve(db, r, last));
        TRY(read_slowest(db, r, last));
    }
done:
    return result;
}

status live_runs_read(struct live_runs *out, const char *path, size_t ended)
{
    static const char running[] =
        "SELECT " RUN_COLUMNS " FROM run WHERE status = 'running' OR (status = 'queued' AND runner "
        "IS NOT NULL) ORDER BY id LIMIT ?1";
    static const char over[] =
        "SELECT " RUN_COLUMNS " FROM run WHERE status NOT IN ('queued', 'running')"
        " ORDER BY finished_at DESC, id DESC LIMIT ?1";
    status result = OK;
    sqlite3 *db = NULL;
    *out = (struct live_runs){0};
    TRY(database_open_reader_if_any(&db, path));
    if (db == NULL)
        goto done;
    TRY(database_execute(db, "BEGIN", "read the runs"));
    out->there = true;
    TRY(memory_new(&out->running, LIVE_RUNS, sizeof *out->running, "runs in flight"));
    TRY(memory_new(&out->ended, ended + 1, sizeof *out->ended, "runs"));
    TRY(count_runs(db, out));
    TRY(read_runs(db, running, out->running, LIVE_RUNS, &out->running_count));
    TRY(read_runs(db, over, out->ended, ended, &out->ended_count));
    TRY(read_queue(db, out));
    for (size_t i = 0; i < out->running_count; i++)
        TRY(read_rows(db, &out->running[i]));
done:
    if (db != NULL)
        database_rollback(db);
    database_close(&db);
    if (result != OK)
        live_runs_free(out);
    return result;
}

void live_runs_free(struct live_runs *l)
{
    memory_free(l->running);
    memory_free(l->ended);
    *l = (struct live_runs){0};
}
