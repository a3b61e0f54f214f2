/*
 * server_state.h — what the server's files share. No other file includes it, except
 * tests/ps/server/test_server_state.c.
 *
 * One thread runs one loop (server.c): take all messages, advance the state by one step, check the
 * limits, sleep. No state runs the loop itself. Every state answers peers, notices lost peers and
 * obeys a request to stop. An event for the core (a worker joins, pushes or is lost) waits in the
 * queue until the state is TRAINING or LEAVING.
 *
 * States                 the server …
 *   JOINING              waits until the first o->workers workers and all other servers have joined
 *   TRAINING             hands the oldest event to the core
 *   PROBING              waits for a fresh gradient (ps/server/probe.h)
 *   GATHERING   leader   waits for the slices of all followers
 *   EVALUATING           waits for an evaluation; training goes on in between if cores are free
 *   SAVING               waits until a checkpoint is written
 *   PAUSED      follower waits after it has sent its slice
 *   LEAVING              has ended training; records late pushes, waits for goodbyes
 *   DISMISSING  leader   waits for the last records of the followers
 *   CLOSED               has nothing left to do
 *
 * Transitions; server_enter() refuses any other one
 *   T1  JOINING → TRAINING      all are ready, or the limit has passed and on_lost=continue;
 *                               a follower: the leader's first order
 *   T2  TRAINING ↔ PROBING      the oldest event is a push to probe; its cosine is known
 *   T3  TRAINING → EVALUATING   the core asks for it; with several servers through GATHERING
 *   T4  TRAINING, EVALUATING → SAVING   a checkpoint is due; with several servers through GATHERING
 *   T5  EVALUATING, SAVING → TRAINING   it is done, or the evaluation goes on beside training
 *   T6  JOINING, TRAINING → PAUSED → TRAINING   the leader asks for the slice; it resumes training
 *   T7  any → GATHERING, SAVING         the run is over: the last checkpoint, the last parameters
 *   T8  any → LEAVING           after T7
 *   T9  LEAVING → DISMISSING    all workers have left, or END_MS has passed
 *   T10 LEAVING, DISMISSING → CLOSED    likewise; all records are here, or END_FAILED_MS has passed
 *   T11 TRAINING → EVALUATING   waits for the evaluation beside training: a checkpoint or the next
 *                               evaluation (EVALUATING → EVALUATING) is due, or the run is over
 *
 * Invariants
 *   S1  The core gets events from one function, training_feed(), in order of arrival, and only in
 *       TRAINING and LEAVING.
 *   S2  A peer that is not a member (state, incarnation and connection) changes nothing.
 *   S3  Training time stands still in PROBING, GATHERING, EVALUATING, SAVING and PAUSED.
 *   S4  With several servers the leader sends an ordered event to the followers when its own core
 *       gets the event. Messages between two servers are numbered, so no loss goes unnoticed.
 *   S5  With several servers all slices of one gathering belong to the same place in the order:
 *       from the request until the leader resumes training, no core gets an event.
 *   S6  A background thread reads the parameters only in PROBING, EVALUATING and SAVING, or after
 *       the run is over; nothing changes them then. An evaluation beside training reads a copy.
 *   S7  With several servers the leader decides that a worker takes part, and that it is lost. A
 *       follower that has lost a worker keeps the place until the leader frees it.
 *
 * Liveness: one rule, in ps/net/liveness.h. A process from which no message has come for timeout_s
 * is lost. A process (or background thread) that gives signs of life but owes a result is named
 * after timeout_s at the latest, and lost after 20 × the longer of timeout_s and the longest such
 * wait so far. Every server judges the silence of workers. Server 0 also judges all followers,
 * workers that owe a gradient, and workers that do not finish joining after training has begun.
 * Followers judge the leader. The end of a run has limits of its own (END_MS, END_FAILED_MS), so
 * that a peer that does not answer delays no exit.
 *
 * Files, from the bottom up; a file calls functions of files above it in this list, and its own
 * (scripts/check-layers):
 *   server_follower_send.c  messages from a follower to the leader
 *   server_leader_send.c    messages from the leader to followers
 *   server_queue.c          states, training clock, the queue of events, failure
 *   server_peers.c          workers: members, messages to them, losses
 *   server_messages.c       messages from workers
 *   server_gather.c         the leader's side: slices
 *   server_leader.c         the leader's side: messages to and from followers
 *   server_training.c       events into the core, actions out of it
 *   server_advance.c        the steps of each state
 *   server_follower.c       a follower's side: what the leader orders
 *   server_liveness.c       limits for workers
 *   server.c                the loop, open and close
 */
#ifndef GRADLAG_PS_SERVER_SERVER_STATE_H
#define GRADLAG_PS_SERVER_SERVER_STATE_H

#include "worker/compression/pull_code.h"
#include "ps/core/server_core.h"
#include "ps/core/slice_code.h"
#include "ps/core/slices.h"
#include "ps/net/channel.h"
#include "ps/net/liveness.h"
#include "ps/net/payload.h"
#include "ps/net/peer_process.h"
#include "ps/server/background.h"
#include "ps/server/probe.h"
#include "ps/server/run_metrics.h"
#include "ps/server/server.h"

enum {
    END_MS = 5000,        /* each wait at the end of a run that ended well or was stopped */
    END_FAILED_MS = 2000, /* each wait at the end of a run that failed */
};

enum server_state {
    STATE_JOINING,
    STATE_TRAINING,
    STATE_PROBING,
    STATE_GATHERING,
    STATE_EVALUATING,
    STATE_SAVING,
    STATE_PAUSED,
    STATE_LEAVING,
    STATE_DISMISSING,
    STATE_CLOSED,
    STATES,
};

enum peer_state {
    PEER_ABSENT,   /* has not joined, or was lost and its place is free */
    PEER_WELCOMED, /* is mapping the shared memory */
    PEER_READY,    /* takes part */
    PEER_LEAVING,  /* was lost; the core does not know yet. At a follower: the leader has not freed
                      its place */
    PEER_GONE,     /* has left after the end of the run */
};

/* A worker. */
struct peer {
    enum peer_state state;
    struct channel_id id;
    struct liveness life;
    uint64_t incarnation, hello_nonce;
    uint64_t first_batch; /* of this incarnation */
    uint32_t pid;
    bool shared;      /* its payload is in shared memory */
    bool has_mailbox; /* its pushes and releases go through the mailbox */
    bool foreign;     /* its hello had settings hash 0: another program than gradlag */
    uint32_t former;  /* process that was lost but still runs, and may write to this slot until its
                         goodbye; 0: none */
    int former_pidfd; /* −1: not known */
    uint64_t lost_ns;

    uint64_t next;   /* sequence of the next push that has not arrived completely */
    bool receiving;  /* its WIRE_PUSH has arrived, its floats or code not yet */
    size_t received; /* bytes of the floats or the code received */
    bool coded;      /* `received` counts a code */
    void *code; /* [slice_push_bytes at epoch 0] received part of a code; NULL: none has arrived */
    struct wire_message push;
    uint64_t arrived_ns, arrived_training_ns; /* when the last push was complete, on both clocks */
    bool released;                            /* to compute push `next` */
    bool entered;   /* EVENT_HELLO was queued for it, and EVENT_LOST was not */
    bool recorded;  /* row worker_joined is written */
    char loss[400]; /* detail of row worker_lost, which is written when the core gets EVENT_LOST */
    uint64_t joining_ns;       /* when its hello came, on clock_ns() */
    uint64_t released_ns;      /* on clock_ns() */
    uint64_t wait_training_ns; /* training time of its release, or of the last part of its push */
    bool slow_named;           /* the worker was named as slow since then */
    struct wire_message release;
};

enum event_kind {
    EVENT_HELLO,
    EVENT_PUSH,
    EVENT_MISSING, /* training begins without it */
    EVENT_LOST,
};
struct event {
    enum event_kind kind;
    unsigned worker;
};

/* What a follower has reported after the end. */
enum follower_end {
    FOLLOWER_SERVES, /* nothing */
    FOLLOWER_GONE,   /* its workers have left */
    FOLLOWER_CLOSED, /* it has sent all records */
};

/* The code of a version slot (key pull_precision). */
struct pulled {
    uint16_t *code; /* [count]; NULL: no worker needed it so far */
    uint64_t next;  /* version + 1; 0: none */
};

/* What the leader (server 0) knows of another server. */
struct follower {
    bool joined, lost;
    enum follower_end end;
    struct channel_id id;
    struct liveness life;
    uint64_t incarnation, nonce;
    uint32_t pid;
    uint64_t sent, received; /* numbers of the next messages to it, and from it */
    unsigned vector;         /* the first requested vector that has not arrived completely */
    size_t bytes;            /* of that vector, received so far */
};

struct followers {
    struct follower *at;        /* [servers]; at[0] is not used */
    uint64_t *ready, *complete; /* [workers], bit i: the worker is ready at server i; its push is
                                   complete there */
    uint64_t *batches; /* [workers]: highest next batch that a follower reported when it freed the
                          place */
    unsigned *freeing; /* [workers × servers]: orders WIRE_ORDER_FREE that server i has not
                          answered. Until it has, its reports are about a lost process */
    unsigned vectors;  /* requested: the parameters and those of the optimizer's state */
    float *parameters; /* [o->count]: of all servers, from the last gathering */
    float *states;     /* [state_count], likewise; NULL: no checkpoint needs them */
    size_t state_count;
    bool gathered; /* `parameters` are of the latest version */
    bool differ;   /* after a failure: the slices in `parameters` have different versions */
    bool paused;   /* the followers are paused */
};

/* What a follower knows of the leader. */
struct leader {
    channel *channel;          /* NULL: this server is the leader */
    bool joined, failure_sent; /* failure_sent: this server has sent WIRE_FAILED */
    bool over, closed;         /* the leader is lost; it has sent its last order */
    struct liveness life;
    uint64_t incarnation, nonce;
    uint64_t pinged_ns, failed_ns;
    uint64_t sent, received; /* numbers of the next messages to it, and from it */
};

struct server {
    const struct ps_server_options *o;
    unsigned servers;
    unsigned
        workers; /* worker numbers are 0 … workers − 1; those from o->workers on may join late */
    struct slices slices;
    size_t begin, count; /* this server's slice */
    bool one_order;      /* read=snapshot: the leader orders the pushes of all servers */
    struct followers followers;
    struct leader leader;
    channel *channel;
    payload_area *payload;
    helpers *helpers;
    server_core *core;
    background *evaluator;             /* NULL: a follower */
    compression *codes;                /* decodes pushes; NULL: compression=none */
    struct pull_code pull;             /* encodes pulls */
    struct pulled *pulled;             /* [slots] */
    double sent_bytes;                 /* second frames of gradients and parameters, so far */
    background *saver;                 /* NULL: no checkpoints */
    int wake_fd;                       /* epoll: background threads and the members' pidfds */
    unsigned timeout_ms, push_samples; /* push_samples: the most samples of a push */
    unsigned threads;                  /* cores that one worker computes on */
    bool lost_ends_run;                /* on_lost=stop */
    bool record_parts, offer_shared;

    struct peer *peers;  /* [workers] */
    struct event *queue; /* a ring */
    unsigned queue_size, queue_first, queue_count;
    unsigned mail_first; /* the worker whose mailbox is looked at first, by turns */

    status result; /* not OK: the run ends with this code; `message`: why */
    char message[512];
    bool begun; /* training has begun: T1 */
    bool ended; /* training is complete; a follower: the leader has reported it */

    enum server_state state;
    uint64_t since_ns; /* begin of the state; GATHERING: arrival of the last part of a slice */
    uint64_t longest_ns[STATES];  /* the longest time in each state so far */
    bool late_named;              /* the state takes long, and that has been logged */
    enum server_state gather_for; /* what follows GATHERING */
    bool core_waits;              /* the core asked for an evaluation, and waits for its end */
    enum { PAUSE_AUTO, PAUSE_YES, PAUSE_NO } evaluation_pause;
    bool beside, beside_noted;       /* an evaluation runs beside training; a row says so */
    float *copy;                     /* [o->count]: parameters for it to read; NULL: none so far */
    unsigned evaluation_threads;     /* of the last evaluation */
    double evaluation_work;          /* core seconds of the last evaluation; 0: none so far */
    struct training_state evaluated; /* the state under evaluation, without vectors */
    struct training_state saving;
    bool winding_up, last_saved; /* T7 has begun; its checkpoint has begun */
    double train_seconds;        /* training time when T7 began */
    uint64_t stopped_ns;         /* when the request to stop was seen */
    uint64_t until_ns;           /* LEAVING, DISMISSING: the limit */
    bool goodbyes_reported;      /* a follower: it has sent WIRE_WORKERS_GONE */

    struct probe probe;
    bool probed; /* `cosine` is of the oldest event */
    double cosine;
    uint64_t opened_ns, joined_ns; /* joined_ns: when the last peer joined */
    uint64_t ticked_ns, progress_ns;
    bool missing_named;
    uint64_t update_ns;            /* duration of the last update; cores_in_use() reads it */
    uint64_t longest_step_ns;      /* longest time of any worker from release to push */
    uint64_t gradient_training_ns; /* when the last gradient arrived, on the training clock */

    /* training clock: see training_ns_at() */
    uint64_t before_ns; /* training time in the checkpoint from which the run was resumed */
    uint64_t began_ns, paused_ns, pause_from_ns, pause_to_ns, former_to_ns;

    unsigned evaluated_slot;
    uint64_t evaluation_began_ns, next_checkpoint;
    uint64_t checkpoint_samples; /* between checkpoints; 0: only at the end */
    struct ps_metrics tally;     /* a follower's rows are written by the leader */
    uint64_t refused;            /* messages */
    uint64_t answering_ns;       /* begin of the current second of may_answer() */
    unsigned answered;           /* messages of peers that are not members, in this second */
};

static inline bool server_follows(const struct server *s)
{
    return s->o->server > 0;
}

static inline bool server_leads(const struct server *s)
{
    return s->servers > 1 && !server_follows(s);
}

static inline bool server_is_over(const struct server *s)
{
    return s->ended || s->result != OK;
}

/* This server's share of all parameters. Server 0 estimates the bytes of all servers from its
 * own. */
static inline double server_share(const struct server *s)
{
    return (double)s->count / (double)s->o->count;
}

/* True after an error; a request to stop is no error. */
static inline bool server_has_failed(const struct server *s)
{
    return s->result != OK && s->result != STOPPED;
}

/* ---- server_follower_send.c; for a follower ------------------------------------------------- */
void follower_join(struct server *s);
void follower_ping(struct server *s);
void follower_report(struct server *s, enum wire_report what, unsigned w, uint64_t sequence);
void follower_lost(struct server *s, unsigned w, status code, const char *why);
/* Reports to the leader that the run must end, for the reason in s->message. */
void follower_failed(struct server *s);
void follower_record(struct server *s, const struct push_record *row);
void follower_note(struct server *s, double at_seconds, uint64_t push_number,
                   enum severity severity, const char *code, int w, const char *detail);
/* Sends this server's slice of the parameters (vector 0) or of the optimizer's state. */
void follower_slice(struct server *s, unsigned vector, const float *values);

/* ---- server_leader_send.c; for the leader of several servers -------------------------------- */
struct wire_message leader_message(const struct server *s, const struct follower *f,
                                   enum wire_type type);
void leader_say(struct server *s, struct follower *f, struct wire_message *m);
void leader_send_order(struct server *s, enum wire_order what, unsigned w, uint64_t sequence);
void leader_order(struct server *s, const struct event *e);
/* S7: orders all followers to forget the process that was worker `w`. Does nothing on a server that
 * does not lead. */
void leader_free_place(struct server *s, unsigned w);
/* Whether follower `server` has not freed the place yet. */
bool leader_is_freeing(const struct server *s, unsigned w, unsigned server);
/* Whether any follower has not freed it yet. False on a server that does not lead. */
bool leader_awaits_place(const struct server *s, unsigned w);
void leader_place_is_free(struct server *s, unsigned w, unsigned server, uint64_t next_batch);
void leader_end(struct server *s);

/* ---- server_queue.c ------------------------------------------------------------------------- */
/* Contract: a transition listed at the top. Stops or starts the training clock (S3). */
void server_enter(struct server *s, enum server_state state);
/* T1: starts the training clock. */
void server_begin(struct server *s);
double training_seconds(const struct server *s);
/* Training nanoseconds at clock_ns() time `t`. Contract: `t` is not before the begin of the last
 * pause but one. */
uint64_t training_ns_at(const struct server *s, uint64_t t);
void training_start_clock(struct server *s);
void training_hold_clock(struct server *s);
void training_run_clock(struct server *s);
void training_queue(struct server *s, enum event_kind kind, unsigned w);
void server_fail(struct server *s, status code, const char *format, ...) PRINTF_LIKE(3, 4);
void server_watch(struct server *s, int fd);
void server_event(struct server *s, enum severity severity, const char *code, int w,
                  const char *detail);
/* Writes the row of a worker that joins or is lost. Call it when the core gets that event: replay
 * needs the row's place among the pushes. After the end of training the row has no place. */
void server_member_event(struct server *s, enum severity severity, const char *code, unsigned w,
                         const char *detail);

/* ---- server_peers.c ------------------------------------------------------------------------- */
bool peers_is_member(const struct peer *p);
/* False for a worker without shared memory whose process cannot be watched: it is on another
 * host. */
static inline bool peers_on_this_host(const struct peer *p)
{
    return p->shared || p->life.pidfd >= 0;
}
/* The worker has missed its last pings, so it may be dead or cut off. */
static inline bool peers_is_quiet(const struct server *s, const struct peer *p, uint64_t now_ns)
{
    const uint64_t most_ms = s->timeout_ms < LIVENESS_NAME_MS ? s->timeout_ms : LIVENESS_NAME_MS;
    return liveness_ms(p->life.heard_ns, now_ns) > most_ms / 2;
}
unsigned peers_in(const struct server *s, enum peer_state state);
/* "worker 3, worker 5": those of the first o->workers whose state is `state`. */
void peers_name(const struct server *s, enum peer_state state, char *out, size_t size);
/* "process 77, payload=shm" */
void peers_describe(const struct server *s, unsigned w, char *out, size_t size);
/* Writes row worker_joined, unless it is written. */
void peers_record_joined(struct server *s, unsigned w);
/* Call it when the core gets the worker's loss: writes row worker_lost if the core knew the
 * worker. */
void peers_record_lost(struct server *s, unsigned w);
struct wire_message peers_message(const struct server *s, unsigned w, enum wire_type type);
void peers_welcome(struct server *s, unsigned w);
void peers_release(struct server *s, unsigned w);
/* Tell all workers, or one on connection `to`, that the run is over and how it ended. */
void peers_end(struct server *s);
void peers_end_one(struct server *s, unsigned w, const struct channel_id *to);
/* The answer shows the run's token only if the message did. */
void peers_refuse(struct server *s, const struct channel_received *r, status code, const char *why);
/* A sign of life for a worker whose place is not free yet. */
void peers_let_wait(struct server *s, const struct channel_received *r);
/* Ends the run or frees the place, depending on on_lost. A follower reports it to the leader (S7).
 */
void peers_lose(struct server *s, unsigned w, status code, const char *why);
/* A follower has lost the worker, possibly before the worker joined this server. */
void peers_lose_elsewhere(struct server *s, unsigned w, status code, const char *why);
/* The worker sent a message that it may not send: refuses the message and loses the worker. */
void peers_protocol_error(struct server *s, unsigned w, const struct channel_received *r,
                          const char *what);
/* At a follower: the leader has lost the worker, whose messages are refused from now on. */
void peers_forget(struct server *s, unsigned w);
/* The core does not know the worker, or has got its loss: another process may join in its place. */
void peers_free_place(struct server *s, unsigned w);
/* For the leader: worker `w` is ready at server `server`, or its push is complete there. */
void leader_worker_ready(struct server *s, unsigned w, unsigned server);
void leader_push_complete(struct server *s, unsigned w, unsigned server);
/* Whether the worker is ready; for the leader: at all servers. */
bool peers_is_ready(const struct server *s, unsigned w);
/* How many of workers 0 … end − 1 are ready. */
unsigned peers_ready(const struct server *s, unsigned end);
/* Worker `w` is ready: it takes part, or training begins when all first workers are ready. */
void peers_enter(struct server *s, unsigned w);
/* T1, except at a follower: queues an event for each worker. */
void peers_begin(struct server *s);

/* ---- server_messages.c ---------------------------------------------------------------------- */
void peers_handle(struct server *s, enum channel_event event, const struct channel_received *r);
/* Handles the message in worker `w`'s mailbox, if there is one. */
void peers_take_mail(struct server *s, unsigned w);

/* ---- server_gather.c; for the leader of several servers ------------------------------------- */
/* Forgets earlier slices and copies this server's own: of the parameters into followers.parameters,
 * with `states` also of the optimizer's state into followers.states. */
void leader_gather(struct server *s, bool states);
/* Takes a part of a slice. Returns what is wrong with it, or NULL. */
const char *leader_take_slice(struct server *s, struct follower *f,
                              const struct channel_received *r);
/* The first follower whose slice is not here completely; NULL: none. */
struct follower *leader_awaits(struct server *s);
/* A follower is lost or has never joined, so its slice cannot arrive. */
bool leader_lacks_a_follower(const struct server *s);

/* ---- server_leader.c; for the leader of several servers ------------------------------------- */
status leader_open(struct server *s) MUST_CHECK;
void leader_close(struct server *s);
/* True: the message was about another server, and has been handled. */
bool leader_handle(struct server *s, enum channel_event event, const struct channel_received *r);
void leader_tick(struct server *s, uint64_t now);
/* "server 2", or if all servers have joined, their missing workers: "worker 1 at server 3". */
void leader_name_missing(const struct server *s, char *out, size_t size);
bool leader_has_all_followers(const struct server *s);
/* A follower has been silent for more than half of timeout_s: workers may wait for it. */
bool leader_misses_a_follower(const struct server *s, uint64_t now);
/* Ends the run, because it needs all slices. */
void leader_lose_follower(struct server *s, struct follower *f, status code, const char *why);
/* S5: pauses the followers and asks for their slices; `states`: if a checkpoint needs them. */
void leader_request_slices(struct server *s, bool states);
/* Orders the followers to resume training after a gathering. */
void leader_resume(struct server *s);
/* All followers have reported `end`, or a later one. */
bool leader_followers_are(const struct server *s, enum follower_end end);

/* ---- server_training.c ---------------------------------------------------------------------- */
/* Hands the oldest event to the core. False: there is none, or it has to wait (S1). */
bool training_feed(struct server *s);
void training_perform(struct server *s, struct server_actions actions, uint64_t begin);
/* Tells the core that the run is over. Later events are only recorded. */
void training_end(struct server *s);
/* Writes the row of an evaluation. */
void training_evaluated(struct server *s, const struct evaluation *e);
void training_progress(struct server *s);

/* ---- server_advance.c ----------------------------------------------------------------------- */
/* Does one step of the state. False: the state waits for a message, a thread or the clock. */
bool server_advance(struct server *s);
/* Whether training goes on during the evaluation that is due, for which `free` cores are idle.
 * Allocates the copy of the parameters. */
bool server_may_evaluate_beside(struct server *s, unsigned free);
/* Checks the time limit of the state (see "Liveness"). */
void server_check_state(struct server *s, uint64_t now);

/* ---- server_follower.c; for a follower ------------------------------------------------------ */
status follower_open(struct server *s) MUST_CHECK;
void follower_close(struct server *s);
/* False: messages may be left. */
bool follower_receive(struct server *s);
void follower_tick(struct server *s, uint64_t now);

/* ---- server_liveness.c ---------------------------------------------------------------------- */
/* Finds dead, silent and hanging workers. Call it when all messages have been taken. */
void peers_tick(struct server *s, uint64_t now);
/* Call it if this process did not run for `away_ns`, until now. */
void server_was_away(struct server *s, uint64_t away_ns, uint64_t now);

/* ---- server.c; the rest of it is in server.h ------------------------------------------------ */

#endif
