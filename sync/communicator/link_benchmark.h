/*
 * link_benchmark.h — latency and bandwidth between hosts, by MPI's messages between the first rank
 * of each: `gradlag check --links`.
 */
#ifndef GRADLAG_SYNC_COMMUNICATOR_LINK_BENCHMARK_H
#define GRADLAG_SYNC_COMMUNICATOR_LINK_BENCHMARK_H

#include "sync/communicator/communicator.h"

enum { LINK_HOST_BYTES = 64 };

struct link_end {
    char host[LINK_HOST_BYTES];
    unsigned rank;       /* the host's first */
    double nominal_gbps; /* host_networks_nominal_gbps(); 0: not known */
};

struct link_rates {
    double latency_s;         /* half of the median round trip of 8 bytes */
    double forward, backward; /* bytes/s of a large message, from the first end to the second and
                                 back */
};

/* *ends ← the hosts in order of their first ranks, the caller's to free. Collective. */
status link_benchmark_find(communicator *c, struct link_end **ends, unsigned *count) MUST_CHECK;
/* Between two ranks; collective, and all others wait meanwhile. *out is of use on `first` alone.
 * Takes one to three seconds; a slow link longer. ERROR_PEER: a message took longer than
 * timeout_s. */
status link_benchmark_measure(communicator *c, unsigned first, unsigned second,
                              struct link_rates *out) MUST_CHECK;
/* One mean of `count` floats over all ranks, in seconds (the best of three); collective. */
status link_benchmark_mean_seconds(communicator *c, size_t count, double *out) MUST_CHECK;

#endif
