/*
 * verdict.c — the outcome of an experiment in sentences. Every number comes from the cells.
 */
#include "experiments/claims/cells.h"

#include <ctype.h>
#include <math.h>
#include <string.h>

/* A smaller difference counts as none. */
#define POINTS 0.5 /* of accuracy, in percent */
#define LOSS   0.02
/* An arm with at least this share of the highest rate counts among the fastest. */
#define NEARLY 0.9

struct verdict_cells {
    const struct cells *cells;
    const struct verdict_arms *arms;
    const struct cell *alone, *undamped, *tuned, *synchronous, *damped; /* damped: the best one */
    int64_t column;
};

static bool by_accuracy(const struct cells *c)
{
    return c->metric == METRIC_ACCURACY;
}

/* How much better `a` is than `b`: points of accuracy, or loss. */
static double lead(const struct cells *c, const struct cell *a, const struct cell *b)
{
    return by_accuracy(c) ? a->score - b->score : b->score - a->score;
}

static bool is_visible(const struct cells *c, double difference)
{
    return difference > (by_accuracy(c) ? POINTS : LOSS);
}

/* "88.4 %" or "1.727" for a score; "3.1 points" or "0.26" for a difference. */
struct figure_text {
    char text[40];
};
static struct figure_text level(const struct cells *c, const struct cell *cell)
{
    struct figure_text n;
    snprintf(n.text, sizeof n.text, by_accuracy(c) ? "%.1f %%" : "%.3f", cell->score);
    return n;
}
static struct figure_text amount(const struct cells *c, double difference)
{
    struct figure_text n;
    snprintf(n.text, sizeof n.text, by_accuracy(c) ? "%.1f points" : "%.3f", difference);
    return n;
}

static const struct cell *finished(const struct cells *c, const char *arm, int64_t column)
{
    const struct cell *cell = arm == NULL ? NULL : cells_find(c, arm, column);
    return cell != NULL && cell->finished > 0 && isfinite(cell->score) ? cell : NULL;
}

/* A cell that can be compared: either none or all of its runs died. print_deaths() names the
 * others.
 */
static const struct cell *measured(const struct cells *c, const char *arm, int64_t column)
{
    const struct cell *cell = finished(c, arm, column);
    return cell != NULL && (cell->died <= 0 || cell->died >= 1) ? cell : NULL;
}

/* A label at the start of a sentence. */
static void print_capital(FILE *to, const char *label)
{
    fprintf(to, "%c%s", toupper((unsigned char)label[0]), label + 1);
}

static void print_cost(const struct verdict_cells *s, FILE *to)
{
    const struct cells *c = s->cells;
    if (s->alone != NULL) {
        print_capital(to, s->alone->arm->label);
        fprintf(to, " reaches %s%s.\n", by_accuracy(c) ? "" : "a loss of ",
                level(c, s->alone).text);
    }
    if (s->undamped == NULL)
        return;
    print_capital(to, s->undamped->arm->label);
    fprintf(to, " with %s: %s", s->undamped->title, level(c, s->undamped).text);
    if (s->alone == NULL) {
        fprintf(to, ".\n");
        return;
    }
    double cost = lead(c, s->alone, s->undamped);
    if (is_visible(c, cost))
        fprintf(to, ": asynchrony cost %s", amount(c, cost).text);
    else
        fprintf(to, ": asynchrony cost nothing visible (%s)", amount(c, cost).text);
    if (isfinite(s->undamped->staleness)) {
        fprintf(to, " at a mean staleness of %.1f (cv %.2f, at most %.0f)", s->undamped->staleness,
                s->undamped->staleness_cv, s->undamped->staleness_max);
    }
    fprintf(to, ".\n");
}

static void print_damping(const struct verdict_cells *s, FILE *to)
{
    const struct cells *c = s->cells;
    if (s->damped == NULL || s->undamped == NULL)
        return;
    double back = lead(c, s->damped, s->undamped);
    if (is_visible(c, back))
        fprintf(to, "Damping recovered %s (%s)", amount(c, back).text, s->damped->arm->label);
    else
        fprintf(to, "Damping recovered nothing");
    const char *between = ";";
    for (size_t i = 0; i < s->arms->damped_count; i++) {
        const struct cell *cell = measured(c, s->arms->damped[i], s->column);
        if (cell != NULL) {
            fprintf(to, "%s %s %s", between, cell->arm->name, level(c, cell).text);
            between = ",";
        }
    }
    fprintf(to, ".\n");
}

static void print_tuning(const struct verdict_cells *s, FILE *to)
{
    const struct cells *c = s->cells;
    if (s->tuned == NULL || s->undamped == NULL || s->alone == NULL)
        return;
    double lost = lead(c, s->alone, s->undamped);
    double back = lead(c, s->tuned, s->undamped);
    double left = lead(c, s->alone, s->tuned);
    if (!is_visible(c, lost))
        return;
    fprintf(to, "Tuning alone, without damping, recovered ");
    if (!is_visible(c, back)) {
        fprintf(to, "nothing (%s, %s).\n", s->tuned->arm->label, level(c, s->tuned).text);
        return;
    }
    fprintf(to, "%s (%s, %s): %.0f %% of the loss came from untuned settings, %s remain.\n",
            amount(c, back).text, s->tuned->arm->label, level(c, s->tuned).text,
            100 * fmin(1, back / lost), amount(c, fmax(0, left)).text);
}

static void print_synchrony(const struct verdict_cells *s, FILE *to)
{
    const struct cells *c = s->cells;
    if (s->synchronous == NULL)
        return;
    fprintf(to, "Synchronous training reached %s (%s)", level(c, s->synchronous).text,
            s->synchronous->arm->label);
    if (s->alone != NULL) {
        double behind = lead(c, s->alone, s->synchronous);
        fprintf(to, ", %s %s than one worker", amount(c, fabs(behind)).text,
                behind >= 0 ? "worse" : "better");
    }
    const struct cell *const asynchronous[] = {s->undamped, s->tuned, s->damped}, *best = NULL;
    for (size_t i = 0; i < COUNT_OF(asynchronous); i++)
        if (asynchronous[i] != NULL && (best == NULL || lead(c, asynchronous[i], best) > 0))
            best = asynchronous[i];
    if (best != NULL) {
        double ahead = lead(c, s->synchronous, best);
        fprintf(to, "%s %s %s than the best asynchronous arm (%s)", s->alone != NULL ? " and" : ",",
                amount(c, fabs(ahead)).text, ahead >= 0 ? "better" : "worse", best->arm->label);
    }
    fprintf(to, ".\n");
}

static bool can_be_compared(const struct cells *c, const struct cell *cell)
{
    return measured(c, cell->arm->name, cell->column) != NULL;
}

/* The score of the arms that throughput alone would choose. */
static void print_throughput(const struct verdict_cells *s, FILE *to)
{
    const struct cells *c = s->cells;
    const struct cell *fastest = NULL, *best = NULL, *worst_near = NULL, *best_near = NULL;
    unsigned near = 0;
    for (size_t i = 0; i < c->count; i++) {
        const struct cell *cell = &c->at[i];
        if (cell->column != s->column || cell->finished == 0)
            continue;
        if (fastest == NULL || cell->updates_per_second > fastest->updates_per_second)
            fastest = cell;
        if (can_be_compared(c, cell) && (best == NULL || lead(c, cell, best) > 0))
            best = cell;
    }
    for (size_t i = 0; fastest != NULL && i < c->count; i++) {
        const struct cell *cell = &c->at[i];
        if (cell->column == s->column && can_be_compared(c, cell) &&
            cell->updates_per_second >= NEARLY * fastest->updates_per_second) {
            near++;
            worst_near = worst_near == NULL || lead(c, worst_near, cell) > 0 ? cell : worst_near;
            best_near = best_near == NULL || lead(c, cell, best_near) > 0 ? cell : best_near;
        }
    }
    if (fastest == NULL || best == NULL || fastest == best)
        return;
    fprintf(to, "Most updates per second with %s: %s, %.0f/s", fastest->title, fastest->arm->label,
            fastest->updates_per_second);
    if (near > 1) {
        fprintf(to, " (%u arms are within 10 %% of it and reach %s to %s)", near,
                level(c, worst_near).text, level(c, best_near).text);
    } else {
        fprintf(to, ", which reaches %s", level(c, fastest).text);
    }
    fprintf(to, "; the best arm (%s) made %.0f/s.\n", best->arm->label, best->updates_per_second);
}

/* If some runs of a cell learned and some died, their mean describes neither. */
static void print_deaths(const struct verdict_cells *s, FILE *to)
{
    unsigned cells = 0;
    for (size_t i = 0; i < s->cells->count; i++) {
        const struct cell *cell = &s->cells->at[i];
        unsigned ended = cell->finished + cell->diverged;
        if (ended == 0 || cell->died <= 0)
            continue;
        const char *start = cells++ > 0 ? ";"
                            : by_accuracy(s->cells)
                                ? "Runs that died (diverged, or ended with less than 20 %):"
                                : "Runs that diverged:";
        fprintf(to, "%s %s with %s: %.0f of %u", start, cell->arm->label, cell->title,
                cell->died * ended, ended);
    }
    if (cells > 0)
        fprintf(to, ". If only some runs of a cell died, its mean describes neither.\n");
}

static void print_certainty(const struct verdict_cells *s, FILE *to)
{
    unsigned least = 0;
    for (size_t i = 0; i < s->cells->count; i++) {
        unsigned n = s->cells->at[i].finished;
        least = n > 0 && (least == 0 || n < least) ? n : least;
    }
    if (least == 1)
        fprintf(to, "(Some figures are of one seed: %s may be noise.)\n",
                by_accuracy(s->cells) ? "differences of about a point" : "small differences");
}

/* ---- arms compared over the columns
 * --------------------------------------------------------------
 */

/* "AdamW: 1.727 at delay=0; delay=1 costs 0.255, delay=4 costs 0.640." */
static void print_arm(const struct cells *c, const char *arm, FILE *to)
{
    const struct cell *first = measured(c, arm, c->columns[0]);
    const char *between = ";";
    if (first == NULL)
        return;
    print_capital(to, first->arm->label);
    fprintf(to, ": %s at %s", level(c, first).text, first->title);
    for (size_t w = 1; w < c->column_count; w++) {
        const struct cell *cell = measured(c, arm, c->columns[w]);
        if (cell != NULL) {
            double cost = lead(c, first, cell);
            fprintf(to, "%s %s %s %s", between, cell->title, cost >= 0 ? "costs" : "gains",
                    amount(c, fabs(cost)).text);
            between = ",";
        }
    }
    fprintf(to, ".\n");
}

/* "At delay=1 Lion loses least (0.044) and momentum most (0.480); Muon is best, 1.622." */
static void print_column(const struct cells *c, int64_t column, FILE *to)
{
    const struct verdict_arms *v = &c->experiment->verdict;
    const struct cell *least = NULL, *most = NULL, *best = NULL;
    double least_cost = INFINITY, most_cost = -INFINITY;
    for (size_t i = 0; i < v->compared_count; i++) {
        const struct cell *first = measured(c, v->compared[i], c->columns[0]);
        const struct cell *cell = measured(c, v->compared[i], column);
        if (first == NULL || cell == NULL)
            continue;
        double cost = lead(c, first, cell);
        least = cost < least_cost ? cell : least;
        least_cost = fmin(cost, least_cost);
        most = cost > most_cost ? cell : most;
        most_cost = fmax(cost, most_cost);
        best = best == NULL || lead(c, cell, best) > 0 ? cell : best;
    }
    if (least == most)
        return;
    fprintf(to, "At %s %s loses least (%s) and %s most (%s); %s is best, %s.\n", best->title,
            least->arm->label, amount(c, least_cost).text, most->arm->label,
            amount(c, most_cost).text, best->arm->label, level(c, best).text);
}

static void print_comparison(const struct verdict_cells *s, FILE *to)
{
    const struct cells *c = s->cells;
    for (size_t i = 0; i < s->arms->compared_count && c->column_count > 0; i++)
        print_arm(c, s->arms->compared[i], to);
    for (size_t w = 1; w < c->column_count; w++)
        print_column(c, c->columns[w], to);
}

/* ---- the verdict --------------------------------------------------------------------------------
 */

static bool any_finished(const struct cells *c)
{
    unsigned finished = 0;
    for (size_t i = 0; i < c->count; i++)
        finished += c->at[i].finished;
    return finished > 0;
}

void verdict_print(const struct cells *c, FILE *to)
{
    const struct verdict_arms *v = &c->experiment->verdict;
    struct verdict_cells s = {.cells = c, .arms = v, .column = v->column};
    const bool has_roles =
        v->column != NO_COLUMN && (finished(c, v->undamped, v->column) != NULL ||
                                   finished(c, v->synchronous, v->column) != NULL);
    if (!has_roles && (v->compared_count == 0 || !any_finished(c)))
        return;
    s.alone = measured(c, v->alone, 1);
    s.undamped = measured(c, v->undamped, v->column);
    s.tuned = measured(c, v->tuned, v->column);
    s.synchronous = measured(c, v->synchronous, v->column);
    for (size_t i = 0; i < v->damped_count; i++) {
        const struct cell *cell = measured(c, v->damped[i], v->column);
        if (cell != NULL && (s.damped == NULL || lead(c, cell, s.damped) > 0))
            s.damped = cell;
    }
    fprintf(to, "\nVerdict\n");
    if (has_roles) {
        print_cost(&s, to);
        print_damping(&s, to);
        print_tuning(&s, to);
        print_synchrony(&s, to);
        print_throughput(&s, to);
    }
    print_comparison(&s, to);
    print_deaths(&s, to);
    print_certainty(&s, to);
}
