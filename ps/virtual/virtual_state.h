/*
 * virtual_state.h — what the files of the virtual cluster share. No other file includes it.
 *
 *   virtual.c           events, and the run
 *   virtual_messages.c  messages: who sends what to whom, and when it arrives
 *
 * A unit is what sends to the servers: one worker, or with rack servers (key network.rack_servers)
 * all workers of a rack. The workers of a unit are consecutive. The state of a unit is that of its
 * first worker.
 *
 * A gradient passes these steps. The worker computes it (COMPUTED). With rack servers it is
 * transferred to the rack server (RELAYED); the rack server adds the gradients of its workers, and
 * the last one completes the sum. The sum, or the gradient, is transferred to the servers
 * (ARRIVAL). After the update each server transfers its parameters to the unit (REPLY), and a rack
 * server transfers them to each of its workers (RELAYED).
 */
#ifndef GRADLAG_PS_VIRTUAL_VIRTUAL_STATE_H
#define GRADLAG_PS_VIRTUAL_VIRTUAL_STATE_H

#include "ps/virtual/event_queue.h"
#include "ps/virtual/shared_links.h"
#include "ps/virtual/virtual.h"
#include "worker/pace/cluster.h"
#include "ps/virtual/simulation.h"

/* Events of a worker. ARRIVAL and REPLY exist once per server, and only for the first worker of a
 * unit. COMPUTED and REPLY exist only if messages are transferred over links. */
enum virtual_kind {
    ARRIVAL,  /* its gradient has arrived at the server. With snapshots, at server 0 only: the
               * gradient has arrived at all servers, and server 0 knows it */
    LIFE,     /* it dies, or joins (again) */
    COMPUTED, /* the transfer of its gradient starts */
    REPLY,    /* the transfer of the server's reply starts; or the reply has arrived */
    RELAYED,  /* its gradient has arrived at its rack server, or its parameters have arrived from
               * there */
};

struct virtual_worker {
    uint64_t got_ns, computed_ns; /* when its parameters arrived; when its gradient is computed */
    uint64_t waited_ns;           /* how long the worker waited for these parameters */
    uint64_t life, away_ns;
    unsigned parts_left, replies_left; /* of the unit: servers that its gradient has not reached;
                                          servers whose reply has not arrived */
    unsigned gathered;                 /* of the unit: gradients that its rack server has summed */
    uint64_t reply_number;             /* of the unit: number to draw the replies' weight with */
    bool began, dead;
    bool sends; /* its gradient is on the way to its rack server, or waits there for the sum */
};

struct virtual_server {
    uint64_t begin_ns, end_ns; /* begin and end of its work on the last event */
    size_t bytes;              /* of its slice of the parameters, in a message */
};

/* A worker at one server. */
struct virtual_place {
    uint64_t replied_ns, arrived_ns;
    uint64_t messages; /* number of messages between them so far */
    unsigned released; /* of the unit: workers that the server has released since its last reply */
    bool reply_sent;
};

struct cluster_run {
    const struct virtual_options *o;
    struct cluster cluster;
    simulation *simulation;
    struct event_queue queue;
    unsigned count; /* number of servers */
    unsigned kinds; /* number of events per worker */
    unsigned units;
    bool snapshots;
    unsigned most; /* workers, with late ones */
    bool limited;  /* messages are transferred over links; else a transfer takes no time */
    struct shared_links to_servers, to_workers;           /* of units */
    struct shared_links to_rack_servers, to_rack_workers; /* of workers, if `relays` */
    bool relays;                                          /* key network.rack_servers */
    uint64_t now_ns;                                      /* of the last event */
    struct virtual_server *servers;
    struct virtual_worker *workers;
    struct virtual_place *places; /* [workers][servers] */
    uint64_t version, deaths;     /* deaths since the latest version */
};

unsigned event_of(const struct cluster_run *c, unsigned w, enum virtual_kind kind, unsigned server);
struct virtual_place *place_of(const struct cluster_run *c, unsigned w, unsigned server);
/* The workers of the unit of worker `w` are [first, end). */
unsigned unit_first(const struct cluster_run *c, unsigned w);
unsigned unit_end(const struct cluster_run *c, unsigned w);

/* ---- virtual_messages.c ---- */

status messages_open(struct cluster_run *c) MUST_CHECK;
void messages_close(struct cluster_run *c);
/* Call it when a server has released worker `w`. `everywhere`: all servers have. */
void messages_release(struct cluster_run *c, unsigned server, unsigned w, bool everywhere);
/* Events COMPUTED, REPLY and RELAYED. */
void messages_computed(struct cluster_run *c, unsigned w, uint64_t now);
void messages_reply(struct cluster_run *c, unsigned server, unsigned w, uint64_t now);
void messages_relayed(struct cluster_run *c, unsigned w, uint64_t now);
/* Removes the messages of a worker that died. */
void messages_cancel(struct cluster_run *c, unsigned w, uint64_t now);
/* When the next transfer ends; UINT64_MAX: there is none. */
uint64_t messages_next(struct cluster_run *c);
/* Transfers end now. A message arrives one latency after the end of its transfer. */
void messages_end(struct cluster_run *c, uint64_t now);

#endif
