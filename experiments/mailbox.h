/*
 * mailbox.h — how the processes of one run tell the one that started them: a FIFO in its private
 * folder, named by the environment variable GRADLAG_MAILBOX. It works through mpirun too.
 *
 * A mail is smaller than PIPE_BUF, so mails of several processes never mix.
 */
#ifndef GRADLAG_EXPERIMENTS_MAILBOX_H
#define GRADLAG_EXPERIMENTS_MAILBOX_H

#include "ps/client.h"
#include "worker/training.h"

enum mail_kind {
    MAIL_BOUND,    /* text: the endpoint that the server listens on; rank 0's: all ranks have met */
    MAIL_PROGRESS, /* progress; may be lost when the reader is slow */
    MAIL_ENDED,    /* code and, unless OK, text: the error message */
};
enum role { ROLE_SERVER, ROLE_WORKER, ROLE_RANK };
const char *role_name(enum role role);

struct mail {
    enum mail_kind kind;
    enum role role;
    unsigned index; /* worker, rank, or which of several servers */
    status code;
    enum ps_dismissal dismissal; /* of a worker: the server's own mail says why */
    struct training_progress progress;
    char text[2048];
};

/* ---- a child's side: all do nothing where there is no mailbox ---------------------------------
 */
bool mailbox_exists(void);
/* Whether the starter still has it open. */
bool mailbox_is_read(void);
/* Waits at most five seconds for room, not at all for MAIL_PROGRESS. */
void mailbox_send(const struct mail *m);

/* ---- the starter's side ------------------------------------------------------------------------
 */
struct mailbox {
    int fd;
    char path[128];
};
status mailbox_open(struct mailbox *m, const char *folder) MUST_CHECK;
void mailbox_close(struct mailbox *m);
/* The next mail, if one is there; waits for none. */
bool mailbox_receive(struct mailbox *m, struct mail *out);

#endif
