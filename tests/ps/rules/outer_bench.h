/*
 * outer_bench.h — workers with local steps (ps/local_steps.h) and a server core, driven push by
 * push. Only the gradients are artificial: g(x) = x − c, where c is a number from worker, batch and
 * parameter, or 0.
 */
#ifndef GRADLAG_TESTS_PS_RULES_OUTER_BENCH_H
#define GRADLAG_TESTS_PS_RULES_OUTER_BENCH_H

#include "ps/local_steps.h"
#include "tests/ps/core/core_bench.h"

enum { OUTER_WORKERS = 4, OUTER_BATCH = 10, OUTER_TOTAL = 1000000 };

struct outer_bench {
    struct core_bench b;
    struct local_steps_plan plan;
    struct local_steps local[OUTER_WORKERS];
    float scratch[4 * (BENCH_COUNT + 16)];
    bool centered;   /* c is not 0 */
    unsigned worker; /* the worker that computes */
    uint64_t batches[OUTER_WORKERS];
    uint64_t
        corrupted; /* 1 + number of worker 0's batch with a gradient that is not finite; 0: none */
};

double outer_bench_center(unsigned w, uint64_t batch, size_t i);
/* A local_gradient; the context is the bench. */
status outer_bench_gradient(void *context, const float *x, uint64_t batch, float *gradient,
                            struct step_stats *stats);
/* All parameters start at `initial`; NAN: at the rig's random numbers. */
void outer_bench_open(struct outer_bench *c, unsigned workers, float initial,
                      const char *const *settings);
void outer_bench_close(struct outer_bench *c);
/* Computes the worker's local steps into its gradient; _round also pushes them. */
struct local_steps_push outer_bench_compute(struct outer_bench *c, unsigned w);
void outer_bench_round(struct outer_bench *c, unsigned w);
/* Pushes a difference with all elements equal. */
void outer_bench_push_of(struct outer_bench *c, unsigned w, float difference);
/* All parameters of the latest version are within `tolerance` of `value`. */
void outer_bench_expect(const struct outer_bench *c, double value, double tolerance);

#endif
