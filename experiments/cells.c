#include "experiments/cells.h"

#include "experiments/print.h"
#include "experiments/summary.h"
#include "results/statistics.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Accuracy in percent below which a run that finished has learnt nothing. */
#define DEAD 20

static struct cell *find(const struct cells *c, const char *arm, int64_t workers)
{
    for (size_t i = 0; i < c->count; i++) {
        if (c->at[i].workers == workers && strcmp(c->at[i].arm->name, arm) == 0) {
            return &c->at[i];
        }
    }
    return NULL;
}

const struct cell *cells_find(const struct cells *c, const char *arm, int64_t workers)
{
    return find(c, arm, workers);
}

static int ascending(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

static void lay_out(struct cells *c, const struct plan *p)
{
    for (size_t i = 0; i < p->count; i++) {
        const options *o = p->runs[i].settings;
        const char *arm = options_text(o, "arm");
        int64_t workers = options_integer(o, "workers");
        struct cell *cell = find(c, arm, workers);
        bool column = false;
        if (cell == NULL) {
            cell = &c->at[c->count++];
            *cell = (struct cell){.arm = experiment_arm(c->experiment, arm), .workers = workers};
        }
        cell->planned++;
        for (size_t w = 0; w < c->worker_count; w++) {
            column = column || c->workers[w] == workers;
        }
        if (!column) {
            c->workers[c->worker_count++] = workers;
        }
    }
    qsort(c->workers, c->worker_count, sizeof *c->workers, ascending);
}

/* Sums first; averages once all runs are in. `squares`: of the accuracies, for the deviation. */
static status add_run(struct cells *c, size_t index, double *squares)
{
    status result = OK;
    struct run_figures f;
    const struct planned_run *r = &c->plan->runs[index];
    const options *o = r->settings;
    c->accuracies[index] = NAN;
    struct cell *cell = find(c, options_text(o, "arm"), options_integer(o, "workers"));
    cell->diverged += r->state == PLANNED_DIVERGED;
    cell->died += r->state == PLANNED_DIVERGED;
    cell->failed += r->state == PLANNED_FAILED;
    if (r->state != PLANNED_FINISHED) {
        goto done;
    }
    TRY(summary_read(options_text(o, "results"), r->run_id, &f));
    cell->finished++;
    c->accuracies[index] = 100 * f.accuracy;
    cell->accuracy += 100 * f.accuracy;
    cell->died += 100 * f.accuracy < DEAD;
    squares[cell - c->at] += 1e4 * f.accuracy * f.accuracy;
    cell->loss += f.loss;
    cell->validation += 100 * f.validation_accuracy;
    cell->seconds += f.train_seconds;
    cell->updates += f.updates;
    cell->updates_per_second += f.updates / f.train_seconds;
    cell->samples_per_second += f.samples_per_second;
    cell->staleness += f.mean_staleness; /* NaN where it was not recorded */
    cell->staleness_cv += f.mean_staleness == 0 ? 0 : f.staleness_cv;
    /* fmax() would pass over what was not recorded. */
    cell->staleness_max = isnan(f.max_staleness) || isnan(cell->staleness_max)
                              ? NAN
                              : fmax(cell->staleness_max, f.max_staleness);
done:
    return result;
}

static void average(struct cell *cell, double squares)
{
    double n = cell->finished;
    double *const means[] = {&cell->accuracy,
                             &cell->loss,
                             &cell->validation,
                             &cell->seconds,
                             &cell->updates,
                             &cell->updates_per_second,
                             &cell->samples_per_second,
                             &cell->staleness,
                             &cell->staleness_cv};
    for (size_t i = 0; i < COUNT_OF(means); i++) {
        *means[i] = n > 0 ? *means[i] / n : NAN;
    }
    cell->died /= n + cell->diverged;
    double spread = squares - n * cell->accuracy * cell->accuracy;
    cell->deviation = n > 1 ? sqrt(fmax(0, spread) / (n - 1)) : NAN;
    cell->interval = n > 1 ? student_95(cell->finished - 1) * cell->deviation / sqrt(n) : NAN;
}

status cells_open(struct cells *out, const struct experiment *e, const struct plan *p)
{
    status result = OK;
    double *squares = NULL;
    *out = (struct cells){.experiment = e, .plan = p};
    TRY(memory_new(&out->at, p->count, sizeof *out->at, "cells"));
    TRY(memory_new(&out->workers, p->count, sizeof *out->workers, "columns"));
    TRY(memory_new(&squares, p->count, sizeof *squares, "squares"));
    TRY(memory_new(&out->accuracies, p->count, sizeof *out->accuracies, "accuracies"));
    lay_out(out, p);
    for (size_t i = 0; i < p->count; i++) {
        TRY(add_run(out, i, squares));
    }
    for (size_t i = 0; i < out->count; i++) {
        average(&out->at[i], squares[i]);
    }
done:
    memory_free(squares);
    if (result != OK) {
        cells_close(out);
    }
    return result;
}

void cells_close(struct cells *c)
{
    memory_free(c->at);
    memory_free(c->accuracies);
    memory_free(c->workers);
    *c = (struct cells){0};
}

/* ---- pairs --------------------------------------------------------------------------------------
 */

/* The accuracy of the cell's run of this seed; NaN: none. */
static double accuracy_of(const struct cells *c, const struct cell *cell, int64_t seed)
{
    for (size_t i = 0; i < c->plan->count; i++) {
        const options *o = c->plan->runs[i].settings;
        if (options_integer(o, "seed") == seed && options_integer(o, "workers") == cell->workers &&
            strcmp(options_text(o, "arm"), cell->arm->name) == 0) {
            return c->accuracies[i];
        }
    }
    return NAN;
}

void cells_pair(const struct cells *c, const struct cell *a, const struct cell *b,
                struct paired *out)
{
    struct sample differences = {0};
    for (size_t i = 0; i < c->plan->count; i++) {
        const options *o = c->plan->runs[i].settings;
        if (options_integer(o, "workers") == a->workers &&
            strcmp(options_text(o, "arm"), a->arm->name) == 0) {
            sample_add(&differences,
                       c->accuracies[i] - accuracy_of(c, b, options_integer(o, "seed")));
        }
    }
    *out = (struct paired){.n = differences.n,
                           .mean = sample_mean(&differences),
                           .deviation = sample_deviation(&differences),
                           .interval = sample_interval(&differences)};
}

/* ---- tables -------------------------------------------------------------------------------------
 */

static void cell_text(const struct cell *cell, char out[64])
{
    out[0] = '\0';
    if (cell == NULL) {
        return;
    }
    if (cell->finished == 0) {
        snprintf(out, 64, "%s", cell->diverged > 0 ? "diverged" : "–");
    } else if (isnan(cell->accuracy)) {
        snprintf(out, 64, "%.6g (%u)", cell->loss, cell->finished);
    } else if (isnan(cell->deviation)) {
        snprintf(out, 64, "%.2f (%u)", cell->accuracy, cell->finished);
    } else {
        snprintf(out, 64, "%.2f ± %.2f (%u)", cell->accuracy, cell->deviation, cell->finished);
    }
    if (cell->finished > 0 && cell->finished < cell->planned) {
        size_t length = strlen(out);
        snprintf(out + length, 64 - length, " of %u", cell->planned);
    }
}

enum { LABEL_WIDTH = 40, CELL_WIDTH = 19 };

/* Data without classes have a loss alone. */
static bool any_accuracy(const struct cells *c)
{
    bool any = false;
    for (size_t i = 0; i < c->count; i++) {
        any = any || (c->at[i].finished > 0 && !isnan(c->at[i].accuracy));
    }
    return any;
}

/* One cell of a table of text or of Markdown, and the end of its line. */
static void put(FILE *to, bool markdown, const char *text, int width)
{
    if (markdown) {
        fprintf(to, "| %s ", text);
    } else {
        print_padded(to, text, width);
    }
}

static void end_line(FILE *to, bool markdown)
{
    fputs(markdown ? "|\n" : "\n", to);
}

static void print_columns(const struct cells *c, bool markdown, FILE *to)
{
    char text[32];
    put(to, markdown, "arm \\ workers", LABEL_WIDTH);
    for (size_t w = 0; w < c->worker_count; w++) {
        snprintf(text, sizeof text, "%lld", (long long)c->workers[w]);
        put(to, markdown, text, CELL_WIDTH);
    }
    end_line(to, markdown);
    for (size_t w = 0; markdown && w <= c->worker_count; w++) {
        fputs("|---", to);
    }
    if (markdown) {
        fputs("|\n", to);
    }
}

static void print_accuracy(const struct cells *c, bool markdown, FILE *to)
{
    char text[64];
    fprintf(to, "%s%s",
            any_accuracy(c) ? "Test accuracy in %: mean ± standard deviation (runs)"
                            : "Test loss: mean (runs)",
            markdown ? "\n\n" : "\n");
    print_columns(c, markdown, to);
    for (size_t a = 0; a < c->experiment->arm_count; a++) {
        const struct arm *arm = &c->experiment->arms[a];
        bool any = false;
        for (size_t w = 0; w < c->worker_count; w++) {
            any = any || find(c, arm->name, c->workers[w]) != NULL;
        }
        if (!any) {
            continue;
        }
        put(to, markdown, arm->label, LABEL_WIDTH);
        for (size_t w = 0; w < c->worker_count; w++) {
            cell_text(find(c, arm->name, c->workers[w]), text);
            put(to, markdown, text, CELL_WIDTH);
        }
        end_line(to, markdown);
    }
}

static void print_details(const struct cells *c, FILE *to)
{
    fprintf(to, "\nTraining time, rates, and staleness as mean, cv (standard deviation / mean) and "
                "maximum\n");
    print_padded(to, "arm", LABEL_WIDTH);
    fprintf(to, "%7s %10s %10s %10s %8s %6s %5s\n", "workers", "seconds", "updates/s", "samples/s",
            "mean", "cv", "max");
    for (size_t a = 0; a < c->experiment->arm_count; a++) {
        for (size_t w = 0; w < c->worker_count; w++) {
            const struct cell *cell = find(c, c->experiment->arms[a].name, c->workers[w]);
            if (cell == NULL || cell->finished == 0) {
                continue;
            }
            print_padded(to, cell->arm->label, LABEL_WIDTH);
            fprintf(to, "%7lld %10.1f %10.0f %10.0f", (long long)cell->workers, cell->seconds,
                    cell->updates_per_second, cell->samples_per_second);
            if (cell->staleness > 0) {
                fprintf(to, " %8.2f %6.2f %5.0f", cell->staleness, cell->staleness_cv,
                        cell->staleness_max);
            }
            fprintf(to, "\n");
        }
    }
}

/* What the others are compared with: undamped asynchrony, or the first arm of those there are. */
static const struct arm *baseline(const struct cells *c)
{
    const struct experiment *e = c->experiment;
    const struct arm *undamped =
        e->verdict.undamped != NULL ? experiment_arm(e, e->verdict.undamped) : NULL;
    for (size_t a = 0; undamped == NULL && a < e->arm_count; a++) {
        for (size_t w = 0; w < c->worker_count && undamped == NULL; w++) {
            undamped = find(c, e->arms[a].name, c->workers[w]) != NULL ? &e->arms[a] : NULL;
        }
    }
    return undamped;
}

static bool pair_text(const struct cells *c, const struct cell *cell, const struct cell *base,
                      char out[64])
{
    struct paired p = {.n = 0};
    out[0] = '\0';
    if (cell != NULL && base != NULL) {
        cells_pair(c, cell, base, &p);
    }
    if (p.n == 1) {
        snprintf(out, 64, "%+.2f (1)", p.mean);
    } else if (p.n > 1) {
        snprintf(out, 64, "%+.2f ± %.2f (%u)", p.mean, p.interval, p.n);
    }
    return p.n > 0;
}

static void print_pairs(const struct cells *c, bool markdown, FILE *to)
{
    const struct arm *base = baseline(c);
    char text[64];
    bool begun = false;
    for (size_t a = 0; base != NULL && a < c->experiment->arm_count; a++) {
        const struct arm *arm = &c->experiment->arms[a];
        bool any = false;
        for (size_t w = 0; arm != base && w < c->worker_count; w++) {
            any = any || pair_text(c, find(c, arm->name, c->workers[w]),
                                   find(c, base->name, c->workers[w]), text);
        }
        if (any && !begun) {
            begun = true;
            fprintf(to,
                    "\nPoints of accuracy above '%s' on the same seeds: mean difference ± half of "
                    "its 95 %% interval (pairs)%s",
                    base->label, markdown ? "\n\n" : "\n");
            print_columns(c, markdown, to);
        }
        if (any) {
            put(to, markdown, arm->label, LABEL_WIDTH);
            for (size_t w = 0; w < c->worker_count; w++) {
                pair_text(c, find(c, arm->name, c->workers[w]), find(c, base->name, c->workers[w]),
                          text);
                put(to, markdown, text, CELL_WIDTH);
            }
            end_line(to, markdown);
        }
    }
}

void cells_print(const struct cells *c, FILE *to)
{
    print_accuracy(c, false, to);
    print_details(c, to);
    print_pairs(c, false, to);
}

void cells_print_markdown(const struct cells *c, FILE *to)
{
    print_accuracy(c, true, to);
    print_pairs(c, true, to);
}
