/*
 * outer_bench.h — workers with local steps and a server core, driven push by push: the worker's
 * side (ps/local_steps.h) and the server's run together, as in every engine; only the gradients are
 * made up: g(x) = x − c, c a number of worker, batch and parameter, or 0.
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
    unsigned worker; /* whose gradients are wanted */
    uint64_t batches[OUTER_WORKERS];
    uint64_t spoilt; /* number of worker 0's batch whose gradient is not finite, + 1 */
};

double outer_bench_center(unsigned w, uint64_t batch, size_t i);
/* A local_gradient; the context is the bench. */
status outer_bench_gradient(void *context, const float *x, uint64_t batch, float *gradient,
                            struct step_stats *stats);
/* All parameters begin at `initial`; NAN: at the rig's numbers. */
void outer_bench_open(struct outer_bench *c, unsigned workers, float initial,
                      const char *const *settings);
void outer_bench_close(struct outer_bench *c);
/* The worker's steps, into its gradient; and those handed in. */
struct local_steps_push outer_bench_compute(struct outer_bench *c, unsigned w);
void outer_bench_round(struct outer_bench *c, unsigned w);

#endif
