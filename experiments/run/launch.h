/*
 * launch.h — one run: starts its processes, watches them, ends all of them, and leaves no process
 * or file behind.
 *
 * mode=async starts `gradlag server`. When this server listens, launch_run() starts further
 * servers, if any. When all servers listen, it starts W × `gradlag worker`, or earlier if it knows
 * the endpoint: the workers then wait for the server.
 *
 * mode=sync and mode=pipeline start `mpirun -n W gradlag rank`. With engine=virtual the run takes
 * place in this process.
 *
 * Every process composes the settings from its own command line and reports to a status pipe
 * (status_pipe.h) in a private folder. Server 0 or rank 0 is the only writer of results. Errors of
 * the processes arrive here, so that the user reads each error once.
 */
#ifndef GRADLAG_EXPERIMENTS_RUN_LAUNCH_H
#define GRADLAG_EXPERIMENTS_RUN_LAUNCH_H

#include "base/options.h"

#include <signal.h>

struct launch_options {
    const options *settings;
    const char *title; /* shown before the progress; borrowed, like settings */
    bool quiet;        /* no progress */
    int64_t run_id;    /* of a queued run (results/run_queue.h); 0: a new run */
    bool *was_ready;   /* becomes true if a server listened or the ranks met; may be NULL */
};

/* Returns when every process has ended. *run_id is the run's row, which then has its final status;
 * 0: no row was created. ERROR_PEER: a process was lost (named in the message). STOPPED: a signal
 * arrived. Otherwise the code and message of the process that failed first. */
status launch_run(const struct launch_options *o, int64_t *run_id) MUST_CHECK;

/* Makes SIGINT, SIGTERM and SIGHUP requests to stop (signals_catch()): the first stops gracefully,
 * the second at once. */
void launch_catch_signals(void);
/* The number of requests to stop so far. */
int launch_stop_requests(void);
/* The same number, for a trainer in this process. */
const volatile sig_atomic_t *launch_stop_flag(void);
/* Adds one request to stop. */
void launch_request_stop(void);

#endif
