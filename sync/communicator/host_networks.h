/*
 * host_networks.h — the networks of this host, for ranks on several hosts: which of them Open MPI
 * may use, and which it uses. Names are Linux's: "eth0".
 */
#ifndef GRADLAG_SYNC_COMMUNICATOR_HOST_NETWORKS_H
#define GRADLAG_SYNC_COMMUNICATOR_HOST_NETWORKS_H

#include "base/text.h"

/* Call it before MPI_Init if ranks are on several hosts. `chosen`: key network.interface, names or
 * IPv4 subnets (10.0.0.0/8), separated by commas. ERROR_USAGE: this host has no such interface; the
 * message lists its interfaces. NULL or empty: all interfaces except bridges of containers and
 * virtual machines, which have the same addresses on every host; a user's own
 * btl_tcp_if_include or btl_tcp_if_exclude is kept. */
status host_networks_choose(const char *chosen) MUST_CHECK;

/* Writes an IPv4 address of this host into `out` of `room` bytes. `chosen` (key network.interface)
 * names the addresses that count. The function writes `wanted` if it is among them, else the first;
 * `wanted` may be "". ERROR_USAGE: this host has no such address. */
status host_networks_address(const char *chosen, const char *wanted, char *out,
                             size_t room) MUST_CHECK;

/* Adds "eth0 10.0.0.1, docker0 172.17.0.1": IPv4 and IPv6 addresses without loopback and link-local
 * ones; "none" if there is none. */
void host_networks_add_interfaces(struct text *out);

/* Adds "tcp eth0 (10.0.0.1)": the interfaces of this process's TCP connections to other hosts.
 * Returns false and adds nothing if there is none. */
bool host_networks_add_used(struct text *out);

/* Nominal rate of the fastest network interface in Gbit/s, as the kernel reports it; 0: unknown. */
double host_networks_nominal_gbps(void);

#endif
