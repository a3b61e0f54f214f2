/* pace_table.c — tables of step times, and their CSV format (pace_table.h). */
#include "worker/pace/pace_table.h"

#include "base/memory.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool is_time(double us)
{
    return us >= 0 && us < 1e15; /* false for NaN */
}

status pace_table_add(struct pace_table *t, uint64_t worker, uint64_t step, double us)
{
    status result = OK;
    if (!is_time(us)) {
        FAIL(ERROR_DATA,
             "the time of step %llu of worker %llu is %g µs; a time must be at least 0 and below "
             "1e15 µs",
             (unsigned long long)step, (unsigned long long)worker, us);
    }
    if (t->count == t->capacity) {
        const size_t capacity = t->capacity == 0 ? 1024 : 2 * t->capacity;
        TRY(memory_grow(&t->rows, t->count, capacity, sizeof *t->rows, "a table of step times"));
        t->capacity = capacity;
    }
    t->rows[t->count] =
        (struct pace_row){.worker = worker, .step = step, .place = t->count, .ns = us * 1e3};
    t->count++;
done:
    return result;
}

static int by_worker_and_step(const void *a, const void *b)
{
    const struct pace_row *x = a, *y = b;
    if (x->worker != y->worker)
        return x->worker < y->worker ? -1 : 1;
    if (x->step != y->step)
        return x->step < y->step ? -1 : 1;
    return x->place < y->place ? -1 : x->place > y->place;
}

static struct pace_moments moments_of(const struct pace_row *rows, size_t count)
{
    double mean = 0, squares = 0;
    for (size_t i = 0; i < count; i++)
        mean += rows[i].ns / (double)count;
    for (size_t i = 0; i < count; i++)
        squares += (rows[i].ns - mean) * (rows[i].ns - mean);
    bool vary = count > 1 && mean > 0;
    return (struct pace_moments){mean, vary ? sqrt(squares / (double)(count - 1)) / mean : 0};
}

status pace_table_finish(struct pace_table *t)
{
    status result = OK;
    if (t->count == 0) {
        FAIL(ERROR_DATA, "no step times: the run recorded no gradients, or the file has no data "
                         "lines; choose another run or file");
    }
    qsort(t->rows, t->count, sizeof *t->rows, by_worker_and_step);
    TRY(memory_new(&t->first, t->count + 1, sizeof *t->first, "a table of step times"));
    for (size_t i = 0; i < t->count; i++)
        if (i == 0 || t->rows[i].worker != t->rows[i - 1].worker)
            t->first[t->workers++] = i;
    t->first[t->workers] = t->count;
    TRY(memory_new(&t->moments, t->workers, sizeof *t->moments, "a table of step times"));
    for (unsigned w = 0; w < t->workers; w++) {
        t->moments[w] = moments_of(&t->rows[t->first[w]], t->first[w + 1] - t->first[w]);
        if (t->moments[w].mean_ns == 0) {
            FAIL(ERROR_DATA,
                 "all step times of worker %llu are 0, so a virtual clock may stand still; give it "
                 "a longer step, or leave the worker out",
                 (unsigned long long)t->rows[t->first[w]].worker);
        }
    }
done:
    return result;
}

void pace_table_free(struct pace_table *t)
{
    memory_free(t->rows);
    memory_free(t->first);
    memory_free(t->moments);
    *t = (struct pace_table){0};
}

/* The place of the recorded worker whose rows `worker` uses. */
static unsigned stand_in_of(const struct pace_table *t, unsigned worker)
{
    unsigned from = 0, to = t->workers;
    REQUIRE(to > 0);
    while (from < to) {
        const unsigned middle = from + (to - from) / 2;
        const uint64_t recorded = t->rows[t->first[middle]].worker;
        if (recorded == worker)
            return middle;
        if (recorded < worker)
            from = middle + 1;
        else
            to = middle;
    }
    return worker % t->workers;
}

const struct pace_row *pace_table_of(const struct pace_table *t, unsigned worker, size_t *count)
{
    const unsigned w = stand_in_of(t, worker);
    *count = t->first[w + 1] - t->first[w];
    return &t->rows[t->first[w]];
}

struct pace_moments pace_table_moments(const struct pace_table *t, unsigned worker)
{
    return t->moments[stand_in_of(t, worker)];
}

/* ---- CSV ----------------------------------------------------------------------------------- */

enum { COLUMNS = 64 };

/* Cuts a line at its commas, in place; returns the number of fields. */
static unsigned cut(char *line, char *fields[COLUMNS])
{
    unsigned n = 0;
    line[strcspn(line, "\r\n")] = '\0';
    for (char *at = line; n < COLUMNS && at != NULL; n++) {
        fields[n] = at;
        at = strchr(at, ',');
        if (at != NULL)
            *at++ = '\0';
    }
    return n;
}

static int column_named(char *const *fields, unsigned n, const char *name)
{
    for (unsigned i = 0; i < n; i++)
        if (strcmp(fields[i], name) == 0)
            return (int)i;
    return -1;
}

struct columns {
    int worker, step, us;
};

/* `sequence` comes last, because it restarts when a worker rejoins after a loss. */
static int column_of_order(char *const *fields, unsigned n)
{
    static const char *const names[] = {"step", "batch", "sequence"};
    int found = -1;
    for (size_t i = 0; i < COUNT_OF(names) && found < 0; i++)
        found = column_named(fields, n, names[i]);
    return found;
}

static status read_header(char *line, const char *path, struct columns *c)
{
    status result = OK;
    char *fields[COLUMNS];
    unsigned n = cut(line, fields);
    *c = (struct columns){.worker = column_named(fields, n, "worker"),
                          .us = column_named(fields, n, "compute_us")};
    c->step = column_of_order(fields, n);
    if (c->worker < 0 || c->us < 0) {
        FAIL(ERROR_DATA,
             "%s:1: the first line of a trace must name its columns, including worker and "
             "compute_us; "
             "`gradlag replay RUN --export FILE` writes such a file",
             path);
    }
done:
    return result;
}

static bool read_count(const char *text, uint64_t *out)
{
    char *end = NULL;
    errno = 0;
    *out = strtoull(text, &end, 10);
    return text[0] >= '0' && text[0] <= '9' && *end == '\0' && errno == 0;
}

static bool read_time(const char *text, double *out)
{
    char *end = NULL;
    *out = strtod(text, &end);
    return end != text && *end == '\0' && is_time(*out);
}

static status read_row(struct pace_table *t, char *line, const struct columns *c, const char *path,
                       unsigned number)
{
    status result = OK;
    char *fields[COLUMNS];
    uint64_t worker = 0, step = 0;
    double us = 0;
    int n = (int)cut(line, fields);
    if (n <= c->worker || n <= c->us || n <= c->step || !read_count(fields[c->worker], &worker) ||
        !read_time(fields[c->us], &us) || (c->step >= 0 && !read_count(fields[c->step], &step))) {
        FAIL(ERROR_DATA,
             "%s:%u: worker and step must be whole numbers from 0, and compute_us a number from 0",
             path, number);
    }
    TRY(pace_table_add(t, worker, step, us));
done:
    return result;
}

status pace_table_read(struct pace_table *t, const char *path)
{
    status result = OK;
    char *line = NULL;
    size_t room = 0;
    unsigned number = 0;
    struct columns columns = {0};
    FILE *file = fopen(path, "r");
    if (file == NULL) {
        FAIL(ERROR_DATA,
             "cannot read the trace pace.path=%s: %s; `gradlag replay RUN --export FILE` writes "
             "such "
             "a file",
             path, strerror(errno));
    }
    while (getline(&line, &room, file) >= 0)
        if (++number == 1)
            TRY(read_header(line, path, &columns));
        else if (line[strspn(line, " \r\n")] != '\0')
            TRY(read_row(t, line, &columns, path, number));
    if (!feof(file))
        FAIL(ERROR_DATA, "cannot read the trace pace.path=%s: %s", path, strerror(errno));
    result = pace_table_finish(t);
    if (result != OK)
        (void)error_add_context(result, "pace.path=%s", path);
done:
    if (result != OK)
        pace_table_free(t);
    free(line);
    if (file != NULL)
        fclose(file);
    return result;
}
