/*
 * shared_links.h — the links of a virtual cluster in one direction: when transfers between workers
 * and servers end that share them.
 *
 * Each worker and each server has one link. A transfer passes its worker's link and its server's,
 * and a link's rate is shared by the transfers on it. Each transfer has a weight. Rates are
 * weighted max-min fair (Bertsekas & Gallager 1992, Data Networks, section 6.5.2): a transfer's
 * rate over its weight is the largest on one of its links, and that link is full. Transfers are
 * fluids: neither packets nor queues are modelled.
 *
 * Weights stand for what TCP does: competing connections get equal shares on average, not during
 * one transfer. With exactly equal shares workers that start together stay together: all send, then
 * all receive, and each direction is idle half of the time. Real workers drift apart.
 *
 * There is at most one transfer for each pair of worker and server. A start or an end costs
 * time proportional to the number of transfers under way; those at one time are taken together.
 * Nothing is allocated after opening. One thread.
 */
#ifndef GRADLAG_PS_VIRTUAL_SHARED_LINKS_H
#define GRADLAG_PS_VIRTUAL_SHARED_LINKS_H

#include "base/status.h"

struct link_use; /* of one link */
struct transfer;

struct shared_links {
    unsigned workers, servers;
    double worker_rate, server_rate; /* bytes per ns of each link; INFINITY: no limit */
    struct link_use *use;            /* [workers + servers] */
    struct transfer *transfers;      /* [workers * servers], those under way first, oldest first */
    unsigned count;                  /* under way */
    uint64_t now_ns;                 /* what is left of each transfer is as of this time */
    bool changed;                    /* transfers came or went: rates are computed anew */
};

status shared_links_open(struct shared_links *l, unsigned workers, unsigned servers,
                         double worker_rate, double server_rate) MUST_CHECK;
void shared_links_close(struct shared_links *l);

/* Times never decrease from call to call. `weight` > 0. */
void shared_links_start(struct shared_links *l, unsigned worker, unsigned server, double bytes,
                        double weight, uint64_t now_ns);
/* The worker's transfers are gone, unfinished. */
void shared_links_cancel(struct shared_links *l, unsigned worker, uint64_t now_ns);
/* When the next transfer ends; UINT64_MAX: none is under way. */
uint64_t shared_links_next(struct shared_links *l);
/* Takes out a transfer that has ended by `now_ns` (at most shared_links_next()). False: none. */
bool shared_links_take(struct shared_links *l, uint64_t now_ns, unsigned *worker, unsigned *server);
/* Worker of the transfer that began as the i-th of those under way. */
unsigned shared_links_worker(const struct shared_links *l, unsigned i);

#endif
