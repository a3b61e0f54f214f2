/*
 * run_queue.h — queued runs in a results file.
 *
 * A queued run is a row with status queued and runner NULL: no process owns it. A process takes the
 * run before it starts the run. Taking is one SQL statement, so exactly one of several processes
 * gets the run. From then on run_owner.h tells whether that process still exists. The queue has no
 * other state. If a sweep is killed, its rows are queued, ended, or owned by a process that no
 * longer exists, and the next sweep can tell these three apart.
 */
#ifndef GRADLAG_RESULTS_RUN_QUEUE_H
#define GRADLAG_RESULTS_RUN_QUEUE_H

#include "base/text.h"
#include "results/query/query.h"
#include "results/store/recorder.h"

enum queue_state {
    QUEUE_WAITING, /* no process has taken it */
    QUEUE_TAKEN,   /* its process lives, or this host cannot tell */
    QUEUE_FINISHED,
    QUEUE_DIVERGED,
    QUEUE_FAILED,
    QUEUE_STOPPED,
    QUEUE_DROPPED, /* the row no longer exists */
};
struct queue_entry {
    int64_t id;
    enum queue_state state;
    unsigned attempt; /* from 1 */
    bool here;        /* QUEUE_TAKEN: the process is on this host */
    char by[192];     /* QUEUE_TAKEN: "HOST, process N" */
    char error[512];  /* why the run failed or diverged, truncated */
};

struct queue_request {
    struct run_key key;                /* finds an earlier run of the same configuration */
    const struct run_description *run; /* its row; host stays NULL until the run is taken */
    int64_t priority;                  /* runs with a higher priority start first */
    unsigned attempt;
    bool again; /* add the run even if an earlier one runs or has ended */
};

/* One transaction on the queue of one file. The file is created if it does not exist. */
typedef struct queue queue;
status queue_open(queue **out, const char *path) MUST_CHECK;
/* Adds a queued run, unless a run of this key is queued, is running, has finished or has diverged.
 * A queued run gets the config, tag and priority of the request. *out describes the added or the
 * existing run. */
status queue_add(queue *q, const struct queue_request *request, struct queue_entry *out) MUST_CHECK;
status queue_commit(queue *q) MUST_CHECK;
/* Rolls back what was not committed. NULL-safe. */
void queue_close(queue **q);

/* Makes this process the owner of the run; `host` (JSON) is stored in its row. *taken is false if
 * the run is no longer queued. */
status queue_take(const char *path, int64_t id, const char *host, bool *taken) MUST_CHECK;
/* Reads the state of a run. If its process no longer exists, the run is ended first. A row with
 * another config_hash counts as QUEUE_DROPPED, because SQLite reuses the ids of deleted rows. */
status queue_look(const char *path, int64_t id, const char *config_hash,
                  struct queue_entry *out) MUST_CHECK;
/* Reads the configuration (JSON, owned by the caller) of a run and its config_hash. ERROR_USAGE:
 * no such run. */
status queue_config(const char *path, int64_t id, char **config, char hash[65]) MUST_CHECK;
/* Lists the queued runs, by descending priority, then by id. The caller owns *ids. */
status queue_waiting(const char *path, int64_t **ids, size_t *count) MUST_CHECK;
/* The name of the network file system, such as "nfs", on which the file exists or would be created.
 * NULL: no known network file system. */
const char *queue_network(const char *path);
/* Deletes all queued runs. */
status queue_drop(const char *path, size_t *count) MUST_CHECK;

#endif
