#include "experiments/claims/cells.h"

#include "base/memory.h"
#include "base/text.h"
#include "experiments/print_columns.h"
#include "experiments/run/run_summary_text.h"
#include "results/query/statistics.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* A finished run with a lower accuracy, in percent, counts as died: twice the chance level. */
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

static void open_cells(struct cells *c, const struct plan *p)
{
    const char *axis = c->experiment->axis;
    for (size_t i = 0; i < p->count; i++) {
        const options *o = p->runs[i].settings;
        const char *arm = options_text(o, "arm");
        int64_t column = options_integer(o, axis);
        struct cell *cell = find(c, arm, column);
        bool known = false;
        if (cell == NULL) {
            cell = &c->at[c->count++];
            *cell = (struct cell){.arm = experiment_arm(c->experiment, arm), .column = column};
            experiment_column_text(c->experiment, column, cell->title);
        }
        cell->planned++;
        for (size_t w = 0; w < c->column_count; w++)
            known = known || c->columns[w] == column;
        if (!known)
            c->columns[c->column_count++] = column;
    }
    qsort(c->columns, c->column_count, sizeof *c->columns, ascending);
}

/* Data without classes have a loss and no accuracy, which the first finished run shows. */
static status choose_metric(struct cells *c)
{
    status result = OK;
    c->metric = c->experiment->metric;
    for (size_t i = 0; c->metric == METRIC_ACCURACY && i < c->plan->count; i++) {
        const struct planned_run *r = &c->plan->runs[i];
        struct run_figures f;
        if (r->state == PLANNED_FINISHED) {
            TRY(run_summary_read(options_text(r->settings, "results"), r->run_id, NULL, &f));
            c->metric = isnan(f.accuracy) ? METRIC_LOSS : METRIC_ACCURACY;
            break;
        }
    }
done:
    return result;
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

/* Adds a run to the sums of its cell; average() divides them. `samples`: scores by cell. */
static status add_run(struct cells *c, size_t index, struct sample *samples)
{
    status result = OK;
    struct run_figures f;
    const struct planned_run *r = &c->plan->runs[index];
    const options *o = r->settings;
    c->scores[index] = NAN;
    struct cell *cell = find(c, options_text(o, "arm"), options_integer(o, c->experiment->axis));
    cell->diverged += r->state == PLANNED_DIVERGED;
    cell->died += r->state == PLANNED_DIVERGED;
    cell->failed += r->state == PLANNED_FAILED;
    if (r->state != PLANNED_FINISHED)
        goto done;
    TRY(run_summary_read(options_text(o, "results"), r->run_id, o, &f));
    cell->finished++;
    cell->staleness_spread_too_wide += isfinite(f.expected_cv);
    c->scores[index] = score_of(c, &f);
    sample_add(&samples[cell - c->at], c->scores[index]);
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
done:
    return result;
}

static void average(struct cell *cell, const struct sample *scores)
{
    double n = cell->finished;
    double *const means[] = {
        &cell->accuracy,  &cell->loss,        &cell->validation,         &cell->validation_loss,
        &cell->seconds,   &cell->updates,     &cell->updates_per_second, &cell->samples_per_second,
        &cell->staleness, &cell->staleness_cv};
    for (size_t i = 0; i < COUNT_OF(means); i++)
        *means[i] = n > 0 ? *means[i] / n : NAN;
    cell->died /= n + cell->diverged;
    cell->score = scores->n == cell->finished ? sample_mean(scores) : NAN;
    cell->deviation = sample_deviation(scores);
    cell->interval = sample_interval(scores);
}

status cells_open(struct cells *out, const struct experiment *e, const struct plan *p)
{
    status result = OK;
    struct sample *samples = NULL;
    *out = (struct cells){.experiment = e, .plan = p};
    TRY(memory_new(&out->at, p->count, sizeof *out->at, "cells"));
    TRY(memory_new(&out->columns, p->count, sizeof *out->columns, "columns"));
    TRY(memory_new(&samples, p->count, sizeof *samples, "cells"));
    TRY(memory_new(&out->scores, p->count, sizeof *out->scores, "scores"));
    open_cells(out, p);
    if (p->count > 0)
        TRY(query_begin(options_text(p->runs[0].settings, "results")));
    TRY(choose_metric(out));
    for (size_t i = 0; i < p->count; i++)
        TRY(add_run(out, i, samples));
    for (size_t i = 0; i < out->count; i++)
        average(&out->at[i], &samples[i]);
done:
    query_end();
    memory_free(samples);
    if (result != OK)
        cells_close(out);
    return result;
}

void cells_close(struct cells *c)
{
    memory_free(c->at);
    memory_free(c->scores);
    memory_free(c->columns);
    *c = (struct cells){0};
}

/* ---- pairs --------------------------------------------------------------------------------------
 */

/* The score of the cell's run with this seed; NaN: it has none. */
static double score_with(const struct cells *c, const struct cell *cell, int64_t seed)
{
    for (size_t i = 0; i < c->plan->count; i++) {
        const struct planned_run *r = &c->plan->runs[i];
        if (options_integer(r->settings, "seed") == seed &&
            plan_run_is_of(r, cell->arm->name, c->experiment->axis, cell->column))
            return c->scores[i];
    }
    return NAN;
}

void cells_pair(const struct cells *c, const struct cell *a, const struct cell *b,
                struct paired *out)
{
    struct sample differences = {0};
    for (size_t i = 0; i < c->plan->count; i++) {
        const struct planned_run *r = &c->plan->runs[i];
        if (plan_run_is_of(r, a->arm->name, c->experiment->axis, a->column)) {
            const int64_t seed = options_integer(r->settings, "seed");
            sample_add(&differences, c->scores[i] - score_with(c, b, seed));
        }
    }
    *out = (struct paired){.n = differences.n,
                           .mean = sample_mean(&differences),
                           .deviation = sample_deviation(&differences),
                           .interval = sample_interval(&differences)};
}

/* ---- tables -------------------------------------------------------------------------------------
 */

enum { LABEL_WIDTH = 40, CELL_WIDTH = 19, EXPECTED_WIDTH = 8, COLUMN_WIDTH = 7, RUNS_WIDTH = 6 };

/* A table of text or of Markdown. */
struct table {
    const struct cells *c;
    FILE *to;
    bool markdown;
};

static void put(const struct table *t, const char *text, int width)
{
    if (t->markdown)
        print_cell(t->to, text);
    else
        print_padded(t->to, text, width);
}

/* Like put(), aligned right in a text table; ASCII only. */
static void put_right(const struct table *t, const char *text, int width)
{
    if (t->markdown)
        print_cell(t->to, text);
    else
        fprintf(t->to, "%*s", width, text);
}

static void end_line(const struct table *t)
{
    fputs(t->markdown ? "|\n" : "\n", t->to);
}

/* In Markdown an empty line must precede a table. */
static void end_caption(const struct table *t)
{
    fputs(t->markdown ? "\n\n" : "\n", t->to);
}

/* The line below the titles; the last `numbers` columns are aligned right. */
static void put_rule(const struct table *t, size_t columns, size_t numbers)
{
    for (size_t i = 0; t->markdown && i < columns; i++)
        fputs(i + numbers < columns ? "|---" : "|---:", t->to);
    if (t->markdown)
        end_line(t);
}

/* The source's figure for the cell; NaN: it has none. */
static double expected_of(const struct arm *arm, int64_t column)
{
    for (size_t i = 0; i < arm->expected_count; i++)
        if (arm->expected[i].column == column)
            return arm->expected[i].value;
    return NAN;
}

static bool any_expected(const struct cells *c)
{
    bool any = false;
    for (size_t i = 0; i < c->count; i++)
        any = any || !isnan(expected_of(c->at[i].arm, c->at[i].column));
    return any;
}

static int cell_width(const struct cells *c)
{
    return CELL_WIDTH + (any_expected(c) ? EXPECTED_WIDTH : 0);
}

/* Losses have a digit more than percent. */
static int decimals_of(const struct cells *c)
{
    return c->metric == METRIC_ACCURACY ? 2 : 3;
}

static void cell_text(const struct cells *c, const struct cell *cell, struct text *out)
{
    const int decimals = decimals_of(c);
    if (cell->finished == 0)
        text_add(out, "%s", cell->diverged > 0 ? "diverged" : "–");
    else if (c->metric == METRIC_ACCURACY && isnan(cell->score))
        text_add(out, "loss %.6g (%u)", cell->loss, cell->finished);
    else if (isnan(cell->deviation))
        text_add(out, "%.*f (%u)", decimals, cell->score, cell->finished);
    else
        text_add(out, "%.*f ± %.*f (%u)", decimals, cell->score, decimals, cell->deviation,
                 cell->finished);
    if (cell->finished > 0 && cell->finished < cell->planned)
        text_add(out, " of %u", cell->planned);
    double expected = expected_of(cell->arm, cell->column);
    if (!isnan(expected))
        text_add(out, " [%g]", expected);
}

static void put_columns(const struct table *t)
{
    char text[32];
    snprintf(text, sizeof text, "arm \\ %s", t->c->experiment->axis);
    put(t, text, LABEL_WIDTH);
    for (size_t w = 0; w < t->c->column_count; w++) {
        snprintf(text, sizeof text, "%lld", (long long)t->c->columns[w]);
        put(t, text, cell_width(t->c));
    }
    end_line(t);
    put_rule(t, t->c->column_count + 1, 0);
}

static bool has_cells(const struct cells *c, const struct arm *arm)
{
    bool any = false;
    for (size_t w = 0; w < c->column_count; w++)
        any = any || find(c, arm->name, c->columns[w]) != NULL;
    return any;
}

static void put_scores(const struct table *t)
{
    const struct cells *c = t->c;
    static const char *const titles[] = {[METRIC_ACCURACY] = "Test accuracy in %",
                                         [METRIC_LOSS] = "Test loss",
                                         [METRIC_VALIDATION_LOSS] = "Validation loss"};
    fprintf(t->to, "%s: mean ± standard deviation (runs)%s", titles[c->metric],
            any_expected(c) ? " [expected]" : "");
    end_caption(t);
    put_columns(t);
    for (size_t a = 0; a < c->experiment->arm_count; a++) {
        const struct arm *arm = &c->experiment->arms[a];
        if (!has_cells(c, arm))
            continue;
        put(t, arm->label, LABEL_WIDTH);
        for (size_t w = 0; w < c->column_count; w++) {
            struct text text = {0};
            const struct cell *cell = find(c, arm->name, c->columns[w]);
            if (cell != NULL)
                cell_text(c, cell, &text);
            put(t, text.at != NULL ? text.at : "", cell_width(c));
            text_free(&text);
        }
        end_line(t);
    }
}

static const struct {
    const char *title;
    size_t offset;
    int width, decimals;
    bool of_staleness; /* empty if the mean staleness is 0 */
} details[] = {
    {"seconds", offsetof(struct cell, seconds), 9, 1, false},
    {"updates/s", offsetof(struct cell, updates_per_second), 11, 0, false},
    {"samples/s", offsetof(struct cell, samples_per_second), 11, 0, false},
    {"staleness", offsetof(struct cell, staleness), 11, 2, true},
    {"cv", offsetof(struct cell, staleness_cv), 7, 2, true},
    {"max", offsetof(struct cell, staleness_max), 6, 0, true},
};

static void put_details_of(const struct table *t, const struct cell *cell)
{
    char text[64];
    put(t, cell->arm->label, LABEL_WIDTH);
    snprintf(text, sizeof text, "%lld", (long long)cell->column);
    put_right(t, text, COLUMN_WIDTH);
    snprintf(text, sizeof text, "%u", cell->finished);
    put_right(t, text, RUNS_WIDTH);
    for (size_t i = 0; i < COUNT_OF(details); i++) {
        double value;
        memcpy(&value, (const char *)cell + details[i].offset, sizeof value);
        bool known = !isnan(value) && (!details[i].of_staleness || cell->staleness > 0);
        snprintf(text, sizeof text, "%.*f", details[i].decimals, value);
        put_right(t, known ? text : "", details[i].width);
    }
    end_line(t);
}

static void put_details(const struct table *t)
{
    const struct cells *c = t->c;
    fprintf(t->to, "Training time, rates, and staleness as mean, cv (standard deviation / mean) "
                   "and maximum");
    end_caption(t);
    put(t, "arm", LABEL_WIDTH);
    put_right(t, c->experiment->axis, COLUMN_WIDTH);
    put_right(t, "runs", RUNS_WIDTH);
    for (size_t i = 0; i < COUNT_OF(details); i++)
        put_right(t, details[i].title, details[i].width);
    end_line(t);
    put_rule(t, COUNT_OF(details) + 3, COUNT_OF(details) + 2);
    for (size_t a = 0; a < c->experiment->arm_count; a++) {
        for (size_t w = 0; w < c->column_count; w++) {
            const struct cell *cell = find(c, c->experiment->arms[a].name, c->columns[w]);
            if (cell != NULL && cell->finished > 0)
                put_details_of(t, cell);
        }
    }
}

/* The arm to compare the others with: undamped asynchrony, or the first arm that has cells. */
static const struct arm *baseline(const struct cells *c)
{
    const struct experiment *e = c->experiment;
    const struct arm *undamped =
        e->verdict.undamped != NULL ? experiment_arm(e, e->verdict.undamped) : NULL;
    for (size_t a = 0; undamped == NULL && a < e->arm_count; a++)
        undamped = has_cells(c, &e->arms[a]) ? &e->arms[a] : NULL;
    return undamped;
}

static bool pair_text(const struct cells *c, const struct cell *cell, const struct cell *base,
                      char out[64])
{
    struct paired p = {.n = 0};
    const int decimals = decimals_of(c);
    out[0] = '\0';
    if (cell != NULL && base != NULL)
        cells_pair(c, cell, base, &p);
    if (p.n == 1)
        snprintf(out, 64, "%+.*f (1)", decimals, p.mean);
    else if (p.n > 1)
        snprintf(out, 64, "%+.*f ± %.*f (%u)", decimals, p.mean, decimals, p.interval, p.n);
    return p.n > 0;
}

static void put_pairs(const struct table *t)
{
    const struct cells *c = t->c;
    const struct arm *base = baseline(c);
    char text[64];
    bool has_title = false;
    for (size_t a = 0; base != NULL && a < c->experiment->arm_count; a++) {
        const struct arm *arm = &c->experiment->arms[a];
        bool any = false;
        for (size_t w = 0; arm != base && w < c->column_count; w++) {
            any = any || pair_text(c, find(c, arm->name, c->columns[w]),
                                   find(c, base->name, c->columns[w]), text);
        }
        if (any && !has_title) {
            has_title = true;
            fprintf(t->to,
                    "\n%s '%s' on the same seeds: mean difference ± half of its 95 %% interval "
                    "(pairs)",
                    c->metric == METRIC_ACCURACY ? "Points of accuracy above" : "Loss above",
                    base->label);
            end_caption(t);
            put_columns(t);
        }
        if (any) {
            put(t, arm->label, LABEL_WIDTH);
            for (size_t w = 0; w < c->column_count; w++) {
                pair_text(c, find(c, arm->name, c->columns[w]), find(c, base->name, c->columns[w]),
                          text);
                put(t, text, cell_width(c));
            }
            end_line(t);
        }
    }
}

void cells_print(const struct cells *c, FILE *to)
{
    const struct table t = {.c = c, .to = to};
    put_scores(&t);
    fputc('\n', to);
    put_details(&t);
    put_pairs(&t);
}

void cells_print_markdown(const struct cells *c, FILE *to)
{
    const struct table t = {.c = c, .to = to, .markdown = true};
    put_scores(&t);
    fputs("\n<details><summary>Time, rates, staleness; differences on the same seeds</summary>\n\n",
          to);
    put_details(&t);
    put_pairs(&t);
    fputs("\n</details>\n", to);
}
