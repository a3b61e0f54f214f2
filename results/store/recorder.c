#include "results/store/recorder.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/text.h"
#include "base/thread.h"
#include "results/store/row_statements.h"
#include "results/store/run_row.h"
#include "results/store/run_owner.h"
#include "results/store/run_summaries.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* Rows wait in a list of blocks. Callers fill the last block. The writer thread takes the whole
 * list, writes it in one transaction, and returns the blocks to the list of spare blocks. */
enum {
    BLOCK_ROWS = 1024,
    BLOCKS_AT_OPEN = 16,
    BLOCKS_AT_MOST = 1260,  /* × 1024 × 208 bytes = 256 MiB */
    BLOCKS_WAKE_WRITER = 4, /* the writer starts early when so many blocks wait */
    COMMIT_INTERVAL_S = 1,
    LAST_TRY_S = 2, /* how long the end of a run retries while the disk is full */
    FLUSH_S = 2,    /* how long recorder_flush() waits while the file is locked */
};

_Static_assert(sizeof(struct row) <= 208, "BLOCKS_AT_MOST blocks take at most 256 MiB");

struct block {
    struct block *next;
    size_t used;
    struct row rows[BLOCK_ROWS];
};

struct recorder {
    sqlite3 *db; /* used by the writer thread while it runs, else by the caller */
    struct row_writer rows;
    int64_t run_id;
    pthread_t thread;
    bool begun, thread_runs, finished;
    uint64_t summarized_rows; /* rows that the totals of the finished run include */

    pthread_mutex_t lock;
    pthread_cond_t work; /* signals the writer: blocks wait, or stop is set */
    pthread_cond_t room; /* signals callers: spare blocks exist, or the writer has written */
    struct block *first, *last, *spare;
    size_t waiting, blocks;              /* blocks in the list; all blocks */
    uint64_t drains_begun, drains_ended; /* how often the writer took the list */
    bool stop;
    bool urgent; /* the writer starts at once */

    void (*on_error)(void *context);
    void *on_error_context;
    bool disk_full; /* used by the writer: rows wait for disk space */
    atomic_bool failed;
    status failure; /* written before `failed`, read after */
    char failure_message[1024];
};

/* Logs an error. Keeps the first one and calls on_error. */
static void report_error(recorder *r, status code, const char *consequence)
{
    const bool first = r->failure == OK, stops = first && r->on_error != NULL;
    if (first) {
        r->failure = code;
        snprintf(r->failure_message, sizeof r->failure_message, "%s", error_message());
    }
    log_warning("%s. %s", error_message(),
                stops ? "The run stops, because on_results_error=stop" : consequence);
    if (stops)
        r->on_error(r->on_error_context);
}

static void fail(recorder *r, status code)
{
    if (!atomic_load(&r->failed)) {
        report_error(r, code, "The waiting rows and all later rows of this run are not recorded");
        atomic_store(&r->failed, true);
    }
}

/* ---- the writer thread -------------------------------------------------------------------------
 */

/* *full ← whether it failed because the disk is full. */
static status write_blocks(recorder *r, const struct block *first, bool *full)
{
    status result = OK;
    TRY(database_check_there(r->db));
    if (r->disk_full)
        TRY(rows_restart(&r->rows));
    TRY(database_execute(r->db, "BEGIN IMMEDIATE", "record rows"));
    for (const struct block *b = first; b != NULL; b = b->next)
        for (size_t i = 0; i < b->used; i++)
            TRY(rows_insert(&r->rows, &b->rows[i]));
    TRY(database_execute(r->db, "COMMIT", "commit recorded rows"));
done:
    *full = result != OK && database_is_full(r->db);
    database_rollback(r->db);
    return result;
}

/* Puts rows that could not be written before the rows that arrived since. Call it with the lock. */
static void put_back(recorder *r, struct block *first, struct block *last, size_t count)
{
    last->next = r->first;
    r->first = first;
    r->last = r->last == NULL ? last : r->last;
    r->waiting += count;
}

static bool has_room(recorder *r)
{
    pthread_mutex_lock(&r->lock);
    bool room = r->blocks < BLOCKS_AT_MOST || r->spare != NULL;
    pthread_mutex_unlock(&r->lock);
    return room;
}

/* Writes the blocks. false: the disk is full, and the blocks have to wait. */
static bool write_or_fail(recorder *r, const struct block *first)
{
    bool full = false;
    status written = write_blocks(r, first, &full);
    if (written == OK) {
        if (r->disk_full) {
            log_info("the disk has space again; no row of this run was lost");
            r->failure = OK;
        }
        r->disk_full = false;
        return true;
    }
    if (full && has_room(r)) {
        if (!r->disk_full) {
            report_error(r, written,
                         "Training continues; up to 256 MiB of rows wait in memory for disk space");
        }
        r->disk_full = true;
        return false;
    }
    fail(r, written);
    return true;
}

/* Takes the waiting blocks, writes them and returns them to the spare list. Call it with the lock;
 * it releases the lock while it writes. false: the disk is full, and the blocks still wait. */
static bool drain(recorder *r)
{
    struct block *first = r->first, *last = r->last;
    size_t count = r->waiting;
    bool done = true;
    if (first == NULL)
        return true;
    r->first = r->last = NULL;
    r->waiting = 0;
    r->drains_begun++;
    pthread_mutex_unlock(&r->lock);
    if (!atomic_load(&r->failed))
        done = write_or_fail(r, first);
    for (struct block *b = first; done && b != NULL; b = b->next) {
        for (size_t i = 0; i < b->used; i++)
            row_free(&b->rows[i]);
        b->used = 0;
    }
    pthread_mutex_lock(&r->lock);
    r->drains_ended++;
    pthread_cond_broadcast(&r->room);
    if (!done) {
        put_back(r, first, last, count);
        return false;
    }
    last->next = r->spare;
    r->spare = first;
    return true;
}

/* Retries for LAST_TRY_S if the disk is full. Call it with the lock. */
static void drain_at_the_end(recorder *r)
{
    uint64_t deadline = clock_ns() + LAST_TRY_S * UINT64_C(1000000000);
    while (!drain(r)) {
        pthread_mutex_unlock(&r->lock);
        if (clock_ns() > deadline)
            fail(r, r->failure);
        clock_sleep_until_ns(clock_ns() + 200000000);
        pthread_mutex_lock(&r->lock);
    }
}

static void *writer_thread(void *context)
{
    recorder *r = context;
    pthread_mutex_lock(&r->lock);
    while (!r->stop) {
        struct timespec until;
        clock_gettime(CLOCK_MONOTONIC, &until);
        until.tv_sec += COMMIT_INTERVAL_S;
        int code = 0;
        while (!r->stop && code != ETIMEDOUT &&
               (r->disk_full || (!r->urgent && r->waiting < BLOCKS_WAKE_WRITER)))
            code = pthread_cond_timedwait(&r->work, &r->lock, &until);
        r->urgent = false;
        drain(r);
    }
    drain_at_the_end(r);
    pthread_mutex_unlock(&r->lock);
    return NULL;
}

static status start_writer(recorder *r)
{
    status result = OK;
    TRY(rows_begin(&r->rows, r->db, r->run_id));
    TRY(thread_start(&r->thread, writer_thread, r, "the writer thread of the results file"));
    r->thread_runs = true;
    r->begun = true;
done:
    return result;
}

static void stop_writer(recorder *r)
{
    if (r->thread_runs) {
        pthread_mutex_lock(&r->lock);
        r->stop = true;
        pthread_cond_signal(&r->work);
        pthread_mutex_unlock(&r->lock);
        pthread_join(r->thread, NULL);
        r->thread_runs = false;
    }
}

/* ---- recording rows
 * ------------------------------------------------------------------------------
 */

/* A block with a free row: the last block, a spare one or a new one. At the memory limit, waits
 * until the writer returns a block. Call it with the lock. */
static struct block *block_with_room(recorder *r)
{
    if (r->last != NULL && r->last->used < BLOCK_ROWS)
        return r->last;
    while (r->spare == NULL) {
        struct block *fresh = r->blocks < BLOCKS_AT_MOST ? memory_allocate(sizeof *fresh) : NULL;
        if (fresh != NULL) {
            r->blocks++;
            fresh->next = NULL;
            r->spare = fresh;
        } else {
            pthread_cond_signal(&r->work);
            pthread_cond_wait(&r->room, &r->lock);
        }
    }
    struct block *b = r->spare;
    r->spare = b->next;
    b->next = NULL;
    if (r->last == NULL)
        r->first = b;
    else
        r->last->next = b;
    r->last = b;
    r->waiting++;
    if (r->waiting == BLOCKS_WAKE_WRITER)
        pthread_cond_signal(&r->work);
    return b;
}

/* Takes the lock and returns a free row. The caller fills it and calls put_row(). */
static struct row *take_row(recorder *r, enum row_kind kind)
{
    REQUIRE(r->begun);
    pthread_mutex_lock(&r->lock);
    struct block *b = block_with_room(r);
    struct row *row = &b->rows[b->used++];
    row->kind = kind;
    return row;
}

static void put_row(recorder *r)
{
    pthread_mutex_unlock(&r->lock);
}

void recorder_flush(recorder *r)
{
    struct timespec until;
    int code = 0;
    if (r == NULL)
        return;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += FLUSH_S;
    pthread_mutex_lock(&r->lock);
    /* If the writer is writing now, it has not taken the rows of the list. */
    const uint64_t wanted = r->drains_begun + (r->first != NULL);
    r->urgent = r->urgent || r->first != NULL;
    pthread_cond_signal(&r->work);
    while (r->drains_ended < wanted && code != ETIMEDOUT)
        code = pthread_cond_timedwait(&r->room, &r->lock, &until);
    pthread_mutex_unlock(&r->lock);
}

void recorder_push(recorder *r, const struct push_record *row)
{
    take_row(r, ROW_PUSH)->push = *row;
    put_row(r);
}

void recorder_step(recorder *r, const struct step_record *row)
{
    take_row(r, ROW_STEP)->step = *row;
    put_row(r);
}

void recorder_pass(recorder *r, const struct pass_record *row)
{
    take_row(r, ROW_PASS)->pass = *row;
    put_row(r);
}

void recorder_evaluation(recorder *r, const struct evaluation_record *row)
{
    take_row(r, ROW_EVALUATION)->evaluation = *row;
    put_row(r);
}

void recorder_progress(recorder *r, const struct progress_record *now)
{
    take_row(r, ROW_PROGRESS)->progress = *now;
    put_row(r);
}

void recorder_event(recorder *r, double at_seconds, enum severity severity, const char *code,
                    int worker, const char *detail)
{
    recorder_event_between(r, at_seconds, PUSHES_UNKNOWN, severity, code, worker, detail);
}

void recorder_event_between(recorder *r, double at_seconds, uint64_t push_number,
                            enum severity severity, const char *code, int worker,
                            const char *detail)
{
    recorder_event_at(r, 0, at_seconds, push_number, severity, code, worker, detail);
}

void recorder_event_at(recorder *r, uint32_t server, double at_seconds, uint64_t push_number,
                       enum severity severity, const char *code, int worker, const char *detail)
{
    REQUIRE(code != NULL);
    struct event_row event = {.at_seconds = at_seconds,
                              .severity = severity,
                              .worker = worker,
                              .server = server,
                              .push_number = push_number,
                              .code = text_copy(code),
                              .detail = detail == NULL ? NULL : text_copy(detail)};
    take_row(r, ROW_EVENT)->event = event;
    put_row(r);
}

void recorder_checkpoint(recorder *r, uint64_t version, const char *path, const char *sha256)
{
    REQUIRE(path != NULL);
    struct checkpoint_row checkpoint = {.version = version,
                                        .path = text_copy(path),
                                        .sha256 = sha256 == NULL ? NULL : text_copy(sha256)};
    take_row(r, ROW_CHECKPOINT)->checkpoint = checkpoint;
    r->urgent = true;
    pthread_cond_signal(&r->work);
    put_row(r);
}

void recorder_origin(recorder *r, const char *json)
{
    char *copy = text_copy(json);
    take_row(r, ROW_ORIGIN)->origin = copy;
    put_row(r);
}

/* ---- open, begin, finish, close ----------------------------------------------------------------
 */

status recorder_open(recorder **out, const char *path)
{
    status result = OK;
    recorder *r = NULL;
    pthread_condattr_t monotonic;
    TRY(memory_new(&r, 1, sizeof *r, "the recorder"));
    pthread_mutex_init(&r->lock, NULL);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&r->work, &monotonic);
    pthread_cond_init(&r->room, &monotonic);
    pthread_condattr_destroy(&monotonic);
    for (; r->blocks < BLOCKS_AT_OPEN; r->blocks++) {
        struct block *b = NULL;
        TRY(memory_new(&b, 1, sizeof *b, "recorded rows"));
        b->next = r->spare;
        r->spare = b;
    }
    TRY(database_open(&r->db, path));
    TRY(run_row_end_gone(r->db));
    *out = r;
    r = NULL;
done:
    recorder_close(&r);
    return result;
}

status recorder_begin(recorder *r, const struct run_description *run, const char *run_status,
                      int64_t *run_id)
{
    status result = OK;
    REQUIRE(!r->begun);
    TRY(run_row_insert(r->db, run, run_status, &r->run_id));
    TRY(start_writer(r));
    *run_id = r->run_id;
done:
    return result;
}

status recorder_resume(recorder *r, int64_t run_id)
{
    status result = OK;
    REQUIRE(!r->begun);
    TRY(run_row_resume(r->db, run_id));
    r->run_id = run_id;
    TRY(start_writer(r));
done:
    return result;
}

void recorder_give_up_when(bool (*is_requested)(void))
{
    database_set_stop_check(is_requested);
}

void recorder_on_error(recorder *r, void (*on_error)(void *context), void *context)
{
    REQUIRE(!r->begun);
    r->on_error = on_error;
    r->on_error_context = context;
}

/* Retries for LAST_TRY_S if the disk is full. */
static status finish_row(recorder *r, const struct run_outcome *outcome)
{
    const uint64_t deadline = clock_ns() + LAST_TRY_S * UINT64_C(1000000000);
    status result = run_row_finish(r->db, r->run_id, outcome);
    while (result != OK && strstr(error_message(), DATABASE_FULL) != NULL &&
           clock_ns() < deadline) {
        clock_sleep_until_ns(clock_ns() + 200000000);
        result = run_row_finish(r->db, r->run_id, outcome);
    }
    return result;
}

status recorder_finish(recorder *r, const struct run_outcome *outcome)
{
    status result = OK;
    REQUIRE(r->begun);
    stop_writer(r);
    if (!r->failed && database_check_there(r->db) != OK)
        fail(r, ERROR_RESULTS);
    if (r->failed) {
        /* Try to end the row, so that its status is not "running". */
        struct run_outcome incomplete = *outcome;
        incomplete.status = "failed";
        incomplete.error = r->failure_message;
        (void)!run_row_finish(r->db, r->run_id, &incomplete);
        FAIL(r->failure, "%s", r->failure_message);
    }
    TRY(finish_row(r, outcome));
    r->finished = true;
    r->summarized_rows = r->rows.written;
done:
    return result;
}

/* Writes rows that were recorded after recorder_finish(), and the totals again. */
static status write_late_rows(recorder *r)
{
    status result = OK;
    pthread_mutex_lock(&r->lock);
    drain_at_the_end(r);
    pthread_mutex_unlock(&r->lock);
    if (!r->finished || r->rows.written == r->summarized_rows)
        return OK;
    TRY(database_execute(r->db, "BEGIN IMMEDIATE", "write the totals of a run"));
    TRY(run_summaries_write(r->db, r->run_id));
    TRY(database_execute(r->db, "COMMIT", "write the totals of a run"));
done:
    database_rollback(r->db);
    return result;
}

void recorder_close(recorder **out)
{
    recorder *r = *out;
    if (r == NULL)
        return;
    stop_writer(r);
    if (write_late_rows(r) != OK)
        log_warning("%s", error_message());
    rows_end(&r->rows);
    database_close(&r->db);
    while (r->spare != NULL) {
        struct block *b = r->spare;
        r->spare = b->next;
        memory_free(b);
    }
    pthread_cond_destroy(&r->work);
    pthread_cond_destroy(&r->room);
    pthread_mutex_destroy(&r->lock);
    memory_free(r);
    *out = NULL;
}

status recorder_settle(const char *path, int64_t run_id, const char *run_status, const char *error,
                       bool *changed)
{
    status result = OK;
    sqlite3 *db = NULL;
    bool was_open = false;
    if (access(path, F_OK) != 0) {
        FAIL(ERROR_RESULTS,
             "%s: the results file no longer exists: %s; the recorded rows of run %lld are lost",
             path, strerror(errno), (long long)run_id);
    }
    TRY(database_open(&db, path));
    TRY(run_row_settle(db, run_id, run_status, error, NULL, &was_open));
done:
    if (changed != NULL)
        *changed = was_open;
    database_close(&db);
    return result;
}

status recorder_roll_back(const char *path, int64_t run_id, uint64_t version, const char *detail)
{
    status result = OK;
    sqlite3 *db = NULL;
    TRY(database_open(&db, path));
    TRY(run_row_roll_back(db, run_id, version, detail));
done:
    database_close(&db);
    return result;
}
