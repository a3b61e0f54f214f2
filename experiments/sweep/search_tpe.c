/*
 * search_tpe.c — the tree-structured Parzen estimator.
 *
 * Bergstra, Bardenet, Bengio, Kégl, "Algorithms for hyper-parameter optimization" (NIPS 2011),
 * section 4. After search.startup random points the trials are split into the best share
 * search.gamma and the rest. For each key independently, l is a density estimated from the numbers
 * of the best trials, and g one from the rest. search.candidates numbers are drawn from l; the one
 * with the largest l / g is used, because it has the largest expected improvement (equation 3).
 *
 * The estimates (section 4.1) mix, with equal weights, the uniform prior over the range and a
 * Gaussian at each number, truncated at the range's ends. Its standard deviation is the larger of
 * the distances to the left and right neighbours; the ends count as neighbours. A log range uses
 * the log scale. Value i of a choice has a weight of 1 + its count.
 *
 * Differences and own choices: standard deviations lie between 1 / min(100, 1 + n) of the range and
 * the whole range (the paper: "a reasonable range"; its authors' hyperopt does the same). A point
 * that was tried before is drawn again. search.batch trials are proposed at a time, from the same
 * estimates with different random numbers. The paper's experiments use gamma = 0.15 (from memory).
 */
#include "base/memory.h"
#include "experiments/sweep/search.h"

#include "base/random.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* The density of one key, estimated from the good trials or from the rest. */
struct estimate {
    const struct dimension *dimension;
    size_t count; /* of Gaussians */
    double *mean, *deviation;
    double *height; /* factor that makes the integral of each over the range 1 */
    double *weight; /* of the values of a choice; the sum is 1 */
};

struct search_tpe_model {
    struct estimate *good, *rest; /* one per dimension */
    size_t dimensions;
};

static double normal_cdf(double x)
{
    return 0.5 * erfc(-x * M_SQRT1_2);
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* e->mean has the positions in [0, 1]. */
static void set_deviations(struct estimate *e)
{
    double least = 1 / fmin(100, 1 + (double)e->count);
    qsort(e->mean, e->count, sizeof *e->mean, ascending);
    for (size_t i = 0; i < e->count; i++) {
        double left = e->mean[i] - (i > 0 ? e->mean[i - 1] : 0);
        double right = (i + 1 < e->count ? e->mean[i + 1] : 1) - e->mean[i];
        double d = fmin(fmax(fmax(left, right), least), 1);
        double within = normal_cdf((1 - e->mean[i]) / d) - normal_cdf(-e->mean[i] / d);
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

/* The density at a position in [0, 1], or the probability of a value. */
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

/* A position in [0, 1]. Each mean lies in this range, so a draw does, too, with a probability of ⅓
 * or more. */
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

/* The candidate with the largest ratio, for one key. */
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

/* The random points use the streams below 2^32. */
static void propose_one(const struct search *s, const struct search_tpe_model *m, struct trial *t)
{
    uint64_t number = (uint64_t)(t - s->trials);
    int64_t candidates = options_integer(s->options, "search.candidates");
    for (uint64_t draw = 0; draw < SEARCH_REDRAWS; draw++) {
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
        while (s->count < all && s->count < startup) {
            const size_t number = s->count + 1;
            search_draw(s, number, search_add(s, 1));
        }
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
    {"search.trials", OPTION_INTEGER, "40", 1, SEARCH_TRIALS, NULL, NULL, "number of points"},
    {"search.startup", OPTION_INTEGER, "10", 1, SEARCH_TRIALS, NULL, NULL,
     "number of random points at the start"},
    {"search.gamma", OPTION_REAL, "0.15", 0.01, 0.99, NULL, NULL,
     "share of the trials that counts as good"},
    {"search.candidates", OPTION_INTEGER, "24", 1, 10000, NULL, NULL,
     "numbers drawn for each key; the most promising one is used"},
    {"search.batch", OPTION_INTEGER, "1", 1, 1024, NULL, NULL,
     "trials proposed at a time; set it to the number of --jobs"},
    {0},
};

const struct search_kind search_tpe = {
    .about = {"tpe", "points where the best trials so far are dense and the others are sparse",
              "Bergstra, Bardenet, Bengio, Kégl 2011, Algorithms for hyper-parameter optimization",
              own},
    .propose = propose,
    .total = total,
};
