/*
 * status_pipe.h — how the processes of one run tell the one that started them: a FIFO in its
 * private folder, named by the environment variable GRADLAG_MAILBOX. It works through mpirun too.
 *
 * A mail is smaller than PIPE_BUF, so mails of several processes never mix.
 */
#ifndef GRADLAG_EXPERIMENTS_RUN_STATUS_PIPE_H
#define GRADLAG_EXPERIMENTS_RUN_STATUS_PIPE_H

#include "ps/client.h"
#include "worker/training.h"

enum status_kind {
    STATUS_BOUND, /* text: the endpoint that the server listens on; rank 0's: all ranks have met */
    STATUS_PROGRESS, /* progress; may be lost when the reader is slow */
    STATUS_ENDED,    /* code and, unless OK, text: the error message */
};
enum role { ROLE_SERVER, ROLE_WORKER, ROLE_RANK };
const char *role_name(enum role role);

struct status_message {
    enum status_kind kind;
    enum role role;
    unsigned index; /* worker, rank, or which of several servers */
    status code;
    enum ps_dismissal dismissal; /* of a worker: the server's own mail says why */
    struct training_progress progress;
    char text[2048];
};

/* ---- a child's side: all do nothing without a status pipe ---------------------------------
 */
bool status_pipe_exists(void);
/* Whether the starter still has it open. */
bool status_pipe_has_reader(void);
/* Waits at most five seconds for room, not at all for STATUS_PROGRESS. */
void status_pipe_send(const struct status_message *m);

/* ---- the starter's side ------------------------------------------------------------------------
 */
struct status_pipe {
    int fd;
    char path[128];
};
status status_pipe_open(struct status_pipe *m, const char *folder) MUST_CHECK;
void status_pipe_close(struct status_pipe *m);
/* The next mail, if one is there; waits for none. */
bool status_pipe_receive(struct status_pipe *m, struct status_message *out);

#endif
