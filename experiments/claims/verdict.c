/*
 * verdict.c — the outcome of an experiment in sentences. Every number comes from the cells.
 */
#include "experiments/claims/cells.h"

#include <ctype.h>
#include <math.h>
#include <string.h>

/* A smaller difference, in points, counts as none. */
#define POINTS 0.5
/* An arm with at least this share of the highest rate counts among the fastest. */
#define NEARLY 0.9

struct verdict_cells {
    const struct cells *cells;
    const struct verdict_arms *arms;
    const struct cell *alone, *undamped, *tuned, *synchronous, *damped; /* damped: the best one */
    int64_t workers;
};

static const struct cell *finished(const struct cells *c, const char *arm, int64_t workers)
{
    const struct cell *cell = arm == NULL ? NULL : cells_find(c, arm, workers);
    return cell != NULL && cell->finished > 0 && isfinite(cell->accuracy) ? cell : NULL;
}

/* A cell that can be compared: either none or all of its runs died. print_deaths() names the
 * others.
 */
static const struct cell *measured(const struct cells *c, const char *arm, int64_t workers)
{
    const struct cell *cell = finished(c, arm, workers);
    return cell != NULL && (cell->died <= 0 || cell->died >= 1) ? cell : NULL;
}

/* A label at the start of a sentence. */
static void print_capital(FILE *to, const char *label)
{
    fprintf(to, "%c%s", toupper((unsigned char)label[0]), label + 1);
}

static void print_cost(const struct verdict_cells *s, FILE *to)
{
    if (s->alone != NULL) {
        print_capital(to, s->alone->arm->label);
        fprintf(to, " reaches %.1f %%.\n", s->alone->accuracy);
    }
    if (s->undamped == NULL)
        return;
    print_capital(to, s->undamped->arm->label);
    fprintf(to, " with %lld workers: %.1f %%", (long long)s->workers, s->undamped->accuracy);
    if (s->alone == NULL) {
        fprintf(to, ".\n");
        return;
    }
    double cost = s->alone->accuracy - s->undamped->accuracy;
    if (cost > POINTS)
        fprintf(to, ": asynchrony cost %.1f points", cost);
    else
        fprintf(to, ": asynchrony cost no visible accuracy (%.1f points)", cost);
    if (isfinite(s->undamped->staleness)) {
        fprintf(to, " at a mean staleness of %.1f (cv %.2f, at most %.0f)", s->undamped->staleness,
                s->undamped->staleness_cv, s->undamped->staleness_max);
    }
    fprintf(to, ".\n");
}

static void print_damping(const struct verdict_cells *s, FILE *to)
{
    if (s->damped == NULL || s->undamped == NULL)
        return;
    double back = s->damped->accuracy - s->undamped->accuracy;
    if (back > POINTS)
        fprintf(to, "Damping recovered %.1f points (%s)", back, s->damped->arm->label);
    else
        fprintf(to, "Damping recovered nothing");
    const char *between = ";";
    for (size_t i = 0; i < s->arms->damped_count; i++) {
        const struct cell *cell = measured(s->cells, s->arms->damped[i], s->workers);
        if (cell != NULL) {
            fprintf(to, "%s %s %.1f %%", between, cell->arm->name, cell->accuracy);
            between = ",";
        }
    }
    fprintf(to, ".\n");
}

static void print_tuning(const struct verdict_cells *s, FILE *to)
{
    if (s->tuned == NULL || s->undamped == NULL || s->alone == NULL)
        return;
    double lost = s->alone->accuracy - s->undamped->accuracy;
    double back = s->tuned->accuracy - s->undamped->accuracy;
    double left = s->alone->accuracy - s->tuned->accuracy;
    if (lost <= POINTS)
        return;
    fprintf(to, "Tuning alone, without damping, recovered ");
    if (back <= POINTS) {
        fprintf(to, "nothing (%s, %.1f %%).\n", s->tuned->arm->label, s->tuned->accuracy);
        return;
    }
    fprintf(to,
            "%.1f points (%s, %.1f %%): %.0f %% of the loss came from untuned settings, %.1f "
            "points remain.\n",
            back, s->tuned->arm->label, s->tuned->accuracy, 100 * fmin(1, back / lost), left);
}

static void print_synchrony(const struct verdict_cells *s, FILE *to)
{
    if (s->synchronous == NULL)
        return;
    double kept = s->synchronous->accuracy;
    fprintf(to, "Synchronous training reached %.1f %% (%s)", kept, s->synchronous->arm->label);
    if (s->alone != NULL) {
        double below = s->alone->accuracy - kept;
        fprintf(to, ", %.1f points %s one worker", fabs(below), below >= 0 ? "below" : "above");
    }
    const struct cell *best = s->tuned;
    if (best == NULL || (s->damped != NULL && s->damped->accuracy > best->accuracy))
        best = s->damped;
    if (best != NULL) {
        double ahead = kept - best->accuracy;
        fprintf(to, " and %.1f %s the best asynchronous arm (%s)", fabs(ahead),
                ahead >= 0 ? "above" : "below", best->arm->label);
    }
    fprintf(to, ".\n");
}

/* The accuracy of the arms that throughput alone would choose. */
static void print_throughput(const struct verdict_cells *s, FILE *to)
{
    const struct cell *fastest = NULL, *best = NULL;
    unsigned near = 0;
    double low = INFINITY, high = -INFINITY;
    for (size_t i = 0; i < s->cells->count; i++) {
        const struct cell *cell = &s->cells->at[i];
        if (cell->workers != s->workers || cell->finished == 0)
            continue;
        if (fastest == NULL || cell->updates_per_second > fastest->updates_per_second)
            fastest = cell;
        if (best == NULL || cell->accuracy > best->accuracy)
            best = cell;
    }
    for (size_t i = 0; fastest != NULL && i < s->cells->count; i++) {
        const struct cell *cell = &s->cells->at[i];
        if (cell->workers == s->workers && cell->finished > 0 &&
            cell->updates_per_second >= NEARLY * fastest->updates_per_second) {
            near++;
            low = fmin(low, cell->accuracy);
            high = fmax(high, cell->accuracy);
        }
    }
    if (fastest == NULL || fastest == best)
        return;
    fprintf(to, "Most updates per second at %lld workers: %s, %.0f/s", (long long)s->workers,
            fastest->arm->label, fastest->updates_per_second);
    if (near > 1) {
        fprintf(to, " (%u arms are within 10 %% of it, from %.1f %% to %.1f %% accurate)", near,
                low, high);
    } else {
        fprintf(to, ", %.1f %% accurate", fastest->accuracy);
    }
    fprintf(to, "; the most accurate arm (%s) made %.0f/s.\n", best->arm->label,
            best->updates_per_second);
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
        fprintf(to, "%s %s with %lld workers: %.0f of %u",
                cells++ == 0 ? "Runs that died (diverged, or no better than guessing twice):" : ";",
                cell->arm->label, (long long)cell->workers, cell->died * ended, ended);
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
        fprintf(to, "(Some figures are of one seed: differences of about a point may be noise.)\n");
}

void verdict_print(const struct cells *c, FILE *to)
{
    const struct verdict_arms *v = &c->experiment->verdict;
    struct verdict_cells s = {.cells = c, .arms = v, .workers = v->workers};
    if (v->workers == 0)
        return;
    s.alone = measured(c, v->alone, 1);
    s.undamped = measured(c, v->undamped, v->workers);
    s.tuned = measured(c, v->tuned, v->workers);
    s.synchronous = measured(c, v->synchronous, v->workers);
    for (size_t i = 0; i < v->damped_count; i++) {
        const struct cell *cell = measured(c, v->damped[i], v->workers);
        if (cell != NULL && (s.damped == NULL || cell->accuracy > s.damped->accuracy))
            s.damped = cell;
    }
    if (finished(c, v->undamped, v->workers) == NULL &&
        finished(c, v->synchronous, v->workers) == NULL)
        return; /* no runs with that worker count */
    fprintf(to, "\nVerdict\n");
    print_cost(&s, to);
    print_damping(&s, to);
    print_tuning(&s, to);
    print_synchrony(&s, to);
    print_throughput(&s, to);
    print_deaths(&s, to);
    print_certainty(&s, to);
}
