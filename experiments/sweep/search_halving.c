/*
 * search_halving.c — successive halving: many short runs, then longer runs of the best points, and
 * so on until the last few have the full length.
 *
 * Jamieson, Talwalkar, "Non-stochastic best arm identification and hyperparameter optimization"
 * (AISTATS 2016), algorithm 1; with the factor eta in place of 2 as in Li et al., "Hyperband" (JMLR
 * 18, 2018). With n points and factor eta, rung k of 0 … s tries the floor(n / eta^k) best points
 * of the previous rung, at the length eta^(k-s) of a full run. s = floor(log_eta n), or less if
 * search.rungs limits it. All rungs cost about the same. The points of a rung differ. If there are
 * fewer points than places, the rest of a rung are copies, which need no runs of their own.
 *
 * Difference: the paper continues the runs that remain. Here each rung starts new runs, with a
 * schedule and warm-up of their own length. That compares complete trainings and costs at most a
 * factor of eta / (eta - 1).
 */
#include "base/memory.h"
#include "experiments/sweep/search.h"

#include <math.h>
#include <string.h>

static double eta_of(const struct search *s)
{
    return options_real(s->options, "search.eta");
}

static size_t points_of(const struct search *s)
{
    return (size_t)options_integer(s->options, "search.trials");
}

/* Points of rung k. */
static size_t rung_points(const struct search *s, unsigned rung)
{
    /* The rounding error of 27 / 3^3 must not make it less than 1. */
    return (size_t)((double)points_of(s) / pow(eta_of(s), rung) + 1e-9);
}

/* The last rung. */
static unsigned top_of(const struct search *s)
{
    unsigned top = 0, limit = (unsigned)options_integer(s->options, "search.rungs");
    while (rung_points(s, top + 1) >= 1 && (limit == 0 || top + 1 < limit))
        top++;
    return top;
}

static size_t total(const struct search *s)
{
    size_t count = 0;
    for (unsigned k = 0, top = top_of(s); k <= top; k++)
        count += rung_points(s, k);
    return count;
}

/* Draws a point that no trial has, if SEARCH_REDRAWS draws find one. */
static void draw_new(const struct search *s, uint64_t number, struct trial *t)
{
    for (uint64_t draw = 0; draw < SEARCH_REDRAWS; draw++) {
        search_draw(s, (draw << 32) + number, t);
        if (!search_has_tried(s, t))
            return;
    }
}

/* Of trials with equal points the first keeps its place. The others move to the end, so that they
 * continue only if a rung has more places than there are points. */
static void put_copies_last(const struct search *s, size_t *ranked, size_t count)
{
    const size_t bytes = s->space->count * sizeof s->trials->at[0];
    size_t different = 0;
    for (size_t i = 0; i < count; i++) {
        const size_t own = ranked[i];
        size_t same = 0;
        while (same < different &&
               memcmp(s->trials[ranked[same]].at, s->trials[own].at, bytes) != 0)
            same++;
        if (same < different)
            continue;
        memmove(&ranked[different + 1], &ranked[different], (i - different) * sizeof *ranked);
        ranked[different++] = own;
    }
}

static status propose(struct search *s)
{
    status result = OK;
    size_t *ranked = NULL, begin = 0;
    unsigned rung = 0, top = top_of(s);
    for (size_t tried = 0; tried < s->count;
         rung++) { /* finds the next rung, and the first trial of the previous one */
        begin = tried;
        tried += rung_points(s, rung);
    }
    size_t points = rung_points(s, rung), before = s->count;
    double part = pow(eta_of(s), (double)rung - top);
    TRY(memory_new(&ranked, before + 1, sizeof *ranked, "the ranks of trials"));
    search_rank(s, begin, before, ranked);
    put_copies_last(s, ranked, before - begin);
    for (size_t i = 0; i < points; i++) {
        struct trial *t = search_add(s, rung == top ? 1 : part);
        if (rung == 0)
            draw_new(s, i, t);
        else
            memcpy(t->at, s->trials[ranked[i]].at, sizeof t->at);
    }
done:
    memory_free(ranked);
    return result;
}

static const struct option own[] = {
    {"search.trials", OPTION_INTEGER, "27", 1, SEARCH_TRIALS, NULL, NULL,
     "points of the first rung"},
    {"search.eta", OPTION_REAL, "3", 1.5, 64, NULL, NULL,
     "factor between rungs: 1/eta of the points stay, and train eta times longer"},
    {"search.rungs", OPTION_INTEGER, "0", 0, 32, NULL, NULL,
     "maximum number of rungs (0: as many as the points allow); fewer rungs start with longer "
     "runs"},
    {0},
};

const struct search_kind search_halving = {
    .about = {"halving",
              "successive halving: short runs first, then longer runs of the best points",
              "Jamieson, Talwalkar 2016, Non-stochastic best arm identification and hyperparameter "
              "optimization",
              own},
    .propose = propose,
    .total = total,
};
