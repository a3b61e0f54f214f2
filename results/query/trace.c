/* trace.c — see trace.h. */
#include "results/query/trace.h"

#include "base/memory.h"
#include "results/store/database.h"
#include "results/query/query_bind.h"
#include "base/output_file.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* Processes are numbered: first servers, then workers. */
enum trace_lane { LANE_MAIN, LANE_HIDDEN, LANE_EVALUATION, LANES };
enum { PROCESSES_MOST = 1 << 20 }; /* of each kind; with more, the file is damaged */

struct evaluation_pause { /* all other clocks stopped, unless trace.beside */
    int64_t updates;      /* applied before it */
    int64_t at, took;     /* µs since training began, without evaluations; duration in µs */
    int64_t all;          /* duration of this and all earlier pauses, µs */
};

struct trace {
    sqlite3 *db;
    FILE *out;
    sqlite3_stmt *passes; /* passes of one rank and update; NULL: not a pipeline */
    int64_t run;
    unsigned servers, workers;
    bool pipeline, paced, damaged;
    bool beside;                    /* training went on during evaluations */
    int64_t (*ends)[LANES];         /* [servers + workers] end of the last span of each lane, µs */
    struct evaluation_pause *pause; /* in order of updates */
    size_t pauses, shown;
    bool any;   /* an event has been written */
    int failed; /* SQLite's error code of a failed read of passes */
};

struct span {
    int64_t from, to; /* µs since training began, with evaluations */
};

static void begin_event(struct trace *t)
{
    fputs(t->any ? ",\n" : "\n", t->out);
    t->any = true;
}

static void name_process(struct trace *t, unsigned process, const char *what, unsigned index)
{
    begin_event(t);
    fprintf(t->out,
            "{\"ph\":\"M\",\"name\":\"process_name\",\"pid\":%u,\"tid\":0,"
            "\"args\":{\"name\":\"%s %u\"}}",
            process, what, index);
}

enum { NO_MICRO_BATCH = -1 };

static void write_span_of(struct trace *t, unsigned process, enum trace_lane lane, const char *name,
                          struct span s, int64_t update, int64_t micro_batch)
{
    begin_event(t);
    fprintf(t->out,
            "{\"ph\":\"X\",\"name\":\"%s\",\"pid\":%u,\"tid\":%u,\"ts\":%lld,\"dur\":%lld,"
            "\"args\":{\"update\":%lld",
            name, process, (unsigned)lane, (long long)s.from, (long long)(s.to - s.from),
            (long long)update);
    if (micro_batch != NO_MICRO_BATCH)
        fprintf(t->out, ",\"micro_batch\":%lld", (long long)micro_batch);
    fputs("}}", t->out);
}

static void write_span(struct trace *t, unsigned process, enum trace_lane lane, const char *name,
                       struct span s, int64_t update)
{
    write_span_of(t, process, lane, name, s, update, NO_MICRO_BATCH);
}

/* Cuts a span so that it starts after the lane's last span. Clocks and rounding to microseconds may
 * make neighbours overlap. */
static struct span after(struct trace *t, unsigned process, enum trace_lane lane, int64_t from,
                         int64_t to)
{
    int64_t *end = &t->ends[process][lane];
    struct span s = {from > *end ? from : *end, to};
    s.to = s.to > s.from ? s.to : s.from;
    *end = s.to;
    return s;
}

static int64_t whole_us(double us)
{
    return us > 0 && us < 1e15 ? llround(us) : 0;
}

/* Microseconds of a column; 0 for NULL. */
static int64_t us(sqlite3_stmt *s, int column)
{
    return whole_us(sqlite3_column_double(s, column));
}

/* Converts training time to time with evaluations, for an event after `updates` updates. */
static int64_t ended_at(const struct trace *t, double seconds, int64_t updates)
{
    size_t first = 0, end = t->pauses; /* first later pause: in first..end */
    while (first < end) {
        size_t middle = first + (end - first) / 2;
        if (t->pause[middle].updates <= updates)
            first = middle + 1;
        else
            end = middle;
    }
    return whole_us(seconds * 1e6) + (first > 0 ? t->pause[first - 1].all : 0);
}

/* On process 0: writes the evaluations up to `updates` that are not written yet. */
static void write_evaluations(struct trace *t, unsigned process, int64_t updates)
{
    while (process == 0 && t->shown < t->pauses && t->pause[t->shown].updates <= updates) {
        const struct evaluation_pause *e = &t->pause[t->shown++];
        const enum trace_lane lane = t->beside ? LANE_EVALUATION : LANE_MAIN;
        const int64_t to =
            t->beside ? e->at + e->took : ended_at(t, (double)e->at * 1e-6, e->updates);
        write_span(t, 0, lane, "evaluation", after(t, 0, lane, to - e->took, to), e->updates);
    }
}

/* Consecutive parts of one span, cut at its end. Each part was rounded, so the rest may be
 * negative. */
struct parts {
    struct trace *t;
    unsigned process;
    struct span whole;
    int64_t at, update;
};

static void next_part(struct parts *p, const char *name, int64_t length)
{
    int64_t to = p->at + length < p->whole.to ? p->at + length : p->whole.to;
    if (to <= p->at)
        return;
    write_span(p->t, p->process, LANE_MAIN, name, (struct span){p->at, to}, p->update);
    p->at = to;
}

/* Writes the parts of compute; if they are unknown, one span. */
static void write_compute(struct parts *p, int64_t compute, int64_t data, int64_t forward,
                          int64_t backward)
{
    if (data + forward + backward == 0) {
        next_part(p, "compute", compute);
        return;
    }
    next_part(p, "data", data);
    next_part(p, "forward", forward);
    next_part(p, "backward", backward);
    if (p->t->paced)
        next_part(p, "pace", compute - data - forward - backward);
}

/* Writes the passes of a stage at their times. false: none was recorded. */
static bool write_passes(struct parts *p, int64_t worker)
{
    enum { MICRO_BATCH, BACKWARD, COMPUTE, AT, VERSION };
    struct trace *t = p->t;
    bool any = false;
    sqlite3_bind_int64(t->passes, 2, worker);
    sqlite3_bind_int64(t->passes, 3, p->update);
    int code;
    while ((code = sqlite3_step(t->passes)) == SQLITE_ROW) {
        sqlite3_stmt *s = t->passes;
        int64_t to = ended_at(t, sqlite3_column_double(s, AT), sqlite3_column_int64(s, VERSION));
        to = to < p->whole.to ? to : p->whole.to;
        next_part(p, "exchange", to - us(s, COMPUTE) - p->at);
        if (to > p->at)
            write_span_of(
                t, p->process, LANE_MAIN, sqlite3_column_int(s, BACKWARD) ? "backward" : "forward",
                (struct span){p->at, to}, p->update, sqlite3_column_int64(s, MICRO_BATCH));
        p->at = to > p->at ? to : p->at;
        any = true;
    }
    t->failed = code == SQLITE_DONE ? t->failed : code;
    sqlite3_reset(t->passes);
    return any;
}

/* False: the trace has no such worker (a worker joined after the count, or the file is damaged). */
static bool worker_of(const struct trace *t, sqlite3_stmt *s, int column, unsigned *worker)
{
    const int64_t number = sqlite3_column_int64(s, column);
    *worker = (unsigned)number;
    return number >= 0 && number < t->workers;
}

static void write_step(struct trace *t, sqlite3_stmt *s)
{
    enum { UPDATE, WORKER, AT, COMPUTE, EXCHANGE, APPLY, DATA, FORWARD, BACKWARD, HIDDEN };
    unsigned worker;
    if (!worker_of(t, s, WORKER, &worker))
        return;
    const unsigned process = t->servers + worker;
    int64_t compute = us(s, COMPUTE), exchange = us(s, EXCHANGE), apply = us(s, APPLY);
    int64_t data = us(s, DATA), forward = us(s, FORWARD), backward = us(s, BACKWARD);
    int64_t update = sqlite3_column_int64(s, UPDATE);
    int64_t end = ended_at(t, sqlite3_column_double(s, AT), update - 1);
    write_evaluations(t, process, update - 1);
    struct span whole = after(t, process, LANE_MAIN, end - compute - exchange - apply, end);
    struct parts p = {t, process, whole, whole.from, update};

    write_span(t, process, LANE_MAIN, "step", whole, update);
    if (t->passes != NULL && write_passes(&p, worker))
        exchange = whole.to - p.at - apply;
    else
        write_compute(&p, compute, data, forward, backward);
    if (us(s, HIDDEN) > 0)
        write_span(t, process, LANE_HIDDEN, "hidden exchange",
                   after(t, process, LANE_HIDDEN, p.at - us(s, HIDDEN), p.at), update);
    next_part(&p, "exchange", exchange);
    next_part(&p, "apply", apply);
}

/* Each server's row repeats the worker's times; only the row of server 0 is used for them. */
static void write_push(struct trace *t, sqlite3_stmt *s)
{
    enum { UPDATE, WORKER, AT, PULL, COMPUTE, QUEUE, APPLY, SERVER, DATA, FORWARD, BACKWARD, USED };
    const int64_t number = sqlite3_column_int64(s, SERVER);
    unsigned worker;
    if (!worker_of(t, s, WORKER, &worker) || number < 0 || number >= t->servers)
        return;
    const unsigned server = (unsigned)number, process = t->servers + worker;
    int64_t update = sqlite3_column_int64(s, UPDATE);
    int64_t before = update - sqlite3_column_int64(s, USED);
    int64_t at = ended_at(t, sqlite3_column_double(s, AT), before);
    int64_t computed = at - us(s, QUEUE), began = computed - us(s, COMPUTE);

    write_evaluations(t, server, before);
    write_span(t, server, LANE_MAIN, "apply", after(t, server, LANE_MAIN, at, at + us(s, APPLY)),
               update);
    if (server != 0)
        return;
    struct span wait = after(t, process, LANE_MAIN, began - us(s, PULL), began);
    if (wait.to > wait.from)
        write_span(t, process, LANE_MAIN, "push-pull", wait, update);
    struct span whole = after(t, process, LANE_MAIN, wait.to, computed);
    struct parts p = {t, process, whole, whole.from, update};
    write_span(t, process, LANE_MAIN, "compute", whole, update);
    if (us(s, DATA) + us(s, FORWARD) + us(s, BACKWARD) > 0)
        write_compute(&p, us(s, COMPUTE), us(s, DATA), us(s, FORWARD), us(s, BACKWARD));
}

/* Writes one pass, exchange or apply of a pipeline without flushes. There the updates of a stage
 * overlap, so the rows come in the order in which they ended. */
static void write_piece(struct trace *t, sqlite3_stmt *s)
{
    enum { WORKER, NAME, UPDATE, MICRO_BATCH, VERSION, LENGTH, AT };
    unsigned process;
    if (!worker_of(t, s, WORKER, &process))
        return;
    const char *name = (const char *)sqlite3_column_text(s, NAME);
    int64_t version = sqlite3_column_int64(s, VERSION), length = us(s, LENGTH);
    int64_t to = ended_at(t, sqlite3_column_double(s, AT), version);
    write_evaluations(t, process, version);
    struct span span = after(t, process, LANE_MAIN, to - length, to);
    if (span.to > span.from)
        write_span_of(t, process, LANE_MAIN, name, span, sqlite3_column_int64(s, UPDATE),
                      sqlite3_column_int64(s, MICRO_BATCH));
}

static status each_row(struct trace *t, const char *sql,
                       void (*row)(struct trace *t, sqlite3_stmt *s))
{
    status result = OK;
    sqlite3_stmt *s = NULL;
    int code = SQLITE_OK;
    TRY(database_prepare(t->db, &s, sql));
    sqlite3_bind_int64(s, 1, t->run);
    while (t->failed == SQLITE_OK && (code = sqlite3_step(s)) == SQLITE_ROW)
        row(t, s);
    TRY(database_check(t->db, t->failed != SQLITE_OK ? t->failed : code, "read the run"));
done:
    sqlite3_finalize(s);
    return result;
}

static void count_processes(struct trace *t, sqlite3_stmt *s)
{
    t->pipeline = sqlite3_column_int(s, 0) != 0;
    t->paced = sqlite3_column_int(s, 1) != 0;
    const int64_t servers = t->pipeline ? 0 : sqlite3_column_int64(s, 2);
    const int64_t workers = sqlite3_column_int64(s, 3);
    t->damaged = servers > PROCESSES_MOST || workers > PROCESSES_MOST || servers < 0 || workers < 1;
    t->servers = t->damaged ? 0 : (unsigned)servers;
    t->workers = t->damaged ? 0 : (unsigned)workers;
    t->pauses = (size_t)sqlite3_column_int64(s, 4);
    t->beside = sqlite3_column_int(s, 5) != 0;
}

static void keep_evaluation(struct trace *t, sqlite3_stmt *s)
{
    const int64_t took = whole_us(sqlite3_column_double(s, 2) * 1e6);
    const int64_t before = t->shown > 0 ? t->pause[t->shown - 1].all : 0;
    if (t->shown < t->pauses)
        t->pause[t->shown++] =
            (struct evaluation_pause){.updates = sqlite3_column_int64(s, 0),
                                      .at = whole_us(sqlite3_column_double(s, 1) * 1e6),
                                      .took = took,
                                      .all = t->beside ? 0 : before + took};
}

static status look_at_run(struct trace *t)
{
    status result = OK;
    TRY(each_row(t,
                 "SELECT mode = 'pipeline', config ->> '$.pace' <> 'none',"
                 " (SELECT coalesce(max(server) + 1, 0) FROM push WHERE run_id = ?1),"
                 " 1 + max((SELECT coalesce(max(worker), 0) FROM push WHERE run_id = ?1),"
                 "  (SELECT coalesce(max(worker), 0) FROM step WHERE run_id = ?1),"
                 "  (SELECT coalesce(max(worker), 0) FROM pass WHERE run_id = ?1)),"
                 " (SELECT count(*) FROM evaluation WHERE run_id = ?1),"
                 " EXISTS (SELECT 1 FROM event WHERE run_id = ?1 AND code = 'evaluation_beside')"
                 " FROM run WHERE id = ?1",
                 count_processes));
    if (t->damaged)
        FAIL(ERROR_RESULTS,
             "rows of the run have impossible numbers of workers or servers: the file is damaged; "
             "use a copy of it");
    TRY(memory_new(&t->ends, (size_t)t->servers + t->workers, sizeof *t->ends, "the trace"));
    TRY(memory_new(&t->pause, t->pauses + 1, sizeof *t->pause, "the trace"));
    TRY(each_row(t,
                 "SELECT updates, seconds, took_seconds FROM evaluation WHERE run_id = ?1"
                 " ORDER BY updates",
                 keep_evaluation));
    t->shown = 0;
    if (t->pipeline)
        TRY(database_prepare(t->db, &t->passes,
                             "SELECT micro_batch, backward, compute_us, at_seconds, version"
                             " FROM pass WHERE run_id = ?1 AND worker = ?2 AND update_version = ?3"
                             " ORDER BY number"));
    if (t->passes != NULL)
        sqlite3_bind_int64(t->passes, 1, t->run);
done:
    return result;
}

#define WITHIN " WHERE run_id = ?1 AND at_seconds IS NOT NULL AND worker >= 0"

/* Pushes are ordered by arrival, because a held push may get a later number than the next push of
 * its worker. */
static status write_events(struct trace *t)
{
    status result = OK;
    TRY(look_at_run(t));
    for (unsigned i = 0; i < t->servers; i++)
        name_process(t, i, "server", i);
    for (unsigned i = 0; i < t->workers; i++)
        name_process(t, t->servers + i, t->servers > 0 ? "worker" : "rank", i);
    TRY(each_row(t,
                 "SELECT update_version, worker, at_seconds, compute_us, exchange_us, apply_us,"
                 " data_us, forward_us, backward_us, hidden_us FROM step" WITHIN
                 " ORDER BY update_version, worker",
                 write_step));
    if (t->pipeline)
        TRY(each_row(t,
                     "SELECT worker, CASE backward WHEN 0 THEN 'forward' ELSE 'backward' END,"
                     " update_version, micro_batch, version, compute_us, at_seconds AS ended"
                     " FROM pass" WITHIN " AND EXISTS (SELECT 1 FROM push WHERE run_id = ?1)"
                     " UNION ALL SELECT worker, 'exchange', update_version, -1, read_version +"
                     " staleness, queue_us, at_seconds FROM push" WITHIN
                     " UNION ALL SELECT worker, 'apply', update_version, -1, read_version +"
                     " staleness, apply_us, at_seconds + 1e-6 * apply_us FROM push" WITHIN
                     " ORDER BY worker, ended",
                     write_piece));
    else
        TRY(each_row(t,
                     "SELECT update_version, worker, at_seconds, pull_us, compute_us, queue_us,"
                     " apply_us, server, data_us, forward_us, backward_us, outcome IN ('applied', "
                     "'aggregated')"
                     " FROM push" WITHIN " AND server >= 0 ORDER BY arrival",
                     write_push));
    write_evaluations(t, 0, INT64_MAX);
done:
    return result;
}

static status named(status written)
{
    const struct error why = error_save();
    return written == OK ? OK
                         : error_set(ERROR_RESULTS, __FILE__, __LINE__, "trace=%s", why.message);
}

status trace_write(const char *results, const char *run, const char *to)
{
    status result = OK;
    struct trace t = {0};
    struct output_file file = {0};
    TRY(database_open_reader(&t.db, results));
    TRY(query_run_id(t.db, run, &t.run));
    TRY(database_execute(t.db, "BEGIN", "read the run"));
    TRY(named(output_file_open(&file, to)));
    t.out = file.to;
    fprintf(t.out, "{\"displayTimeUnit\":\"ms\",\"otherData\":{\"run\":%lld},\"traceEvents\":[",
            (long long)t.run);
    TRY(write_events(&t));
    fputs("\n]}\n", t.out);
    TRY(named(output_file_close(&file, false)));
done:
    output_file_abandon(&file);
    sqlite3_finalize(t.passes);
    if (t.db != NULL)
        database_rollback(t.db);
    database_close(&t.db);
    memory_free(t.ends);
    memory_free(t.pause);
    return result;
}
