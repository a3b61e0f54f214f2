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
    WATCHED = 1024, /* connections; further ones are not watched */
    LOOK_MS = 100,
};

struct unauthenticated_peer {
    int fd;
    bool above; /* it had sent too much at the last look */
};

struct newcomers {
    void *monitor;
    uint64_t looked_ns;
    struct unauthenticated_peer at[WATCHED];
    unsigned count;
};

static void forget(unauthenticated_peers *n, unsigned i)
{
    n->at[i] = n->at[--n->count];
}

static void forget_connection(unauthenticated_peers *n, int fd)
{
    for (unsigned i = n->count; i-- > 0;)
        if (n->at[i].fd == fd)
            forget(n, i);
}

/* ---- who comes and goes --------------------------------------------------------------------- */

/* The next event of the monitor, in two frames: a number and a file descriptor, then an address. */
static bool next_event(unauthenticated_peers *n, uint16_t *event, int32_t *fd)
{
    uint8_t bytes[6], address[1];
    if (zmq_recv(n->monitor, bytes, sizeof bytes, ZMQ_DONTWAIT) != sizeof bytes)
        return false;
    memcpy(event, bytes, sizeof *event);
    memcpy(fd, bytes + sizeof *event, sizeof *fd);
    return zmq_recv(n->monitor, address, sizeof address, ZMQ_DONTWAIT) >= 0;
}

static void read_events(unauthenticated_peers *n)
{
    uint16_t event;
    int32_t fd;
    while (next_event(n, &event, &fd)) {
        forget_connection(n, fd); /* it has gone, or was another connection's before */
        if (event == ZMQ_EVENT_ACCEPTED && n->count < WATCHED)
            n->at[n->count++] = (struct unauthenticated_peer){.fd = fd};
    }
}

/* ZeroMQ tells of a connection before it hands over a message of it. */
void unauthenticated_peers_admit(unauthenticated_peers *n, int fd)
{
    read_events(n);
    forget_connection(n, fd);
}

/* ---- what they send ---------------------------------------------------------------------------
 */

/* False: it is no connection over tcp any more. */
static bool bytes_of(int fd, uint64_t *out)
{
    struct tcp_info info = {0};
    socklen_t size = sizeof info;
    if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size) != 0)
        return false;
    *out = info.tcpi_bytes_received;
    return true;
}

/* A first message with the token may have come since all messages were read. It will have been read
 * before the next look. */
void unauthenticated_peers_look(unauthenticated_peers *n)
{
    uint64_t bytes;
    const uint64_t now = clock_ns();
    if (now - n->looked_ns < LOOK_MS * 1000000ULL)
        return;
    n->looked_ns = now;
    read_events(n);
    for (unsigned i = n->count; i-- > 0;) {
        struct unauthenticated_peer *c = &n->at[i];
        if (!bytes_of(c->fd, &bytes)) {
            forget(n, i);
        } else if (bytes <= UNAUTHENTICATED_BYTES) {
            continue;
        } else if (!c->above) {
            c->above = true;
        } else {
            /* ZeroMQ sees the end of the connection and closes it. */
            (void)shutdown(c->fd, SHUT_RDWR);
            log_debug("closed a connection that sent %llu bytes and did not show the run's token",
                      (unsigned long long)bytes);
            forget(n, i);
        }
    }
}

/* ---- open and close ------------------------------------------------------------------------- */

status unauthenticated_peers_open(unauthenticated_peers **out, void *context, void *socket)
{
    status result = OK;
    unauthenticated_peers *n = NULL;
    static const char place[] = "inproc://newcomers";
    const int none = 0;
    *out = NULL;
    TRY(memory_new(&n, 1, sizeof *n, "the list of new connections"));
    n->monitor = zmq_socket(context, ZMQ_PAIR);
    /* RCVHWM 0: without a limit, else ZeroMQ's thread would wait for room. */
    if (n->monitor == NULL ||
        zmq_socket_monitor(socket, place, ZMQ_EVENT_ACCEPTED | ZMQ_EVENT_DISCONNECTED) != 0 ||
        zmq_setsockopt(n->monitor, ZMQ_LINGER, &none, sizeof none) != 0 ||
        zmq_setsockopt(n->monitor, ZMQ_RCVHWM, &none, sizeof none) != 0 ||
        zmq_connect(n->monitor, place) != 0)
        FAIL(ERROR_OTHER, "cannot watch a ZeroMQ socket: %s", zmq_strerror(zmq_errno()));
    *out = n;
    n = NULL;
done:
    unauthenticated_peers_close(&n, socket);
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
