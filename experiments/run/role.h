/*
 * role.h — shared by the processes of a run: `gradlag server`, `worker` and `rank`.
 *
 * A process started by `gradlag run` reports to its status pipe and dies with it. A process started
 * by hand prints its progress and errors itself.
 */
#ifndef GRADLAG_EXPERIMENTS_RUN_ROLE_H
#define GRADLAG_EXPERIMENTS_RUN_ROLE_H

#include "base/text.h"
#include "experiments/config/config.h"
#include "experiments/run/status_pipe.h"
#include "experiments/run/progress.h"
#include "results/store/recorder.h"
#include "worker/training.h"

#include <limits.h>

enum { LOADING_LIMIT_S = 900 }; /* generating a dataset on first use may take this long */

struct role_process {
    enum role role;
    unsigned index;
    options *settings;
    worker *worker;
    worker_shard **shards; /* [workers.max], of workers whose gradients were probed; or NULL */
    recorder *recorder;    /* in the run's only writer (server 0, or rank 0); else NULL */
    int64_t run_id;        /* 0 until role_open_recorder, unless the row exists already */
    uint64_t token;
    struct progress progress;
    uint64_t noted_ns; /* when the progress was last written to the run's row */
    struct training_hooks hooks;
    enum ps_dismissal dismissal; /* of a worker */
    const char *communicator;    /* of a rank: its name; NULL: not open yet */
    struct text network; /* for the run's row: the networks of its messages, or their encryption;
                            may be empty */
    void (*request_stop)(void); /* sets the flag of hooks.stop; callable from any thread */
};

/* Composes the settings of the command line (`read`), names the process in the log and installs
 * signal handlers. */
status role_begin(struct role_process *p, enum role role, unsigned index,
                  const struct settings *read) MUST_CHECK;
/* Fills in the hooks. Continues the row that `run` began (key run_id), or begins one. */
status role_open_recorder(struct role_process *p) MUST_CHECK;
/* Writes the outcome into the run's row. Returns `ended`, or the error of writing after OK or
 * STOPPED. */
status role_finish_row(struct role_process *p, status ended,
                       const struct training_outcome *outcome);
/* Writes the outcome to the run's row and to the status pipe, and closes everything. Returns
 * `ended`, or the error of writing. Call it once, also after role_begin failed. */
status role_end(struct role_process *p, status ended, const struct training_outcome *outcome);

/* The length of an asynchronous run, from its settings and the size of the training split. */
status role_server_length(const options *o, uint64_t epoch_samples,
                          struct training_length *out) MUST_CHECK;

/* Warns if training ends before its warm-up does. Does nothing in a run of a sweep, where
 * plan_warn_of_warmup() warns once for all runs, and in a run of an experiment. */
void role_warn_of_warmup(const options *o, uint64_t total_samples, uint64_t epoch_samples);

/* Removes "KEY=3" from the settings and sets *out to its number. *out is unchanged if there is no
 * such setting. ERROR_USAGE: not a number below `limit`. */
status role_take_number(struct settings *s, const char *key, unsigned limit,
                        unsigned *out) MUST_CHECK;
/* Sets *index to the number in "worker=3" or, without this setting, to the rank from mpirun or srun
 * plus the number in "worker.first=4" (default 0). Removes the settings that it used. ERROR_USAGE:
 * there is no valid number. */
status role_worker_index(struct settings *s, unsigned *index) MUST_CHECK;
/* If `workers` is not set, adds it with the number of ranks of mpirun or srun. */
void role_default_workers(struct settings *s);
/* The token that authenticates peers of a run: from key run_token or from GRADLAG_RUN_TOKEN.
 * Without both: a new random one if `draw`, else ERROR_USAGE. */
status role_token(const options *o, bool draw, uint64_t *out) MUST_CHECK;

/* Disables the leak check of AddressSanitizer in this process, because MPI_Finalize leaks. */
void role_ignore_leaks_of_mpi(void);

/* The path of this program; static memory. */
const char *role_program(void);
/* The path of this program in the file system, for processes on other hosts. Returns `path`. */
const char *role_program_path(char path[PATH_MAX]);
/* The starter calls this before it stops the server, or when a host has failed. Stores why the run
 * failed, for the run's row. A server that does not end with STOPPED ignores it. */
void role_write_verdict(const char *folder, status code, const char *text);
/* Removes the stored reason. Call it before the ranks start again, or after a request to stop. */
void role_forget_verdict(const char *folder);

#endif
