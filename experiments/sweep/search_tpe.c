/*
 * search_tpe.c — the tree-structured Parzen estimator.
 *
 * Bergstra, Bardenet, Bengio, Kégl, "Algorithms for hyper-parameter optimization" (NIPS 2011),
 * section 4. After search.startup random points the trials are split into the best search.gamma of
 * them and the rest. For each key by itself, l is a density estimated from the numbers of the best,
 * g one from those of the rest; search.candidates numbers are drawn from l, and the one with the
 * greatest l / g is taken: where the expected improvement is greatest (equation 3).
 *
 * The estimates (section 4.1): the even prior over the range is mixed, with equal weights, with a
 * Gaussian at each number, cut off at the range's ends, whose standard deviation is the greater of
 * the distances to its left and right neighbours, the ends counting as such; on a log scale where
 * the range has one. Of N values of a choice, the i-th has a weight of 1 + its count.
 *
 * Where we differ, or had to choose: standard deviations are kept from 1 / min(100, 1 + n) of the
 * range to all of it (the paper: "a reasonable range"; so does its authors' hyperopt); a point that
 * was tried before is drawn anew; search.batch trials are proposed at a time, each with random
 * numbers of its own, from what was known before all of them. The paper's experiments take gamma =
 * 0.15 (as remembered).
 */
#include "base/memory.h"
#include "experiments/sweep/search.h"

#include "base/random.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { REDRAWS = 32 };

/* What the trials of one side say about one key. */
struct estimate {
    const struct dimension *dimension;
    size_t count; /* of Gaussians */
    double *mean, *deviation;
    double *height; /* of each, what makes its part within the range 1 */
    double *weight; /* of the values of a choice; they add up to 1 */
};

struct search_tpe_model {
    struct estimate *good, *rest; /* one per dimension */
    size_t dimensions;
};

static double normal_below(double x)
{
    return 0.5 * erfc(-x * M_SQRT1_2);
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* From the places in [0, 1] of `count` numbers. */
static void set_deviations(struct estimate *e)
{
    double least = 1 / fmin(100, 1 + (double)e->count);
    qsort(e->mean, e->count, sizeof *e->mean, ascending);
    for (size_t i = 0; i < e->count; i++) {
        double left = e->mean[i] - (i > 0 ? e->mean[i - 1] : 0);
        double right = (i + 1 < e->count ? e->mean[i + 1] : 1) - e->mean[i];
        double d = fmin(fmax(fmax(left, right), least), 1);
        double within = normal_below((1 - e->mean[i]) / d) - normal_below(-e->mean[i] / d);
        e->deviation[i] = d;
        e->height[i] = 1 / (d * sqrt(2 * M_PI) * within);
    }
}

static status estimate_open(struct estimate *e, const struct search *s, size_t dimension,
                            const size_t *trials, size_t count)
{
    status result = OK;
    const struct dimension *d = &s->space->at[dimension];
    *e = (struct estimate){.dimension = d, .count = d->values == NULL ? count : 0};
    TRY(memory_new(&e->mean, count + 1, sizeof *e->mean, "an estimate"));
    TRY(memory_new(&e->deviation, count + 1, sizeof *e->deviation, "an estimate"));
    TRY(memory_new(&e->height, count + 1, sizeof *e->height, "an estimate"));
    TRY(memory_new(&e->weight, d->count + 1, sizeof *e->weight, "an estimate"));
    for (size_t v = 0; v < d->count; v++)
        e->weight[v] = 1 / (double)(d->count + count);
    for (size_t i = 0; i < count; i++) {
        double at = s->trials[trials[i]].at[dimension];
        if (d->values != NULL)
            e->weight[(size_t)at] += 1 / (double)(d->count + count);
        else
            e->mean[i] = dimension_place(d, at);
    }
    set_deviations(e);
done:
    return result;
}

static void estimate_close(struct estimate *e)
{
    memory_free(e->mean);
    memory_free(e->deviation);
    memory_free(e->height);
    memory_free(e->weight);
}

/* Density at a place, or the probability of a value. */
static double density(const struct estimate *e, double at)
{
    if (e->dimension->values != NULL)
        return e->weight[(size_t)at];
    double sum = 1; /* the prior */
    for (size_t i = 0; i < e->count; i++) {
        double z = (at - e->mean[i]) / e->deviation[i];
        sum += e->height[i] * exp(-0.5 * z * z);
    }
    return sum / (double)(e->count + 1);
}

static double draw_value(const struct estimate *e, struct random_stream *r)
{
    double u = random_uniform(r);
    size_t v = 0;
    while (v + 1 < e->dimension->count && u >= e->weight[v])
        u -= e->weight[v++];
    return (double)v;
}

/* A place in [0, 1]. A Gaussian's mean lies there, so at least about half of its draws do. */
static double draw_place(const struct estimate *e, struct random_stream *r)
{
    size_t which = random_below(r, (uint32_t)e->count + 1);
    double at = -1;
    if (which == e->count)
        return random_uniform(r);
    for (unsigned i = 0; i < 64 && (at < 0 || at > 1); i++)
        at = e->mean[which] + e->deviation[which] * random_normal(r);
    return fmin(fmax(at, 0), 1);
}

/* The number of one key for a trial: the best of the candidates. */
static double choose(const struct estimate *good, const struct estimate *rest, int64_t candidates,
                     struct random_stream *r)
{
    const struct dimension *d = good->dimension;
    double best = 0, best_ratio = -1;
    for (int64_t c = 0; c < candidates; c++) {
        double at = d->values != NULL ? draw_value(good, r) : draw_place(good, r);
        double ratio = density(good, at) / density(rest, at);
        if (ratio > best_ratio) {
            best_ratio = ratio;
            best = at;
        }
    }
    return d->values != NULL ? best : dimension_number(d, best);
}

static status model_open(struct search_tpe_model *m, const struct search *s, size_t known)
{
    status result = OK;
    size_t *ranked = NULL;
    double gamma = options_real(s->options, "search.gamma");
    size_t good = (size_t)ceil(gamma * (double)known);
    *m = (struct search_tpe_model){.dimensions = s->space->count};
    TRY(memory_new(&ranked, known, sizeof *ranked, "the ranks of trials"));
    TRY(memory_new(&m->good, m->dimensions, sizeof *m->good, "estimates"));
    TRY(memory_new(&m->rest, m->dimensions, sizeof *m->rest, "estimates"));
    search_rank(s, 0, known, ranked);
    for (size_t i = 0; i < m->dimensions; i++) {
        TRY(estimate_open(&m->good[i], s, i, ranked, good));
        TRY(estimate_open(&m->rest[i], s, i, ranked + good, known - good));
    }
done:
    memory_free(ranked);
    return result;
}

static void model_close(struct search_tpe_model *m)
{
    for (size_t i = 0; i < m->dimensions; i++) {
        if (m->good != NULL)
            estimate_close(&m->good[i]);
        if (m->rest != NULL)
            estimate_close(&m->rest[i]);
    }
    memory_free(m->good);
    memory_free(m->rest);
}

/* Streams below 2^32 are those of random points. */
static void propose_one(const struct search *s, const struct search_tpe_model *m, struct trial *t)
{
    uint64_t number = (uint64_t)(t - s->trials);
    int64_t candidates = options_integer(s->options, "search.candidates");
    for (uint64_t draw = 0; draw < REDRAWS; draw++) {
        for (size_t i = 0; i < m->dimensions; i++) {
            struct random_stream r;
            random_open(&r, RANDOM_SEARCH, s->seed, (uint32_t)i, ((draw + 1) << 32) + number);
            t->at[i] = choose(&m->good[i], &m->rest[i], candidates, &r);
        }
        if (!search_has_tried(s, t))
            return;
    }
}

static size_t total(const struct search *s)
{
    return (size_t)options_integer(s->options, "search.trials");
}

static status propose(struct search *s)
{
    status result = OK;
    struct search_tpe_model m = {0};
    size_t startup = (size_t)options_integer(s->options, "search.startup"), all = total(s);
    size_t batch = (size_t)options_integer(s->options, "search.batch"), known = s->count;
    if (known < startup) {
        while (s->count < all && s->count < startup)
            search_draw(s, s->count, search_add(s, 1));
        goto done;
    }
    TRY(model_open(&m, s, known));
    while (s->count < all && s->count < known + batch)
        propose_one(s, &m, search_add(s, 1));
done:
    model_close(&m);
    return result;
}

static const struct option own[] = {
    {"search.trials", OPTION_INTEGER, "40", 1, SEARCH_TRIALS, NULL, NULL,
     "how many points are tried"},
    {"search.startup", OPTION_INTEGER, "10", 1, SEARCH_TRIALS, NULL, NULL,
     "of them at random, before there is anything to learn from"},
    {"search.gamma", OPTION_REAL, "0.15", 0.01, 0.99, NULL, NULL,
     "the part of the trials that counts as good"},
    {"search.candidates", OPTION_INTEGER, "24", 1, 10000, NULL, NULL,
     "numbers drawn for each key, of which the most promising is taken"},
    {"search.batch", OPTION_INTEGER, "1", 1, 1024, NULL, NULL,
     "trials proposed at a time: as many as can be made side by side (--jobs)"},
    {0},
};

const struct search_kind search_tpe = {
    .about = {"tpe", "where the best trials so far are dense and the others are not",
              "Bergstra, Bardenet, Bengio, Kégl 2011, Algorithms for hyper-parameter optimization",
              own},
    .propose = propose,
    .total = total,
};
