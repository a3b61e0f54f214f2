#include "results/store/row_statements.h"

#include "base/clock.h"
#include "base/memory.h"

#include <math.h>
#include <string.h>

static const char *const insert_sql[ROW_KINDS] = {
    [ROW_PUSH] =
        "INSERT INTO push (run_id, number, update_version, worker, sequence, read_version, "
        "staleness, scale, gap, gradient_norm, loss, outcome, pull_us, compute_us, queue_us, "
        "apply_us, at_seconds, not_a_number, arrival, batch, waited_for, rate, reason, cosine, "
        "momentum, total_momentum, server, data_us, forward_us, backward_us) VALUES "
        "(?1,?2,?3,?4,?5,?6,?7,?8,?9,?10,?11,?12,?13,?14,?15,?16,?17,?18,?19,?20,?21,?22,?23,?24,"
        "?25,?26,?27,?28,?29,?30)",
    /* A run that resumes from a checkpoint repeats updates; the last row counts. */
    [ROW_STEP] = "INSERT OR REPLACE INTO step (run_id, update_version, worker, loss, compute_us, "
                 "exchange_us, apply_us, not_a_number, data_us, forward_us, backward_us, "
                 "hidden_us, staleness, at_seconds) VALUES "
                 "(?1,?2,?3,?4,?5,?6,?7,?8,?9,?10,?11,?12,?13,?14)",
    [ROW_PASS] = "INSERT INTO pass (run_id, worker, number, update_version, micro_batch, backward, "
                 "version, compute_us, at_seconds, not_a_number) VALUES "
                 "(?1,?2,?3,?4,?5,?6,?7,?8,?9,?10)",
    [ROW_EVALUATION] =
        "INSERT OR REPLACE INTO evaluation (run_id, updates, samples, seconds, train_loss, "
        "validation_loss, validation_accuracy, test_loss, test_accuracy, not_a_number, "
        "took_seconds, top_class_share) VALUES (?1,?2,?3,?4,?5,?6,?7,?8,?9,?10,?11,?12)",
    [ROW_EVENT] = "INSERT INTO event (run_id, at_seconds, severity, code, worker, detail, "
                  "not_a_number, push_number, server) VALUES (?1,?2,?3,?4,?5,?6,?7,?8,?9)",
    [ROW_CHECKPOINT] = "INSERT OR REPLACE INTO checkpoint (run_id, version, path, sha256) "
                       "VALUES (?1,?2,?3,?4)",
    [ROW_PROGRESS] = "UPDATE run SET progress = json_object('updates', ?2, 'samples', ?3, "
                     "'total_samples', ?4, 'seconds', ?5, 'loss', ?6, 'staleness', ?7, 'at', ?8) "
                     "WHERE id = ?1 AND status = 'running'",
    [ROW_ORIGIN] = "UPDATE run SET host = json_set(coalesce(host, '{}'), '$.resumed', json(?2)) "
                   "WHERE id = ?1",
};

void row_free(struct row *row)
{
    if (row->kind == ROW_EVENT) {
        memory_free(row->event.code);
        memory_free(row->event.detail);
    } else if (row->kind == ROW_CHECKPOINT) {
        memory_free(row->checkpoint.path);
        memory_free(row->checkpoint.sha256);
    } else if (row->kind == ROW_ORIGIN) {
        memory_free(row->origin);
    }
}

static bool is_measured(double value)
{
    static const double nothing = NOT_MEASURED;
    return memcmp(&value, &nothing, sizeof value) != 0;
}

void bind_real(sqlite3_stmt *s, int index, double value, const char *column, struct nan_list *nan)
{
    if (!isnan(value)) {
        sqlite3_bind_double(s, index, value);
        return;
    }
    sqlite3_bind_null(s, index);
    size_t bytes = strlen(column);
    if (is_measured(value) && nan->length + bytes + 2 <= sizeof nan->names) {
        if (nan->length > 0)
            nan->names[nan->length++] = ',';
        memcpy(nan->names + nan->length, column, bytes + 1);
        nan->length += bytes;
    }
}

void bind_nan_list(sqlite3_stmt *s, int index, const struct nan_list *nan)
{
    if (nan->length == 0)
        sqlite3_bind_null(s, index);
    else
        sqlite3_bind_text(s, index, nan->names, (int)nan->length, SQLITE_TRANSIENT);
}

/* Whole microseconds are stored in one to three bytes, anything else in eight. */
static void bind_us(sqlite3_stmt *s, int index, double value, const char *column,
                    struct nan_list *nan)
{
    bind_real(s, index, isfinite(value) ? nearbyint(value) : value, column, nan);
}

static void bind_count(sqlite3_stmt *s, int index, uint64_t value)
{
    sqlite3_bind_int64(s, index, (sqlite3_int64)value);
}

static void bind_worker(sqlite3_stmt *s, int index, int worker)
{
    if (worker == NO_WORKER)
        sqlite3_bind_null(s, index);
    else
        sqlite3_bind_int(s, index, worker);
}

static void bind_text(sqlite3_stmt *s, int index, const char *value)
{
    sqlite3_bind_text(s, index, value, -1, SQLITE_STATIC); /* NULL binds NULL */
}

/* ---- pushes -------------------------------------------------------------------------------------
 */

static const char *const outcomes[] = {
    [PUSH_APPLIED] = "applied",
    [PUSH_AGGREGATED] = "aggregated",
    [PUSH_DROPPED_STALE] = "dropped_stale",
    [PUSH_DROPPED_LATE] = "dropped_late",
    [PUSH_NOT_FINITE] = "not_finite",
};

static const char *const reasons[] = {
    [PUSH_USED] = NULL,
    [PUSH_BY_DAMPING] = "damping",
    [PUSH_BY_CONSISTENCY] = "consistency",
    [PUSH_AFTER_END] = "after_end",
    [PUSH_WORKER_LOST] = "worker_lost",
    [PUSH_RUN_ENDED] = "run_ended",
    [PUSH_RUN_DIVERGED] = "run_diverged",
    [PUSH_BAD_GRADIENT] = "gradient",
    [PUSH_BAD_LOSS] = "loss",
    [PUSH_BAD_UPDATE] = "update",
};

/* The index of `name`, which may be NULL, in a table; -1: not found. */
static int index_of(const char *const *names, size_t count, const char *name)
{
    for (size_t i = 0; i < count; i++)
        if (names[i] == name || (names[i] != NULL && name != NULL && strcmp(names[i], name) == 0))
            return (int)i;
    return -1;
}

bool row_read_outcome(const char *name, enum push_outcome *out)
{
    const int index = name != NULL ? index_of(outcomes, COUNT_OF(outcomes), name) : -1;
    *out = index >= 0 ? (enum push_outcome)index : PUSH_APPLIED;
    return index >= 0;
}

bool row_read_reason(const char *name, enum push_reason *out)
{
    const int index = index_of(reasons, COUNT_OF(reasons), name);
    *out = index >= 0 ? (enum push_reason)index : PUSH_USED;
    return index >= 0;
}

/* Without trace=, all parts of compute_us are 0. */
static bool has_parts(const struct push_record *p)
{
    return is_measured(p->forward_us) && (p->data_us != 0 || p->forward_us != 0);
}

static void bind_push(sqlite3_stmt *s, const struct push_record *p)
{
    struct nan_list nan = {.length = 0};
    const bool parts = has_parts(p);
    bind_count(s, 3, p->update_version);
    bind_count(s, 4, p->worker);
    bind_count(s, 5, p->sequence);
    bind_count(s, 6, p->read_version);
    bind_count(s, 7, p->staleness);
    bind_real(s, 8, p->scale, "scale", &nan);
    bind_real(s, 9, p->gap, "gap", &nan);
    bind_real(s, 10, p->gradient_norm, "gradient_norm", &nan);
    bind_real(s, 11, p->loss, "loss", &nan);
    bind_text(s, 12, outcomes[p->outcome]);
    bind_us(s, 13, p->pull_us, "pull_us", &nan);
    bind_us(s, 14, p->compute_us, "compute_us", &nan);
    bind_us(s, 15, p->queue_us, "queue_us", &nan);
    bind_us(s, 16, p->apply_us, "apply_us", &nan);
    bind_real(s, 17, p->at_seconds, "at_seconds", &nan);
    bind_count(s, 19, p->arrival);
    bind_count(s, 20, p->batch);
    bind_worker(s, 21, p->waited_for);
    bind_real(s, 22, p->rate, "rate", &nan);
    bind_text(s, 23, reasons[p->reason]);
    bind_real(s, 24, p->cosine, "cosine", &nan);
    bind_real(s, 25, p->momentum, "momentum", &nan);
    bind_real(s, 26, p->total_momentum, "total_momentum", &nan);
    bind_count(s, 27, p->server);
    bind_us(s, 28, parts ? p->data_us : NOT_MEASURED, "data_us", &nan);
    bind_us(s, 29, parts ? p->forward_us : NOT_MEASURED, "forward_us", &nan);
    bind_us(s, 30, parts ? p->backward_us : NOT_MEASURED, "backward_us", &nan);
    bind_nan_list(s, 18, &nan);
}

/* ---- other rows ---------------------------------------------------------------------------------
 */

static void bind_step(sqlite3_stmt *s, const struct step_record *p)
{
    struct nan_list nan = {.length = 0};
    bind_count(s, 2, p->update_version);
    bind_count(s, 3, p->worker);
    bind_real(s, 4, p->loss, "loss", &nan);
    bind_us(s, 5, p->compute_us, "compute_us", &nan);
    bind_us(s, 6, p->exchange_us, "exchange_us", &nan);
    bind_us(s, 7, p->apply_us, "apply_us", &nan);
    bind_us(s, 9, p->data_us, "data_us", &nan);
    bind_us(s, 10, p->forward_us, "forward_us", &nan);
    bind_us(s, 11, p->backward_us, "backward_us", &nan);
    bind_us(s, 12, p->hidden_us, "hidden_us", &nan);
    bind_count(s, 13, p->staleness);
    bind_real(s, 14, p->at_seconds, "at_seconds", &nan);
    bind_nan_list(s, 8, &nan);
}

static void bind_pass(sqlite3_stmt *s, const struct pass_record *p)
{
    struct nan_list nan = {.length = 0};
    bind_count(s, 2, p->worker);
    bind_count(s, 3, p->number);
    bind_count(s, 4, p->update_version);
    bind_count(s, 5, p->micro_batch);
    bind_count(s, 6, p->backward);
    bind_count(s, 7, p->version);
    bind_us(s, 8, p->compute_us, "compute_us", &nan);
    bind_real(s, 9, p->at_seconds, "at_seconds", &nan);
    bind_nan_list(s, 10, &nan);
}

/* For columns in which NaN means not measured, and for JSON, which has no NaN and no infinity. */
static void bind_finite(sqlite3_stmt *s, int index, double value)
{
    if (isfinite(value))
        sqlite3_bind_double(s, index, value);
    else
        sqlite3_bind_null(s, index);
}

static void bind_evaluation(sqlite3_stmt *s, const struct evaluation_record *e)
{
    struct nan_list nan = {.length = 0};
    bind_count(s, 2, e->updates);
    bind_count(s, 3, e->samples);
    bind_real(s, 4, e->seconds, "seconds", &nan);
    bind_real(s, 5, e->train_loss, "train_loss", &nan);
    bind_real(s, 6, e->validation_loss, "validation_loss", &nan);
    bind_finite(s, 7, e->validation_accuracy);
    bind_real(s, 8, e->test_loss, "test_loss", &nan);
    bind_finite(s, 9, e->test_accuracy);
    bind_real(s, 11, e->took_seconds, "took_seconds", &nan);
    bind_finite(s, 12, e->top_class_share);
    bind_nan_list(s, 10, &nan);
}

static void bind_event(sqlite3_stmt *s, const struct event_row *e)
{
    static const char *const severities[] = {"info", "warning", "error"};
    struct nan_list nan = {.length = 0};
    bind_real(s, 2, e->at_seconds, "at_seconds", &nan);
    bind_text(s, 3, severities[e->severity]);
    bind_text(s, 4, e->code);
    bind_worker(s, 5, e->worker);
    bind_text(s, 6, e->detail);
    bind_nan_list(s, 7, &nan);
    if (e->push_number == PUSHES_UNKNOWN)
        sqlite3_bind_null(s, 8);
    else
        bind_count(s, 8, e->push_number);
    bind_count(s, 9, e->server);
}

static void bind_checkpoint(sqlite3_stmt *s, const struct checkpoint_row *c)
{
    bind_count(s, 2, c->version);
    bind_text(s, 3, c->path);
    bind_text(s, 4, c->sha256);
}

static void bind_progress(sqlite3_stmt *s, const struct progress_record *p)
{
    char now[32];
    clock_utc(now);
    bind_count(s, 2, p->updates);
    bind_count(s, 3, p->samples);
    bind_count(s, 4, p->total_samples);
    bind_finite(s, 5, p->seconds);
    bind_finite(s, 6, p->loss);
    bind_finite(s, 7, p->staleness);
    sqlite3_bind_text(s, 8, now, -1, SQLITE_TRANSIENT);
}

/* A new checkpoint overwrites the file of an earlier one; the earlier row is then wrong. */
static status delete_checkpoint_at(struct row_writer *w, const char *path)
{
    status result = OK;
    sqlite3_stmt *s = NULL;
    TRY(database_prepare(w->db, &s, "DELETE FROM checkpoint WHERE run_id = ?1 AND path = ?2"));
    sqlite3_bind_int64(s, 1, w->run_id);
    bind_text(s, 2, path);
    TRY(database_check(w->db, sqlite3_step(s), "delete the row of an overwritten checkpoint"));
done:
    sqlite3_finalize(s);
    return result;
}

status rows_insert(struct row_writer *w, const struct row *row)
{
    status result = OK;
    sqlite3_stmt *s = w->insert[row->kind];
    sqlite3_bind_int64(s, 1, w->run_id);
    switch (row->kind) {
    case ROW_PUSH:
        bind_count(s, 2, w->next_push);
        bind_push(s, &row->push);
        break;
    case ROW_STEP:
        bind_step(s, &row->step);
        break;
    case ROW_PASS:
        bind_pass(s, &row->pass);
        break;
    case ROW_EVALUATION:
        bind_evaluation(s, &row->evaluation);
        break;
    case ROW_EVENT:
        bind_event(s, &row->event);
        break;
    case ROW_CHECKPOINT:
        TRY(delete_checkpoint_at(w, row->checkpoint.path));
        bind_checkpoint(s, &row->checkpoint);
        break;
    case ROW_PROGRESS:
        bind_progress(s, &row->progress);
        break;
    case ROW_ORIGIN:
        bind_text(s, 2, row->origin);
        break;
    case ROW_KINDS:
        REQUIRE(row->kind != ROW_KINDS);
    }
    int code = sqlite3_step(s);
    sqlite3_reset(s);
    TRY(database_check(w->db, code, "record a row"));
    w->next_push += row->kind == ROW_PUSH;
    w->written += row->kind == ROW_PUSH || row->kind == ROW_STEP;
done:
    return result;
}

status rows_restart(struct row_writer *w)
{
    status result = OK;
    sqlite3_stmt *last = NULL;
    TRY(database_prepare(w->db, &last,
                         "SELECT coalesce(max(number) + 1, 0) FROM push WHERE run_id = ?1"));
    sqlite3_bind_int64(last, 1, w->run_id);
    TRY(database_check(w->db, sqlite3_step(last), "read the run's pushes"));
    w->next_push = (uint64_t)sqlite3_column_int64(last, 0);
done:
    sqlite3_finalize(last);
    return result;
}

status rows_begin(struct row_writer *w, sqlite3 *db, int64_t run_id)
{
    status result = OK;
    *w = (struct row_writer){.db = db, .run_id = run_id};
    TRY(rows_restart(w));
    for (size_t i = 0; i < ROW_KINDS; i++)
        TRY(database_prepare(db, &w->insert[i], insert_sql[i]));
done:
    return result;
}

void rows_end(struct row_writer *w)
{
    for (size_t i = 0; i < ROW_KINDS; i++) {
        sqlite3_finalize(w->insert[i]);
        w->insert[i] = NULL;
    }
}
