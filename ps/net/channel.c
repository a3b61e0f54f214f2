/* channel.c — see channel.h. */
#include "ps/net/channel.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/thread.h"
#include "ps/net/endpoint.h"
#include "ps/net/unauthenticated_peers.h"
#include "ps/net/payload.h"

#include <arpa/inet.h>
#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>
#include <zmq.h>

enum {
    SPIN_NS = 400 * 1000, /* duration of an update of some 500 000 parameters and its messages */
    BELL_LOOKS = 16,      /* looks at the bell per look at the sockets, which costs more */
    SHORT_SLICE_NS = 100 * 1000, /* the shortest time slice that the kernel grants */
    HANDSHAKE_MS = 5000,         /* limit of a handshake; then ZeroMQ closes the connection */
    CURVE_FRAME_BYTES = 33,      /* CURVE adds them to each frame: RFC 26, MESSAGE command */
    RECONNECT_MS = 20,
    RECONNECT_MAX_MS = 500,
    LINGER_MAX_MS = 2000,
    NAME_MS = 500,         /* closing waits so long for the resolution of a host name */
    BROKEN_HANDSHAKES = 3, /* that many in a row without a reason: the peers may not match */
};
#define MISMATCH                                                                                   \
    "does one side have no keys (curve=), do the keys come from different folders, or does "       \
    "another program, or a forwarder without its server, listen there?"

struct channel {
    void *context, *socket;
    void *monitor; /* worker only: reports the ends of handshakes */
    zap_handler *zap;
    unauthenticated_peers *unauthenticated_peers; /* server with keys only */
    uint64_t run_token;
    unsigned broken_handshakes;
    bool handshake_ended; /* of the current connection */
    bool answered;        /* a message has arrived */
    zmq_msg_t payload;    /* second frame of the last message */
    bool router, spin, bound, has_keys;
    int linger_ms;
    char endpoint[ENDPOINT_BYTES];
};

bool channel_same_id(const struct channel_id *a, const struct channel_id *b)
{
    return a->size == b->size && memcmp(a->bytes, b->bytes, a->size) == 0;
}

bool channel_may_spin(unsigned processes)
{
    return processes <= processor_count();
}

static bool has_prefix(const char *text, const char *prefix)
{
    return strncmp(text, prefix, strlen(prefix)) == 0;
}

/* ZeroMQ removes any file at an ipc path before it binds. So check first: another server may listen
 * there, or the file may hold data. */
static status check_path_is_free(const char *endpoint)
{
    status result = OK;
    int fd = -1;
    struct stat file;
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    if (!has_prefix(endpoint, "ipc://") || endpoint[6] == '@' || lstat(endpoint + 6, &file) != 0)
        goto done;
    if (!S_ISSOCK(file.st_mode))
        FAIL(ERROR_USAGE,
             "endpoint %s: a file of that name exists and is not a socket: choose another path",
             endpoint);
    fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    memcpy(address.sun_path, endpoint + 6, strlen(endpoint + 6));
    /* EAGAIN: the server runs but hangs; its queue of connections is full. */
    if (fd >= 0 &&
        (connect(fd, (struct sockaddr *)&address, sizeof address) == 0 || errno == EAGAIN))
        FAIL(ERROR_OTHER,
             "endpoint %s is in use: another server listens there; stop it, or choose another "
             "endpoint",
             endpoint);
done:
    if (fd >= 0)
        close(fd);
    return result;
}

static void set_int(channel *c, int option, int value)
{
    int code = zmq_setsockopt(c->socket, option, &value, sizeof value);
    REQUIRE(code == 0);
}

/* libzmq 4.3 aborts the process (`!_io_error` in stream_engine_base.cpp) if a full queue stopped
 * the input, the peer then disconnects, and either we send ZMTP heartbeats or the peer had sent a
 * ZMTP PING. So we use no ZMTP heartbeats (WIRE_PING replaces them), and the receive queue has no
 * limit. The protocol bounds its size: each member has at most one gradient or one version under
 * way, and other peers cannot connect. */
static void set_common_options(channel *c, const struct channel_options *o)
{
    set_int(c, ZMQ_LINGER, c->linger_ms);
    /* Queued messages refer to slots: at most one gradient or version per peer. */
    set_int(c, ZMQ_SNDHWM, (int)o->max_queued);
    set_int(c, ZMQ_RCVHWM, 0);
    set_int(c, ZMQ_HANDSHAKE_IVL, HANDSHAKE_MS);
    set_int(c, ZMQ_IPV6, has_prefix(c->endpoint, "tcp://["));
    /* ZeroMQ compares this limit with the encrypted frame. */
    int64_t largest = WIRE_CHUNK_BYTES + CURVE_FRAME_BYTES;
    int code = zmq_setsockopt(c->socket, ZMQ_MAXMSGSIZE, &largest, sizeof largest);
    REQUIRE(code == 0);
}

/* Requests this time slice for the calling thread and the threads that it starts; 0: the default.
 * From Linux 6.12 on a thread with a shorter slice is scheduled sooner. Older kernels ignore it. */
static void request_time_slice(uint64_t ns)
{
    struct { /* the kernel's sched_attr, which this glibc does not declare */
        uint32_t size, policy;
        uint64_t flags;
        int32_t nice;
        uint32_t priority;
        uint64_t runtime, deadline, period;
    } a = {.size = sizeof a};
    if (syscall(SYS_sched_getattr, 0, &a, sizeof a, 0) != 0 || a.policy != SCHED_OTHER)
        return;
    a.runtime = ns;
    (void)syscall(SYS_sched_setattr, 0, &a, 0);
}

static status open_socket(channel **out, const char *endpoint, int type,
                          const struct channel_options *o)
{
    status result = OK;
    channel *c = NULL;
    TRY(endpoint_check(endpoint, o->keys != NULL || o->trusted));
    TRY(memory_new(&c, 1, sizeof *c, "a channel"));
    zmq_msg_init(&c->payload);
    c->router = type == ZMQ_ROUTER;
    c->spin = o->may_spin;
    c->run_token = o->run_token;
    c->linger_ms = o->timeout_ms < LINGER_MAX_MS ? (int)o->timeout_ms : LINGER_MAX_MS;
    snprintf(c->endpoint, sizeof c->endpoint, "%s", endpoint);
    c->context = zmq_ctx_new();
    request_time_slice(SHORT_SLICE_NS); /* for ZeroMQ's thread and the server's own */
    c->socket = c->context != NULL ? zmq_socket(c->context, type) : NULL;
    if (!c->router)
        request_time_slice(0);
    if (c->socket == NULL)
        FAIL(ERROR_OTHER,
             "cannot create a ZeroMQ socket: %s; is the limit of open files (ulimit -n) too low?",
             zmq_strerror(zmq_errno()));
    set_common_options(c, o);
    c->has_keys = o->keys != NULL;
    if (c->has_keys)
        curve_apply(o->keys, c->socket, c->router);
    else
        curve_apply_token(o->run_token, c->socket, c->router);
done:
    if (result != OK)
        channel_close(&c);
    *out = c;
    return result;
}

static bool is_wildcard(const char *endpoint)
{
    return has_prefix(endpoint, "tcp://*") ||
           (has_prefix(endpoint, "tcp:") && strcmp(strrchr(endpoint, ':'), ":*") == 0);
}

static status bind_failed(const char *endpoint, int code)
{
    if (code == EADDRINUSE)
        return error_set(
            ERROR_OTHER, __FILE__, __LINE__,
            "endpoint %s is in use: another program listens there; stop it, choose another "
            "endpoint, or let the system choose a port (tcp://127.0.0.1:*)",
            endpoint);
    if (code == EACCES || code == EPERM)
        return error_set(
            ERROR_OTHER, __FILE__, __LINE__,
            "no permission to listen on %s: choose a path in a writable folder, or a port above "
            "1023",
            endpoint);
    if (code == ENOENT || code == ENOTDIR)
        return error_set(ERROR_USAGE, __FILE__, __LINE__,
                         "cannot listen on %s: its folder does not exist; create it", endpoint);
    return error_set(code == EINVAL || code == ENODEV || code == EADDRNOTAVAIL ? ERROR_USAGE
                                                                               : ERROR_OTHER,
                     __FILE__, __LINE__, "cannot listen on %s: %s", endpoint, zmq_strerror(code));
}

status channel_bind(channel **out, const char *endpoint, const struct channel_options *o)
{
    status result = OK;
    channel *c = NULL;
    TRY(endpoint_check(endpoint, o->keys != NULL || o->trusted));
    TRY(check_path_is_free(endpoint));
    TRY(open_socket(&c, endpoint, ZMQ_ROUTER, o));
    TRY(zap_handler_open(&c->zap, c->context, o->keys, o->run_token));
    if (o->keys != NULL)
        TRY(unauthenticated_peers_open(&c->unauthenticated_peers, c->context, c->socket));
    set_int(c, ZMQ_ROUTER_MANDATORY, 1);
    set_int(c, ZMQ_ROUTER_HANDOVER, 1);
    if (zmq_bind(c->socket, endpoint) != 0) {
        result = bind_failed(endpoint, zmq_errno());
        goto done;
    }
    c->bound = true;
    size_t size = sizeof c->endpoint;
    if (zmq_getsockopt(c->socket, ZMQ_LAST_ENDPOINT, c->endpoint, &size) != 0)
        FAIL(ERROR_OTHER, "cannot read the endpoint bound for %s: %s", endpoint,
             zmq_strerror(zmq_errno()));
done:
    if (result != OK)
        channel_close(&c);
    *out = c;
    return result;
}

/* ---- the ends of handshakes ----------------------------------------------------------------- */

static status open_monitor(channel *c)
{
    status result = OK;
    static const char place[] = "inproc://handshakes";
    const int none = 0;
    if (zmq_socket_monitor(c->socket, place,
                           ZMQ_EVENT_HANDSHAKE_SUCCEEDED | ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL |
                               ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL |
                               ZMQ_EVENT_HANDSHAKE_FAILED_AUTH | ZMQ_EVENT_DISCONNECTED) != 0)
        FAIL(ERROR_OTHER, "cannot watch a ZeroMQ socket: %s", zmq_strerror(zmq_errno()));
    c->monitor = zmq_socket(c->context, ZMQ_PAIR);
    /* No limit: after the welcome the events are not read any more, and ZeroMQ's thread would block
     * on a full queue. */
    if (c->monitor == NULL || zmq_setsockopt(c->monitor, ZMQ_LINGER, &none, sizeof none) != 0 ||
        zmq_setsockopt(c->monitor, ZMQ_RCVHWM, &none, sizeof none) != 0 ||
        zmq_connect(c->monitor, place) != 0)
        FAIL(ERROR_OTHER, "cannot watch a ZeroMQ socket: %s", zmq_strerror(zmq_errno()));
done:
    return result;
}

/* Reads the next event; 0: none. An event has two frames; the first one begins with its number. */
static int next_event(void *monitor)
{
    uint8_t bytes[ENDPOINT_BYTES];
    uint16_t event = 0;
    int more = 0, size;
    size_t more_size = sizeof more;
    do
        size = zmq_recv(monitor, bytes, sizeof bytes, ZMQ_DONTWAIT);
    while (size < 0 && zmq_errno() == EINTR);
    if (size < (int)sizeof event)
        return 0;
    memcpy(&event, bytes, sizeof event);
    while (zmq_getsockopt(monitor, ZMQ_RCVMORE, &more, &more_size) == 0 && more != 0 &&
           zmq_recv(monitor, bytes, sizeof bytes, ZMQ_DONTWAIT) >= 0)
        continue;
    return event;
}

status channel_check_handshake(channel *c, bool over)
{
    status result = OK;
    int event;
    REQUIRE(c->monitor != NULL);
    while ((event = next_event(c->monitor)) != 0) {
        if (event == ZMQ_EVENT_DISCONNECTED && c->handshake_ended) {
            c->handshake_ended = false;
            continue;
        }
        /* If the peer does not speak ZMTP 3, ZeroMQ reports only the disconnection. */
        if (event == ZMQ_EVENT_DISCONNECTED)
            event = ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL;
        c->handshake_ended = true;
        c->broken_handshakes =
            event == ZMQ_EVENT_HANDSHAKE_SUCCEEDED ? 0 : c->broken_handshakes + 1;
        if (event == ZMQ_EVENT_HANDSHAKE_FAILED_AUTH)
            FAIL(ERROR_PROTOCOL,
                 c->has_keys
                     ? "the server at %s rejects the key of this process: its server.key has no "
                       "line `worker` with the public key in our worker.key; were new keys created "
                       "on one side only?"
                     : "the server at %s rejects the run token of this process: does the server "
                       "belong to another run? Start this process with the run_token= that the "
                       "server prints",
                 c->endpoint);
        if (event == ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL) /* ZeroMQ does not retry */
            FAIL(ERROR_PROTOCOL, "the handshake with %s failed: " MISMATCH, c->endpoint);
        if (c->broken_handshakes == BROKEN_HANDSHAKES)
            log_warning("connections to %s break off, trying again: " MISMATCH, c->endpoint);
    }
    if (over && c->broken_handshakes >= BROKEN_HANDSHAKES)
        FAIL(ERROR_PROTOCOL, "connections to %s broke off until the time limit: " MISMATCH,
             c->endpoint);
done:
    return result;
}

status channel_connect(channel **out, const char *endpoint, const struct channel_options *o)
{
    status result = OK;
    channel *c = NULL;
    uint8_t id[16];
    if (is_wildcard(endpoint))
        FAIL(ERROR_USAGE,
             "endpoint %s: only the server may use *; a worker needs the server's address and "
             "port",
             endpoint);
    TRY(open_socket(&c, endpoint, ZMQ_DEALER, o));
    /* A routing id of our own, so that the server recognises us after a reconnection. It is random,
     * so no other peer knows it. ZeroMQ reserves a first byte of zero. */
    payload_random(id, sizeof id);
    id[0] |= 1;
    int code = zmq_setsockopt(c->socket, ZMQ_ROUTING_ID, id, sizeof id);
    REQUIRE(code == 0);
    TRY(open_monitor(c));
    set_int(c, ZMQ_RECONNECT_IVL, RECONNECT_MS);
    set_int(c, ZMQ_RECONNECT_IVL_MAX, RECONNECT_MAX_MS);
    if (zmq_connect(c->socket, endpoint) != 0)
        FAIL(ERROR_USAGE, "cannot connect to %s: %s", endpoint, zmq_strerror(zmq_errno()));
done:
    if (result != OK)
        channel_close(&c);
    *out = c;
    return result;
}

static void *end_context(void *context)
{
    while (zmq_ctx_term(context) != 0 && zmq_errno() == EINTR)
        continue;
    return NULL;
}

/* ZeroMQ's thread may be resolving a host name. Nothing can interrupt that, and it takes a minute
 * if the name servers do not answer. After limit_ms this function abandons the thread. It is called
 * for channels without an answer: their messages have no payload, so the thread uses no memory of
 * ours. */
static void end_context_in_time(void *context, unsigned limit_ms)
{
    pthread_t thread;
    struct timespec until;
    const struct error why = error_save();
    if (thread_start(&thread, end_context, context, "the end of a channel") != OK) {
        error_restore(&why);
        end_context(context);
        return;
    }
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += limit_ms / 1000;
    until.tv_nsec += limit_ms % 1000 * 1000000L;
    until.tv_sec += until.tv_nsec / 1000000000L;
    until.tv_nsec %= 1000000000L;
    if (pthread_timedjoin_np(thread, NULL, &until) != 0)
        thread_abandon(thread);
}

void channel_close(channel **p)
{
    if (p == NULL || *p == NULL)
        return;
    channel *c = *p;
    /* ZeroMQ leaves the file. Remove it before closing: then another server may bind the path. */
    if (c->bound && has_prefix(c->endpoint, "ipc://") && c->endpoint[6] != '@')
        unlink(c->endpoint + 6);
    zmq_msg_close(&c->payload);
    /* ZeroMQ would leak events that arrive after the last read. */
    if (c->monitor != NULL)
        zmq_socket_monitor(c->socket, NULL, 0);
    unauthenticated_peers_close(&c->unauthenticated_peers, c->socket);
    if (c->socket != NULL)
        zmq_close(c->socket);
    if (c->monitor != NULL)
        zmq_close(c->monitor);
    if (c->monitor != NULL && !c->answered)
        end_context_in_time(c->context, (unsigned)c->linger_ms + NAME_MS);
    else if (c->context != NULL)
        end_context(c->context);
    zap_handler_close(&c->zap);
    memory_free(c);
    *p = NULL;
}

void channel_discard_unsent(channel *c)
{
    set_int(c, ZMQ_LINGER, 0);
}

const char *channel_endpoint(const channel *c)
{
    return c->endpoint;
}

static void free_nothing(void *data UNUSED, void *hint UNUSED) {}

/* False: the queue of the peer is full, or there is no such peer. */
static bool send_part(channel *c, const void *bytes, size_t size, int flags)
{
    int sent;
    do
        sent = zmq_send(c->socket, bytes, size, flags | ZMQ_DONTWAIT);
    while (sent < 0 && zmq_errno() == EINTR);
    return sent >= 0;
}

static bool send_borrowed(channel *c, const void *bytes, size_t size)
{
    zmq_msg_t part;
    if (zmq_msg_init_data(&part, (void *)(uintptr_t)bytes, size, free_nothing, NULL) != 0)
        return false;
    int sent;
    do
        sent = zmq_msg_send(&part, c->socket, ZMQ_DONTWAIT);
    while (sent < 0 && zmq_errno() == EINTR);
    if (sent < 0)
        zmq_msg_close(&part);
    return sent >= 0;
}

bool channel_send(channel *c, const struct channel_id *to, const struct wire_message *m,
                  const void *payload)
{
    uint8_t bytes[WIRE_MAX_BYTES];
    size_t size = wire_encode(m, bytes);
    REQUIRE((to != NULL) == c->router && (payload != NULL) == (m->payload_bytes > 0));
    if (to != NULL && !send_part(c, to->bytes, to->size, ZMQ_SNDMORE))
        return false;
    if (!send_part(c, bytes, size, payload != NULL ? ZMQ_SNDMORE : 0))
        return false;
    return payload == NULL || send_borrowed(c, payload, m->payload_bytes);
}

static int receive_part(channel *c, zmq_msg_t *part)
{
    int size;
    do
        size = zmq_msg_recv(part, c->socket, ZMQ_DONTWAIT);
    while (size < 0 && zmq_errno() == EINTR);
    return size;
}

/* Receives the frames of one message: the sender's id into out->from, the first frame into *head,
 * the second into c->payload. Returns the number of frames after the id; 0: there is no message. */
static unsigned receive_parts(channel *c, struct channel_received *out, zmq_msg_t *head)
{
    zmq_msg_t rest;
    unsigned frames = 0;
    if (receive_part(c, head) < 0)
        return 0;
    if (c->router) {
        /* ZeroMQ accepts longer ids. No gradlag peer has one; an answer to an empty id is dropped.
         */
        size_t size = zmq_msg_size(head);
        out->from.size = size <= CHANNEL_ID_BYTES ? (uint8_t)size : 0;
        memcpy(out->from.bytes, zmq_msg_data(head), out->from.size);
    }
    zmq_msg_init(&rest);
    bool more = zmq_msg_more(head);
    if (!c->router)
        frames = 1;
    while (more) {
        zmq_msg_t *into = frames == 0 ? head : frames == 1 ? &c->payload : &rest;
        if (receive_part(c, into) < 0)
            break;
        more = zmq_msg_more(into);
        frames++;
    }
    zmq_msg_close(&rest);
    return frames;
}

enum channel_event channel_receive(channel *c, struct channel_received *out)
{
    zmq_msg_t head;
    enum channel_event event = CHANNEL_MESSAGE;
    zmq_msg_init(&head);
    out->payload = NULL;
    out->why = NULL;
    unsigned frames = receive_parts(c, out, &head);
    c->answered |= frames > 0;
    if (frames == 0) {
        event = CHANNEL_NOTHING;
        if (c->unauthenticated_peers != NULL)
            unauthenticated_peers_check(c->unauthenticated_peers);
    } else if (wire_decode(&out->message, zmq_msg_data(&head), zmq_msg_size(&head)) != OK) {
        out->why = error_message();
        event = CHANNEL_MALFORMED;
    } else {
        size_t wanted = out->message.payload_bytes;
        if (frames != (wanted > 0 ? 2U : 1U) ||
            (wanted > 0 && zmq_msg_size(&c->payload) != wanted)) {
            out->why = "its second frame does not have the size that the head declares";
            event = CHANNEL_MALFORMED;
        }
        out->payload = zmq_msg_data(&c->payload);
        if (c->unauthenticated_peers != NULL && out->message.run_token == c->run_token)
            unauthenticated_peers_admit(c->unauthenticated_peers, zmq_msg_get(&head, ZMQ_SRCFD));
    }
    zmq_msg_close(&head);
    return event;
}

static bool readable(channel *c)
{
    int events = 0;
    size_t size = sizeof events;
    return zmq_getsockopt(c->socket, ZMQ_EVENTS, &events, &size) == 0 && (events & ZMQ_POLLIN) != 0;
}

static bool rings_soon(const struct bell *bell)
{
    for (unsigned i = 0; bell != NULL && i < BELL_LOOKS; i++) {
        if (bell_rings(bell))
            return true;
        processor_pause();
    }
    return false;
}

/* True: a message may have arrived. */
static bool spin(channel *c, channel *other, const struct bell *bell)
{
    const uint64_t until = clock_ns() + SPIN_NS;
    do {
        if (rings_soon(bell) || readable(c) || (other != NULL && readable(other)))
            return true;
        sched_yield();
    } while (clock_ns() < until);
    return false;
}

void channel_wait_any(channel *c, channel *other, struct bell *bell, int wake_fd,
                      unsigned timeout_ms)
{
    zmq_pollitem_t items[4] = {{.socket = c->socket, .events = ZMQ_POLLIN}};
    int count = 1;
    if (c->spin && spin(c, other, bell))
        return;
    if (bell != NULL && !bell_sleep(bell))
        return;
    if (other != NULL)
        items[count++] = (zmq_pollitem_t){.socket = other->socket, .events = ZMQ_POLLIN};
    if (wake_fd >= 0)
        items[count++] = (zmq_pollitem_t){.fd = wake_fd, .events = ZMQ_POLLIN};
    if (bell != NULL)
        items[count++] = (zmq_pollitem_t){.fd = bell->fd, .events = ZMQ_POLLIN};
    zmq_poll(items, count, timeout_ms); /* an interruption counts as a timeout */
    if (bell != NULL)
        bell_wake(bell);
}
