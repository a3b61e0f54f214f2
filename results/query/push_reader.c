#include "results/query/push_reader.h"

#include "base/memory.h"
#include "base/text.h"
#include "results/query/query_bind.h"
#include "results/store/row_statements.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static status read_row(struct recorded_run *r, sqlite3 *db)
{
    status result = OK;
    sqlite3_stmt *s = NULL;
    TRY(database_prepare(db, &s,
                         "SELECT uuid, status, mode, engine, parameters_sha256, workers, updates, "
                         "samples_used, final_accuracy, config, host ->> '$.resumed.path', "
                         "host ->> '$.resumed.sha256', EXISTS (SELECT 1 FROM event WHERE "
                         "run_id = ?1 AND code = 'worker_foreign'), host ->> '$.program', "
                         "max(workers, coalesce(config ->> '$.\"workers.max\"', 0)), "
                         "coalesce(host ->> '$.onednn_instructions', '') "
                         "FROM run WHERE id = ?1"));
    sqlite3_bind_int64(s, 1, r->id);
    int code = sqlite3_step(s);
    TRY(database_check(db, code, "read the run"));
    database_copy_text(s, 0, r->uuid, sizeof r->uuid);
    database_copy_text(s, 1, r->status, sizeof r->status);
    database_copy_text(s, 2, r->mode, sizeof r->mode);
    database_copy_text(s, 3, r->engine, sizeof r->engine);
    database_copy_text(s, 4, r->parameters_sha256, sizeof r->parameters_sha256);
    r->workers = (unsigned)sqlite3_column_int64(s, 5);
    r->updates = (uint64_t)sqlite3_column_int64(s, 6);
    r->samples_used = (uint64_t)sqlite3_column_int64(s, 7);
    r->final_accuracy =
        sqlite3_column_type(s, 8) == SQLITE_NULL ? NAN : sqlite3_column_double(s, 8);
    const char *config = (const char *)sqlite3_column_text(s, 9);
    r->config = text_copy(config != NULL ? config : "{}");
    const char *resumed = (const char *)sqlite3_column_text(s, 10);
    r->resumed = resumed != NULL ? text_copy(resumed) : NULL;
    database_copy_text(s, 11, r->resumed_sha256, sizeof r->resumed_sha256);
    r->foreign = sqlite3_column_int(s, 12) != 0;
    const char *program = (const char *)sqlite3_column_text(s, 13);
    r->program = program != NULL ? text_copy(program) : NULL;
    r->workers_max = (unsigned)sqlite3_column_int64(s, 14);
    database_copy_text(s, 15, r->instructions, sizeof r->instructions);
done:
    sqlite3_finalize(s);
    return result;
}

/* NULL means NaN if the row's not_a_number names the column, else NOT_MEASURED. */
static double measured(sqlite3_stmt *s, int column, const char *nan_list)
{
    char wanted[40], listed[240];
    if (sqlite3_column_type(s, column) != SQLITE_NULL)
        return sqlite3_column_double(s, column);
    snprintf(wanted, sizeof wanted, ",%s,", sqlite3_column_name(s, column));
    snprintf(listed, sizeof listed, ",%s,", nan_list != NULL ? nan_list : "");
    return strstr(listed, wanted) != NULL ? NAN : NOT_MEASURED;
}

/* false: rows_insert() never writes this worker, outcome or reason. */
static bool read_push(sqlite3_stmt *s, struct recorded_push *out)
{
    enum {
        NUMBER,
        VERSION,
        WORKER,
        SEQUENCE,
        READ,
        STALENESS,
        OUTCOME,
        SCALE,
        GAP,
        NORM,
        LOSS,
        PULL,
        COMPUTE,
        QUEUE,
        APPLY,
        AT,
        LIST,
        ARRIVAL,
        BATCH,
        WAITED_FOR,
        RATE,
        REASON,
        COSINE,
        MOMENTUM,
        TOTAL_MOMENTUM,
        SERVER,
        DATA,
        FORWARD,
        BACKWARD
    };
    const char *list = (const char *)sqlite3_column_text(s, LIST);
    bool waited = sqlite3_column_type(s, WAITED_FOR) != SQLITE_NULL;
    const int64_t worker = sqlite3_column_int64(s, WORKER);
    enum push_outcome outcome;
    enum push_reason reason;
    const bool known = row_read_outcome((const char *)sqlite3_column_text(s, OUTCOME), &outcome) &&
                       row_read_reason((const char *)sqlite3_column_text(s, REASON), &reason);
    out->number = (uint64_t)sqlite3_column_int64(s, NUMBER);
    if (!known || worker < 0 || worker > UINT32_MAX)
        return false;
    out->record = (struct push_record){
        .update_version = (uint64_t)sqlite3_column_int64(s, VERSION),
        .worker = (uint32_t)worker,
        .sequence = (uint64_t)sqlite3_column_int64(s, SEQUENCE),
        .read_version = (uint64_t)sqlite3_column_int64(s, READ),
        .staleness = (uint64_t)sqlite3_column_int64(s, STALENESS),
        .outcome = outcome,
        .scale = measured(s, SCALE, list),
        .gap = measured(s, GAP, list),
        .gradient_norm = measured(s, NORM, list),
        .loss = measured(s, LOSS, list),
        .pull_us = sqlite3_column_double(s, PULL),
        .compute_us = sqlite3_column_double(s, COMPUTE),
        .queue_us = sqlite3_column_double(s, QUEUE),
        .apply_us = sqlite3_column_double(s, APPLY),
        .at_seconds = sqlite3_column_double(s, AT),
        .arrival = (uint64_t)sqlite3_column_int64(s, ARRIVAL),
        .batch = (uint64_t)sqlite3_column_int64(s, BATCH),
        .waited_for = waited ? sqlite3_column_int(s, WAITED_FOR) : NO_WORKER,
        .rate = measured(s, RATE, list),
        .reason = reason,
        .cosine = measured(s, COSINE, list),
        .momentum = measured(s, MOMENTUM, list),
        .total_momentum = measured(s, TOTAL_MOMENTUM, list),
        .server = (uint32_t)sqlite3_column_int64(s, SERVER),
        .data_us = measured(s, DATA, list),
        .forward_us = measured(s, FORWARD, list),
        .backward_us = measured(s, BACKWARD, list),
    };
    return true;
}

#define MEMBER_EVENTS                                                                              \
    "run_id = ?1 AND code IN ('worker_joined', 'worker_lost') AND push_number IS NOT NULL "        \
    "AND worker IS NOT NULL"

static status count_rows(sqlite3 *db, const char *sql, int64_t run_id, size_t *count)
{
    status result = OK;
    sqlite3_stmt *s = NULL;
    TRY(database_prepare(db, &s, sql));
    sqlite3_bind_int64(s, 1, run_id);
    int code = sqlite3_step(s);
    TRY(database_check(db, code, "count the run's rows"));
    *count = (size_t)sqlite3_column_int64(s, 0);
done:
    sqlite3_finalize(s);
    return result;
}

static const char *text_of(sqlite3_stmt *s, int column)
{
    const char *text = (const char *)sqlite3_column_text(s, column);
    return text != NULL ? text : "NULL";
}

static status read_pushes(struct recorded_run *r, sqlite3 *db)
{
    status result = OK;
    sqlite3_stmt *s = NULL;
    size_t room = 0;
    int code;
    TRY(count_rows(db, "SELECT count(*) FROM push WHERE run_id = ?1", r->id, &room));
    if (room == 0)
        return OK;
    TRY(memory_new(&r->pushes, room, sizeof *r->pushes, "recorded gradients"));
    TRY(database_prepare(
        db, &s,
        "SELECT number, update_version, worker, sequence, read_version, staleness, "
        "outcome, scale, gap, gradient_norm, loss, pull_us, compute_us, "
        "queue_us, apply_us, at_seconds, not_a_number, arrival, batch, waited_for, "
        "rate, reason, cosine, momentum, total_momentum, server, data_us, forward_us, "
        "backward_us FROM push "
        "WHERE run_id = ?1 ORDER BY number"));
    sqlite3_bind_int64(s, 1, r->id);
    while ((code = sqlite3_step(s)) == SQLITE_ROW && r->push_count < room) {
        struct recorded_push *push = &r->pushes[r->push_count++];
        if (!read_push(s, push) || push->record.worker >= r->workers_max) {
            FAIL(
                ERROR_RESULTS,
                "%s: row number %llu in table push of run %lld has worker %s of %u, outcome %s and "
                "reason %s, which gradlag never writes: the file is damaged; use a copy of it",
                sqlite3_db_filename(db, "main"), (unsigned long long)push->number, (long long)r->id,
                text_of(s, 2), r->workers_max, text_of(s, 6), text_of(s, 21));
        }
    }
    TRY(database_check(db, code, "read the run's gradients"));
done:
    sqlite3_finalize(s);
    return result;
}

static status read_member_events(struct recorded_run *r, sqlite3 *db)
{
    status result = OK;
    sqlite3_stmt *s = NULL;
    size_t room = 0;
    int code;
    TRY(count_rows(db, "SELECT count(*) FROM event WHERE " MEMBER_EVENTS, r->id, &room));
    if (room == 0)
        return OK;
    TRY(memory_new(&r->member_events, room, sizeof *r->member_events, "recorded workers"));
    TRY(database_prepare(db, &s,
                         "SELECT push_number, worker, code = 'worker_joined', server FROM event "
                         "WHERE " MEMBER_EVENTS " ORDER BY push_number, rowid"));
    sqlite3_bind_int64(s, 1, r->id);
    while ((code = sqlite3_step(s)) == SQLITE_ROW && r->member_event_count < room) {
        const int64_t worker = sqlite3_column_int64(s, 1);
        if (worker < 0 || worker >= r->workers_max) {
            FAIL(ERROR_RESULTS,
                 "%s: an event of run %lld has worker %lld of %u, which gradlag never writes: the "
                 "file is damaged; use a copy of it",
                 sqlite3_db_filename(db, "main"), (long long)r->id, (long long)worker,
                 r->workers_max);
        }
        r->member_events[r->member_event_count++] =
            (struct recorded_member_event){.push_number = (uint64_t)sqlite3_column_int64(s, 0),
                                           .worker = (unsigned)worker,
                                           .joined = sqlite3_column_int(s, 2) != 0,
                                           .server = (unsigned)sqlite3_column_int64(s, 3)};
    }
    TRY(database_check(db, code, "read when workers joined or were lost"));
done:
    sqlite3_finalize(s);
    return result;
}

status recorded_run_read(struct recorded_run *out, const char *path, const char *run)
{
    status result = OK;
    sqlite3 *db = NULL;
    *out = (struct recorded_run){0};
    TRY(database_open_reader(&db, path));
    TRY(query_run_id(db, run, &out->id));
    TRY(read_row(out, db));
    TRY(read_pushes(out, db));
    TRY(read_member_events(out, db));
done:
    database_close(&db);
    if (result != OK)
        recorded_run_free(out);
    return result;
}

void recorded_run_free(struct recorded_run *r)
{
    memory_free(r->config);
    memory_free(r->program);
    memory_free(r->resumed);
    memory_free(r->pushes);
    memory_free(r->member_events);
    *r = (struct recorded_run){0};
}
