/* trace.c — see trace.h. */
#include "results/trace.h"

#include "results/database.h"
#include "results/question.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

/* A server's lanes come first; processes are numbered servers first, then workers. */
enum lane { LANE_MAIN, LANE_HIDDEN, LANES };

struct trace {
    sqlite3 *db;
    FILE *out;
    int64_t run;
    unsigned servers, workers;
    int64_t (*ends)[LANES]; /* [servers + workers] µs: where the lane's last span ended */
    bool any;               /* events so far */
};

struct span {
    int64_t from, to; /* µs since training began */
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

static void write_span(struct trace *t, unsigned process, enum lane lane, const char *name,
                       struct span s, int64_t update)
{
    begin_event(t);
    fprintf(t->out,
            "{\"ph\":\"X\",\"name\":\"%s\",\"pid\":%u,\"tid\":%u,\"ts\":%lld,\"dur\":%lld,"
            "\"args\":{\"update\":%lld}}",
            name, process, (unsigned)lane, (long long)s.from, (long long)(s.to - s.from),
            (long long)update);
}

/* What a lane has already is not covered again: clocks and whole microseconds may be a little off.
 */
static struct span after(struct trace *t, unsigned process, enum lane lane, int64_t from,
                         int64_t to)
{
    int64_t *end = &t->ends[process][lane];
    struct span s = {from > *end ? from : *end, to};
    s.to = s.to > s.from ? s.to : s.from;
    *end = s.to;
    return s;
}

/* Microseconds of a row; 0 where it has none. */
static int64_t us(sqlite3_stmt *s, int column)
{
    double value = sqlite3_column_double(s, column);
    return value > 0 && value < 1e15 ? llround(value) : 0;
}

/* Parts of a whole, one after the other, as far as they fit into it. Each was rounded: what is left
 * of a sum may be less than nothing. */
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

static void write_step(struct trace *t, sqlite3_stmt *s)
{
    enum { UPDATE, WORKER, AT, COMPUTE, EXCHANGE, APPLY, DATA, FORWARD, BACKWARD, HIDDEN };
    unsigned process = t->servers + (unsigned)sqlite3_column_int(s, WORKER);
    int64_t compute = us(s, COMPUTE), exchange = us(s, EXCHANGE), apply = us(s, APPLY);
    int64_t data = us(s, DATA), forward = us(s, FORWARD), backward = us(s, BACKWARD);
    int64_t end = llround(sqlite3_column_double(s, AT) * 1e6);
    int64_t update = sqlite3_column_int64(s, UPDATE);
    struct span whole = after(t, process, LANE_MAIN, end - compute - exchange - apply, end);
    struct parts p = {t, process, whole, whole.from, update};

    write_span(t, process, LANE_MAIN, "step", whole, update);
    if (data + forward + backward == 0) {
        next_part(&p, "compute", compute);
    } else {
        next_part(&p, "data", data);
        next_part(&p, "forward", forward);
        next_part(&p, "backward", backward);
        next_part(&p, "pace", compute - data - forward - backward);
    }
    if (us(s, HIDDEN) > 0)
        write_span(t, process, LANE_HIDDEN, "hidden exchange",
                   after(t, process, LANE_HIDDEN, p.at - us(s, HIDDEN), p.at), update);
    next_part(&p, "exchange", exchange);
    next_part(&p, "apply", apply);
}

/* The worker's part is said by each server's row; one of them counts. */
static void write_push(struct trace *t, sqlite3_stmt *s)
{
    enum { UPDATE, WORKER, AT, PULL, COMPUTE, QUEUE, APPLY, SERVER };
    unsigned server = (unsigned)sqlite3_column_int(s, SERVER);
    unsigned process = t->servers + (unsigned)sqlite3_column_int(s, WORKER);
    int64_t update = sqlite3_column_int64(s, UPDATE);
    int64_t at = llround(sqlite3_column_double(s, AT) * 1e6);
    int64_t computed = at - us(s, QUEUE), began = computed - us(s, COMPUTE);

    write_span(t, server, LANE_MAIN, "apply", after(t, server, LANE_MAIN, at, at + us(s, APPLY)),
               update);
    if (server != 0)
        return;
    struct span wait = after(t, process, LANE_MAIN, began - us(s, PULL), began);
    if (wait.to > wait.from)
        write_span(t, process, LANE_MAIN, "push-pull", wait, update);
    write_span(t, process, LANE_MAIN, "compute", after(t, process, LANE_MAIN, wait.to, computed),
               update);
}

static status each_row(struct trace *t, const char *sql,
                       void (*row)(struct trace *t, sqlite3_stmt *s))
{
    status result = OK;
    sqlite3_stmt *s = NULL;
    int code;
    TRY(database_prepare(t->db, &s, sql));
    sqlite3_bind_int64(s, 1, t->run);
    while ((code = sqlite3_step(s)) == SQLITE_ROW)
        row(t, s);
    TRY(database_check(t->db, code, "read the run"));
done:
    sqlite3_finalize(s);
    return result;
}

static void count_processes(struct trace *t, sqlite3_stmt *s)
{
    t->servers = (unsigned)sqlite3_column_int(s, 0);
    t->workers = (unsigned)sqlite3_column_int(s, 1);
}

static status write_events(struct trace *t)
{
    status result = OK;
    enum { MOST = 1 << 20 };
    TRY(each_row(t,
                 "SELECT (SELECT coalesce(max(server) + 1, 0) FROM push WHERE run_id = ?1),"
                 " 1 + max((SELECT coalesce(max(worker), 0) FROM push WHERE run_id = ?1),"
                 "  (SELECT coalesce(max(worker), 0) FROM step WHERE run_id = ?1))",
                 count_processes));
    if (t->servers > MOST || t->workers > MOST)
        FAIL(ERROR_RESULTS, "the run's rows speak of %u servers and %u workers: they are damaged",
             t->servers, t->workers);
    TRY(memory_new(&t->ends, (size_t)t->servers + t->workers, sizeof *t->ends, "the trace"));
    for (unsigned i = 0; i < t->servers; i++)
        name_process(t, i, "server", i);
    for (unsigned i = 0; i < t->workers; i++)
        name_process(t, t->servers + i, t->servers > 0 ? "worker" : "rank", i);
    TRY(each_row(t,
                 "SELECT update_version, worker, at_seconds, compute_us, exchange_us, apply_us,"
                 " data_us, forward_us, backward_us, hidden_us FROM step"
                 " WHERE run_id = ?1 AND at_seconds IS NOT NULL AND worker >= 0"
                 " ORDER BY update_version, worker",
                 write_step));
    TRY(each_row(t,
                 "SELECT update_version, worker, at_seconds, pull_us, compute_us, queue_us,"
                 " apply_us, server FROM push"
                 " WHERE run_id = ?1 AND at_seconds IS NOT NULL AND worker >= 0 AND server >= 0"
                 " ORDER BY number",
                 write_push));
done:
    return result;
}

status trace_write(const char *results, const char *run, const char *to)
{
    status result = OK;
    struct trace t = {0};
    TRY(database_open_reader(&t.db, results));
    TRY(question_run_id(t.db, run, &t.run));
    TRY(database_execute(t.db, "BEGIN", "read the run"));
    t.out = fopen(to, "w");
    if (t.out == NULL)
        FAIL(ERROR_RESULTS, "trace=%s: %s; check that its folder exists and is writable", to,
             strerror(errno));
    fprintf(t.out, "{\"displayTimeUnit\":\"ms\",\"otherData\":{\"run\":%lld},\"traceEvents\":[",
            (long long)t.run);
    TRY(write_events(&t));
    fputs("\n]}\n", t.out);
    if (fflush(t.out) != 0)
        FAIL(ERROR_RESULTS, "trace=%s: %s; is the disk full?", to, strerror(errno));
done:
    if (t.out != NULL && fclose(t.out) != 0 && result == OK)
        result = error_set(ERROR_RESULTS, __FILE__, __LINE__, "trace=%s: %s; is the disk full?", to,
                           strerror(errno));
    if (t.db != NULL)
        database_rollback(t.db);
    database_close(&t.db);
    memory_free(t.ends);
    return result;
}
