/*
 * bench.h — `gradlag bench NAME`: the functions that the benchmarks share.
 *
 * A benchmark is one file experiments/bench/bench_NAME.c with one function and a table of keys, and
 * one line in bench.def. It opens a `bench` (its key=value settings and --json), measures each case
 * `repeats` times and prints one line for each: the median of the repeats and the best one. If a
 * benchmark has several processes, one of them prints.
 */
#ifndef GRADLAG_EXPERIMENTS_BENCH_BENCH_H
#define GRADLAG_EXPERIMENTS_BENCH_BENCH_H

#include "base/options.h"

/* argv: the arguments after the name of the benchmark, key=value settings and --json. */
typedef status bench_function(int argc, char **argv);

/* The function of each benchmark, and its keys for `gradlag bench NAME --help`. */
#define BENCH(name, function, keys, help)                                                          \
    bench_function function;                                                                       \
    extern const struct option keys[];
#include "experiments/bench/bench.def"
#undef BENCH

struct bench {
    const char *name; /* "push-pull" */
    options *settings;
    bool json;
    unsigned repeats; /* key `repeats`; 5 unless the benchmark's table declares the key */
};

/* Declares the keys of `table` (may be NULL) and `repeats`, then reads argv. ERROR_USAGE */
status bench_open(struct bench *b, const char *name, const struct option *table, int argc,
                  char **argv) MUST_CHECK;
void bench_close(struct bench *b);
/* Sets `key` of a run's settings to the value of the benchmark's key `own`. */
status bench_pass_on(const struct bench *b, options *o, const char *key,
                     const char *own) MUST_CHECK;

enum { BENCH_REPEATS = 256 };
struct bench_series { /* one value for each repeat, in the unit of the report */
    double values[BENCH_REPEATS];
    unsigned count;
};
void bench_add(struct bench_series *s, double value);
double bench_median(const struct bench_series *s);

/* Prints one line: "step  cnn batch=64   2400 samples/s  (best 2431, 5 repeats)", or with --json
 * {"benchmark":"step","case":"cnn batch=64","unit":"samples/s","median":2400,"best":2431,
 *  "repeats":5}. The best value is the maximum if `unit` ends in "/s" or "/min", else the minimum.
 */
void bench_report(const struct bench *b, const char *what, const char *unit,
                  const struct bench_series *s);
/* Prints one number without repeats, e.g. a ratio (unit "×"): "value" in place of "median". */
void bench_report_value(const struct bench *b, const char *what, const char *unit, double value);

/* Moves the next item of a comma-separated list to `item`, at most 63 bytes; false: the list is
 * empty. */
bool bench_next_item(const char **list, char item[64]);

typedef status bench_rank_function(const struct bench *b, unsigned rank, unsigned size);
/* Runs `measure` on as many ranks as key `ranks` says. Without a launcher this process becomes
 * mpirun, which starts the ranks with the same arguments. */
status bench_on_ranks(const struct bench *b, bench_rank_function *measure, int argc,
                      char **argv) MUST_CHECK;

/* The name of benchmark i; NULL after the last. */
const char *bench_name(size_t i);
/* `gradlag bench NAME …` */
status command_bench(int argc, char **argv);

#endif
