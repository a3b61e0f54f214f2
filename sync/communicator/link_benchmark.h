/*
 * link_benchmark.h — `gradlag check --links`: latency and bandwidth between hosts, measured with
 * MPI messages between the first rank of each.
 */
#ifndef GRADLAG_SYNC_COMMUNICATOR_LINK_BENCHMARK_H
#define GRADLAG_SYNC_COMMUNICATOR_LINK_BENCHMARK_H

#include "sync/communicator/communicator.h"

enum { LINK_HOST_BYTES = 64 };

struct link_end {
    char host[LINK_HOST_BYTES];
    unsigned rank;       /* the host's first */
    double nominal_gbps; /* host_networks_nominal_gbps(); 0: unknown */
};

struct link_rates {
    double latency_s;         /* half of the median round trip of 8 bytes */
    double forward, backward; /* bytes/s of a large message, from the first end to the second and
                                 back */
};

/* *ends ← the hosts in order of their first ranks, owned by the caller. Collective. */
status link_benchmark_find(communicator *c, struct link_end **ends, unsigned *count) MUST_CHECK;
/* Measures between two ranks, one to three seconds, longer over a slow link. Collective; other
 * ranks wait. Only rank `first` gets *out; it is 0 elsewhere. ERROR_PEER: a message took longer
 * than timeout_s. */
status link_benchmark_measure(communicator *c, unsigned first, unsigned second,
                              struct link_rates *out) MUST_CHECK;
/* *out ← seconds of one mean of `count` floats over all ranks, the best of three. Collective. */
status link_benchmark_mean_seconds(communicator *c, size_t count, double *out) MUST_CHECK;

#endif
