/*
 * pace.h — how long a worker's step takes: as measured, or slowed, or drawn from a distribution, or
 * as it was measured elsewhere.
 *
 *   none       as measured
 *   slow       worker pace.worker (-1: every one) takes pace.factor times as long as measured
 *   constant   each step lasts pace.mean_ms
 *   gamma      … Gamma(mean pace.mean_ms, coefficient of variation pace.cv)
 *   lognormal  … a log-normal time of that mean and cv
 *   pareto     … a Pareto time of mean pace.mean_ms and shape pace.shape: now and then very long
 *   trace      … what the file pace.path says for that worker and step (pace_table.h)
 *   fit        … drawn from the steps of a recorded run, worker by worker
 *
 * In real runs a step lasts at least that long: the worker sleeps the rest. All but none and slow
 * know pace.worker and pace.factor, which slow one worker (-1: none) as well; with
 * pace.slow_workers it is so many, from that one on. Draws come from stream (RANDOM_PACE, seed,
 * worker, step), so that runs and simulations agree.
 *
 * With pace.worker_cv the workers of a pace that has a mean have each its own: pace.mean_ms times a
 * number drawn once from Gamma(mean 1, that cv), all their steps alike. So heterogeneous machines
 * are made in Ali et al. 2000, "Task execution time modeling for heterogeneous computing systems"
 * (CVB method, V_machine).
 *
 * One object answers for any worker; it is read-only once opened.
 */
#ifndef GRADLAG_WORKER_PACE_H
#define GRADLAG_WORKER_PACE_H

#include "worker/pace_table.h"
#include "worker/registry.h"

enum { PACE_PARAMETERS = 8 };

typedef struct pace pace;
/* What a duration may depend on. */
struct pace_step {
    const double *parameters; /* the kind's own options, in their order; texts are 0 */
    const struct pace_table *table;
    uint64_t seed, step, measured_ns;
    unsigned worker;
};
struct pace_kind {
    struct about about;
    /* Nanoseconds, before pace.worker and pace.factor. */
    double (*duration)(const struct pace_step *s);
    bool reads_file; /* the table is pace.path's */
    bool is_given;   /* the table is handed to pace_give() */
    bool as_long;    /* made of what a step took: of no use where nothing is measured */
};
extern const struct registry pace_registry;

/* ERROR_DATA: pace.path cannot be read. */
status pace_open(pace **out, const options *o, unsigned worker) MUST_CHECK;
void pace_close(pace **p);
/* The recorded steps for pace=fit; takes the table's memory over, must be finished. */
void pace_give(pace *p, struct pace_table *table);

/* Nanoseconds that step `step` shall last in all, given what it took; never less than that. Also
 * for simulations, which pass measured_ns = 0. */
uint64_t pace_duration(const pace *p, uint64_t step, uint64_t measured_ns);
uint64_t pace_duration_of(const pace *p, unsigned worker, uint64_t step, uint64_t measured_ns);
/* A drawn time as a whole number: at most 10¹⁸, 31 years, for a distribution's tail has no end. */
uint64_t pace_whole_ns(double ns);
/* Sleeps until the step that began at `started_ns` (clock_ns) has lasted as long as it should.
 * NULL: no delay. */
void pace_wait(pace *p, uint64_t step, uint64_t started_ns);

#endif
