/*
 * search_halving.c — successive halving: many short runs, the best of them again and longer, and so
 * on, until the last few have the full length.
 *
 * Jamieson, Talwalkar, "Non-stochastic best arm identification and hyperparameter optimization"
 * (AISTATS 2016), algorithm 1; with the factor eta in place of 2 as in Li et al., "Hyperband" (JMLR
 * 18, 2018). With n points and factor eta, rung k of 0 … s tries the floor(n / eta^k) best of the
 * rung before, at the length eta^(k-s) of a full run; s = floor(log_eta n), or fewer as
 * search.rungs says. So each rung costs about as much as the others.
 *
 * Where we differ: the paper goes on with the runs that stay; here a rung is made of new runs from
 * the start, each with a schedule and warm-up that fit its own length. That costs a factor of at
 * most eta / (eta - 1) and compares whole trainings.
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
    /* A little more, so that 27 / 3^3 is 1. */
    return (size_t)((double)points_of(s) / pow(eta_of(s), rung) + 1e-9);
}

/* The last rung. */
static unsigned top_of(const struct search *s)
{
    unsigned top = 0, most = (unsigned)options_integer(s->options, "search.rungs");
    while (rung_points(s, top + 1) >= 1 && (most == 0 || top + 1 < most))
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

static status propose(struct search *s)
{
    status result = OK;
    size_t *ranked = NULL, begin = 0;
    unsigned rung = 0, top = top_of(s);
    for (size_t made = 0; made < s->count; rung++) { /* which rung is next, where its last began */
        begin = made;
        made += rung_points(s, rung);
    }
    size_t points = rung_points(s, rung), before = s->count;
    double part = pow(eta_of(s), (double)rung - top);
    TRY(memory_new(&ranked, before + 1, sizeof *ranked, "the ranks of trials"));
    search_rank(s, begin, before, ranked);
    for (size_t i = 0; i < points; i++) {
        struct trial *t = search_add(s, rung == top ? 1 : part);
        if (rung == 0)
            search_draw(s, i, t);
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
     "each rung keeps one in so many, and trains them so many times longer"},
    {"search.rungs", OPTION_INTEGER, "0", 0, 32, NULL, NULL,
     "rungs at most (0: as many as the points allow); fewer begin with longer runs"},
    {0},
};

const struct search_kind search_halving = {
    .about = {"halving", "successive halving: short runs first, the best again and longer",
              "Jamieson, Talwalkar 2016, Non-stochastic best arm identification and hyperparameter "
              "optimization",
              own},
    .propose = propose,
    .total = total,
};
