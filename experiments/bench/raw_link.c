/* raw_link.c — see raw_link.h. */
#include "experiments/bench/raw_link.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

static status failed(const char *what)
{
    return error_set(ERROR_PEER, __FILE__, __LINE__,
                     "a raw connection on loopback cannot %s: %s; the other end may have died",
                     what, strerror(errno));
}

static struct sockaddr_in loopback(unsigned port)
{
    return (struct sockaddr_in){.sin_family = AF_INET,
                                .sin_port = htons((uint16_t)port),
                                .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
}

static status set_limits(struct raw_link *l)
{
    status result = OK;
    const struct timeval limit = {.tv_sec = (time_t)l->timeout_s};
    const int yes = 1;
    if (setsockopt(l->fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit) != 0 ||
        setsockopt(l->fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit) != 0 ||
        setsockopt(l->fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes) != 0)
        TRY(failed("set its options"));
done:
    return result;
}

status raw_link_listen(struct raw_link *l, unsigned timeout_s, unsigned *port)
{
    status result = OK;
    struct sockaddr_in address = loopback(0);
    socklen_t size = sizeof address;
    *l = (struct raw_link){socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), timeout_s};
    if (l->fd < 0 || bind(l->fd, (struct sockaddr *)&address, size) != 0 || listen(l->fd, 1) != 0 ||
        getsockname(l->fd, (struct sockaddr *)&address, &size) != 0)
        TRY(failed("listen"));
    *port = ntohs(address.sin_port);
done:
    return result;
}

status raw_link_accept(struct raw_link *l)
{
    status result = OK;
    struct pollfd one = {.fd = l->fd, .events = POLLIN};
    int code, fd = -1;
    do
        code = poll(&one, 1, (int)l->timeout_s * 1000);
    while (code < 0 && errno == EINTR);
    if (code > 0)
        fd = accept4(l->fd, NULL, NULL, SOCK_CLOEXEC);
    if (fd < 0)
        TRY(failed("accept"));
    close(l->fd);
    l->fd = fd;
    TRY(set_limits(l));
done:
    return result;
}

status raw_link_connect(struct raw_link *l, unsigned timeout_s, unsigned port)
{
    status result = OK;
    const struct sockaddr_in address = loopback(port);
    *l = (struct raw_link){socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), timeout_s};
    if (l->fd < 0 || connect(l->fd, (const struct sockaddr *)&address, sizeof address) != 0)
        TRY(failed("connect"));
    TRY(set_limits(l));
done:
    return result;
}

status raw_link_send(struct raw_link *l, const void *bytes, size_t size)
{
    status result = OK;
    const char *at = bytes;
    for (size_t left = size; left > 0;) {
        ssize_t sent = send(l->fd, at + (size - left), left, MSG_NOSIGNAL);
        if (sent < 0 && errno == EINTR)
            continue;
        if (sent <= 0)
            TRY(failed("send"));
        left -= (size_t)sent;
    }
done:
    return result;
}

status raw_link_receive(struct raw_link *l, void *bytes, size_t size, bool *ended)
{
    status result = OK;
    char *at = bytes;
    *ended = false;
    for (size_t left = size; left > 0;) {
        ssize_t got = recv(l->fd, at + (size - left), left, 0);
        if (got < 0 && errno == EINTR)
            continue;
        *ended = got == 0 && left == size;
        if (*ended)
            goto done;
        if (got <= 0)
            TRY(failed("receive"));
        left -= (size_t)got;
    }
done:
    return result;
}

void raw_link_close(struct raw_link *l)
{
    if (l->fd >= 0)
        close(l->fd);
    l->fd = -1;
}
