/*
 * pace_draws.c — step times that are drawn, or read from a table. Distributions are parametrised by
 * mean and spread, so that runs with different distributions have the same mean step, and without
 * barriers the same throughput.
 */
#include "worker/pace/pace.h"
#include "base/random.h"

#include <math.h>
#include <string.h>

#define MEAN_OPTION                                                                                \
    {                                                                                              \
        "pace.mean_ms", OPTION_REAL, "20", 0.001, 1e6, NULL, NULL, "mean duration of a step"       \
    }
#define CV_OPTION                                                                                  \
    {                                                                                              \
        "pace.cv", OPTION_REAL, "0.2", 0, 10, NULL, NULL,                                          \
            "coefficient of variation (standard deviation / mean); 0: constant"                    \
    }
#define SLOW_OPTIONS                                                                               \
    {"pace.worker", OPTION_INTEGER, "-1", -1,                                                      \
     16383,         NULL,           NULL, "additionally slowed worker; -1: none"},                 \
    {                                                                                              \
        "pace.factor", OPTION_REAL, "1", 1, 1000, NULL, NULL,                                      \
            "factor on the step time of the slowed worker"                                         \
    }

static struct random_stream stream_of(const struct pace_step *s)
{
    struct random_stream r;
    random_open(&r, RANDOM_PACE, s->seed, s->worker, s->step);
    return r;
}

/* ---- constant ---------------------------------------------------------------------------------
 */

static const struct option constant_options[] = {MEAN_OPTION, SLOW_OPTIONS, {0}};

static double constant(const struct pace_step *s)
{
    return 1e6 * s->parameters[0];
}

const struct pace_kind pace_constant = {
    .about = {"constant", "each step lasts pace.mean_ms", NULL, constant_options},
    .duration = constant,
};

/* ---- gamma ------------------------------------------------------------------------------------
 */

static const struct option spread_options[] = {MEAN_OPTION, CV_OPTION, SLOW_OPTIONS, {0}};

/* A gamma variable of shape k has mean k and deviation √k, so cv = 1/√k. */
static double gamma_time(const struct pace_step *s, double mean, double cv)
{
    if (cv < PACE_CV_LEAST)
        return mean;
    struct random_stream r = stream_of(s);
    double shape = 1 / (cv * cv);
    return mean / shape * random_gamma(&r, shape);
}

static double gamma_drawn(const struct pace_step *s)
{
    return gamma_time(s, 1e6 * s->parameters[0], s->parameters[1]);
}

const struct pace_kind pace_gamma = {
    .about = {"gamma", "each step lasts at least a gamma-distributed time",
              "Ali et al. 2000, CVB method (task execution times)", spread_options},
    .duration = gamma_drawn,
};

/* ---- log-normal -------------------------------------------------------------------------------
 */

/* exp(μ + σ z) has mean exp(μ + σ²/2) and cv² = exp(σ²) − 1. */
static double lognormal_drawn(const struct pace_step *s)
{
    struct random_stream r = stream_of(s);
    double mean = 1e6 * s->parameters[0], cv = s->parameters[1], variance = log1p(cv * cv);
    return mean * exp(sqrt(variance) * random_normal(&r) - variance / 2);
}

const struct pace_kind pace_lognormal = {
    .about = {"lognormal", "each step lasts at least a log-normally distributed time", NULL,
              spread_options},
    .duration = lognormal_drawn,
};

/* ---- Pareto -----------------------------------------------------------------------------------
 */

static const struct option pareto_options[] = {
    MEAN_OPTION,
    {"pace.shape", OPTION_REAL, "2.5", 1.01, 1000, NULL, NULL,
     "exponent of the tail: P(longer than x) ∝ x^-shape; at most 2: infinite deviation"},
    SLOW_OPTIONS,
    {0},
};

/* x₀ u^(−1/α) is at least x₀ and has mean x₀ α/(α − 1). 1 − u is never 0. */
static double pareto_drawn(const struct pace_step *s)
{
    struct random_stream r = stream_of(s);
    double mean = 1e6 * s->parameters[0], shape = s->parameters[1];
    return mean * (shape - 1) / shape * pow(1 - random_uniform(&r), -1 / shape);
}

const struct pace_kind pace_pareto = {
    .about = {"pareto", "each step lasts at least a Pareto-distributed time: rare, very long steps",
              NULL, pareto_options},
    .duration = pareto_drawn,
};

/* ---- trace ------------------------------------------------------------------------------------
 */

static const struct option trace_options[] = {
    {"pace.path", OPTION_TEXT, "", 0, 0, NULL, NULL,
     "CSV file with columns worker, compute_us and optionally step; repeated after its end"},
    SLOW_OPTIONS,
    {0},
};

static double traced(const struct pace_step *s)
{
    size_t count;
    const struct pace_row *rows = pace_table_of(s->table, s->worker, &count);
    return rows[s->step % count].ns;
}

const struct pace_kind pace_trace = {
    .about = {"trace", "each step lasts at least the time in a file", NULL, trace_options},
    .duration = traced,
    .reads_file = true,
};

/* ---- fit --------------------------------------------------------------------------------------
 */

static const struct option fit_options[] = {
    {"pace.run", OPTION_TEXT, "", 0, 0, NULL, NULL,
     "the recorded run, in the same results file: its number, or its uuid, which a merge keeps"},
    {"pace.smooth", OPTION_INTEGER, "0", 0, 1, NULL, NULL,
     "0: draw from the recorded times; 1: draw from a gamma distribution with their mean and cv"},
    SLOW_OPTIONS,
    {0},
};

static double fitted(const struct pace_step *s)
{
    size_t count;
    const struct pace_row *rows = pace_table_of(s->table, s->worker, &count);
    if (s->parameters[1] > 0) {
        struct pace_moments m = pace_table_moments(s->table, s->worker);
        return gamma_time(s, m.mean_ns, m.cv);
    }
    struct random_stream r = stream_of(s);
    return rows[random_below(&r, (uint32_t)count)].ns;
}

const struct pace_kind pace_fit = {
    .about = {"fit",
              "engine=virtual: each step time is drawn from a worker's steps in a recorded run",
              NULL, fit_options},
    .duration = fitted,
    .is_given = true,
};
