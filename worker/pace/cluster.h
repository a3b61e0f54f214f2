/*
 * cluster.h — durations in a virtual cluster: steps, messages, the server's updates, and the times
 * at which workers crash. All times are nanoseconds on the virtual clock.
 *
 * A message takes the latency plus an exponentially distributed time of mean network.jitter_ms.
 * Messages of an allreduce have no jitter. Gradients and parameters first take their transfer time:
 * each worker and each server has a full-duplex link, and its transfers share the link's rate
 * (ps/virtual/shared_links.h). The server makes one update at a time. A worker runs for an
 * exponentially distributed time of mean crash.mtbf_s and returns after one of mean crash.down_s.
 *
 * An allreduce over W ranks is a ring (Patarasu & Yuan 2009, section 3): 2 (W − 1) rounds, in each
 * of which every rank sends b/W bytes: 2 (W − 1) latency + 2 (W − 1)/W · b / bandwidth.
 */
#ifndef GRADLAG_WORKER_PACE_CLUSTER_H
#define GRADLAG_WORKER_PACE_CLUSTER_H

#include "worker/pace/pace.h"

struct cluster {
    const pace *pace; /* borrowed */
    uint64_t seed;
    double latency_ns, apply_ns, lives_ns, down_ns; /* lives_ns 0: no crashes */
    double jitter_ns;                               /* mean; 0: no jitter */
    /* Links of a worker or rank (each direction) and of a server; 0: unlimited. */
    double ns_per_byte, server_out_ns_per_byte, server_in_ns_per_byte;
};

/* Reads keys network.*, server.apply_ms, crash.* and seed. */
void cluster_open(struct cluster *c, const options *o, const pace *steps);

uint64_t cluster_step_ns(const struct cluster *c, unsigned worker, uint64_t step);
uint64_t cluster_latency_ns(const struct cluster *c);
/* Weight of a worker's transfer on its shared links: exponentially distributed with mean 1.
 * `message` is any number that identifies the transfer. */
double cluster_share(const struct cluster *c, unsigned worker, uint64_t message);
/* Jitter of message number `message` (any numbering) of a worker. */
uint64_t cluster_jitter_ns(const struct cluster *c, unsigned worker, uint64_t message);
uint64_t cluster_allreduce_ns(const struct cluster *c, unsigned ranks, size_t bytes);
/* Sets the duration of a worker's life number `life` (0, 1, …) and of the absence after it. False:
 * the worker does not crash. */
bool cluster_life_ns(const struct cluster *c, unsigned worker, uint64_t life, uint64_t *lives,
                     uint64_t *away);

#endif
