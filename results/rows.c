#include "results/rows.h"

#include "results/packed.h"

#include <math.h>
#include <string.h>

static const char *const insert_sql[ROW_KINDS] = {
    [ROW_PUSH] =
        "INSERT INTO push_packed (run_id, number, version_ahead, worker, sequence, staleness, "
        "scale, gap, gradient_norm, loss, fate, pull_us, compute_us, queue_us, apply_us, at_ns, "
        "arrival_ahead, waited_for, rate) VALUES "
        "(?1,?2,?3,?4,?5,?6,?7,?8,?9,?10,?11,?12,?13,?14,?15,?16,?17,?18,?19)",
    /* A run that goes back to a checkpoint does some updates again: what it did last counts. */
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
        if (nan->length > 0) {
            nan->names[nan->length++] = ',';
        }
        memcpy(nan->names + nan->length, column, bytes + 1);
        nan->length += bytes;
    }
}

void bind_nan_list(sqlite3_stmt *s, int index, const struct nan_list *nan)
{
    if (nan->length == 0) {
        sqlite3_bind_null(s, index);
    } else {
        sqlite3_bind_text(s, index, nan->names, (int)nan->length, SQLITE_TRANSIENT);
    }
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
    if (worker == NO_WORKER) {
        sqlite3_bind_null(s, index);
    } else {
        sqlite3_bind_int(s, index, worker);
    }
}

static void bind_text(sqlite3_stmt *s, int index, const char *value)
{
    sqlite3_bind_text(s, index, value, -1, SQLITE_STATIC); /* NULL binds NULL */
}

/* ---- pushes, as push.sql says -------------------------------------------------------------------
 */

static void bind_fraction(sqlite3_stmt *s, int index, double value, const char *column,
                          struct nan_list *nan)
{
    int64_t number;
    if (packed_fraction(value, &number)) {
        sqlite3_bind_int64(s, index, number);
    } else {
        bind_real(s, index, value, column, nan);
    }
}

static void bind_seconds(sqlite3_stmt *s, int index, double value, const char *column,
                         struct nan_list *nan)
{
    int64_t number;
    if (packed_seconds(value, &number)) {
        sqlite3_bind_int64(s, index, number);
    } else {
        bind_real(s, index, value, column, nan);
    }
}

static void bind_rate(sqlite3_stmt *s, int index, double rate, double scale, struct nan_list *nan)
{
    int64_t number;
    if (packed_rate(rate, scale, &number)) {
        sqlite3_bind_int64(s, index, number);
    } else {
        bind_real(s, index, rate, "rate", nan);
    }
}

/* The slot that holds the scale's code, or the free one where it belongs. */
static short *scale_slot(struct row_writer *w, double scale)
{
    uint64_t bits;
    memcpy(&bits, &scale, sizeof bits);
    size_t at = bits * UINT64_C(0x9e3779b97f4a7c15) >> 56;
    while (w->scale_slots[at] != 0 && w->scales[w->scale_slots[at] - 1] != scale) {
        at = (at + 1) % SCALE_SLOTS;
    }
    return &w->scale_slots[at];
}

static void keep_scale(struct row_writer *w, double scale)
{
    w->scales[w->scale_count++] = scale;
    *scale_slot(w, scale) = (short)w->scale_count;
}

/* *code: of a scale that the run had before, or a new one; none where there are too many. */
static status code_of_scale(struct row_writer *w, double scale, int *code)
{
    status result = OK;
    *code = *scale_slot(w, scale) - 1;
    if (*code < 0 && w->scale_count < SCALES_AT_MOST) {
        sqlite3_bind_int64(w->insert_scale, 1, w->run_id);
        sqlite3_bind_int(w->insert_scale, 2, w->scale_count);
        sqlite3_bind_double(w->insert_scale, 3, scale);
        int inserted = sqlite3_step(w->insert_scale);
        sqlite3_reset(w->insert_scale);
        TRY(database_check(w->db, inserted, "record a scale"));
        *code = w->scale_count;
        keep_scale(w, scale);
    }
done:
    return result;
}

static status bind_scale(struct row_writer *w, sqlite3_stmt *s, int index, double scale,
                         struct nan_list *nan)
{
    status result = OK;
    int code = -1;
    if (!isnan(scale)) {
        TRY(code_of_scale(w, scale, &code));
    }
    if (code >= 0) {
        sqlite3_bind_int(s, index, code);
    } else {
        bind_real(s, index, scale, "scale", nan);
    }
done:
    return result;
}

static uint64_t fate_of(const struct push_record *p)
{
    return (uint64_t)p->outcome + 16 * (uint64_t)p->reason + 256 * (uint64_t)p->server;
}

static status bind_push(struct row_writer *w, const struct push_record *p, struct nan_list *nan)
{
    status result = OK;
    sqlite3_stmt *s = w->insert[ROW_PUSH];
    uint64_t number = (uint64_t)w->next_push;
    bind_count(s, 2, number);
    bind_count(s, 3, p->update_version - number);
    bind_count(s, 4, p->worker);
    bind_count(s, 5, p->sequence);
    bind_count(s, 6, p->staleness);
    TRY(bind_scale(w, s, 7, p->scale, nan));
    bind_fraction(s, 8, p->gap, "gap", nan);
    bind_fraction(s, 9, p->gradient_norm, "gradient_norm", nan);
    bind_fraction(s, 10, p->loss, "loss", nan);
    bind_count(s, 11, fate_of(p));
    bind_us(s, 12, p->pull_us, "pull_us", nan);
    bind_us(s, 13, p->compute_us, "compute_us", nan);
    bind_us(s, 14, p->queue_us, "queue_us", nan);
    bind_us(s, 15, p->apply_us, "apply_us", nan);
    bind_seconds(s, 16, p->at_seconds, "at_seconds", nan);
    bind_count(s, 17, p->arrival - number);
    bind_worker(s, 18, p->waited_for);
    bind_rate(s, 19, p->rate, p->scale, nan);
done:
    return result;
}

static void bind_difference(sqlite3_stmt *s, int index, uint64_t difference)
{
    if (difference == 0) {
        sqlite3_bind_null(s, index);
    } else {
        bind_count(s, index, difference);
    }
}

/* Of compute_us; 0 where nobody asked. */
static bool has_parts(const struct push_record *p)
{
    return is_measured(p->forward_us) && (p->data_us != 0 || p->forward_us != 0);
}

/* What few rows have. */
static status insert_more(struct row_writer *w, const struct push_record *p, struct nan_list *nan)
{
    status result = OK;
    sqlite3_stmt *s = w->insert_more;
    uint64_t before = p->update_version - (fate_of(p) % 256 < 2);
    uint64_t read_behind = before - p->staleness - p->read_version;
    if (nan->length == 0 && read_behind == 0 && p->batch == p->sequence &&
        !is_measured(p->cosine) && !is_measured(p->momentum) && !is_measured(p->total_momentum) &&
        !has_parts(p)) {
        return OK;
    }
    sqlite3_bind_int64(s, 1, w->run_id);
    sqlite3_bind_int64(s, 2, w->next_push);
    bind_difference(s, 3, read_behind);
    bind_difference(s, 4, p->batch - p->sequence);
    bind_real(s, 6, p->cosine, "cosine", nan);
    bind_real(s, 7, p->momentum, "momentum", nan);
    bind_real(s, 8, p->total_momentum, "total_momentum", nan);
    const bool parts = has_parts(p);
    bind_us(s, 9, parts ? p->data_us : NOT_MEASURED, "data_us", nan);
    bind_us(s, 10, parts ? p->forward_us : NOT_MEASURED, "forward_us", nan);
    bind_us(s, 11, parts ? p->backward_us : NOT_MEASURED, "backward_us", nan);
    bind_nan_list(s, 5, nan);
    int code = sqlite3_step(s);
    sqlite3_reset(s);
    TRY(database_check(w->db, code, "record a row"));
done:
    return result;
}

static status insert_push(struct row_writer *w, const struct push_record *p)
{
    status result = OK;
    struct nan_list nan = {.length = 0};
    TRY(bind_push(w, p, &nan));
    int code = sqlite3_step(w->insert[ROW_PUSH]);
    sqlite3_reset(w->insert[ROW_PUSH]);
    TRY(database_check(w->db, code, "record a row"));
    TRY(insert_more(w, p, &nan));
    w->next_push++;
    w->written++;
done:
    return result;
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

/* Where NaN means the same as not measured; JSON has no NaN and no infinity. */
static void bind_finite(sqlite3_stmt *s, int index, double value)
{
    if (isfinite(value)) {
        sqlite3_bind_double(s, index, value);
    } else {
        sqlite3_bind_null(s, index);
    }
}

/* An accuracy is a count over a size: it is NaN only where the split is empty. */
static void bind_split(sqlite3_stmt *s, int index, double loss, double accuracy,
                       const char *loss_column, struct nan_list *nan)
{
    bool empty = isnan(accuracy);
    bind_real(s, index, empty && isnan(loss) ? NOT_MEASURED : loss, loss_column, nan);
    bind_real(s, index + 1, empty ? NOT_MEASURED : accuracy, "", nan);
}

static void bind_evaluation(sqlite3_stmt *s, const struct evaluation_record *e)
{
    struct nan_list nan = {.length = 0};
    bind_count(s, 2, e->updates);
    bind_count(s, 3, e->samples);
    bind_real(s, 4, e->seconds, "seconds", &nan);
    bind_real(s, 5, e->train_loss, "train_loss", &nan);
    bind_split(s, 6, e->validation_loss, e->validation_accuracy, "validation_loss", &nan);
    bind_split(s, 8, e->test_loss, e->test_accuracy, "test_loss", &nan);
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
    if (e->push_number == PUSHES_UNKNOWN) {
        sqlite3_bind_null(s, 8);
    } else {
        bind_count(s, 8, e->push_number);
    }
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

/* A file that is written over is no longer what the row of an earlier checkpoint says. */
static status forget_path(struct row_writer *w, const char *path)
{
    status result = OK;
    sqlite3_stmt *s = NULL;
    TRY(database_prepare(w->db, &s, "DELETE FROM checkpoint WHERE run_id = ?1 AND path = ?2"));
    sqlite3_bind_int64(s, 1, w->run_id);
    bind_text(s, 2, path);
    TRY(database_check(w->db, sqlite3_step(s), "forget a checkpoint that was written over"));
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
        return insert_push(w, &row->push);
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
        TRY(forget_path(w, row->checkpoint.path));
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
    w->written += row->kind == ROW_STEP;
done:
    return result;
}

static status read_scales(struct row_writer *w)
{
    status result = OK;
    sqlite3_stmt *s = NULL;
    int code;
    w->scale_count = 0;
    memset(w->scale_slots, 0, sizeof w->scale_slots);
    TRY(database_prepare(w->db, &s,
                         "SELECT scale FROM push_scale WHERE run_id = ?1 ORDER BY code"));
    sqlite3_bind_int64(s, 1, w->run_id);
    while ((code = sqlite3_step(s)) == SQLITE_ROW && w->scale_count < SCALES_AT_MOST) {
        keep_scale(w, sqlite3_column_double(s, 0));
    }
    TRY(database_check(w->db, code, "read the run's scales"));
done:
    sqlite3_finalize(s);
    return result;
}

status rows_begin_again(struct row_writer *w)
{
    status result = OK;
    sqlite3_stmt *last = NULL;
    TRY(database_prepare(w->db, &last,
                         "SELECT coalesce(max(number) + 1, 0) FROM push_packed WHERE run_id = ?1"));
    sqlite3_bind_int64(last, 1, w->run_id);
    TRY(database_check(w->db, sqlite3_step(last), "read the run's pushes"));
    w->next_push = sqlite3_column_int64(last, 0);
    TRY(read_scales(w));
done:
    sqlite3_finalize(last);
    return result;
}

status rows_begin(struct row_writer *w, sqlite3 *db, int64_t run_id)
{
    status result = OK;
    *w = (struct row_writer){.db = db, .run_id = run_id};
    TRY(rows_begin_again(w));
    for (size_t i = 0; i < ROW_KINDS; i++) {
        TRY(database_prepare(db, &w->insert[i], insert_sql[i]));
    }
    TRY(database_prepare(db, &w->insert_scale,
                         "INSERT INTO push_scale (run_id, code, scale) VALUES (?1,?2,?3)"));
    TRY(database_prepare(db, &w->insert_more,
                         "INSERT INTO push_more (run_id, number, read_behind, batch_ahead, "
                         "not_a_number, cosine, momentum, total_momentum, data_us, forward_us, "
                         "backward_us) VALUES (?1,?2,?3,?4,?5,?6,?7,?8,?9,?10,?11)"));
done:
    return result;
}

void rows_end(struct row_writer *w)
{
    for (size_t i = 0; i < ROW_KINDS; i++) {
        sqlite3_finalize(w->insert[i]);
        w->insert[i] = NULL;
    }
    sqlite3_finalize(w->insert_scale);
    sqlite3_finalize(w->insert_more);
    w->insert_scale = w->insert_more = NULL;
}
