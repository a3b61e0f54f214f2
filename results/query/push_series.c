#include "results/query/push_series.h"

#include "base/memory.h"

#include <math.h>
#include <stdlib.h>

/* SQL for the index of a row's stretch. Stretches have equal numbers of rows (push) or updates
 * (step). ?1: the run; ?2: the number of stretches. */
#define PUSH_STRETCH "number * ?2 / (SELECT 1 + max(number) FROM push WHERE run_id = ?1)"
#define STEP_STRETCH                                                                               \
    "(update_version - 1) * ?2 / (SELECT max(1, max(update_version)) FROM step WHERE run_id = ?1)"
#define USED_PUSHES                                                                                \
    "FROM push WHERE run_id = ?1 AND server = 0 AND outcome IN ('applied', 'aggregated')"

static status has_pushes(sqlite3 *db, int64_t run, bool *out)
{
    status result = OK;
    sqlite3_stmt *s = NULL;
    TRY(database_prepare(db, &s, "SELECT EXISTS (SELECT 1 FROM push WHERE run_id = ?1)"));
    sqlite3_bind_int64(s, 1, run);
    TRY(database_check(db, sqlite3_step(s), "read a run"));
    *out = sqlite3_column_int(s, 0) == 1;
done:
    sqlite3_finalize(s);
    return result;
}

static double number(sqlite3_stmt *s, int column)
{
    bool known = sqlite3_column_type(s, column) != SQLITE_NULL;
    return known ? sqlite3_column_double(s, column) : NAN;
}

static struct series_point point_of(sqlite3_stmt *s)
{
    return (struct series_point){.updates = sqlite3_column_int64(s, 0),
                                 .seconds = number(s, 1),
                                 .loss = number(s, 2),
                                 .staleness = number(s, 3),
                                 .greatest_staleness = number(s, 4),
                                 .scale = number(s, 5),
                                 .gap = number(s, 6),
                                 .gradient_norm = number(s, 7),
                                 .gradients = sqlite3_column_int64(s, 8),
                                 .updates_per_second = NAN};
}

static void add_rates(struct series *s)
{
    double seconds = 0;
    int64_t updates = 0;
    for (size_t i = 0; i < s->count; i++) {
        struct series_point *p = &s->at[i];
        if (p->seconds > seconds) {
            p->updates_per_second = (double)(p->updates - updates) / (p->seconds - seconds);
            seconds = p->seconds;
            updates = p->updates;
        }
    }
}

status push_series_read(sqlite3 *db, int64_t run, unsigned points, struct series *out)
{
    static const char of_pushes[] =
        "SELECT max(update_version), max(at_seconds), avg(loss), avg(staleness), max(staleness), "
        "avg(scale), avg(gap), avg(gradient_norm), count(*) " USED_PUSHES " GROUP BY " PUSH_STRETCH
        " ORDER BY min(number)";
    static const char of_steps[] =
        "SELECT max(update_version), max(at_seconds), avg(loss), avg(staleness), max(staleness), "
        "NULL, NULL, NULL, count(*) FROM step WHERE run_id = ?1 GROUP BY " STEP_STRETCH
        " ORDER BY min(update_version)";
    status result = OK;
    sqlite3_stmt *s = NULL;
    bool pushes = false;
    int code;
    *out = (struct series){0};
    TRY(has_pushes(db, run, &pushes));
    TRY(memory_new(&out->at, points + 1, sizeof *out->at, "a run's curve"));
    TRY(database_prepare(db, &s, pushes ? of_pushes : of_steps));
    sqlite3_bind_int64(s, 1, run);
    sqlite3_bind_int64(s, 2, points);
    while ((code = sqlite3_step(s)) == SQLITE_ROW && out->count <= points)
        out->at[out->count++] = point_of(s);
    TRY(database_check(db, code, "read a run's gradients"));
    add_rates(out);
done:
    sqlite3_finalize(s);
    return result;
}

void push_series_free(struct series *s)
{
    memory_free(s->at);
    *s = (struct series){0};
}

status push_series_staleness(sqlite3 *db, int64_t run, unsigned stretches, staleness_visitor *visit,
                             void *context)
{
    static const char of_pushes[] =
        "SELECT " PUSH_STRETCH " AS stretch, staleness, count(*),"
        " max(max(update_version)) OVER w, max(max(at_seconds)) OVER w " USED_PUSHES
        " GROUP BY stretch, staleness WINDOW w AS (PARTITION BY " PUSH_STRETCH ")"
        " ORDER BY stretch, staleness";
    static const char of_steps[] =
        "SELECT " STEP_STRETCH " AS stretch, staleness, count(*),"
        " max(max(update_version)) OVER w, max(max(at_seconds)) OVER w"
        " FROM step WHERE run_id = ?1 AND staleness IS NOT NULL"
        " GROUP BY stretch, staleness WINDOW w AS (PARTITION BY " STEP_STRETCH ")"
        " ORDER BY stretch, staleness";
    status result = OK;
    sqlite3_stmt *s = NULL;
    bool pushes = false;
    int code;
    TRY(has_pushes(db, run, &pushes));
    TRY(database_prepare(db, &s, pushes ? of_pushes : of_steps));
    sqlite3_bind_int64(s, 1, run);
    sqlite3_bind_int64(s, 2, stretches);
    while ((code = sqlite3_step(s)) == SQLITE_ROW) {
        struct staleness_bin count = {.stretch = sqlite3_column_int64(s, 0),
                                      .staleness = sqlite3_column_int64(s, 1),
                                      .gradients = sqlite3_column_int64(s, 2),
                                      .updates = sqlite3_column_int64(s, 3),
                                      .seconds = number(s, 4)};
        TRY(visit(context, &count));
    }
    TRY(database_check(db, code, "read a run's staleness"));
done:
    sqlite3_finalize(s);
    return result;
}
