/*
 * launch_internal.h — shared by launch.c (one run, from its row to its end), launch_start.c (starts
 * the processes), launch_watch.c (watches them until all have ended), launch_restart.c (starts
 * ranks again) and launch_virtual.c (engine=virtual, without processes).
 */
#ifndef GRADLAG_EXPERIMENTS_RUN_LAUNCH_INTERNAL_H
#define GRADLAG_EXPERIMENTS_RUN_LAUNCH_INTERNAL_H

#include "base/text.h"
#include "experiments/run/child_process.h"
#include "experiments/config/config.h"
#include "experiments/config/hosts.h"
#include "experiments/run/launch.h"
#include "experiments/run/status_pipe.h"
#include "experiments/run/mpirun.h"
#include "experiments/run/progress.h"

struct watched {
    struct child child;
    enum role role;
    unsigned index;
    bool ended_now;              /* it ended in this round of the loop */
    bool reported;               /* it sent STATUS_ENDED, which has the next three fields */
    enum ps_dismissal dismissal; /* of a worker; the server reports the reason itself */
    status code;
    char *message; /* of a failure; owned */
    bool was_lost; /* of a worker: its first process was lost */
    /* Of an mpirun that starts the workers of another host, or restarts one of them: */
    const struct run_host *host; /* NULL: no such process */
    unsigned first, count;       /* the workers that it starts */
    uint64_t again_ns;           /* of a worker: when it is started again; 0: never */
    uint64_t failed_ns; /* of such an mpirun: when it failed; 0: it has not, or judge_host() has
                           handled it */
    bool dismissed;     /* it got SIGTERM */
};

struct launch {
    const struct launch_options *o;
    struct settings arguments;    /* of every process */
    struct folder folder, shared; /* shared: in /dev/shm, for MPI */
    struct mpirun mpirun;         /* of mode=sync and mode=pipeline */
    struct status_pipe pipe;
    char status_pipe_variable[160], token_variable[48];
    char dataset_variable[64]; /* names the file behind dataset_fd (dataset_shared.h) */
    int dataset_fd;            /* −1: none */
    struct child builder;      /* builds data beside mpirun; not watched */
    struct progress progress;
    bool async;
    unsigned workers, servers; /* servers: 1 in other modes than async */
    struct hosts hosts;        /* count 0: all processes are on this host */
    struct text host_list;     /* of ranks on several hosts: "a:4,b:4" */
    struct text worker_key;    /* CURVE_WORKER_VARIABLE=…, for workers on other hosts; or empty */
    unsigned first_here, count_here; /* the workers on this host */
    int64_t run_id;
    struct watched *processes;    /* [0]: server 0, or mpirun; then workers; then other servers;
                                     then an mpirun for each of `hosts`, if mode=async */
    unsigned places;              /* length of processes; some may not have been started */
    struct pollfd *sources;       /* [places + 2]: what launch_watch waits for */
    char **endpoints;             /* [servers]: where each listens; NULL: not known yet */
    uint64_t begun_ns, ending_ns; /* ending_ns: when the time limit for the end began; 0: not yet */
    uint64_t stop_sent_ns;        /* the last signal to processes[0]; 0: none */
    bool wait_logged, ending_logged;
    bool bound;     /* all servers listen, or the ranks have reported progress */
    bool ranks_met; /* the ranks have started and reached each other */
    bool was_ready; /* the ranks have met, or a server has listened; also before a restart */
    int stops_seen, stops_before; /* requests to stop: noticed; made before this run */
    bool killed;
    status verdict;           /* the first failure */
    bool error_is_secondhand; /* reported by a worker; replaced by the server's own error */
    char *message;
    int stderr_fd, child_fd; /* the two ends of the pipe for stderr of the processes */
    struct text line, mpirun_output;
    uint64_t updates;      /* number in the last progress report */
    int64_t restarts;      /* so far (key restarts) */
    struct text all_hosts; /* key hosts, for the restarts of ranks */
};

/* Reads key hosts into l->hosts, which stays empty if the list names only this host. */
status launch_read_hosts(struct launch *l, const char *key) MUST_CHECK;
/* Writes l->hosts to l->host_list, in the form of mpirun's --host. */
void launch_list_hosts(struct launch *l);
/* Removes a setting from l->arguments. */
void launch_drop_argument(struct launch *l, const char *key);

/* Passes lines that the processes wrote to stderr to the user. last: also an incomplete line. */
void launch_read_stderr(struct launch *l, bool last);

/* Runs in this process; `run_id` is the run's row. */
status launch_virtual(const struct launch_options *o, int64_t run_id,
                      struct progress *progress) MUST_CHECK;

/* Starts server 0, and the workers if they know its endpoint. */
status launch_start_server(struct launch *l) MUST_CHECK;
/* Call when server `server` listens at `endpoint`; starts the processes that waited for it. *all:
 * all servers listen. */
status launch_bound(struct launch *l, unsigned server, const char *endpoint, bool *all) MUST_CHECK;
status launch_start_ranks(struct launch *l) MUST_CHECK;
/* The other host that has this worker; NULL: this host. */
const struct run_host *launch_host_of(const struct launch *l, unsigned index);
/* Restarts the lost workers whose time again_ns has passed. */
void launch_start_lost_workers(struct launch *l);

/* launch_restart.c: after the loss of a rank, restarts all ranks from the last checkpoint. */
bool launch_may_restart(const struct launch *l);
status launch_restart(struct launch *l) MUST_CHECK;

/* Returns when every process has ended; the outcome is in l->verdict and l->message. */
status launch_watch(struct launch *l) MUST_CHECK;
void launch_kill_all(struct launch *l);

#endif
