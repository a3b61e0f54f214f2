/* bench_runs.h — whole runs of this program, for benchmarks: started as children, with a results
 * file in a private folder. */
#ifndef GRADLAG_EXPERIMENTS_BENCH_BENCH_RUNS_H
#define GRADLAG_EXPERIMENTS_BENCH_BENCH_RUNS_H

#include "base/text.h"
#include "experiments/run/child_process.h"

struct bench_runs {
    const char *benchmark; /* named in errors */
    struct folder folder, shared;
    int log; /* what the children print */
    struct text file, results, output;
};
#define BENCH_RUNS_NONE                                                                            \
    {                                                                                              \
        .log = -1                                                                                  \
    } /* initial value: bench_runs_close() is safe before bench_runs_open() */

status bench_runs_open(struct bench_runs *r, const char *benchmark) MUST_CHECK;
void bench_runs_close(struct bench_runs *r);
/* Runs a command on `cores` (NULL: all). ERROR_PEER, with its last output, if it fails or takes
 * longer than ten minutes. */
status bench_runs_command(struct bench_runs *r, const char *const *argv,
                          const char *const *environment, const cpu_set_t *cores,
                          double *seconds) MUST_CHECK;
/* `gradlag run` or `gradlag sweep` with at most 16 settings, ended by NULL, and the private results
 * file. seconds: the wall time of the command. */
status bench_runs_gradlag(struct bench_runs *r, const char *command, const char *const *settings,
                          const cpu_set_t *cores, double *seconds) MUST_CHECK;
/* The value of a SELECT of one number. */
status bench_runs_value(struct bench_runs *r, const char *sql, double *value) MUST_CHECK;

#endif
