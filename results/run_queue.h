/*
 * run_queue.h — runs that wait in a results file to be made.
 *
 * A run that waits is a row whose status is queued and whose runner is NULL: nobody answers for it
 * yet. Whoever makes it takes it first. That is one statement, so that of any number of processes,
 * on one file, one gets it; from then on run_owner.h tells whether that one is still there. Nothing
 * else is kept anywhere: a sweep that is killed at any moment leaves rows that wait, rows that
 * ended, and rows whose process is gone, and the next one sees which is which.
 */
#ifndef GRADLAG_RESULTS_RUN_QUEUE_H
#define GRADLAG_RESULTS_RUN_QUEUE_H

#include "base/text.h"
#include "results/query/query.h"
#include "results/store/recorder.h"

enum queue_state {
    QUEUE_WAITING, /* nobody makes it */
    QUEUE_TAKEN,   /* a process makes it that lives, or that cannot be judged from here */
    QUEUE_FINISHED,
    QUEUE_DIVERGED,
    QUEUE_FAILED,
    QUEUE_STOPPED,
    QUEUE_DROPPED, /* it is not there any more */
};
struct queue_entry {
    int64_t id;
    enum queue_state state;
    unsigned attempt; /* from 1 */
    bool here;        /* QUEUE_TAKEN: by a process on this host */
    char by[192];     /* QUEUE_TAKEN: "HOST, process N" */
    char error[512];  /* why it failed or diverged, cut to size */
};

struct queue_request {
    struct run_key key;                /* what finds it again, if it is there already */
    const struct run_description *run; /* its row; host is left out until it is taken */
    int64_t priority;                  /* higher ones are made first */
    unsigned attempt;
    bool again; /* even where there is one that has ended */
};

/* One transaction on the queue of one file, which is created where it is not there. */
typedef struct queue queue;
status queue_open(queue **out, const char *path) MUST_CHECK;
/* Adds a run that waits, unless there is one already that waits, is being made, or finished or
 * diverged. *out is the one that there is now. */
status queue_add(queue *q, const struct queue_request *request, struct queue_entry *out) MUST_CHECK;
status queue_commit(queue *q) MUST_CHECK;
/* Undoes what was not committed; NULL-safe. */
void queue_close(queue **q);

/* This process answers for the run from now on; `host` is its row's. False in *taken where it no
 * longer waits. */
status queue_take(const char *path, int64_t id, const char *host, bool *taken) MUST_CHECK;
/* What became of a run; ends it first where its process is gone. A row of another config_hash is
 * another run: what was taken out gives its number back. */
status queue_look(const char *path, int64_t id, const char *config_hash,
                  struct queue_entry *out) MUST_CHECK;
/* The configuration (JSON) of a run, owned by the caller, and its config_hash. */
status queue_config(const char *path, int64_t id, char **config, char hash[65]) MUST_CHECK;
/* The runs that wait, those of a higher priority first; *ids is owned by the caller. */
status queue_waiting(const char *path, int64_t **ids, size_t *count) MUST_CHECK;
/* Where the file lies, or is to lie: the name of a file system that other hosts may see, too, such
 * as "nfs"; NULL: none of those that are known to be. */
const char *queue_network(const char *path);
/* Takes all runs out that wait. */
status queue_drop(const char *path, size_t *count) MUST_CHECK;

#endif
