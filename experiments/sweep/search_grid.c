/*
 * search_grid.c — every combination of the values; the last key varies fastest. A range contributes
 * its given number of points, including both ends.
 */
#include "experiments/sweep/search.h"

static size_t values_of(const struct dimension *d)
{
    return d->values != NULL ? d->count : d->points;
}

static size_t total(const struct search *s)
{
    size_t count = 1;
    for (size_t i = 0; i < s->space->count && count <= SEARCH_TRIALS; i++)
        count *= values_of(&s->space->at[i]);
    return count;
}

static status check(const struct search *s)
{
    status result = OK;
    for (size_t i = 0; i < s->space->count; i++) {
        const struct dimension *d = &s->space->at[i];
        if (values_of(d) == 0) {
            FAIL(ERROR_USAGE,
                 "%s: %s is a range without a number of points, which search=grid needs; write "
                 "%g..%g%s:5, or choose another search (`gradlag list searches`)",
                 d->origin, d->key, d->low, d->high, d->logarithmic ? ":log" : "");
        }
    }
done:
    return result;
}

static status propose(struct search *s)
{
    size_t count = total(s);
    for (size_t p = 0; p < count; p++) {
        struct trial *t = search_add(s, 1);
        size_t rest = p;
        for (size_t i = s->space->count; i-- > 0;) {
            const struct dimension *d = &s->space->at[i];
            size_t values = values_of(d), place = rest % values;
            rest /= values;
            t->at[i] = d->values != NULL
                           ? (double)place
                           : dimension_number(d, (double)place / (double)(values - 1));
        }
    }
    return OK;
}

const struct search_kind search_grid = {
    .about = {"grid", "every combination of the values", NULL, NULL},
    .propose = propose,
    .total = total,
    .check = check,
};
