/*
 * server_state.h — what the files of the server share; nobody else includes it, but for
 * tests/test_server_state.c.
 *
 * From the bottom up; a file calls those above it in this list, and itself. Only who waits in the
 * midst of something (a gathering, a checkpoint, the end) calls up: server_receive, server_wait.
 *
 *   server_say.c        one of several servers that follows: what it says to server 0
 *   server_queue.c      the training clock, the events that wait for the core, how a run fails
 *   server_peers.c      workers: who is there, what they are told, who is lost
 *   server_hear.c       what workers say, and what of it is refused
 *   server_followers.c  of several servers, server 0: what it tells the others, and hears from them
 *   server_gather.c     the same: their slices together
 *   server_training.c   events into the core, actions out of it; records, evaluation, checkpoints
 *   server_leader.c     one that follows: what server 0 says
 *   server_watch.c      who dies, is silent, or hangs
 *   server.c            the loop, beginning and end
 *
 * Invariants
 *   S1  the core is fed from one place, training_feed(), in order of arrival, and never while an
 *       evaluation or a probe is under way whose run goes on.
 *   S2  a peer that is not a member (state, incarnation and connection) changes nothing.
 *   S3  training time stands still during evaluations, probes and checkpoints.
 * With several servers:
 *   S4  an event that server 0 orders goes to the others when its own core gets it, and each hands
 *       it to its core; messages between two servers are numbered, so none is missed.
 *   S5  who follows stands still from when it is asked for its slice until it is told to go on.
 */
#ifndef GRADLAG_PS_SERVER_STATE_H
#define GRADLAG_PS_SERVER_STATE_H

#include "ps/channel.h"
#include "ps/evaluator.h"
#include "ps/payload.h"
#include "ps/probe.h"
#include "ps/process.h"
#include "ps/server.h"
#include "ps/server_core.h"
#include "ps/slices.h"
#include "ps/tally.h"

/* Times timeout_s, or the longest so far: what an evaluation, a probe or a checkpoint may take. */
enum { SERVER_OWN_WORK = 20 };

enum peer_state {
    PEER_ABSENT,   /* never came, or was lost: its place is free (with several servers, who was lost
                      is gone) */
    PEER_WELCOMED, /* is mapping the shared memory */
    PEER_READY,    /* takes part */
    PEER_LEAVING,  /* was lost; the core has still to be told */
    PEER_GONE,     /* said goodbye */
};

struct peer {
    enum peer_state state;
    struct channel_id id;
    uint64_t incarnation, hello_nonce;
    uint64_t first_batch; /* of this incarnation */
    uint32_t pid;
    int pidfd; /* −1: not on this host */
    bool shared;
    bool foreign;     /* its hello had settings hash 0: another program than gradlag */
    uint32_t former;  /* was lost alive, may write to this place's gradient yet; 0: nobody */
    int former_pidfd; /* −1: not known */
    uint64_t lost_ns;
    bool warned;
    uint64_t heard_ns, died_ns;

    uint64_t next;   /* sequence of the push not yet seen whole */
    bool receiving;  /* its announcement came, its floats are coming */
    size_t received; /* bytes of them */
    struct wire_message push;
    uint64_t arrived_ns, arrived_training_ns; /* the last whole push, on both clocks */
    bool released;                            /* to compute push `next` */
    bool entered;                             /* at a follower: server 0 said that it takes part */
    uint64_t released_ns, released_training_ns; /* on both clocks */
    bool slow_named;                            /* at this release */
    struct wire_message release;
};

enum event_kind { EVENT_HELLO, EVENT_PUSH, EVENT_LOST };
struct event {
    enum event_kind kind;
    unsigned worker;
};

/* Another server, as server 0 knows it. */
struct follower {
    bool joined, lost;
    bool gone, closed; /* after the end: its workers are; it has sent all that it had to */
    struct channel_id id;
    uint64_t incarnation, nonce;
    uint32_t pid;
    int pidfd; /* −1: not on this host */
    uint64_t heard_ns, died_ns;
    bool warned;
    uint64_t sent, received; /* numbers of the next messages to it, and from it */
    unsigned vector;         /* of those that were asked for: the first that is not here whole */
    size_t bytes;            /* of that one which are */
};

struct followers {
    struct follower *at; /* [servers]; the first is not used */
    /* [workers]: bit i: at server i it is ready; its push is there, whole */
    uint64_t *ready, *whole;
    unsigned vectors;      /* asked for: parameters, and of the optimizer's state */
    float *parameters;     /* of all servers together, when last gathered */
    float *states;         /* NULL: nobody wants them */
    size_t state_count;    /* of `states`, gathered */
    bool gathered, paused; /* `parameters` are of the end; they stand still */
    uint64_t slice_ns;     /* a part of what was asked for came, or it was asked for */
};

/* Server 0, as another one knows it. */
struct leader {
    channel *channel;  /* NULL: this is server 0 */
    bool joined, told; /* told: that this server has failed */
    bool over, closed; /* no more is to come of it: it is lost; or all has been said */
    uint64_t incarnation, nonce;
    int pidfd;
    uint64_t heard_ns, asked_ns, died_ns, failed_ns;
    bool warned;
    uint64_t sent, received;
};

struct server {
    const struct ps_server_options *o;
    unsigned servers;
    size_t begin, count; /* this server's slice */
    bool one_order;      /* several servers whose pushes server 0 orders: read=snapshot */
    struct followers followers;
    struct leader leader;
    channel *channel;
    payload_area *payload;
    crew *helpers;
    server_core *core;
    evaluator *evaluator;
    int wake_fd;                       /* epoll: the evaluator and the members' pidfds */
    unsigned timeout_ms, push_samples; /* the most samples of a push */
    unsigned threads;                  /* cores that one worker computes on */
    bool lost_ends_run;                /* on_lost=stop */
    bool record_parts, offer_shared, checkpoints;

    struct peer *peers;  /* o->workers */
    struct event *queue; /* a ring */
    unsigned queue_size, queue_first, queue_count;

    status result; /* not OK: the run ends so, for the reason in `message` */
    char message[512];
    bool begun, ended; /* the core was started; the run is over */
    bool evaluating;
    struct probe probe;
    bool probing, probed; /* the oldest event's gradient is compared; its cosine is known */
    double cosine;
    uint64_t opened_ns, joined_ns; /* joined: the last time somebody did */
    uint64_t ticked_ns, progress_ns;
    bool missing_named;
    uint64_t update_ns;                 /* what the last update took; see cores_in_use() */
    uint64_t moved_ns, longest_step_ns; /* see look_for_hanging(), look_for_slow() */
    bool stuck_named, evaluation_named;

    /* training clock: see training_ns_at() */
    uint64_t before_ns; /* what the run had trained up to the checkpoint it goes on from */
    uint64_t began_ns, paused_ns, pause_from_ns, pause_to_ns, former_to_ns;

    unsigned evaluated_slot;
    uint64_t evaluation_began_ns;
    uint64_t evaluated_version, next_checkpoint;
    uint64_t checkpoint_samples; /* between checkpoints; 0: only at the end */
    struct tally tally;          /* a follower's rows are written by server 0 */
    uint64_t refused;            /* messages */
    uint64_t refusing_ns;        /* since when `answered` of them were */
    unsigned answered;
};

static inline bool server_follows(const struct server *s)
{
    return s->o->server > 0;
}

static inline bool server_leads(const struct server *s)
{
    return s->servers > 1 && !server_follows(s);
}

/* ---- server_say.c: for those that follow alone ------------------------------------------------
 */
void leader_join(struct server *s);
void leader_ping(struct server *s);
void leader_report(struct server *s, enum wire_report what, unsigned w, uint64_t sequence);
void leader_lost(struct server *s, unsigned w, status code, const char *why);
/* The run has to end, for the reason in s->message. */
void leader_failed(struct server *s);
void leader_record(struct server *s, const struct push_record *row);
void leader_note(struct server *s, double at_seconds, uint64_t push_number, enum severity severity,
                 const char *code, int w, const char *detail);
/* Its slice of the parameters (0) or of the optimizer's state. */
void leader_vector(struct server *s, unsigned vector, const float *values);

/* ---- server_queue.c ---------------------------------------------------------------------------
 */
double training_seconds(const struct server *s);
/* Training nanoseconds at clock_ns() time `t`: later than the begin of the last pause but one. */
uint64_t training_ns_at(const struct server *s, uint64_t t);
/* The clock begins, stands still, goes on. */
void training_start_clock(struct server *s);
void training_hold_clock(struct server *s);
void training_run_clock(struct server *s);
/* So does the core: nothing is handed to it meanwhile. */
void training_pause(struct server *s);
void training_resume(struct server *s);
void training_begin(struct server *s);
void training_queue(struct server *s, enum event_kind kind, unsigned w);
/* Something went on: a release, a push or a part of one, the end of a pause. */
void peers_moved(struct server *s);
void server_fail(struct server *s, status code, const char *format, ...) PRINTF_LIKE(3, 4);
void server_watch(struct server *s, int fd);
void server_event(struct server *s, enum severity severity, const char *code, int w,
                  const char *detail);
/* One that goes into the queue next: its place among the pushes is known already. */
void server_event_queued(struct server *s, enum severity severity, const char *code, unsigned w,
                         const char *detail);

/* ---- server_peers.c ---------------------------------------------------------------------------
 */
bool peers_is_member(const struct peer *p);
unsigned peers_in(const struct server *s, enum peer_state state);
/* "worker 3, worker 5": those whose state is `state`. */
void peers_name(const struct server *s, enum peer_state state, char *out, size_t size);
/* "process 77, payload=shm" */
void peers_describe(const struct server *s, unsigned w, char *out, size_t size);
struct wire_message peers_message(const struct server *s, unsigned w, enum wire_type type);
void peers_welcome(struct server *s, unsigned w);
void peers_release(struct server *s, unsigned w);
void peers_end(struct server *s, status code, const char *text);
/* A stranger's token goes back as it came: who does not know ours does not learn it. */
void peers_refuse(struct server *s, const struct channel_received *r, status code, const char *why);
/* Ends the run or frees the place, as on_lost says; a follower tells server 0, which says so. */
void peers_lose(struct server *s, unsigned w, status code, const char *why);
/* Another server has lost it: of one that has not come here yet nobody waits for the coming. */
void peers_lose_elsewhere(struct server *s, unsigned w, status code, const char *why);
/* Its own words were not what a worker may say. */
void peers_offended(struct server *s, unsigned w, const struct channel_received *r,
                    const char *what);
/* Server 0 has lost it: nothing of it is heard any more. */
void peers_forget(struct server *s, unsigned w);
/* Of several servers, server 0 alone: at server `server` worker `w` takes part now, or its push is
 * whole; and whether it takes part at all of them. */
void followers_ready(struct server *s, unsigned w, unsigned server);
void followers_whole(struct server *s, unsigned w, unsigned server);
bool followers_are_ready(const struct server *s, unsigned w);

/* ---- server_hear.c ----------------------------------------------------------------------------
 */
void peers_handle(struct server *s, enum channel_event event, const struct channel_received *r);

/* ---- server_followers.c; all for server 0 of several alone ------------------------------------
 */
status followers_open(struct server *s) MUST_CHECK;
void followers_close(struct server *s);
/* Whether this was about another server, and is dealt with. */
bool followers_handle(struct server *s, enum channel_event event, const struct channel_received *r);
void followers_tick(struct server *s, uint64_t now);
/* "server 2", and of those that are there which workers are not: "worker 1 at server 3". */
void followers_name_missing(const struct server *s, char *out, size_t size);
bool followers_have_joined(const struct server *s);
/* One of them has missed more than one sign of life. */
bool followers_are_silent(const struct server *s, uint64_t now);
void followers_order(struct server *s, const struct event *e);
void followers_tell(struct server *s, enum wire_order what, unsigned w, uint64_t sequence);
/* That server cannot be done without, so the run ends. */
void followers_lose(struct server *s, struct follower *f, status code, const char *why);
/* They go on after a gathering. */
void followers_resume(struct server *s);
void followers_end(struct server *s);
/* All have heard their workers' last words. */
bool followers_are_gone(const struct server *s);
/* Then: until all that they have to say is here. */
void followers_dismiss(struct server *s);

/* ---- server_gather.c; likewise ----------------------------------------------------------------
 */
/* Has all stand still, and waits until the parameters of all are in followers.parameters, and the
 * optimizer's state in followers.states. False: they will not come; then the run has failed. */
bool followers_gather(struct server *s, bool states);

/* ---- server_training.c ------------------------------------------------------------------------
 */
/* Hands the oldest event to the core. False: there is none, or it has to wait. */
bool training_feed(struct server *s);
/* The core learns that the run is over, whatever ended it; what still comes is only recorded. */
void training_end(struct server *s);
void training_evaluated(struct server *s);
/* Of a run that is told to stop while it evaluates: waits for that, but not for long. Where it was
 * the last one, the run has ended well. */
void training_keep_evaluation(struct server *s);
void training_probed(struct server *s);
void training_progress(struct server *s);
void training_checkpoint(struct server *s);

/* ---- server_leader.c; all for those that follow alone -----------------------------------------
 */
status leader_open(struct server *s) MUST_CHECK;
void leader_close(struct server *s);
/* False: there is more. */
bool leader_receive(struct server *s);
void leader_tick(struct server *s, uint64_t now);

/* ---- server_watch.c ---------------------------------------------------------------------------
 */
/* Deaths, silence and hanging workers; call it when nothing more is to be received. */
void peers_tick(struct server *s, uint64_t now);
/* Nobody looked after the peers for `away_ns`, until now. */
void server_was_away(struct server *s, uint64_t away_ns, uint64_t now);

/* ---- server.c ---------------------------------------------------------------------------------
 */
/* Takes all that has come; false: there is more. */
bool server_receive(struct server *s);
void server_wait(struct server *s);

#endif
