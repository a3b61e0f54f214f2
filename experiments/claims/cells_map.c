/* cells_map.c — which side of key `map` is ahead in a column. */
#include "experiments/claims/cells.h"

#include <math.h>

static bool is_loss(const struct cells *c)
{
    return c->metric != METRIC_ACCURACY;
}

/* What chooses between the arms of a side; higher is better. Data without a validation split leave
 * the score. */
static double choice_value(const struct cells *c, const struct cell *cell)
{
    const double validation = is_loss(c) ? -cell->validation_loss : cell->validation;
    return isnan(validation) ? (is_loss(c) ? -cell->score : cell->score) : validation;
}

/* All planned runs have ended, and some have a score. */
static bool is_measured(const struct cell *cell)
{
    return cell != NULL && cell->finished > 0 && isfinite(cell->score) &&
           cell->finished + cell->diverged == cell->planned;
}

/* NULL: an arm of the side is not measured. */
static const struct cell *best_of(const struct cells *c, const struct map_side *side,
                                  int64_t column)
{
    const struct cell *best = NULL;
    for (size_t i = 0; i < side->count; i++) {
        const struct cell *cell = cells_find(c, side->arms[i], column);
        if (cell == NULL)
            continue; /* the arm has no runs in this column */
        if (!is_measured(cell))
            return NULL;
        if (best == NULL || choice_value(c, cell) > choice_value(c, best))
            best = cell;
    }
    return best;
}

static bool is_better(const struct cells *c, const struct cell *a, const struct cell *b)
{
    return b == NULL || (is_loss(c) ? a->score < b->score : a->score > b->score);
}

/* The two best sides; false: a side is not measured. */
static bool find_two(const struct cells *c, int64_t column, struct lead *out)
{
    const struct experiment *e = c->experiment;
    for (const struct map_side *s = e->sides; s < e->sides + e->side_count; s++) {
        const struct cell *cell = best_of(c, s, column);
        if (cell == NULL)
            return false;
        if (is_better(c, cell, out->best)) {
            out->second = out->best;
            out->best = cell;
            out->ahead = s;
        } else if (is_better(c, cell, out->second)) {
            out->second = cell;
        }
    }
    return out->second != NULL;
}

void cells_lead(const struct cells *c, int64_t column, struct lead *out)
{
    *out = (struct lead){.margin = {.mean = NAN, .interval = NAN}, .seeds = NAN};
    if (!find_two(c, column, out)) {
        *out = (struct lead){.margin = {.mean = NAN, .interval = NAN}, .seeds = NAN};
        return;
    }
    cells_pair(c, out->best, out->second, &out->margin);
    if (is_loss(c))
        out->margin.mean = -out->margin.mean;
    const double mean = out->margin.mean, interval = out->margin.interval;
    out->decided = mean > interval; /* false if one is NaN */
    if (!out->decided && mean > 0 && isfinite(interval))
        out->seeds = ceil(out->margin.n * interval * interval / (mean * mean));
}
