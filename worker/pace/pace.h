/*
 * pace.h — the duration of a worker's step: measured, slowed, drawn from a distribution, or read
 * from a record.
 *
 *   none       as measured
 *   slow       worker pace.worker (−1: every worker) takes pace.factor times the measured time
 *   constant   each step lasts pace.mean_ms
 *   gamma      Gamma(mean pace.mean_ms, coefficient of variation pace.cv)
 *   lognormal  log-normal with mean pace.mean_ms and coefficient of variation pace.cv
 *   pareto     Pareto with mean pace.mean_ms and shape pace.shape: rare, very long steps
 *   trace      the duration in file pace.path for this worker and step; a worker without a line
 *              there takes the lines of another one (pace_table_of)
 *   fit        drawn from the steps of a recorded run, worker by worker
 *
 * In real runs a step lasts at least this long: the worker sleeps for the rest. All kinds except
 * none and slow read pace.worker and pace.factor, which additionally slow one worker (−1: none), or
 * pace.slow_workers workers from this one on. Draws come from stream (RANDOM_PACE, seed, worker,
 * step), so runs and simulations agree.
 *
 * With pace.worker_cv each worker has a different mean, for all its steps: pace.mean_ms times a
 * number drawn once from Gamma(mean 1, that cv), at least 0.001. Ali et al. 2000, "Task execution
 * time modeling for heterogeneous computing systems" (CVB method, V_machine), models heterogeneous
 * machines this way.
 *
 * One object serves all workers. It is read-only after opening.
 */
#ifndef GRADLAG_WORKER_PACE_PACE_H
#define GRADLAG_WORKER_PACE_PACE_H

#include "worker/pace/pace_table.h"
#include "base/registry.h"

#include <signal.h>

enum { PACE_PARAMETERS = 8 };
/* A smaller coefficient of variation counts as 0: the shape 1/cv² would become infinite. */
#define PACE_CV_LEAST 1e-9
/* The smallest share that a worker draws, of the common mean step time or of a link. */
#define PACE_SHARE_LEAST 1e-3

typedef struct pace pace;
/* Inputs of a duration. */
struct pace_step {
    const double *parameters; /* values of the kind's options, in order; 0 for a text */
    const struct pace_table *table;
    uint64_t seed, step, measured_ns;
    unsigned worker;
};
struct pace_kind {
    struct about about;
    /* Returns nanoseconds, before pace.worker and pace.factor apply. */
    double (*duration)(const struct pace_step *s);
    bool reads_file; /* the table is read from pace.path */
    bool is_given;   /* the caller passes the table to pace_give() */
    bool as_long;    /* depends on the measured time: not usable in a simulation */
};
extern const struct registry pace_registry;

/* ERROR_DATA: pace.path cannot be read. */
status pace_open(pace **out, const options *o, unsigned worker) MUST_CHECK;
void pace_close(pace **p);
/* Passes the recorded steps for pace=fit. Takes ownership of the table's memory; the table must be
 * finished. */
void pace_give(pace *p, struct pace_table *table);

/* Total duration of step `step` in nanoseconds, at least measured_ns. A simulation passes
 * measured_ns = 0. */
uint64_t pace_duration(const pace *p, uint64_t step, uint64_t measured_ns);
uint64_t pace_duration_of(const pace *p, unsigned worker, uint64_t step, uint64_t measured_ns);
/* Rounds a drawn time to whole nanoseconds, at most 10¹⁸ (31 years), because the tail of a
 * distribution is unbounded. */
uint64_t pace_whole_ns(double ns);
/* Sleeps until the step that began at `started_ns` (clock_ns) has lasted its duration. `p` NULL: no
 * delay. A request to stop (clock_sleep_until_stop) ends the sleep. */
void pace_wait(pace *p, uint64_t step, uint64_t started_ns, const volatile sig_atomic_t *stop);

#endif
