#include "experiments/claims/cells.h"

#include "base/memory.h"
#include "base/text.h"
#include "experiments/print_columns.h"
#include "experiments/run/run_summary_text.h"
#include "results/query/statistics.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* A finished run with a lower accuracy, in percent, counts as died: twice the chance level of ten
 * classes. */
#define DEAD 20

static struct cell *find(const struct cells *c, const char *arm, int64_t column)
{
    for (size_t i = 0; i < c->count; i++)
        if (c->at[i].column == column && strcmp(c->at[i].arm->name, arm) == 0)
            return &c->at[i];
    return NULL;
}

const struct cell *cells_find(const struct cells *c, const char *arm, int64_t column)
{
    return find(c, arm, column);
}

static int ascending(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

static struct cell *cell_of(const struct cells *c, const struct run_use *use)
{
    for (size_t i = 0; i < c->count; i++)
        if (cell_has(&c->at[i], use))
            return &c->at[i];
    return NULL;
}

bool cells_have_run(const struct cells *c, const struct planned_run *r)
{
    return !c->partial || options_integer(r->settings, "seed") != c->left_out;
}

static void open_cells(struct cells *c)
{
    for (const struct run_use *use = c->uses->at; use < c->uses->at + c->uses->count; use++) {
        struct cell *cell = cell_of(c, use);
        bool known = false;
        if (!cells_have_run(c, &c->plan->runs[use->run]))
            continue;
        if (cell == NULL) {
            cell = &c->at[c->count++];
            *cell = (struct cell){.arm = use->arm, .column = use->column};
            experiment_column_text(c->experiment, use->column, cell->title);
        }
        cell->planned++;
        cell->unmeasured += !use->further;
        for (size_t w = 0; w < c->column_count; w++)
            known = known || c->columns[w] == use->column;
        if (!known)
            c->columns[c->column_count++] = use->column;
    }
    qsort(c->columns, c->column_count, sizeof *c->columns, ascending);
}

static status read_figures(struct cells *c)
{
    status result = OK;
    TRY(memory_new(&c->figures, c->plan->count, sizeof *c->figures, "figures"));
    if (c->plan->count > 0)
        TRY(query_begin(options_text(c->plan->runs[0].settings, "results")));
    for (size_t i = 0; i < c->plan->count; i++) {
        const struct planned_run *r = &c->plan->runs[i];
        if (r->state == PLANNED_FINISHED)
            TRY(run_summary_read(options_text(r->settings, "results"), r->run_id, r->settings,
                                 &c->figures[i]));
    }
done:
    query_end();
    return result;
}

/* Chooses the loss for data without classes. The first finished run shows that such data have no
 * accuracy. */
static void choose_metric(struct cells *c)
{
    size_t i = 0;
    c->metric = c->experiment->metric;
    while (i < c->plan->count && c->plan->runs[i].state != PLANNED_FINISHED)
        i++;
    if (c->metric == METRIC_ACCURACY && i < c->plan->count && isnan(c->figures[i].accuracy))
        c->metric = METRIC_LOSS;
}

static double score_of(const struct cells *c, const struct run_figures *f)
{
    switch (c->metric) {
    case METRIC_ACCURACY:
        return 100 * f->accuracy;
    case METRIC_VALIDATION_LOSS:
        return f->validation_loss;
    case METRIC_LOSS:
        break;
    }
    return f->loss;
}

/* The figure by which the best arm of a map's side is chosen. */
static double choice_of(const struct cells *c, const struct run_figures *f)
{
    const double validation =
        c->metric == METRIC_ACCURACY ? 100 * f->validation_accuracy : f->validation_loss;
    return isnan(validation) ? score_of(c, f) : validation;
}

/* The samples of one cell. */
struct cell_samples {
    struct sample score, choice;
};

/* Adds a run to the sums of its cell; average() divides them. */
static void add_run(struct cells *c, const struct run_use *use, struct cell_samples *samples)
{
    const size_t index = use->run;
    const struct planned_run *r = &c->plan->runs[index];
    struct cell *cell = cell_of(c, use);
    c->scores[index] = NAN;
    if (!cells_have_run(c, r))
        return;
    if (!use->further && (r->state == PLANNED_DIVERGED || r->state == PLANNED_FINISHED))
        cell->unmeasured--;
    cell->diverged += r->state == PLANNED_DIVERGED;
    cell->unscored += !use->further && r->state == PLANNED_DIVERGED;
    cell->died += r->state == PLANNED_DIVERGED;
    cell->failed += r->state == PLANNED_FAILED;
    if (r->state != PLANNED_FINISHED)
        return;
    const struct run_figures f = c->figures[index];
    cell->finished++;
    cell->staleness_spread_too_wide += isfinite(f.expected_cv);
    c->scores[index] = score_of(c, &f);
    cell->unscored += !use->further && !isfinite(c->scores[index]);
    sample_add(&samples[cell - c->at].score, c->scores[index]);
    if (!use->further)
        sample_add(&samples[cell - c->at].choice, choice_of(c, &f));
    cell->died += c->metric == METRIC_ACCURACY && 100 * f.accuracy < DEAD;
    cell->accuracy += 100 * f.accuracy;
    cell->loss += f.loss;
    cell->validation += 100 * f.validation_accuracy;
    cell->validation_loss += f.validation_loss;
    cell->seconds += f.train_seconds;
    cell->updates += f.updates;
    cell->updates_per_second += f.updates / f.train_seconds;
    cell->samples_per_second += f.samples_per_second;
    cell->staleness += f.mean_staleness; /* NaN: not recorded */
    cell->staleness_cv += f.mean_staleness == 0 ? 0 : f.staleness_cv;
    /* fmax() would ignore a NaN. */
    cell->staleness_max = isnan(f.max_staleness) || isnan(cell->staleness_max)
                              ? NAN
                              : fmax(cell->staleness_max, f.max_staleness);
}

static void average(struct cell *cell, const struct cell_samples *samples)
{
    const struct sample *scores = &samples->score;
    double n = cell->finished;
    double *const means[] = {
        &cell->accuracy,  &cell->loss,        &cell->validation,         &cell->validation_loss,
        &cell->seconds,   &cell->updates,     &cell->updates_per_second, &cell->samples_per_second,
        &cell->staleness, &cell->staleness_cv};
    for (size_t i = 0; i < COUNT_OF(means); i++)
        *means[i] = n > 0 ? *means[i] / n : NAN;
    cell->died /= n + cell->diverged;
    const bool whole = scores->n == cell->finished;
    cell->score = whole ? sample_mean(scores) : NAN;
    cell->deviation = whole ? sample_deviation(scores) : NAN;
    cell->interval = whole ? sample_interval(scores) : NAN;
    cell->choice = sample_mean(&samples->choice);
}

/* Makes the cells from the figures. */
static status fill(struct cells *c)
{
    status result = OK;
    struct cell_samples *samples = NULL;
    TRY(memory_new(&c->at, c->uses->count, sizeof *c->at, "cells"));
    TRY(memory_new(&c->columns, c->uses->count, sizeof *c->columns, "columns"));
    TRY(memory_new(&samples, c->uses->count, sizeof *samples, "cells"));
    TRY(memory_new(&c->scores, c->plan->count, sizeof *c->scores, "scores"));
    open_cells(c);
    choose_metric(c);
    for (size_t i = 0; i < c->uses->count; i++)
        add_run(c, &c->uses->at[i], samples);
    for (size_t i = 0; i < c->count; i++)
        average(&c->at[i], &samples[i]);
done:
    memory_free(samples);
    return result;
}

status cells_open(struct cells *out, const struct experiment *e, const struct plan *p,
                  const struct run_uses *uses, bool quick)
{
    status result = OK;
    *out = (struct cells){.experiment = e, .plan = p, .uses = uses, .quick = quick};
    TRY(read_figures(out));
    TRY(fill(out));
done:
    if (result != OK)
        cells_close(out);
    return result;
}

status cells_without(struct cells *out, const struct cells *whole, int64_t seed)
{
    *out = (struct cells){.experiment = whole->experiment,
                          .plan = whole->plan,
                          .uses = whole->uses,
                          .figures = whole->figures,
                          .partial = true,
                          .left_out = seed};
    status result = fill(out);
    if (result != OK)
        cells_close(out);
    return result;
}

void cells_close(struct cells *c)
{
    if (!c->partial)
        memory_free(c->figures);
    memory_free(c->at);
    memory_free(c->scores);
    memory_free(c->columns);
    *c = (struct cells){0};
}

/* ---- pairs --------------------------------------------------------------------------------------
 */

/* The score of the cell's run with this seed; false: it has none. */
static bool find_score(const struct cells *c, const struct cell *cell, int64_t seed, double *out)
{
    for (size_t i = 0; i < c->uses->count; i++) {
        const size_t run = c->uses->at[i].run;
        if (cell_has(cell, &c->uses->at[i]) &&
            options_integer(c->plan->runs[run].settings, "seed") == seed) {
            *out = c->scores[run];
            return true;
        }
    }
    return false;
}

void cells_pair(const struct cells *c, const struct cell *a, const struct cell *b,
                struct paired *out)
{
    struct sample differences = {0};
    unsigned pairs = 0;
    for (size_t i = 0; i < c->uses->count; i++) {
        const size_t run = c->uses->at[i].run;
        const struct planned_run *r = &c->plan->runs[run];
        double other;
        if (cell_has(a, &c->uses->at[i]) && cells_have_run(c, r) &&
            find_score(c, b, options_integer(r->settings, "seed"), &other)) {
            sample_add(&differences, c->scores[run] - other);
            pairs++;
        }
    }
    *out = (struct paired){.n = differences.n,
                           .missing = pairs - differences.n,
                           .mean = sample_mean(&differences),
                           .deviation = sample_deviation(&differences),
                           .interval = sample_interval(&differences)};
}
