/*
 * loopback_bind.c — a library that mpirun is started with (LD_PRELOAD) when all ranks are on this
 * host: a socket that would listen on all addresses listens on loopback.
 *
 * mpirun opens a port for the daemons of other hosts. Open MPI 4.1 and 5.0 bind it to all
 * addresses, whatever oob_tcp_if_include says, and whoever reaches it can make mpirun start
 * processes. Not part of the program: it is compiled by itself and embedded (Makefile; mpirun.c).
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
        if (v4.sin_addr.s_addr == htonl(INADDR_ANY)) {
            v4.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
            address = (const struct sockaddr *)&v4;
        }
    } else if (address->sa_family == AF_INET6 && size >= sizeof v6) {
        v6 = *(const struct sockaddr_in6 *)(const void *)address;
        if (IN6_IS_ADDR_UNSPECIFIED(&v6.sin6_addr)) {
            v6.sin6_addr = in6addr_loopback;
            address = (const struct sockaddr *)&v6;
        }
    }
    return (int)syscall(SYS_bind, fd, address, size);
}
