/*
 * measures.c — what claims may ask of a cell: its means, and what is read from its runs' rows when
 * it is asked for.
 */
#include "base/suggestion.h"
#include "experiments/claims/cells.h"
#include "results/query/query.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static const struct {
    const char *name;
    size_t offset;
} means[] = {
    {"accuracy", offsetof(struct cell, accuracy)},
    {"deviation", offsetof(struct cell, deviation)},
    {"interval", offsetof(struct cell, interval)},
    {"validation", offsetof(struct cell, validation)},
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

/* Means over the runs of what a SELECT says of one of them, :run. */
struct question {
    const char *name;
    bool wants_number; /* :at */
    bool wants_fit;    /* :other is the run that its pace is fitted to */
    double otherwise;  /* where the SELECT yields nothing */
    const char *sql;
};

#define USED "outcome IN ('applied', 'aggregated')"

static const struct question questions[] = {
    {"seconds_to", true, false, INFINITY,
     "SELECT min(seconds) FROM evaluation WHERE run_id = :run AND 100 * test_accuracy >= :at"},
    {"seconds_to_loss", true, false, INFINITY,
     "SELECT min(seconds) FROM evaluation WHERE run_id = :run AND test_loss <= :at"},
    {"staleness_above", true, false, NAN,
     "SELECT avg(staleness > :at) FROM push WHERE run_id = :run AND " USED},
    {"sent_bytes", false, false, NAN, "SELECT sent_bytes FROM run WHERE id = :run"},
    {"exchange_share", false, false, NAN,
     "SELECT sum(exchange_us) / sum(compute_us + exchange_us + apply_us) FROM step "
     "WHERE run_id = :run"},
    {"bubble", false, false, NAN,
     "SELECT 1 - sum(detail ->> 'busy_seconds') / sum(detail ->> 'span_seconds') FROM event "
     "WHERE run_id = :run AND code = 'stage'"},
    /* Half the sum of the differences of the shares: 0 alike, 1 nothing in common. */
    {"staleness_distance", false, true, NAN,
     "WITH counted AS (SELECT run_id, staleness, 1.0 * count(*) / sum(count(*)) OVER "
     "(PARTITION BY run_id) AS share FROM push WHERE run_id IN (:run, :other) AND " USED
     " GROUP BY run_id, staleness) SELECT sum(abs(difference)) / 2 FROM (SELECT sum(CASE run_id "
     "WHEN :run THEN share ELSE -share END) AS difference FROM counted GROUP BY staleness)"},
};

/* ---- names ------------------------------------------------------------------------------------
 */

static const struct question *find_question(const char *name)
{
    for (size_t i = 0; i < COUNT_OF(questions); i++)
        if (strcmp(questions[i].name, name) == 0)
            return &questions[i];
    return NULL;
}

static bool find_mean(const char *name, size_t *offset)
{
    for (size_t i = 0; i < COUNT_OF(means); i++) {
        if (strcmp(means[i].name, name) == 0) {
            *offset = means[i].offset;
            return true;
        }
    }
    return false;
}

static status no_such_measure(const char *name)
{
    struct suggestion known = {.wanted = name};
    for (size_t i = 0; i < COUNT_OF(means); i++)
        suggestion_add(&known, means[i].name);
    for (size_t i = 0; i < COUNT_OF(questions); i++)
        suggestion_add(&known, questions[i].name);
    suggestion_add(&known, "paired");
    suggestion_add(&known, "paired_interval");
    return suggestion_fail(&known, NULL, "there is no measure");
}

static status no_such_arm(const struct experiment *e, const char *name)
{
    struct suggestion known = {.wanted = name};
    for (size_t i = 0; i < e->arm_count; i++)
        suggestion_add(&known, e->arms[i].name);
    return suggestion_fail(&known, NULL, "there is no arm");
}

static status check(const struct experiment *e, const char *name, const char *arm, int64_t workers,
                    double given)
{
    status result = OK;
    size_t offset;
    const struct question *q = find_question(name);
    const struct arm *its = experiment_arm(e, arm);
    if (q == NULL && !find_mean(name, &offset))
        TRY(no_such_measure(name));
    if (its == NULL)
        TRY(no_such_arm(e, arm));
    if (!experiment_arm_has(e, its, workers))
        FAIL(ERROR_USAGE, "the arm '%s' is not run with %lld workers", arm, (long long)workers);
    if (isnan(given) == (q != NULL && q->wants_number)) {
        FAIL(ERROR_USAGE, "%s is written %s(arm, workers%s)", name, name,
             isnan(given) ? ", number" : "");
    }
    if (q != NULL && q->wants_fit && its->fit == NULL)
        FAIL(ERROR_USAGE, "%s: the arm '%s' is not fitted to another one", name, arm);
done:
    return result;
}

/* ---- values -----------------------------------------------------------------------------------
 */

static status ask(const struct question *q, const struct planned_run *r, double given, double *out)
{
    status result = OK;
    char run[48], at[48], other[48];
    const char *settings[3] = {run};
    size_t count = 1;
    bool known = false;
    snprintf(run, sizeof run, "run=%lld", (long long)r->run_id);
    if (q->wants_number) {
        snprintf(at, sizeof at, "at=%.17g", given);
        settings[count++] = at;
    }
    if (q->wants_fit) {
        snprintf(other, sizeof other, "other=%s", options_value(r->settings, "pace.run"));
        settings[count++] = other;
    }
    TRY(query_number(options_text(r->settings, "results"), q->sql, settings, count, out, &known));
    *out = known ? *out : q->otherwise;
done:
    return result;
}

static status mean_of(const struct cells *c, const struct cell *cell, const struct question *q,
                      double given, double *out)
{
    status result = OK;
    double sum = 0, count = 0;
    for (size_t i = 0; i < c->plan->count; i++) {
        const struct planned_run *r = &c->plan->runs[i];
        double value;
        if (r->state == PLANNED_FINISHED &&
            strcmp(options_text(r->settings, "arm"), cell->arm->name) == 0 &&
            options_integer(r->settings, "workers") == cell->workers) {
            TRY(ask(q, r, given, &value));
            sum += value;
            count++;
        }
    }
    *out = sum / count;
done:
    return result;
}

static void note_delayed(struct cells_reading *r, const struct cell *cell)
{
    if (r->delayed == NULL && cell->staleness_spread_too_wide > 0)
        r->delayed = cell;
}

static status measure(void *context, const char *name, const char *arm, int64_t workers,
                      double given, double *out)
{
    struct cells_reading *r = context;
    size_t offset = 0;
    status result = check(r->cells->experiment, name, arm, workers, given);
    const struct cell *cell = cells_find(r->cells, arm, workers);
    *out = NAN;
    if (result != OK || cell == NULL)
        return result;
    note_delayed(r, cell);
    bool deaths = strcmp(name, "died") == 0;
    if (cell->finished + (deaths ? cell->diverged : 0) < cell->planned)
        r->lacking = cell;
    else if (find_mean(name, &offset))
        memcpy(out, (const char *)cell + offset, sizeof *out);
    else
        result = mean_of(r->cells, cell, find_question(name), given, out);
    return result;
}

/* ---- two cells on the same seeds ----------------------------------------------------------------
 */

static const struct {
    const char *name;
    size_t offset;
} pairs[] = {
    {"paired", offsetof(struct paired, mean)},
    {"paired_interval", offsetof(struct paired, interval)},
};

static status find_pair(const char *name, size_t *offset)
{
    for (size_t i = 0; i < COUNT_OF(pairs); i++) {
        if (strcmp(pairs[i].name, name) == 0) {
            *offset = pairs[i].offset;
            return OK;
        }
    }
    return no_such_measure(name);
}

static status check_pair(const struct experiment *e, const char *name, const char *arm,
                         int64_t workers, const char *other, int64_t other_workers)
{
    status result = OK;
    size_t offset;
    TRY(find_pair(name, &offset));
    TRY(check(e, "accuracy", arm, workers, NAN));
    TRY(check(e, "accuracy", other, other_workers, NAN));
done:
    return result;
}

static bool is_whole(const struct cell *cell)
{
    return cell->finished == cell->planned;
}

static status measure_pair(void *context, const char *name, const char *arm, int64_t workers,
                           const char *other, int64_t other_workers, double *out)
{
    status result = OK;
    struct cells_reading *r = context;
    struct paired p;
    size_t offset = 0;
    *out = NAN;
    TRY(check_pair(r->cells->experiment, name, arm, workers, other, other_workers));
    TRY(find_pair(name, &offset));
    const struct cell *a = cells_find(r->cells, arm, workers);
    const struct cell *b = cells_find(r->cells, other, other_workers);
    if (a == NULL || b == NULL)
        goto done;
    note_delayed(r, a);
    note_delayed(r, b);
    if (!is_whole(a) || !is_whole(b)) {
        r->lacking = is_whole(a) ? b : a;
    } else {
        cells_pair(r->cells, a, b, &p);
        memcpy(out, (const char *)&p + offset, sizeof *out);
    }
done:
    return result;
}

struct measures cells_measures(struct cells_reading *r)
{
    return (struct measures){.context = r, .measure = measure, .pair = measure_pair};
}

static status measure_name_only(void *context, const char *name, const char *arm, int64_t workers,
                                double given, double *out)
{
    *out = 1;
    return check(context, name, arm, workers, given);
}

static status pair_names_only(void *context, const char *name, const char *arm, int64_t workers,
                              const char *other, int64_t other_workers, double *out)
{
    *out = 1;
    return check_pair(context, name, arm, workers, other, other_workers);
}

status cells_check(const struct experiment *e, const char *expression)
{
    double ignored;
    struct measures m = {
        .context = (void *)(uintptr_t)e, .measure = measure_name_only, .pair = pair_names_only};
    return expression_value(expression, &m, &ignored);
}
