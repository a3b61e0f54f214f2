/* cells_map.c — which side of key `map` is ahead in a column. */
#include "experiments/claims/cells.h"

#include <math.h>

static bool is_loss(const struct cells *c)
{
    return c->metric != METRIC_ACCURACY;
}

/* Higher is better. */
static double choice_value(const struct cells *c, const struct cell *cell)
{
    return is_loss(c) ? -cell->choice : cell->choice;
}

static bool is_in_column(const struct cells *c, const char *name, int64_t column)
{
    const struct arm *arm = experiment_arm(c->experiment, name);
    return experiment_arm_has(c->experiment, arm, column) && (!c->quick || arm->quick);
}

/* A cell with a run without a score comes last, because the mean over its other seeds cannot be
 * compared. Further seeds do not count: otherwise an arm that did not get them would be
 * preferred. */
static bool is_chosen_over(const struct cells *c, const struct cell *a, const struct cell *b)
{
    if (b == NULL || (a->unscored > 0) != (b->unscored > 0))
        return b == NULL || b->unscored > 0;
    return choice_value(c, a) > choice_value(c, b);
}

/* NULL: no arm of the side has a score. */
static const struct cell *best_of(const struct cells *c, const struct map_side *side,
                                  int64_t column, struct lead *out)
{
    const struct cell *best = NULL;
    for (size_t i = 0; i < side->count; i++) {
        if (!is_in_column(c, side->arms[i], column))
            continue;
        const struct cell *cell = cells_find(c, side->arms[i], column);
        out->arms++;
        const bool measured = cell != NULL && cell->unmeasured == 0;
        out->missing += !measured;
        /* If all seeds diverged, the arm is measured and has no score. */
        if (measured && isfinite(cell->choice) && is_chosen_over(c, cell, best))
            best = cell;
    }
    return best;
}

static bool is_better(const struct cells *c, const struct cell *a, const struct cell *b)
{
    return b == NULL || (is_loss(c) ? a->score < b->score : a->score > b->score);
}

/* The two best sides; false: a side has no score. */
static bool find_two(const struct cells *c, int64_t column, struct lead *out,
                     const struct map_side **behind)
{
    const struct experiment *e = c->experiment;
    for (const struct map_side *s = e->sides; s < e->sides + e->side_count; s++) {
        const struct cell *cell = best_of(c, s, column, out);
        if (cell == NULL)
            return false;
        if (is_better(c, cell, out->best)) {
            out->second = out->best;
            *behind = out->ahead;
            out->best = cell;
            out->ahead = s;
        } else if (is_better(c, cell, out->second)) {
            out->second = cell;
            *behind = s;
        }
    }
    return out->second != NULL;
}

void cells_lead(const struct cells *c, int64_t column, struct lead *out)
{
    *out = (struct lead){.margin = {.mean = NAN, .interval = NAN}, .seeds = NAN};
    const struct map_side *behind = NULL;
    if (!find_two(c, column, out, &behind)) {
        *out = (struct lead){.margin = {.mean = NAN, .interval = NAN}, .seeds = NAN};
        return;
    }
    cells_pair(c, out->best, out->second, &out->margin);
    if (out->margin.n == 0) { /* the arms have no seed in common */
        *out = (struct lead){.margin = {.mean = NAN, .interval = NAN}, .seeds = NAN};
        return;
    }
    if (is_loss(c))
        out->margin.mean = -out->margin.mean;
    if (out->margin.mean < 0) { /* shared seeds decide, not the means over all seeds */
        const struct cell *best = out->second;
        out->second = out->best;
        out->best = best;
        out->ahead = behind;
        out->margin.mean = -out->margin.mean;
    }
    const bool complete = out->best->unscored == 0;
    out->decided = complete && out->margin.mean > out->margin.interval; /* false if one is NaN */
    /* Half of the interval of many seeds is about two standard errors. */
    const double deviations = 2 * out->margin.deviation / out->margin.mean;
    if (complete && !out->decided && out->margin.mean > 0 && isfinite(deviations))
        out->seeds = fmax(out->margin.n + 1, ceil(deviations * deviations));
}
