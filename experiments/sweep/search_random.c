/*
 * search_random.c — points drawn uniformly from the space, each key independently on its own scale.
 *
 * Bergstra, Bengio, "Random search for hyper-parameter optimization" (JMLR 13, 2012). All trials
 * form one round.
 */
#include "experiments/sweep/search.h"

static size_t total(const struct search *s)
{
    return (size_t)options_integer(s->options, "search.trials");
}

static status propose(struct search *s)
{
    for (size_t i = 0, count = total(s); i < count; i++)
        search_draw(s, i, search_add(s, 1));
    return OK;
}

static const struct option own[] = {
    {"search.trials", OPTION_INTEGER, "20", 1, SEARCH_TRIALS, NULL, NULL, "number of points"},
    {0},
};

const struct search_kind search_random = {
    .about = {"random", "points drawn uniformly, each key independently",
              "Bergstra, Bengio 2012, Random search for hyper-parameter optimization", own},
    .propose = propose,
    .total = total,
};
