/*
 * server_state.h — what the files of the server share; nobody else includes it.
 *
 *   server.c          the loop, the clock of peers, beginning and end
 *   server_peers.c    who is who: what arrives, what is refused, who is lost
 *   server_training.c events into the core, actions out of it; records, evaluation, checkpoints
 *
 * Invariants
 *   S1  the core is fed from one place, training_feed(), in order of arrival, and never while an
 *       evaluation or a probe is under way whose run goes on.
 *   S2  a peer that is not a member (state, incarnation and connection) changes nothing.
 *   S3  training time stands still during evaluations, probes and checkpoints.
 */
#ifndef GRADLAG_PS_SERVER_STATE_H
#define GRADLAG_PS_SERVER_STATE_H

#include "ps/channel.h"
#include "ps/evaluator.h"
#include "ps/payload.h"
#include "ps/probe.h"
#include "ps/server.h"
#include "ps/server_core.h"

enum peer_state {
    PEER_ABSENT,   /* never came, or was lost: its place is free */
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
    uint64_t released_ns;
    struct wire_message release;
};

enum event_kind { EVENT_HELLO, EVENT_PUSH, EVENT_LOST };
struct event {
    enum event_kind kind;
    unsigned worker;
};

struct server {
    const struct ps_server_options *o;
    channel *channel;
    payload_area *payload;
    crew *helpers;
    server_core *core;
    evaluator *evaluator;
    int wake_fd;                       /* epoll: the evaluator and the members' pidfds */
    unsigned timeout_ms, push_samples; /* the most samples of a push */
    bool lost_ends_run;                /* on_lost=stop */
    bool record_pushes, offer_shared, checkpoints;

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
    uint64_t moved_ns, longest_step_ns; /* see look_for_hanging() */
    bool stuck_named;

    /* training clock: see training_ns_at() */
    uint64_t began_ns, paused_ns, pause_from_ns, pause_to_ns;

    unsigned evaluated_slot;
    uint64_t evaluated_version, next_checkpoint;
    uint64_t checkpoint_samples; /* between checkpoints; 0: only at the end */
    double loss_sum, smooth_loss, staleness_sum, test_accuracy;
    uint64_t loss_count, staleness_count, refused;
};

/* server.c */
void server_fail(struct server *s, status code, const char *format, ...) PRINTF_LIKE(3, 4);
void server_watch(struct server *s, int fd);
void server_event(struct server *s, enum severity severity, const char *code, int w,
                  const char *detail);
/* One that goes into the queue next: its place among the pushes is known already. */
void server_event_queued(struct server *s, enum severity severity, const char *code, unsigned w,
                         const char *detail);

/* server_peers.c */
void peers_handle(struct server *s, enum channel_event event, const struct channel_received *r);
/* Deaths, silence and hanging workers; call it when nothing more is to be received. */
void peers_tick(struct server *s, uint64_t now);
void peers_release(struct server *s, unsigned w);
void peers_end(struct server *s, status code, const char *text);
/* Ends the run or frees the place, as on_lost says. */
void peers_lose(struct server *s, unsigned w, status code, const char *why);
/* Something went on: a release, a push or a part of one, the end of a pause. */
void peers_moved(struct server *s);
unsigned peers_in(const struct server *s, enum peer_state state);
/* "worker 3 (process 77), worker 5"; those whose state is `state`. */
void peers_name(const struct server *s, enum peer_state state, char *out, size_t size);

/* server_training.c */
void training_begin(struct server *s);
void training_queue(struct server *s, enum event_kind kind, unsigned w);
/* Hands the oldest event to the core. False: there is none, or it has to wait. */
bool training_feed(struct server *s);
/* The core learns that the run is over, whatever ended it; what still comes is only recorded. */
void training_end(struct server *s);
void training_evaluated(struct server *s);
void training_probed(struct server *s);
void training_progress(struct server *s);
void training_checkpoint(struct server *s);
double training_seconds(const struct server *s);
/* Training nanoseconds at clock_ns() time `t`: later than the begin of the last pause but one. */
uint64_t training_ns_at(const struct server *s, uint64_t t);

#endif
