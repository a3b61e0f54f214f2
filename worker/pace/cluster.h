/*
 * cluster.h — durations in a virtual cluster: steps, messages, the server's updates, and the times
 * at which workers crash. All times are nanoseconds on the virtual clock.
 *
 * A message takes the latency plus an exponentially distributed time of mean network.jitter_ms.
 * Messages of an allreduce have no jitter. Gradients and parameters first take their transfer time:
 * each worker and each server has a full-duplex link, and its transfers share the link's rate
 * (ps/virtual/shared_links.h). The server makes one update at a time. A worker runs for an
 * exponentially distributed time of mean crash.mtbf_s and is then absent for an exponentially
 * distributed time of mean crash.down_s. With workers.max, each worker beyond key workers joins for
 * the first time after an exponentially distributed time of mean join.after_s.
 *
 * network.racks divides the workers, in order, into R racks whose sizes differ by at most one. Each
 * rack has one full-duplex uplink to a core without limits, where the servers are.
 *
 * With network.rack_servers each rack has a server that adds the gradients of its workers and sends
 * the sum over the uplink; parameters take the opposite way. A message between a worker and its
 * rack server has the same latency and jitter as other messages. A rack server has one full-duplex
 * link to its workers and one to the uplink, both with the bandwidth of a worker's link. Its sums
 * take no time.
 *
 * An allreduce of b bytes over W ranks (latency L, bandwidth B of a rank's link, U of an uplink):
 *
 *   ring          2 (W − 1) · (L + b/W / min(B, U))        Patarasuk & Yuan 2009, section 3
 *   hierarchical  2 (n − 1) · (L + b/n / B) + 2 (R − 1) · (L + b/n / R / min(B, U/n))
 *
 * In each round of the ring every rank sends b/W bytes to the next rank. The ranks are in the order
 * of the racks, so in each rack one rank sends over the uplink and one rank receives over it. All
 * ranks wait for the slowest link. The hierarchical allreduce (Cho et al. 2019, BlueConnect, with
 * two levels) is a reduce-scatter in each rack of n ranks, a ring over the racks for each n-th of
 * the vector, and an allgather in each rack. n is the size of the largest rack. n rings share an
 * uplink.
 *
 * Correlated slow-downs: virtual time is cut into windows of pace.window_s. In each window each
 * rack, or the whole cluster, is slow with probability pace.window_share. A step that begins in a
 * slow window takes pace.window_factor times as long. The draws come from stream (RANDOM_SLOWDOWN,
 * seed, rack, window).
 */
#ifndef GRADLAG_WORKER_PACE_CLUSTER_H
#define GRADLAG_WORKER_PACE_CLUSTER_H

#include "base/text.h"
#include "worker/pace/pace.h"

struct cluster {
    const pace *pace; /* borrowed */
    uint64_t seed;
    double latency_ns, apply_ns, lives_ns, down_ns; /* lives_ns 0: no crashes */
    double jitter_ns;                               /* mean; 0: no jitter */
    /* Links of a worker or rank (each direction), of a server, and of a rack; 0: unlimited. */
    double ns_per_byte, server_out_ns_per_byte, server_in_ns_per_byte, uplink_ns_per_byte;
    double joins_ns;         /* mean time until a late worker joins */
    unsigned workers, racks; /* workers: including late ones; racks 0: no racks */
    bool hierarchical;       /* kind of allreduce; false: ring */
    bool rack_servers;
    double window_ns, window_share, window_factor; /* window_ns 0: no correlated slow-downs */
    bool window_of_rack;                           /* a window slows a rack; false: all workers */
};

/* The rack of a worker, 0 … racks − 1; racks ≥ 1. */
unsigned cluster_rack_of(unsigned worker, unsigned workers, unsigned racks);

/* Reads keys network.*, server.apply_ms, crash.*, join.*, pace.window*, workers* and seed. */
void cluster_open(struct cluster *c, const options *o, const pace *steps);

/* ERROR_USAGE: settings of racks and slow-downs that contradict each other. */
status cluster_check(const options *o) MUST_CHECK;

/* Adds the names of what a virtual run with these settings does not model, separated by spaces. */
void cluster_not_modelled(const options *o, struct text *out);

/* `begins_ns`: virtual time; determines the window of a correlated slow-down. */
uint64_t cluster_step_ns(const struct cluster *c, unsigned worker, uint64_t step,
                         uint64_t begins_ns);
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
/* When a late worker joins for the first time. */
uint64_t cluster_join_ns(const struct cluster *c, unsigned worker);

#endif
