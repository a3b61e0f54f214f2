/*
 * status_pipe.h — messages from the processes of a run to their starter, through a FIFO in its
 * private folder. The environment variable STATUS_PIPE_VARIABLE has its path, also under mpirun.
 *
 * The environment variable STATUS_PIPE_HOST has the name of the starter's host. A process on
 * another host has no status pipe.
 *
 * A message is smaller than PIPE_BUF, so messages of several processes never interleave.
 */
#ifndef GRADLAG_EXPERIMENTS_RUN_STATUS_PIPE_H
#define GRADLAG_EXPERIMENTS_RUN_STATUS_PIPE_H

#include "ps/client.h"
#include "worker/training.h"

#include <signal.h>

#define STATUS_PIPE_VARIABLE "GRADLAG_STATUS_PIPE"
#define STATUS_PIPE_HOST     "GRADLAG_STATUS_PIPE_HOST"

enum status_kind {
    STATUS_BOUND,    /* of a server: it listens on the endpoint in `text`; of rank 0: all ranks have
                        met */
    STATUS_PROGRESS, /* `progress`; dropped if the reader is slow */
    STATUS_LOST,     /* of server 0: training goes on without worker `index` */
    STATUS_ENDED,    /* `code` and, unless it is OK, the error message in `text` */
};
enum role { ROLE_SERVER, ROLE_WORKER, ROLE_RANK };
const char *role_name(enum role role);

struct status_message {
    enum status_kind kind;
    enum role role;
    unsigned index; /* number of the server, worker or rank */
    status code;
    enum ps_dismissal dismissal; /* of a worker; the server's own message has the reason */
    struct training_progress progress;
    char text[2048];
};

/* ---- a child's side; without a status pipe these functions do nothing
 * ---------------------------------
 */
bool status_pipe_exists(void);
/* True if the starter still has the pipe open. */
bool status_pipe_has_reader(void);
/* Waits at most five seconds for space in the pipe; STATUS_PROGRESS does not wait. */
void status_pipe_send(const struct status_message *m);

/* Waits until the starter has called status_pipe_open_gate() or *stop is not 0, at most limit_s
 * seconds. False: the time limit has passed. */
bool status_pipe_await_gate(unsigned limit_s, const volatile sig_atomic_t *stop);

/* True if the starter has said with status_pipe_note_end() that this worker's process has ended. */
bool status_pipe_worker_ended(unsigned index);

/* ---- the starter's side ------------------------------------------------------------------------
 */
struct status_pipe {
    int fd, gate; /* gate: closed when all servers listen; −1 then */
    char path[128];
};
status status_pipe_open(struct status_pipe *m, const char *folder) MUST_CHECK;
/* Lets workers connect that were started before the servers listen. */
void status_pipe_open_gate(struct status_pipe *m);
void status_pipe_close(struct status_pipe *m);
/* Reads the next message; false: there is none. Does not block. */
bool status_pipe_receive(struct status_pipe *m, struct status_message *out);
/* Tells the other processes that the process of this worker has ended: by an empty file beside the
 * FIFO. */
void status_pipe_note_end(const struct status_pipe *m, unsigned index);
/* Undoes status_pipe_note_end(). Call it before this worker is started again. */
void status_pipe_forget_end(const struct status_pipe *m, unsigned index);

#endif
