/*
 * bench.h — `gradlag bench NAME`: what the benchmarks share.
 *
 * A benchmark is one file experiments/bench/bench_NAME.c with one function and a table of keys, and
 * one line in bench.def. It opens a `bench` (its key=value settings and --json), measures each case
 * `repeats` times and reports each as one line. Rates and times are reported as the median over the
 * repeats with the best one beside it; a benchmark of several processes reports from one of them.
 */
#ifndef GRADLAG_EXPERIMENTS_BENCH_BENCH_H
#define GRADLAG_EXPERIMENTS_BENCH_BENCH_H

#include "base/options.h"

/* argv holds what follows the benchmark's name: key=value settings and --json. */
typedef status bench_function(int argc, char **argv);

/* Each has its function, and its keys for `gradlag bench NAME --help`. */
#define BENCH(name, function, keys, help)                                                          \
    bench_function function;                                                                       \
    extern const struct option keys[];
#include "experiments/bench/bench.def"
#undef BENCH

struct bench {
    const char *name; /* "push-pull" */
    options *settings;
    bool json;
    unsigned repeats; /* key `repeats`, 5 unless the table says otherwise by declaring it */
};

/* Declares `table` (may be NULL) and `repeats`, then reads argv. ERROR_USAGE names the nearest key.
 */
status bench_open(struct bench *b, const char *name, const struct option *table, int argc,
                  char **argv) MUST_CHECK;
void bench_close(struct bench *b);

enum { BENCH_REPEATS = 256 };
struct bench_series { /* one value per repeat, in the unit it is reported in */
    double values[BENCH_REPEATS];
    unsigned count;
};
void bench_add(struct bench_series *s, double value);
double bench_median(const struct bench_series *s);
double bench_minimum(const struct bench_series *s);
double bench_maximum(const struct bench_series *s);

/* One line on stdout: "step  cnn batch=64   2400 samples/s  (best 2431, 5 repeats)", or with --json
 * {"benchmark":"step","case":"cnn batch=64","unit":"samples/s","median":2400,"best":2431,
 *  "repeats":5}. `unit` ending in "/s" means that more is better, else less. */
void bench_report(const struct bench *b, const char *what, const char *unit,
                  const struct bench_series *s);
/* The same for one number without repeats, e.g. a ratio (unit "×") or a bound. */
void bench_report_value(const struct bench *b, const char *what, const char *unit, double value);

/* Cuts the next item off a comma-separated list: false at its end. `item` gets at most 63 bytes. */
bool bench_next_item(const char **list, char item[64]);

/* Of several ranks: this process becomes mpirun, which starts key `ranks` of this program with the
 * same arguments; returns only what went wrong. */
status bench_under_mpirun(const struct bench *b, int argc, char **argv) MUST_CHECK;
bool bench_is_rank(void);

/* The name of benchmark i; NULL past the last. */
const char *bench_name(size_t i);
/* `gradlag bench NAME …` */
status command_bench(int argc, char **argv);

#endif
