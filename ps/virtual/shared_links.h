/*
 * shared_links.h — end times of transfers that share links between workers and servers. One object
 * is one direction of a virtual cluster.
 *
 * Each worker and each server has one link. If the workers are in racks, each rack has an uplink,
 * and the servers are outside the racks. A transfer uses a path: the link of its worker, the uplink
 * of the worker's rack, and the link of its server. The transfers on a link share its rate. Each
 * transfer has a weight. Rates are weighted max-min fair (Bertsekas & Gallager 1992, Data Networks,
 * section 6.5.2): on one link of its path, a transfer has the largest ratio of rate to weight, and
 * that link is full. The model is a fluid; it has neither packets nor queues.
 *
 * The weights model TCP: competing connections get equal shares on average, but not in each
 * transfer. With exactly equal shares, workers that start together stay together: all send, then
 * all receive, and each direction is idle half of the time. Real workers drift apart.
 *
 * Each pair of worker and server has at most one transfer. A start or an end costs time
 * proportional to the number of active transfers; starts and ends at the same time are handled
 * together. Only shared_links_open() allocates. One thread uses an object.
 */
#ifndef GRADLAG_PS_VIRTUAL_SHARED_LINKS_H
#define GRADLAG_PS_VIRTUAL_SHARED_LINKS_H

#include "base/status.h"

struct link_use;
struct transfer;

struct links_shape {
    unsigned workers, servers;
    unsigned racks; /* 0: no uplinks. A worker's rack: cluster_rack_of() (worker/pace/cluster.h) */
    /* Bytes per ns of each link; INFINITY: no limit. */
    double worker_rate, server_rate, uplink_rate;
};

struct shared_links {
    struct links_shape shape;
    struct link_use *use;       /* [workers + servers + racks] */
    struct transfer *transfers; /* [workers * servers]; the active ones first, oldest first */
    struct transfer **open;     /* [workers * servers]: the active ones without a rate, in order */
    unsigned count;             /* of active transfers */
    uint64_t now_ns;            /* the time at which `left` of each transfer holds */
    bool changed;               /* a transfer started or ended since the rates were computed */
};

status shared_links_open(struct shared_links *l, const struct links_shape *shape) MUST_CHECK;
void shared_links_close(struct shared_links *l);

/* Starts a transfer. `now_ns` must not decrease from call to call; `weight` > 0. */
void shared_links_start(struct shared_links *l, unsigned worker, unsigned server, double bytes,
                        double weight, uint64_t now_ns);
/* Removes the worker's transfers before they end. */
void shared_links_cancel(struct shared_links *l, unsigned worker, uint64_t now_ns);
/* When the next transfer ends; UINT64_MAX: none is active. */
uint64_t shared_links_next(struct shared_links *l);
/* Removes a transfer that has ended by `now_ns` (at most shared_links_next()). False: none has. */
bool shared_links_take(struct shared_links *l, uint64_t now_ns, unsigned *worker, unsigned *server);
/* The worker of the i-th active transfer, oldest first. */
unsigned shared_links_worker(const struct shared_links *l, unsigned i);

#endif
