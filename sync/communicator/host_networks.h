/*
 * host_networks.h — the networks of this host, for ranks on several hosts: which of them Open MPI's
 * messages may take, and which they took. Linux names: "eth0".
 */
#ifndef GRADLAG_SYNC_COMMUNICATOR_HOST_NETWORKS_H
#define GRADLAG_SYNC_COMMUNICATOR_HOST_NETWORKS_H

#include "base/text.h"

/* Before MPI_Init, of ranks on several hosts. `chosen`: key network.interface, names or IPv4
 * subnets (10.0.0.0/8), comma-separated; ERROR_USAGE names the interfaces that are there. NULL or
 * empty: all but the bridges of containers and virtual machines, which have the same addresses on
 * every host. What the user set for Open MPI itself (btl_tcp_if_include, btl_tcp_if_exclude) stays
 * then.
 */
status host_networks_choose(const char *chosen) MUST_CHECK;

/* Adds "eth0 10.0.0.1, docker0 172.17.0.1": the IPv4 and IPv6 addresses but loopback and link-local
 * ones; "none" where there are none. */
void host_networks_add_interfaces(struct text *out);

/* Adds "tcp eth0 (10.0.0.1)": the interfaces of this process's TCP connections to other hosts.
 * False: there are none. */
bool host_networks_add_used(struct text *out);

/* The nominal rate of the fastest network interface, by the kernel; 0: it is not known. */
double host_networks_nominal_gbps(void);

#endif
