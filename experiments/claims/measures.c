/*
 * measures.c — the measures of claims: means of a cell, figures that a SELECT reads for each run,
 * and differences between two cells.
 */
#include "base/memory.h"
#include "base/suggestion.h"
#include "experiments/claims/cells.h"
#include "results/query/query.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* A double of struct cell or struct paired. */
struct measure_field {
    const char *name;
    size_t offset;
};

static const struct measure_field means[] = {
    {"accuracy", offsetof(struct cell, accuracy)},
    {"score", offsetof(struct cell, score)},
    {"deviation", offsetof(struct cell, deviation)},
    {"interval", offsetof(struct cell, interval)},
    {"validation", offsetof(struct cell, validation)},
    {"validation_loss", offsetof(struct cell, validation_loss)},
    {"loss", offsetof(struct cell, loss)},
    {"seconds", offsetof(struct cell, seconds)},
    {"updates", offsetof(struct cell, updates)},
    {"updates_per_second", offsetof(struct cell, updates_per_second)},
    {"samples_per_second", offsetof(struct cell, samples_per_second)},
    {"died", offsetof(struct cell, died)},
    {"staleness", offsetof(struct cell, staleness)},
    {"staleness_cv", offsetof(struct cell, staleness_cv)},
    {"staleness_max", offsetof(struct cell, staleness_max)},
};

static const struct measure_field pairs[] = {
    {"paired", offsetof(struct paired, mean)},
    {"paired_interval", offsetof(struct paired, interval)},
};

/* A mean over the finished runs of a cell; the SELECT yields the figure of one run, :run. */
struct run_query {
    const char *name;
    bool has_number;  /* :at is the measure's number */
    bool has_fit;     /* :other is the id of the run that the arm is fitted to */
    double otherwise; /* the figure if the SELECT yields no row */
    const char *sql;
};

/* The evaluations of a run, and if it resumed, those before its checkpoint. */
#define EVALUATIONS_OF_RUN                                                                         \
    "FROM run_part AS part CROSS JOIN evaluation AS e ON e.run_id = part_id "                      \
    "AND updates <= last_update WHERE part.run_id = :run "

/* These queries read only views that a file of summaries (`gradlag merge --summaries`) has, too. */
static const struct run_query run_queries[] = {
    {"seconds_to", true, false, INFINITY,
     "SELECT min(seconds) " EVALUATIONS_OF_RUN "AND test_accuracy >= :at / 100.0"},
    {"seconds_to_loss", true, false, INFINITY,
     "SELECT min(seconds) " EVALUATIONS_OF_RUN "AND test_loss <= :at"},
    {"staleness_above", true, false, NAN,
     "SELECT total(pushes) FILTER (WHERE staleness > :at) / sum(pushes) FROM staleness_histogram "
     "WHERE run_id = :run"},
    {"torn_reads", false, false, NAN,
     "SELECT 1.0 * (detail ->> 'torn') / (detail ->> 'gradients') FROM event "
     "WHERE run_id = :run AND code = 'torn_reads'"},
    {"sent_bytes", false, false, NAN, "SELECT sent_bytes FROM run WHERE id = :run"},
    {"exchange_share", false, false, NAN,
     "SELECT sum(steps * exchange_us) / sum(steps * step_us) FROM where_time_goes "
     "WHERE run_id = :run AND exchange_us IS NOT NULL"},
    {"bubble", false, false, NAN,
     "SELECT 1 - sum(detail ->> 'busy_seconds') / sum(detail ->> 'span_seconds') FROM event "
     "WHERE run_id = :run AND code = 'stage'"},
    /* Half the sum of the differences of the shares: 0 equal, 1 disjoint. */
    {"staleness_distance", false, true, NAN,
     "SELECT sum(abs(difference)) / 2 FROM (SELECT sum(CASE run_id WHEN :run THEN share ELSE "
     "-share END) AS difference FROM staleness_histogram WHERE run_id IN (:run, :other) "
     "GROUP BY staleness)"},
};

/* ---- names ------------------------------------------------------------------------------------
 */

static const struct run_query *find_run_query(const char *name)
{
    for (size_t i = 0; i < COUNT_OF(run_queries); i++)
        if (strcmp(run_queries[i].name, name) == 0)
            return &run_queries[i];
    return NULL;
}

static const struct measure_field *find_field(const struct measure_field *fields, size_t count,
                                              const char *name)
{
    for (size_t i = 0; i < count; i++)
        if (strcmp(fields[i].name, name) == 0)
            return &fields[i];
    return NULL;
}

static const struct measure_field *find_mean(const char *name)
{
    return find_field(means, COUNT_OF(means), name);
}

static const struct measure_field *find_pair(const char *name)
{
    return find_field(pairs, COUNT_OF(pairs), name);
}

static double field_value(const struct measure_field *f, const void *of)
{
    double value;
    memcpy(&value, (const char *)of + f->offset, sizeof value);
    return value;
}

static status no_such_measure(const char *name)
{
    struct suggestion known = {.wanted = name};
    for (size_t i = 0; i < COUNT_OF(means); i++)
        suggestion_add(&known, means[i].name);
    for (size_t i = 0; i < COUNT_OF(run_queries); i++)
        suggestion_add(&known, run_queries[i].name);
    for (size_t i = 0; i < COUNT_OF(pairs); i++)
        suggestion_add(&known, pairs[i].name);
    return suggestion_fail(&known, NULL, "there is no measure");
}

static status no_such_arm(const struct experiment *e, const char *name)
{
    struct suggestion known = {.wanted = name};
    for (size_t i = 0; i < e->arm_count; i++)
        suggestion_add(&known, e->arms[i].name);
    return suggestion_fail(&known, NULL, "there is no arm");
}

static status check(const struct experiment *e, const char *name, const char *arm_name,
                    int64_t column, double number)
{
    status result = OK;
    const struct run_query *q = find_run_query(name);
    const struct arm *arm = experiment_arm(e, arm_name);
    if (q == NULL && find_mean(name) == NULL)
        TRY(no_such_measure(name));
    if (arm == NULL)
        TRY(no_such_arm(e, arm_name));
    if (!experiment_arm_has(e, arm, column)) {
        char text[64];
        experiment_column_text(e, column, text);
        FAIL(ERROR_USAGE, "arm '%s' has no runs with %s", arm_name, text);
    }
    if (isnan(number) == (q != NULL && q->has_number)) {
        FAIL(ERROR_USAGE, "write %s as %s(arm, %s%s)", name, name,
             e->axis != NULL ? e->axis : "levels", isnan(number) ? ", number" : "");
    }
    if (q != NULL && q->has_fit && arm->fit == NULL) {
        FAIL(ERROR_USAGE, "%s: arm '%s' is not fitted to another arm; give it the key 'fit'", name,
             arm_name);
    }
done:
    return result;
}

static status check_pair(const struct experiment *e, const char *name, const char *arm,
                         int64_t column, const char *other, int64_t other_column)
{
    status result = OK;
    if (find_pair(name) == NULL)
        TRY(no_such_measure(name));
    TRY(check(e, "accuracy", arm, column, NAN));
    TRY(check(e, "accuracy", other, other_column, NAN));
done:
    return result;
}

/* ---- values -----------------------------------------------------------------------------------
 */

/* Not a subquery, because SQLite would then compute the histograms of all runs. */
static status fitted_run(const char *path, const char *name, double *id)
{
    char setting[64];
    const char *settings[] = {setting};
    bool known;
    snprintf(setting, sizeof setting, "name=%s", name);
    return query_number(path, "SELECT id FROM run WHERE uuid = :name OR id = :name", settings, 1,
                        id, &known);
}

static status run_value(const struct run_query *q, const struct planned_run *r, double number,
                        double *out)
{
    status result = OK;
    char run[48], at[48], other[48];
    double id;
    const char *path = options_text(r->settings, "results"), *settings[3] = {run};
    size_t count = 1;
    bool known = false;
    snprintf(run, sizeof run, "run=%lld", (long long)r->run_id);
    if (q->has_number) {
        snprintf(at, sizeof at, "at=%.17g", number);
        settings[count++] = at;
    }
    if (q->has_fit) {
        TRY(fitted_run(path, options_value(r->settings, "pace.run"), &id));
        snprintf(other, sizeof other, "other=%.0f", id);
        settings[count++] = other;
    }
    TRY(query_number(path, q->sql, settings, count, out, &known));
    *out = known ? *out : q->otherwise;
done:
    return result;
}

static status mean_of(const struct cells *c, const struct cell *cell, const struct run_query *q,
                      double number, double *out)
{
    status result = OK;
    double sum = 0, count = 0;
    for (size_t i = 0; i < c->uses->count; i++) {
        const struct planned_run *r = &c->plan->runs[c->uses->at[i].run];
        double value;
        if (r->state == PLANNED_FINISHED && cell_has(cell, &c->uses->at[i]) &&
            cells_have_run(c, r)) {
            TRY(run_value(q, r, number, &value));
            sum += value;
            count++;
        }
    }
    *out = sum / count;
done:
    return result;
}

static bool has_seed(const struct cells *c, const struct cell *cell, int64_t seed)
{
    bool any = false;
    for (size_t i = 0; i < c->uses->count && !any; i++) {
        const struct planned_run *r = &c->plan->runs[c->uses->at[i].run];
        any = cell_has(cell, &c->uses->at[i]) && options_integer(r->settings, "seed") == seed;
    }
    return any;
}

static void note_seeds(struct cells_reading *reading, const struct cell *a, const struct cell *b)
{
    const struct cells *c = reading->cells;
    struct int_list *seeds = &reading->seeds;
    unsigned shared = 0;
    for (size_t i = 0; i < c->uses->count; i++) {
        const struct planned_run *r = &c->plan->runs[c->uses->at[i].run];
        const int64_t seed = options_integer(r->settings, "seed");
        bool known = false;
        if (!cell_has(a, &c->uses->at[i]) || !has_seed(c, b, seed))
            continue;
        shared++;
        for (size_t k = 0; k < seeds->count && !known; k++)
            known = seeds->at[k] == seed;
        if (!known)
            *(int64_t *)memory_append(&seeds->at, &seeds->count, sizeof *seeds->at) = seed;
    }
    if (reading->fewest == 0 || shared < reading->fewest)
        reading->fewest = shared;
}

/* Keeps the first cell whose runs have all ended, or else the first incomplete cell. The former
 * fails the claim, the latter leaves it open. So the order of the measures in a claim does not
 * matter. */
static void note_incomplete(struct cells_reading *r, const struct cell *cell)
{
    const struct cell *now = r->incomplete;
    const bool ended = cell->finished + cell->diverged + cell->failed >= cell->planned;
    if (now == NULL || (ended && now->finished + now->diverged + now->failed < now->planned))
        r->incomplete = cell;
}

static void note_delayed(struct cells_reading *r, const struct cell *cell)
{
    if (r->delayed == NULL && cell->staleness_spread_too_wide > 0)
        r->delayed = cell;
}

static status measure(void *context, const char *name, const char *arm, int64_t column,
                      double number, double *out)
{
    struct cells_reading *r = context;
    status result = check(r->cells->experiment, name, arm, column, number);
    const struct cell *cell = cells_find(r->cells, arm, column);
    *out = NAN;
    r->absent = r->absent || cell == NULL;
    if (result != OK || cell == NULL)
        return result;
    note_delayed(r, cell);
    note_seeds(r, cell, cell);
    const struct measure_field *mean = find_mean(name);
    const bool counts_diverged = strcmp(name, "died") == 0;
    const bool spread = strcmp(name, "deviation") == 0 || strcmp(name, "interval") == 0;
    const bool complete = cell->finished + (counts_diverged ? cell->diverged : 0) >= cell->planned;
    if (!complete)
        note_incomplete(r, cell);
    else if (mean != NULL)
        *out = field_value(mean, cell);
    else
        result = mean_of(r->cells, cell, find_run_query(name), number, out);
    if (complete && spread && cell->finished < 2)
        r->single = cell;
    else if (complete && !isfinite(*out))
        r->without_value = cell;
    return result;
}

static bool is_complete(const struct cell *cell)
{
    return cell->finished == cell->planned;
}

static status measure_pair(void *context, const char *name, const char *arm, int64_t column,
                           const char *other, int64_t other_column, double *out)
{
    struct cells_reading *r = context;
    const struct cell *a = cells_find(r->cells, arm, column);
    const struct cell *b = cells_find(r->cells, other, other_column);
    status result = check_pair(r->cells->experiment, name, arm, column, other, other_column);
    *out = NAN;
    r->absent = r->absent || a == NULL || b == NULL;
    if (result != OK || a == NULL || b == NULL)
        return result;
    note_delayed(r, a);
    note_delayed(r, b);
    note_seeds(r, a, b);
    if (is_complete(a) && is_complete(b)) {
        struct paired p;
        cells_pair(r->cells, a, b, &p);
        *out = field_value(find_pair(name), &p);
        if (p.missing > 0) {
            *out = NAN;
            r->without_value = isnan(a->score) ? a : b;
        } else if (isnan(*out) && p.n < 2) {
            r->single = a;
        }
    } else {
        note_incomplete(r, is_complete(a) ? b : a);
    }
    return OK;
}

static bool names_level(const struct experiment *e, const char *name)
{
    return experiment_axis_of_level(e, name) < experiment_level_count(e);
}

static status find_column(void *context, const char (*names)[64], int64_t *out)
{
    const struct cells_reading *r = context;
    return experiment_find_column(r->cells->experiment, names, out);
}

static bool is_level(void *context, const char *name)
{
    const struct cells_reading *r = context;
    return names_level(r->cells->experiment, name);
}

struct measures cells_measures(struct cells_reading *r)
{
    return (struct measures){.context = r,
                             .measure = measure,
                             .levels = experiment_level_count(r->cells->experiment),
                             .column = find_column,
                             .is_level = is_level,
                             .pair = measure_pair};
}

static status check_measure(void *context, const char *name, const char *arm, int64_t column,
                            double number, double *out)
{
    *out = 1;
    return check(context, name, arm, column, number);
}

static status check_measure_pair(void *context, const char *name, const char *arm, int64_t column,
                                 const char *other, int64_t other_column, double *out)
{
    *out = 1;
    return check_pair(context, name, arm, column, other, other_column);
}

static status check_column(void *context, const char (*names)[64], int64_t *out)
{
    return experiment_find_column(context, names, out);
}

static bool check_is_level(void *context, const char *name)
{
    return names_level(context, name);
}

status cells_check(const struct experiment *e, const char *expression)
{
    double ignored;
    struct measures m = {.context = (void *)(uintptr_t)e,
                         .measure = check_measure,
                         .levels = experiment_level_count(e),
                         .column = check_column,
                         .is_level = check_is_level,
                         .pair = check_measure_pair};
    return expression_value(expression, &m, &ignored);
}
