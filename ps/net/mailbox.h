/*
 * mailbox.h — pushes and releases in memory that the server and the workers of one host share.
 *
 * A message through ZeroMQ passes four threads. A push or a release whose payload is in shared
 * memory goes through a mailbox instead: the sender writes the message (ps/net/wire.h) into the
 * memory that the receiver looks at. All other messages use the channel. Each mailbox has one cell
 * in each direction. One cell is enough, because a worker sends a push after a release, and the
 * server a release after a push; a repeated message has the same bytes.
 *
 * Order. A sender writes into the cell before it sends its next message on the channel. So a
 * receiver that takes the cell's message before it handles one of the channel keeps their order.
 *
 * Bell. A receiver that sleeps waits for its channel, for processes that end, and for its bell: a
 * pipe, which fits among these descriptors (a futex does not). The sender increments a word, and
 * writes to the pipe only if the receiver has declared that it sleeps. All words are accessed in
 * one total order (sequentially consistent), so either the sender sees that the receiver sleeps, or
 * the receiver sees the new value and stays awake.
 *
 * The other side's memory is not trusted: mailbox_receive() copies a message before it is decoded,
 * and drops one that changes meanwhile.
 *
 * If no bell can be made, or the worker is another program that does not know mailboxes, pushes and
 * releases go through the channel. The server decides this when the worker becomes ready.
 */
#ifndef GRADLAG_PS_NET_MAILBOX_H
#define GRADLAG_PS_NET_MAILBOX_H

#include "ps/net/wire.h"

#include <stdatomic.h>

struct mailbox_side { /* one receiving process; in shared memory */
    atomic_uint rung; /* messages sent to it so far */
    atomic_uint sleeps;
    uint32_t bell_fd; /* a descriptor of the server's process; constant */
};

struct mailbox_cell {     /* in shared memory; one process writes it */
    atomic_uint sequence; /* odd: a message is being written */
    uint32_t bytes;
    uint8_t message[WIRE_MAX_BYTES];
};

/* One process's bell, to wait for (ps/net/channel.h). */
struct bell {
    struct mailbox_side *side; /* NULL: none */
    unsigned heard;            /* value of side->rung at the last bell_hear() */
    int fd;
};
bool bell_rings(const struct bell *b);
/* Call it before you look at the cells: a later message then rings again. */
void bell_hear(struct bell *b);
/* Call bell_sleep() before and bell_wake() after a wait for b->fd. False: do not wait, the bell
 * rings. */
bool bell_sleep(struct bell *b);
void bell_wake(struct bell *b);

/* One end of a mailbox. */
struct mailbox {
    struct mailbox_cell *in, *out; /* NULL: closed */
    struct mailbox_side *peer;
    int peer_bell;
    unsigned seen; /* sequence of the last message taken */
};
/* Contract: wire_encode() gives at most WIRE_MAX_BYTES. */
void mailbox_send(struct mailbox *m, const struct wire_message *message);
/* Takes a new message. False: there is none. `decoded`: false if it is malformed, or of another
 * type than `type`. */
bool mailbox_receive(struct mailbox *m, enum wire_type type, struct wire_message *out,
                     bool *decoded);

/* ---- the server's side ---------------------------------------------------------------------- */
typedef struct mailboxes mailboxes;

/* Bytes that mailboxes of this many workers need, in whole pages. */
size_t mailboxes_bytes(unsigned workers);
/* Makes mailboxes in zeroed `memory` that other processes can write (borrowed), and a bell for each
 * process. *out is NULL, and the result OK, if there are not enough descriptors. */
status mailboxes_open(mailboxes **out, void *memory, unsigned workers) MUST_CHECK;
void mailboxes_close(mailboxes **m); /* NULL-safe */
struct mailbox *mailboxes_of(mailboxes *m, unsigned worker);
struct bell *mailboxes_bell(mailboxes *m);
/* Call it when a worker joins: discards what an earlier worker of this place has written. */
void mailboxes_clear(mailboxes *m, unsigned worker);
/* Whether the worker has opened its mailbox since mailboxes_clear(). */
bool mailboxes_is_used(const mailboxes *m, unsigned worker);

/* ---- a worker's side ------------------------------------------------------------------------ */
/* Opens worker `worker`'s mailbox in `memory` of `bytes`. The bells are descriptors of process
 * `pid`. False: there are no mailboxes, or no bell can be opened; both structures are closed. */
bool mailbox_open(struct mailbox *m, struct bell *b, void *memory, size_t bytes, unsigned worker,
                  uint32_t pid);
/* Closes the bells. Call it before the memory is unmapped. */
void mailbox_close(struct mailbox *m, struct bell *b);

#endif
