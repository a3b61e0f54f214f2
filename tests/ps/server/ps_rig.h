/*
 * ps_rig.h — starts a real server process and worker processes on a small problem without a model:
 * half the squared distance to the origin, whose gradient is the parameters.
 */
#ifndef GRADLAG_TESTS_PS_SERVER_PS_RIG_H
#define GRADLAG_TESTS_PS_SERVER_PS_RIG_H

#include "ps/client.h"
#include "ps/server/server.h"

#include <sys/types.h>

enum { RIG_PROCESSES = 16, RIG_ENDPOINT_BYTES = 128 };

struct rig_worker { /* how a worker ended; in memory shared with the test */
    status code;
    char message[256];
    uint64_t pushes, first_batch, last_version;
    enum ps_dismissal dismissal; /* of a failed ps_client_open() */
    volatile int stage;          /* number of releases so far; other bodies may count otherwise */
};

struct rig {
    /* set before rig_serve() */
    unsigned workers;
    size_t count;
    uint64_t total_samples, evaluate_every;
    unsigned evaluation_ms; /* duration of the evaluation hook */
    int evaluation_fails, checkpoint_fails;
    uint64_t token, settings_hash;
    char listen[RIG_ENDPOINT_BYTES];      /* set by rig_open() to an ipc path */
    unsigned server;                      /* number of the server */
    char leader[RIG_ENDPOINT_BYTES];      /* endpoint of server 0, for the others */
    const char *results;                  /* NULL: no recorder */
    void (*at_checkpoint)(struct rig *r); /* called in the server's background thread; NULL: none */
    void (*at_evaluation)(struct rig *r); /* called at the start of an evaluation; NULL: none */
    volatile int stop;
    volatile int held_at; /* not 0: each worker waits at that release until this is 0 */

    /* filled in by the server's process */
    char endpoint[RIG_ENDPOINT_BYTES];
    volatile int bound;
    volatile int evaluations, checkpoints, evaluating;
    volatile int lost;                    /* number of lost workers */
    volatile unsigned evaluation_threads; /* threads that the evaluation hook may use */
    unsigned long noted[8];               /* for at_checkpoint and at_evaluation */
    status code;
    char message[512];
    uint64_t ended_ns; /* on clock_ns() */
    struct training_outcome outcome;

    struct rig_worker worker[RIG_PROCESSES];
};

/* Opens a rig in shared memory, zeroed, with small defaults; and its settings. */
struct rig *rig_open(unsigned workers, size_t count);
void rig_close(struct rig *r);
options *rig_settings(void);
void rig_set(options *o, const char *key, const char *value);

/* Opens both, with keys workers and timeout_s set; rig_close_with() closes both. */
struct rig *rig_open_with(options **settings, unsigned workers, const char *timeout_s);
void rig_close_with(struct rig *r, options *settings);

/* Fails the test unless `message` contains `name`: a key, a number, a path, "worker 1". */
void rig_expect_named(const char *message, const char *name);

/* Forks the server. Waits until it is bound (or has failed). */
pid_t rig_serve(struct rig *r, const options *settings);
/* Forks a worker that waits for an endpoint and trains until the end. `step_ms`: how long
 * each of its steps takes. */
pid_t rig_train(struct rig *r, const options *settings, unsigned worker, unsigned step_ms);
/* Forks a process that runs `body` and reports its status as worker `worker`. */
typedef status rig_body(struct rig *r, const options *settings, unsigned worker, unsigned argument);
pid_t rig_fork(struct rig *r, const options *settings, unsigned worker, unsigned argument,
               rig_body *body);
/* For such a body: joins as worker w, and waits for the first release. */
status rig_join(struct rig *r, const options *settings, unsigned w, ps_client **client,
                struct ps_release *at);
/* Waits for a process, for at most `seconds` × PATIENCE; kills it and fails the test after that.
 * Returns its exit code, or 128 + the signal that ended it. */
int rig_wait(pid_t pid, double seconds);
/* Runs all workers to the end; all processes must succeed. */
void rig_train_all(struct rig *r, const options *settings);
/* A number from the results file `path`. */
int64_t rig_number(const char *path, const char *sql);
/* The longest total wait of a worker, in seconds. */
double rig_longest_wait(const char *path);
/* `seconds` of training exclude evaluations and checkpoints: both together fit into the `wall` time
 * of the run, also on a busy machine. (Except for a message that was sent before the evaluation.)
 */
void rig_expect_apart(double seconds, double meanwhile, double wall);
/* Waits until *value reaches `least`; false after `seconds` × PATIENCE. */
bool rig_until(const volatile int *value, int least, double seconds);

#endif
