/*
 * network.h — the networks of this host, for ranks on several hosts: which of them Open MPI's
 * messages may take, and which they took. Linux names: "eth0".
 */
#ifndef GRADLAG_SYNC_NETWORK_H
#define GRADLAG_SYNC_NETWORK_H

#include "worker/base.h"

/* Before MPI_Init, of ranks on several hosts. `chosen`: key network.interface, names or IPv4
 * subnets (10.0.0.0/8), comma-separated; ERROR_USAGE names the interfaces that are there. NULL or
 * empty: all but the bridges of containers and virtual machines, which have the same addresses on
 * every host. What the user set for Open MPI itself (btl_tcp_if_include, btl_tcp_if_exclude) stays
 * then.
 */
status network_choose(const char *chosen) MUST_CHECK;

/* Adds "eth0 10.0.0.1, docker0 172.17.0.1": the IPv4 and IPv6 addresses but loopback and link-local
 * ones; "none" where there are none. */
void network_add_interfaces(struct text *out);

/* Adds "tcp eth0 (10.0.0.1)": the interfaces of this process's TCP connections to other hosts.
 * False: there are none. */
bool network_add_used(struct text *out);

/* The nominal rate of the fastest network interface, by the kernel; 0: it is not known. */
double network_nominal_gbps(void);

#endif
