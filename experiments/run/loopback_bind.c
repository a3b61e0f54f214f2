/*
 * loopback_bind.c — a library for LD_PRELOAD of mpirun when all ranks are on this host: it binds
 * sockets to loopback instead of other addresses.
 *
 * mpirun opens a port for daemons on other hosts. Open MPI 4.1 and 5.0 bind it to all addresses
 * even if oob_tcp_if_include is set, and anyone who reaches the port can make mpirun start
 * processes. Open MPI 6.0 binds a port to the address of a network, even with prte_if_include=lo.
 * This file is not linked into the program: it is compiled separately and embedded (Makefile;
 * mpirun.c).
 */
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

int bind(int fd, const struct sockaddr *address, socklen_t size)
{
    struct sockaddr_in v4;
    struct sockaddr_in6 v6;
    if (address->sa_family == AF_INET && size >= sizeof v4) {
        v4 = *(const struct sockaddr_in *)(const void *)address;
        if (ntohl(v4.sin_addr.s_addr) >> IN_CLASSA_NSHIFT != IN_LOOPBACKNET) {
            v4.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
            address = (const struct sockaddr *)&v4;
        }
    } else if (address->sa_family == AF_INET6 && size >= sizeof v6) {
        v6 = *(const struct sockaddr_in6 *)(const void *)address;
        if (!IN6_IS_ADDR_LOOPBACK(&v6.sin6_addr)) {
            v6.sin6_addr = in6addr_loopback;
            address = (const struct sockaddr *)&v6;
        }
    }
    return (int)syscall(SYS_bind, fd, address, size);
}
