#include "results/report/report_data.h"

#include "base/memory.h"
#include "base/text.h"
#include "results/store/database.h"
#include "results/report/report_series.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CURVE_POINTS = 200 };

status report_query(sqlite3 *db, sqlite3_stmt **out, const char *name, const char *experiment)
{
    status result = OK;
    char path[80];
    snprintf(path, sizeof path, "results/report/%s.sql", name);
    TRY(database_prepare(db, out, database_text(path)));
    int parameter = sqlite3_bind_parameter_index(*out, ":experiment");
    if (parameter > 0) {
        const char *which = experiment != NULL ? experiment : "all";
        sqlite3_bind_text(*out, parameter, which, -1, SQLITE_STATIC);
    }
done:
    return result;
}

static const char *const status_names[RUN_STATUSES] = {"queued",   "running", "finished",
                                                       "diverged", "failed",  "stopped"};

const char *run_status_name(enum run_status s)
{
    return status_names[s];
}

static enum run_status status_of(const char *name)
{
    for (enum run_status s = 0; s < RUN_STATUSES; s++)
        if (strcmp(name, status_names[s]) == 0)
            return s;
    return RUN_FAILED;
}

/* ---- rows ---------------------------------------------------------------------------------------
 */

static char *copied(sqlite3_stmt *s, int column)
{
    const char *text = (const char *)sqlite3_column_text(s, column);
    return text == NULL ? NULL : text_copy(text);
}

static double real(sqlite3_stmt *s, int column)
{
    return sqlite3_column_type(s, column) == SQLITE_NULL ? NAN : sqlite3_column_double(s, column);
}

static status read_runs(struct report_data *d, sqlite3 *db, const char *experiment)
{
    status result = OK;
    sqlite3_stmt *s = NULL;
    int code;
    TRY(report_query(db, &s, "runs", experiment));
    while ((code = sqlite3_step(s)) == SQLITE_ROW) {
        const char *state = (const char *)sqlite3_column_text(s, 7);
        struct report_run *r = memory_append(&d->runs, &d->run_count, sizeof *d->runs);
        *r = (struct report_run){
            .id = sqlite3_column_int64(s, 0),
            .experiment = copied(s, 1),
            .arm = copied(s, 2),
            .cell = (size_t)sqlite3_column_int64(s, 3) - 1, /* SQL numbers cells from 1 */
            .mode = copied(s, 4),
            .workers = sqlite3_column_int64(s, 5),
            .seed = sqlite3_column_int64(s, 6),
            .status = status_of(state != NULL ? state : ""),
            .accuracy = 100 * real(s, 8),
            .loss = real(s, 9),
            .validation = 100 * real(s, 10),
            .updates_per_second = real(s, 11),
            .samples_per_second = real(s, 12),
            .mean_staleness = real(s, 13),
            .max_staleness = real(s, 14),
            .seconds = real(s, 15),
            .words = copied(s, 16),
            .uuid = copied(s, 17),
            .tag = copied(s, 18),
            .started_at = copied(s, 19),
            .finished_at = copied(s, 20),
            .updates = real(s, 21),
            .samples_used = real(s, 22),
            .samples_computed = real(s, 23),
            .sha256 = copied(s, 24),
            .why = copied(s, 25),
            .provenance = sqlite3_column_int64(s, 26),
            .slowest = -1,
        };
        r->bits = real(s, 28);
        r->validation_loss = real(s, 29);
        r->loss_is_nan = sqlite3_column_int(s, 30) == 1;
        r->validation_loss_is_nan = sqlite3_column_int(s, 31) == 1;
        r->collapsed = r->status == RUN_FINISHED && sqlite3_column_int(s, 27) == 1;
        d->count[r->status]++;
        d->cell_count = r->cell >= d->cell_count ? r->cell + 1 : d->cell_count;
    }
    TRY(database_check(db, code, "read the runs"));
done:
    sqlite3_finalize(s);
    return result;
}

/* Finds a run by id, or NULL. */
static struct report_run *run_of(const struct report_data *d, int64_t id)
{
    size_t low = 0, high = d->run_count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (d->runs[middle].id < id)
            low = middle + 1;
        else
            high = middle;
    }
    return low < d->run_count && d->runs[low].id == id ? &d->runs[low] : NULL;
}

static void count_run(struct report_cell *c, const struct report_run *r)
{
    if (c->runs++ == 0) {
        c->column = r->workers;
        c->mode = r->mode;
        c->words = r->words;
    }
    c->count[r->status]++;
    c->collapsed += r->collapsed;
}

/* Repeated runs of one seed are not independent: their mean is one observation. */
static void add_seed(struct report_data *d, struct report_run *first)
{
    struct report_cell *c = &d->cells[first->cell];
    struct sample *const out[] = {
        &c->accuracy,           &c->loss,    &c->validation, &c->updates_per_second,
        &c->samples_per_second, &c->seconds, &c->staleness,  &c->validation_loss};
    double sum[COUNT_OF(out)] = {0};
    unsigned n = 0;
    for (struct report_run *r = first; r < d->runs + d->run_count; r++) {
        if (r->cell != first->cell || r->seed != first->seed || r->status != RUN_FINISHED)
            continue;
        const double of_run[COUNT_OF(out)] = {
            r->accuracy,           r->loss_is_nan ? INFINITY : r->loss,
            r->validation,         r->updates_per_second,
            r->samples_per_second, r->seconds,
            r->mean_staleness,     r->validation_loss_is_nan ? INFINITY : r->validation_loss};
        for (size_t i = 0; i < COUNT_OF(out); i++)
            sum[i] += of_run[i];
        r->repeats = n++ > 0;
    }
    for (size_t i = 0; i < COUNT_OF(out); i++)
        sample_add(out[i], sum[i] / n);
}

/* Curves show finished runs, one for each seed; if none finished, all runs. */
static status fill_cells(struct report_data *d)
{
    status result = OK;
    TRY(memory_new(&d->cells, d->cell_count, sizeof *d->cells, "the report's cells"));
    for (size_t i = 0; i < d->run_count; i++)
        count_run(&d->cells[d->runs[i].cell], &d->runs[i]);
    for (size_t i = 0; i < d->run_count; i++)
        if (d->runs[i].status == RUN_FINISHED && !d->runs[i].repeats)
            add_seed(d, &d->runs[i]);
    for (size_t i = 0; i < d->run_count; i++) {
        struct report_run *r = &d->runs[i];
        r->drawn = (r->status == RUN_FINISHED && !r->repeats) ||
                   d->cells[r->cell].count[RUN_FINISHED] == 0;
    }
done:
    return result;
}

/* ---- curves -------------------------------------------------------------------------------------
 */

static struct curve_point *point_of(struct report_cell *c, size_t i)
{
    while (c->points <= i)
        (void)memory_append(&c->curve, &c->points, sizeof *c->curve);
    return &c->curve[i];
}

/* Keeps only points that every run has, because the mean would jump at a missing run. Reduces the
 * number of points to what a plot can show. */
static void thin(struct report_cell *c)
{
    size_t whole = 0, kept = 0;
    while (whole < c->points && c->curve[whole].samples.n == c->curve[0].samples.n)
        whole++;
    size_t step = (whole + CURVE_POINTS - 1) / CURVE_POINTS;
    for (size_t i = 0; i < whole; i++)
        if (i % step == 0 || i + 1 == whole)
            c->curve[kept++] = c->curve[i];
    c->points = kept;
}

static status read_curves(struct report_data *d, sqlite3 *db)
{
    status result = OK;
    sqlite3_stmt *s = NULL;
    struct report_run *run = NULL;
    size_t place = 0;
    int64_t last = INT64_MIN;
    int code;
    TRY(report_query(db, &s, "curves", NULL));
    while ((code = sqlite3_step(s)) == SQLITE_ROW) {
        int64_t id = sqlite3_column_int64(s, 0);
        if (id != last) {
            run = run_of(d, id);
            last = id;
            place = 0;
        }
        if (run == NULL || !run->drawn)
            continue;
        struct curve_point *p = point_of(&d->cells[run->cell], place++);
        sample_add(&p->samples, real(s, 1));
        sample_add(&p->seconds, real(s, 2));
        sample_add(&p->accuracy, real(s, 3));
        sample_add(&p->loss, real(s, 4));
        sample_add(&p->validation_loss, real(s, 5));
    }
    TRY(database_check(db, code, "read the curves"));
    for (size_t i = 0; i < d->cell_count; i++)
        thin(&d->cells[i]);
done:
    sqlite3_finalize(s);
    return result;
}

/* ---- staleness ----------------------------------------------------------------------------------
 */

static void count_staleness(struct report_cell *c, int64_t staleness, double pushes)
{
    size_t at = c->bins;
    while (at > 0 && c->histogram[at - 1].staleness >= staleness)
        at--;
    if (at == c->bins || c->histogram[at].staleness != staleness) {
        (void)memory_append(&c->histogram, &c->bins, sizeof *c->histogram);
        memmove(&c->histogram[at + 1], &c->histogram[at],
                (c->bins - 1 - at) * sizeof *c->histogram);
        c->histogram[at] = (struct staleness_count){.staleness = staleness};
    }
    c->histogram[at].pushes += pushes;
}

static status read_staleness(struct report_data *d, sqlite3 *db)
{
    status result = OK;
    sqlite3_stmt *s = NULL;
    int code;
    TRY(report_query(db, &s, "staleness", NULL));
    while ((code = sqlite3_step(s)) == SQLITE_ROW) {
        struct report_run *run = run_of(d, sqlite3_column_int64(s, 0));
        if (run != NULL && run->drawn) {
            count_staleness(&d->cells[run->cell], sqlite3_column_int64(s, 1),
                            sqlite3_column_double(s, 2));
        }
    }
    TRY(database_check(db, code, "read the staleness"));
done:
    sqlite3_finalize(s);
    return result;
}

/* ---- time ---------------------------------------------------------------------------------------
 */

/* A time that was not measured counts as 0. */
static void add_time(struct time_sums *t, sqlite3_stmt *s)
{
    double *const sums[] = {&t->compute, &t->exchange, &t->pull,    &t->queue,    &t->apply,
                            &t->whole,   &t->data,     &t->forward, &t->backward, &t->hidden};
    double steps = sqlite3_column_double(s, 2);
    t->steps += steps;
    for (int i = 0; i < (int)COUNT_OF(sums); i++)
        *sums[i] += steps * sqlite3_column_double(s, 3 + i);
    t->synchronous = t->synchronous || sqlite3_column_type(s, 4) != SQLITE_NULL;
}

static void add_worker(struct report_run *r, sqlite3_stmt *s)
{
    double steps = sqlite3_column_double(s, 2), compute = sqlite3_column_double(s, 3);
    r->mean_compute_us += compute; /* a sum until all rows are read */
    r->steps += steps;
    r->step_us += steps * sqlite3_column_double(s, 8);
    r->time_workers++;
    if (r->slowest < 0 || compute > r->slowest_compute_us) {
        r->slowest = sqlite3_column_int64(s, 1);
        r->slowest_compute_us = compute;
        r->slowest_share = steps;
    }
}

static double slowest_ratio(const struct report_run *r)
{
    return r->slowest_compute_us / r->mean_compute_us;
}

static void add_run_times(struct report_cell *c, const struct report_run *r)
{
    sample_add(&c->step_us, r->step_us);
    if (r->time_workers > 1 && slowest_ratio(r) > (c->uneven ? slowest_ratio(c->uneven) : 0))
        c->uneven = r;
}

static status read_time(struct report_data *d, sqlite3 *db)
{
    status result = OK;
    sqlite3_stmt *s = NULL;
    int code;
    TRY(report_query(db, &s, "time", NULL));
    while ((code = sqlite3_step(s)) == SQLITE_ROW) {
        struct report_run *run = run_of(d, sqlite3_column_int64(s, 0));
        if (run != NULL && run->drawn) {
            add_time(&d->cells[run->cell].time, s);
            add_worker(run, s);
        }
    }
    TRY(database_check(db, code, "read the times"));
    for (size_t i = 0; i < d->run_count; i++) {
        struct report_run *r = &d->runs[i];
        r->mean_compute_us /= (double)r->time_workers; /* NaN if there are none */
        r->slowest_share /= r->steps;
        r->step_us /= r->steps;
        if (r->drawn)
            add_run_times(&d->cells[r->cell], r);
    }
done:
    sqlite3_finalize(s);
    return result;
}

/* ---- open and close -----------------------------------------------------------------------------
 */

status report_data_read(struct report_data *out, sqlite3 *db, const struct report_request *request)
{
    status result = OK;
    *out = (struct report_data){0};
    TRY(read_runs(out, db, request->experiment));
    TRY(fill_cells(out));
    TRY(read_curves(out, db));
    TRY(read_staleness(out, db));
    TRY(read_time(out, db));
    TRY(report_series_find(out, request));
done:
    if (result != OK)
        report_data_close(out);
    return result;
}

void report_data_close(struct report_data *d)
{
    for (size_t i = 0; i < d->run_count; i++) {
        struct report_run *r = &d->runs[i];
        char *const own[] = {r->experiment, r->arm,        r->mode,        r->words,  r->uuid,
                             r->tag,        r->started_at, r->finished_at, r->sha256, r->why};
        for (size_t k = 0; k < COUNT_OF(own); k++)
            memory_free(own[k]);
    }
    for (size_t i = 0; d->cells != NULL && i < d->cell_count; i++) {
        if (d->cells[i].copied)
            continue;
        free(d->cells[i].curve);
        free(d->cells[i].histogram);
    }
    report_series_free(d);
    free(d->runs);
    memory_free(d->cells);
    *d = (struct report_data){0};
}
