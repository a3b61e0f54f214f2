/*
 * launch.h — one run as processes: starts them, watches them, ends them all, leaves nothing behind.
 *
 * Asynchronous: `gradlag server`, once it listens the other servers, where there are several, and
 * once all do W × `gradlag worker`. Synchronous: `mpirun -n W gradlag rank`. The processes compose
 * the same settings from their own command lines and write to a status pipe (status_pipe.h) in a
 * private folder; the server (the first of several), or rank 0, is the run's one writer of results.
 * Errors of the processes come back here, so that the user reads each once. With engine=virtual
 * there are none: the run takes place in this process.
 */
#ifndef GRADLAG_EXPERIMENTS_RUN_LAUNCH_H
#define GRADLAG_EXPERIMENTS_RUN_LAUNCH_H

#include "base/options.h"

#include <signal.h>

struct launch_options {
    const options *settings;
    const char *title; /* put before progress */
    bool quiet;        /* no progress */
    int64_t run_id;    /* a run that waits in the queue (results/run_queue.h); 0: a new one */
};

/* Runs until every process has ended. *run_id is the run's row (0 if there is none yet), whose
 * status then says how it ended. ERROR_PEER: a process was lost (named); STOPPED: by a signal; or
 * the code and message of the process that failed first. */
status launch_run(const struct launch_options *o, int64_t *run_id) MUST_CHECK;

/* SIGINT, SIGTERM and SIGHUP (signals_catch()) from now on ask the run to stop: once, gracefully;
 * twice, at once. */
void launch_catch_signals(void);
/* How often that was asked for. */
int launch_stop_requests(void);
/* The same for whoever trains in this process. */
const volatile sig_atomic_t *launch_stop_flag(void);
/* As if one of them had come. */
void launch_request_stop(void);

#endif
