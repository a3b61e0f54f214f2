/*
 * role.h — what the processes of a run have in common: `gradlag server`, `worker` and `rank`.
 *
 * Started by `gradlag run` they report to its status pipe and die with it; started by hand they
 * speak to the user themselves.
 */
#ifndef GRADLAG_EXPERIMENTS_RUN_ROLE_H
#define GRADLAG_EXPERIMENTS_RUN_ROLE_H

#include "base/text.h"
#include "experiments/config/config.h"
#include "experiments/run/status_pipe.h"
#include "experiments/run/progress.h"
#include "results/store/recorder.h"
#include "worker/training.h"

struct role_process {
    enum role role;
    unsigned index;
    options *settings;
    worker *worker;
    worker_shard **shards; /* of those whose gradients were probed; [workers], or NULL */
    recorder *recorder;    /* the run's one writer: the server, or rank 0; else NULL */
    int64_t run_id;        /* 0 until role_open_recorder, but where the row is there already */
    uint64_t token;
    struct progress progress;
    uint64_t noted_ns; /* when the run's row was last told how far it is */
    struct training_hooks hooks;
    enum ps_dismissal dismissal; /* of a worker */
    const char *communicator;    /* of a rank: the one in use; NULL: none is open yet */
    struct text network;         /* by which its messages go, in words */
    void (*request_stop)(void);  /* sets what hooks.stop looks at; from any thread */
};

/* Composes the settings, names the process in the log and heeds signals. `read`: as written on the
 * command line. */
status role_begin(struct role_process *p, enum role role, unsigned index,
                  const struct settings *read) MUST_CHECK;
/* Goes on with the row that `run` made, or makes one; fills in the hooks. */
status role_open_recorder(struct role_process *p) MUST_CHECK;
/* Writes how it ended into the recorder's row: `ended`, or what went wrong with that. */
status role_finish_row(struct role_process *p, status ended,
                       const struct training_outcome *outcome);
/* Writes how it ended (a recorder's row, the mail) and closes all. Returns `ended`, or what went
 * wrong on the way. Called once, also after role_begin failed. */
status role_end(struct role_process *p, status ended, const struct training_outcome *outcome);

/* How long an asynchronous run is, by the settings and the training split's size. */
status role_server_length(const options *o, uint64_t epoch_samples,
                          struct training_length *out) MUST_CHECK;

/* Takes "KEY=3" out of the settings: a number below `limit`. *out stays where it is not there. */
status role_take_number(struct settings *s, const char *key, unsigned limit,
                        unsigned *out) MUST_CHECK;
/* Takes "worker=3" out of the settings, else the rank that mpirun or srun gave. */
status role_worker_index(struct settings *s, unsigned *index) MUST_CHECK;
/* The rank count that mpirun or srun gave, if `workers` was not set. */
void role_default_workers(struct settings *s);
/* What peers of a run show each other: from key run_token, or the environment that `run` gives.
 * Where there is neither: a new one if `draw`, else ERROR_USAGE. */
status role_token(const options *o, bool draw, uint64_t *out) MUST_CHECK;

/* Under AddressSanitizer: this process is about to be a rank, and leaks are not looked for in it.
 */
void role_leaks_are_of_mpi(void);

/* The path of this program. */
const char *role_program(void);
/* What the starter tells the server before it asks it to stop: why the run has failed. */
void role_write_verdict(const char *folder, status code, const char *text);

#endif
