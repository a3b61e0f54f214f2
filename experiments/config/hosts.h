/*
 * hosts.h — key `hosts`: the hosts of a run, and how many of its workers or ranks each may have.
 *
 * Workers and ranks are numbered in the order of the hosts: with a:4,b:2 workers 0 to 3 are on a,
 * 4 and 5 on b. The starter, the servers and the results file are on this host.
 */
#ifndef GRADLAG_EXPERIMENTS_CONFIG_HOSTS_H
#define GRADLAG_EXPERIMENTS_CONFIG_HOSTS_H

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>

enum { HOST_NAME_BYTES = 256, HOST_ADDRESS_BYTES = 64 };

struct run_host {
    char name[HOST_NAME_BYTES]; /* a name or IPv4 address, as mpirun takes it */
    unsigned slots;             /* workers or ranks that it may have, at least 1 */
    bool is_here;               /* it is this host */
};
struct hosts { /* zero-initialise */
    struct run_host *at;
    size_t count;    /* 0: the key is empty; everything runs on this host */
    bool are_slurms; /* they are the nodes of the Slurm allocation */
};

/* Reads "a:4,b:4" (without a number: 1), a path of a file with one host on each line ("a:4" or
 * "a slots=4"; # begins a comment), or "slurm", the nodes and tasks of the allocation. "" and
 * "localhost" (without a number) give no hosts. ERROR_USAGE: malformed, a host is listed twice, or
 * there is no allocation. */
status hosts_read(struct hosts *out, const char *text) MUST_CHECK;
void hosts_free(struct hosts *h);

unsigned hosts_slots(const struct hosts *h);
/* The number of workers 0 … `workers` − 1 that host `index` has, and the first of them. */
unsigned hosts_workers_of(const struct hosts *h, size_t index, unsigned workers, unsigned *first);
/* True inside a Slurm allocation of several nodes. */
bool hosts_in_allocation(void);

/* The address of this host that `host` reaches: the source address of packets to `host`. If
 * network.interface (`chosen`) is set and does not have that address, its first address.
 * ERROR_USAGE: the name is unknown, or there is no such interface. */
status hosts_own_address(const struct run_host *host, const char *chosen,
                         char out[HOST_ADDRESS_BYTES]) MUST_CHECK;

#endif
