/*
 * ps_rig.h — a real server process and worker processes on a small problem without a model: the
 * gradient of half the squared distance to the origin, which is the parameters themselves.
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
    volatile int stage; /* 1: released once; the worker counts up as it likes */
};

struct rig {
    /* set before rig_serve() */
    unsigned workers;
    size_t count;
    uint64_t total_samples, evaluate_every;
    unsigned evaluation_ms; /* how long the hook takes */
    int evaluation_fails, checkpoint_fails;
    uint64_t token, settings_hash;
    char listen[RIG_ENDPOINT_BYTES];      /* "": an ipc path of its own */
    unsigned server;                      /* which of key servers */
    char leader[RIG_ENDPOINT_BYTES];      /* where server 0 is, for the others */
    const char *results;                  /* NULL: no recorder */
    void (*at_checkpoint)(struct rig *r); /* in its thread; NULL: nothing */
    volatile int stop;

    /* filled in by the server's process */
    char endpoint[RIG_ENDPOINT_BYTES];
    volatile int bound;
    volatile int evaluations, checkpoints, evaluating;
    unsigned long noted[8]; /* at_checkpoint's to use */
    status code;
    char message[512];
    uint64_t ended_ns; /* on clock_ns() */
    struct training_outcome outcome;

    struct rig_worker worker[RIG_PROCESSES];
};

/* In shared memory, zeroed, with small defaults; and its settings. */
struct rig *rig_open(unsigned workers, size_t count);
void rig_close(struct rig *r);
options *rig_settings(void);
void rig_set(options *o, const char *key, const char *value);

/* Both, for that many workers; rig_close_with() ends both. */
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
/* Waits for a process, for at most `seconds` × PATIENCE; kills it and fails the test after that.
 * Returns its exit code, or 128 + the signal that ended it. */
int rig_wait(pid_t pid, double seconds);
/* Waits until *value reaches `least`; false after `seconds` × PATIENCE. */
bool rig_until(const volatile int *value, int least, double seconds);

#endif
