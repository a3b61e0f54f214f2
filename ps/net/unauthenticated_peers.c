/* unauthenticated_peers.c — see unauthenticated_peers.h. */
#include "ps/net/unauthenticated_peers.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/memory.h"

#include <linux/tcp.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/socket.h>
#include <zmq.h>

enum {
    WATCHED_MAX = 1024, /* connections; further ones are not watched */
    CHECK_MS = 100,
};

struct unauthenticated_peer {
    int fd;
    bool above; /* at the last check it had already sent too much */
};

struct unauthenticated_peers {
    void *monitor;
    uint64_t checked_ns;
    struct unauthenticated_peer at[WATCHED_MAX];
    unsigned count;
};

static void forget(unauthenticated_peers *p, unsigned i)
{
    p->at[i] = p->at[--p->count];
}

static void forget_connection(unauthenticated_peers *p, int fd)
{
    for (unsigned i = p->count; i-- > 0;)
        if (p->at[i].fd == fd)
            forget(p, i);
}

/* ---- connections ---------------------------------------------------------------------------- */

/* Reads the monitor's next event. It has two frames: a number and a file descriptor; an address. */
static bool next_event(unauthenticated_peers *p, uint16_t *event, int32_t *fd)
{
    uint8_t bytes[6], address[1];
    if (zmq_recv(p->monitor, bytes, sizeof bytes, ZMQ_DONTWAIT) != sizeof bytes)
        return false;
    memcpy(event, bytes, sizeof *event);
    memcpy(fd, bytes + sizeof *event, sizeof *fd);
    return zmq_recv(p->monitor, address, sizeof address, ZMQ_DONTWAIT) >= 0;
}

static void read_events(unauthenticated_peers *p)
{
    uint16_t event;
    int32_t fd;
    while (next_event(p, &event, &fd)) {
        forget_connection(p, fd); /* the connection is closed, or its number was reused */
        if (event == ZMQ_EVENT_ACCEPTED && p->count < WATCHED_MAX)
            p->at[p->count++] = (struct unauthenticated_peer){.fd = fd};
    }
}

/* ZeroMQ reports a connection before it delivers a message of it. */
void unauthenticated_peers_admit(unauthenticated_peers *p, int fd)
{
    read_events(p);
    forget_connection(p, fd);
}

/* ---- the limit ------------------------------------------------------------------------------ */

/* False: the descriptor is not a TCP connection any more. */
static bool bytes_of(int fd, uint64_t *out)
{
    struct tcp_info info = {0};
    socklen_t size = sizeof info;
    if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size) != 0)
        return false;
    *out = info.tcpi_bytes_received;
    return true;
}

/* Closes a connection only at the second check: its first message with the token may have arrived
 * after all messages were read, and will be read before the next check. */
void unauthenticated_peers_check(unauthenticated_peers *p)
{
    uint64_t bytes;
    const uint64_t now = clock_ns();
    if (now - p->checked_ns < CHECK_MS * 1000000ULL)
        return;
    p->checked_ns = now;
    read_events(p);
    for (unsigned i = p->count; i-- > 0;) {
        struct unauthenticated_peer *c = &p->at[i];
        if (!bytes_of(c->fd, &bytes)) {
            forget(p, i);
        } else if (bytes <= UNAUTHENTICATED_BYTES) {
            continue;
        } else if (!c->above) {
            c->above = true;
        } else {
            /* ZeroMQ notices the shutdown and closes the connection. */
            (void)shutdown(c->fd, SHUT_RDWR);
            log_debug("closed a connection that sent %llu bytes without the run's token",
                      (unsigned long long)bytes);
            forget(p, i);
        }
    }
}

/* ---- open and close ------------------------------------------------------------------------- */

status unauthenticated_peers_open(unauthenticated_peers **out, void *context, void *socket)
{
    status result = OK;
    unauthenticated_peers *p = NULL;
    static const char place[] = "inproc://unauthenticated";
    const int none = 0;
    *out = NULL;
    TRY(memory_new(&p, 1, sizeof *p, "the list of new connections"));
    p->monitor = zmq_socket(context, ZMQ_PAIR);
    /* RCVHWM 0: no limit. With a limit ZeroMQ's thread would block when the queue is full. */
    if (p->monitor == NULL ||
        zmq_socket_monitor(socket, place, ZMQ_EVENT_ACCEPTED | ZMQ_EVENT_DISCONNECTED) != 0 ||
        zmq_setsockopt(p->monitor, ZMQ_LINGER, &none, sizeof none) != 0 ||
        zmq_setsockopt(p->monitor, ZMQ_RCVHWM, &none, sizeof none) != 0 ||
        zmq_connect(p->monitor, place) != 0)
        FAIL(ERROR_OTHER, "cannot monitor a ZeroMQ socket: %s", zmq_strerror(zmq_errno()));
    *out = p;
    p = NULL;
done:
    unauthenticated_peers_close(&p, socket);
    return result;
}

void unauthenticated_peers_close(unauthenticated_peers **p, void *socket)
{
    if (p == NULL || *p == NULL)
        return;
    zmq_socket_monitor(socket, NULL, 0);
    if ((*p)->monitor != NULL)
        zmq_close((*p)->monitor);
    memory_free(*p);
    *p = NULL;
}
