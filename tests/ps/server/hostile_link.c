/* hostile_link.c — see hostile_link.h. */
#include "tests/ps/server/hostile_link.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include <zmq.h>

enum {
    PIECE = 65536,
    ACCEPT_MS = 2000,
    HANDSHAKE_SAID = 143, /* bytes of a DEALER with a token and without a routing id */
    HANDSHAKE_HEARD =
        600, /* bytes; more than a server sends before the first answer, with CURVE or not */
    LITTLE_ROOM = 4096,
    CONNECTIONS = 8, /* of a recorded worker, including reconnections */
};

struct hostile_link {
    struct hostile_link_options o;
    void *socket;  /* NULL: without credentials */
    int near, far; /* to the DEALER, to the server */
    bool plain;
    uint64_t answers;
    uint64_t sent, heard, taken,
        handshake;        /* handshake: bytes of the DEALER before its first message */
    uint8_t piece[PIECE]; /* bytes not yet sent to the server */
    size_t piece_at, piece_size;
};

static struct sockaddr_in address_of(uint16_t port)
{
    return (struct sockaddr_in){
        .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
}

int hostile_connect(const struct hostile_target *to)
{
    struct sockaddr_in at = address_of(to->port);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), on = 1;
    if (fd >= 0 && connect(fd, (struct sockaddr *)&at, sizeof at) != 0) {
        close(fd);
        return -1;
    }
    if (fd >= 0)
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    return fd;
}

void hostile_hang_up(int fd, bool reset)
{
    struct linger now = {.l_onoff = 1, .l_linger = 0};
    if (fd < 0)
        return;
    if (reset)
        setsockopt(fd, SOL_SOCKET, SO_LINGER, &now, sizeof now);
    close(fd);
}

static int listen_on_any(uint16_t *port)
{
    struct sockaddr_in at = address_of(0);
    socklen_t size = sizeof at;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    REQUIRE(fd >= 0 && bind(fd, (struct sockaddr *)&at, sizeof at) == 0);
    REQUIRE(listen(fd, CONNECTIONS) == 0);
    REQUIRE(getsockname(fd, (struct sockaddr *)&at, &size) == 0);
    *port = ntohs(at.sin_port);
    return fd;
}

static int accept_within(int listening, int ms)
{
    struct pollfd caller = {.fd = listening, .events = POLLIN};
    return poll(&caller, 1, ms) == 1 ? accept4(listening, NULL, NULL, SOCK_CLOEXEC) : -1;
}

/* ---- a link ---------------------------------------------------------------------------------- */

static void show_key(void *socket, const struct curve_keys *keys, bool right)
{
    struct curve_keys own = *keys;
    REQUIRE(right || zmq_curve_keypair(own.public, own.secret) == 0);
    curve_apply(&own, socket, false);
}

static void *dealer(void *context, const struct hostile_target *to, uint16_t port, bool right)
{
    const int none = 0, never = -1;
    char endpoint[32];
    void *s = zmq_socket(context, ZMQ_DEALER);
    REQUIRE(s != NULL);
    zmq_setsockopt(s, ZMQ_LINGER, &none, sizeof none);
    zmq_setsockopt(s, ZMQ_RECONNECT_IVL, &never, sizeof never);
    if (to->keys != NULL)
        show_key(s, to->keys, right);
    else
        curve_apply_token(right ? to->run_token : to->run_token + 1, s, false);
    snprintf(endpoint, sizeof endpoint, "tcp://127.0.0.1:%u", port);
    REQUIRE(zmq_connect(s, endpoint) == 0);
    return s;
}

static void open_dealer(hostile_link *l, void *context, const struct hostile_target *to)
{
    uint16_t port;
    int listening = listen_on_any(&port);
    l->socket = dealer(context, to, port, l->o.credentials == HOSTILE_RIGHT);
    l->near = accept_within(listening, ACCEPT_MS);
    l->handshake = HANDSHAKE_SAID;
    close(listening);
}

/* The greeting of mechanism NULL, and a DEALER's READY. */
static void say_handshake(hostile_link *l)
{
    static const uint8_t greeting[64] = {0xff, [9] = 0x7f, [10] = 3, [12] = 'N', 'U', 'L', 'L'};
    static const uint8_t ready[] =
        "\4\51\5READY\13Socket-Type\0\0\0\6DEALER\10Identity\0\0\0"; /* and the last \0 */
    memcpy(l->piece, greeting, sizeof greeting);
    memcpy(l->piece + sizeof greeting, ready, sizeof ready);
    l->piece_size = sizeof greeting + sizeof ready;
}

hostile_link *hostile_link_open(void *context, const struct hostile_target *to,
                                const struct hostile_link_options *o)
{
    const int little = LITTLE_ROOM;
    hostile_link *l = calloc(1, sizeof *l);
    REQUIRE(l != NULL);
    l->o = *o;
    l->near = -1;
    if (o->credentials == HOSTILE_NONE)
        say_handshake(l);
    else
        open_dealer(l, context, to);
    l->plain = to->keys == NULL || o->credentials == HOSTILE_NONE;
    l->far = hostile_connect(to);
    if (o->deaf) /* what is not read waits at the server */
        setsockopt(l->far, SOL_SOCKET, SO_RCVBUF, &little, sizeof little);
    if ((l->near < 0 && l->socket != NULL) || l->far < 0)
        hostile_link_close(&l, true);
    return l;
}

bool hostile_link_send(hostile_link *l, const void *bytes, size_t size, bool more)
{
    return l->socket != NULL &&
           zmq_send(l->socket, bytes, size, ZMQ_DONTWAIT | (more ? ZMQ_SNDMORE : 0)) >= 0;
}

bool hostile_link_inject(hostile_link *l, const uint8_t *bytes, size_t size)
{
    if (l->sent < l->handshake || l->piece_at < l->piece_size)
        return false;
    REQUIRE(size <= sizeof l->piece);
    memcpy(l->piece, bytes, size);
    l->piece_at = 0;
    l->piece_size = size;
    return true;
}

bool hostile_link_is_plain(const hostile_link *l)
{
    return l->plain;
}

static void take_piece(hostile_link *l)
{
    ssize_t got = recv(l->near, l->piece, sizeof l->piece, MSG_DONTWAIT);
    if (got <= 0)
        return;
    l->piece_at = 0;
    l->piece_size = (size_t)got;
    if (l->o.flip_at != 0 && l->o.flip_at >= l->taken && l->o.flip_at - l->taken < (uint64_t)got)
        l->piece[l->o.flip_at - l->taken] ^= 0x55;
    l->taken += (uint64_t)got;
}

static bool is_over(ssize_t moved)
{
    return moved < 0 && errno != EAGAIN && errno != EINTR;
}

static bool hear(hostile_link *l)
{
    uint8_t back[PIECE];
    char answer[256];
    if (l->o.deaf && l->heard >= HANDSHAKE_HEARD)
        return true;
    ssize_t got = recv(l->far, back, l->o.deaf ? 64 : sizeof back, MSG_DONTWAIT);
    if (got == 0 || is_over(got))
        return false;
    if (got > 0) {
        l->heard += (uint64_t)got;
        if (l->near >= 0)
            (void)!send(l->near, back, (size_t)got, MSG_DONTWAIT | MSG_NOSIGNAL);
    }
    while (l->socket != NULL && zmq_recv(l->socket, answer, sizeof answer, ZMQ_DONTWAIT) >= 0)
        l->answers++;
    return true;
}

bool hostile_link_pump(hostile_link *l)
{
    if (l->piece_at == l->piece_size && l->near >= 0)
        take_piece(l);
    if (l->piece_at < l->piece_size) {
        ssize_t went = send(l->far, l->piece + l->piece_at, l->piece_size - l->piece_at,
                            MSG_DONTWAIT | MSG_NOSIGNAL);
        if (is_over(went))
            return false;
        l->piece_at += went > 0 ? (size_t)went : 0;
        l->sent += went > 0 ? (uint64_t)went : 0;
    }
    return hear(l);
}

uint64_t hostile_link_answers(const hostile_link *l)
{
    return l->answers;
}

void hostile_link_close(hostile_link **p, bool reset)
{
    hostile_link *l = *p;
    if (l == NULL)
        return;
    hostile_hang_up(l->far, reset);
    free(l); /* the socket stays open: libzmq may abort if a socket is closed while its connection
                breaks within a message */
    *p = NULL;
}

/* ---- recording ------------------------------------------------------------------------------- */

struct hostile_recorder {
    struct hostile_target to;
    struct hostile_recording *recording;
    int listening;
    atomic_int ends;
    pthread_t thread;
    struct pollfd at[2 * CONNECTIONS]; /* pairs: the worker, the server */
    nfds_t count;
};

/* Sends all bytes. send() may block for a while: both sides keep reading. */
static bool hand_on(int to, const uint8_t *bytes, size_t size)
{
    for (size_t at = 0; at < size;) {
        ssize_t went = send(to, bytes + at, size - at, MSG_NOSIGNAL);
        if (went <= 0)
            return false;
        at += (size_t)went;
    }
    return true;
}

static void take_down(struct hostile_recording *r, const uint8_t *bytes, size_t size)
{
    size = size < r->capacity - r->size ? size : r->capacity - r->size;
    memcpy(r->bytes + r->size, bytes, size);
    r->size += size;
}

static void move_bytes(hostile_recorder *r, nfds_t i)
{
    uint8_t piece[PIECE];
    ssize_t got = recv(r->at[i].fd, piece, sizeof piece, MSG_DONTWAIT);
    if (got < 0 && errno == EAGAIN)
        return;
    if (got <= 0 || !hand_on(r->at[i ^ 1].fd, piece, (size_t)got)) {
        close(r->at[i].fd);
        close(r->at[i ^ 1].fd);
        r->at[i].fd = r->at[i ^ 1].fd = -1;
        return;
    }
    if (i == 0)
        take_down(r->recording, piece, (size_t)got);
}

static void *record(void *argument)
{
    hostile_recorder *r = argument;
    while (!r->ends) {
        int caller = r->count < 2 * CONNECTIONS ? accept_within(r->listening, 0) : -1;
        if (caller >= 0) {
            r->at[r->count++] = (struct pollfd){.fd = caller, .events = POLLIN};
            r->at[r->count++] = (struct pollfd){.fd = hostile_connect(&r->to), .events = POLLIN};
        }
        if (poll(r->at, r->count, 5) <= 0)
            continue;
        for (nfds_t i = 0; i < r->count; i++)
            if (r->at[i].fd >= 0 && r->at[i].revents != 0)
                move_bytes(r, i);
    }
    return NULL;
}

hostile_recorder *hostile_record(const struct hostile_target *to,
                                 struct hostile_recording *recording, uint16_t *port)
{
    hostile_recorder *r = calloc(1, sizeof *r);
    REQUIRE(r != NULL);
    r->to = *to;
    r->recording = recording;
    r->listening = listen_on_any(port);
    REQUIRE(pthread_create(&r->thread, NULL, record, r) == 0);
    return r;
}

void hostile_record_end(hostile_recorder **p)
{
    hostile_recorder *r = *p;
    r->ends = 1;
    pthread_join(r->thread, NULL);
    for (nfds_t i = 0; i < r->count; i++)
        if (r->at[i].fd >= 0)
            close(r->at[i].fd);
    close(r->listening);
    free(r);
    *p = NULL;
}
