/*
 * launch_internal.h — what the files of launch share: launch.c (one run, from its row to its end),
 * launch_start.c (starting the processes), launch_watch.c (watching them until the last has ended),
 * launch_virtual.c (engine=virtual, which needs no processes).
 */
#ifndef GRADLAG_EXPERIMENTS_RUN_LAUNCH_INTERNAL_H
#define GRADLAG_EXPERIMENTS_RUN_LAUNCH_INTERNAL_H

#include "base/text.h"
#include "experiments/run/child_process.h"
#include "experiments/config/config.h"
#include "experiments/run/launch.h"
#include "experiments/run/status_pipe.h"
#include "experiments/run/mpirun.h"
#include "experiments/run/progress.h"

struct watched {
    struct child child;
    enum role role;
    unsigned index;
    bool ended_now, told;        /* it ended in this round; it said how it ended */
    enum ps_dismissal dismissal; /* a worker's; the server says why itself */
    status code;
    char *message; /* of a failure; owned */
};

struct launch {
    const struct launch_options *o;
    struct settings arguments;    /* of every process */
    struct folder folder, shared; /* shared: in /dev/shm, for MPI */
    struct mpirun mpirun;         /* of mode=sync and mode=pipeline */
    struct status_pipe pipe;
    char status_pipe_variable[160], token_variable[48];
    struct progress progress;
    bool async;
    unsigned workers, servers; /* servers: 1 where there are ranks */
    int64_t run_id;
    struct watched *processes;    /* [0]: server 0, or mpirun; then workers; then other servers */
    unsigned places;              /* in processes: some may not have been started */
    char **endpoints;             /* [servers]: where each listens; NULL: not yet known */
    uint64_t begun_ns, ending_ns; /* ending_ns: since when they are to end; 0: not yet */
    uint64_t asked_ns;            /* when the first of them was last asked to; 0: never */
    bool told_waiting, told_ending, bound;
    bool met; /* the ranks have started, and heard each other */
    int stops_seen;
    bool killed;
    status verdict;           /* the first failure */
    bool error_is_secondhand; /* it is a worker's, of what its server knows better */
    char *message;
    int noise_fd, child_fd; /* the two ends of what the processes write to stderr */
    struct text line, noise;
};

/* In this process: l.run_id is the run's row. */
status launch_virtual(const struct launch_options *o, int64_t run_id,
                      struct progress *progress) MUST_CHECK;

status launch_start_server(struct launch *l) MUST_CHECK;
/* Server `server` listens at `endpoint`: starts those that have waited for it. *all: every server
 * does. */
status launch_bound(struct launch *l, unsigned server, const char *endpoint, bool *all) MUST_CHECK;
status launch_start_ranks(struct launch *l) MUST_CHECK;
/* Until every process has ended; how it went is in l->verdict and l->message. */
status launch_watch(struct launch *l) MUST_CHECK;
void launch_kill_all(struct launch *l);

#endif
