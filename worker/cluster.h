/*
 * cluster.h — what a virtual cluster's machines and wires take: steps, messages, the server's
 * updates, and when workers die. Times are nanoseconds on the virtual clock.
 *
 * A message takes the latency, and an exponentially distributed time of mean network.jitter_ms
 * longer (messages of an allreduce: not). Before that, gradients and parameters take the time of
 * their transfer: each worker and each server has a link, full duplex, whose rate its transfers
 * share (ps/shared_links.h). The server makes one update at a time. A worker lives for an
 * exponentially distributed time of mean crash.mtbf_s, and is back after one of mean crash.down_s.
 *
 * An allreduce over W ranks is a ring's (Patarasu & Yuan 2009, section 3): 2 (W − 1) rounds, in
 * each of which every rank sends b/W bytes: 2 (W − 1) latency + 2 (W − 1)/W · b / bandwidth.
 */
#ifndef GRADLAG_WORKER_CLUSTER_H
#define GRADLAG_WORKER_CLUSTER_H

#include "worker/pace.h"

struct cluster {
    const pace *pace; /* borrowed */
    uint64_t seed;
    double latency_ns, apply_ns, lives_ns, down_ns; /* lives_ns 0: for ever */
    double jitter_ns;                               /* mean; 0: none */
    /* Of a worker's or rank's link, each way, and of a server's; 0: no limit. */
    double ns_per_byte, server_out_ns_per_byte, server_in_ns_per_byte;
};

/* Reads keys network.*, server.apply_ms, crash.* and seed. */
void cluster_open(struct cluster *c, const options *o, const pace *steps);

uint64_t cluster_step_ns(const struct cluster *c, unsigned worker, uint64_t step);
uint64_t cluster_latency_ns(const struct cluster *c);
/* Weight of a worker's transfers among those that they share links with: exponentially distributed,
 * of mean 1. `message`: any numbering. */
double cluster_share(const struct cluster *c, unsigned worker, uint64_t message);
/* What message number `message` (any numbering) of a worker takes longer. */
uint64_t cluster_jitter_ns(const struct cluster *c, unsigned worker, uint64_t message);
uint64_t cluster_allreduce_ns(const struct cluster *c, unsigned ranks, size_t bytes);
/* How long a worker's life number `life` (0, 1, …) lasts, and how long it is away after it. False:
 * it does not end. */
bool cluster_life_ns(const struct cluster *c, unsigned worker, uint64_t life, uint64_t *lives,
                     uint64_t *away);

#endif
