/*
 * core_bench.h — a server core driven step by step, with the last release of each worker and the
 * actions of the last event.
 */
#ifndef GRADLAG_TESTS_PS_CORE_CORE_BENCH_H
#define GRADLAG_TESTS_PS_CORE_CORE_BENCH_H

#include "tests/ps/core/core_rig.h"

enum {
    BENCH_WORKERS = 16,
    BENCH_COUNT = 37
}; /* most workers; parameters, not a multiple of any vector width */

/* A rig, the last release of each worker, and counts of the actions of the last event. */
struct core_bench {
    struct core_rig rig;
    uint64_t version[BENCH_WORKERS], samples[BENCH_WORKERS], next[BENCH_WORKERS];
    unsigned slot[BENCH_WORKERS];
    float gradient[BENCH_WORKERS][BENCH_COUNT];
    unsigned releases, records, applied, evaluations, finished, diverged;
    struct push_record record[BENCH_WORKERS]; /* an update has at most as many gradients */
};

/* Opens a core with BENCH_COUNT parameters; fails the test on an error. */
void bench_open(struct core_bench *b, struct server_core_options o, const char *const *settings);
/* Stores the actions of an event. */
void bench_absorb(struct core_bench *b, struct server_actions actions);
void bench_hello(struct core_bench *b, unsigned worker);
void bench_hello_all(struct core_bench *b);
/* The next valid push of a worker. */
struct server_push bench_push_of(const struct core_bench *b, unsigned worker);
void bench_feed(struct core_bench *b, struct server_push push);
void bench_push(struct core_bench *b, unsigned worker);
/* The push fails with ERROR_PROTOCOL, its message contains `value`, and the core is unchanged. */
void bench_expect_refused(struct core_bench *b, struct server_push wrong, const char *value);
void bench_lost(struct core_bench *b, unsigned worker);
void bench_evaluated(struct core_bench *b);
/* The parameters of the latest version. */
const float *bench_latest(const struct core_bench *b);

#endif
