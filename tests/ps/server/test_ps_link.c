/* A link that is slow or breaks changes no result. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <arpa/inet.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "ps/net/channel.h"
#include "tests/rigs/patience.h"
#include "tests/ps/server/ps_rig.h"
#include "tests/rigs/scratch.h"

/* 1.4 MB and 12 MB: more than the kernel buffers on a connection. */
enum { TWO_CHUNKS = 350001, TWELVE_CHUNKS = 3000001 };

/* ---- the link ------------------------------------------------------------------------------- */

/* Small buffers, so that data waits at the sender. */
static int narrow_socket(void)
{
    const int bytes = 32768;
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &bytes, sizeof bytes), 0);
    return fd;
}

static struct sockaddr_in loopback(unsigned port)
{
    return (struct sockaddr_in){.sin_family = AF_INET,
                                .sin_addr.s_addr = htonl(INADDR_LOOPBACK),
                                .sin_port = htons((uint16_t)port)};
}

/* The properties of a link. */
struct link {
    size_t most,
        more;    /* bytes until the first connection breaks; later connections carry `more` each */
    int *breaks; /* counts the broken connections */
    unsigned slow_us, slow_back_us; /* for every 64 KiB to the server, and back */
};

/* Carries bytes in both directions until one end is closed or the connection breaks. */
static _Noreturn void carry(int near, int far, const struct link *l, size_t most)
{
    static uint8_t bytes[65536];
    struct pollfd ends[2] = {{.fd = near, .events = POLLIN}, {.fd = far, .events = POLLIN}};
    for (size_t left = most; left > 0;) {
        poll(ends, 2, -1);
        for (int i = 0; i < 2 && left > 0; i++) {
            if (ends[i].revents == 0)
                continue;
            ssize_t got = read(ends[i].fd, bytes, left < sizeof bytes ? left : sizeof bytes);
            if (got <= 0 || send(ends[1 - i].fd, bytes, (size_t)got, MSG_NOSIGNAL) != got)
                _exit(0);
            left -= (size_t)got;
            usleep(
                (useconds_t)((size_t)got * (i == 0 ? l->slow_us : l->slow_back_us) / sizeof bytes));
        }
    }
    __atomic_add_fetch(l->breaks, 1, __ATOMIC_SEQ_CST);
    _exit(0);
}

static _Noreturn void be_link(int listening, unsigned port, const struct link *l)
{
    const struct sockaddr_in server = loopback(port);
    signal(SIGCHLD, SIG_IGN);
    for (size_t most = l->most;; most += l->more) {
        int near = accept(listening, NULL, NULL), far = narrow_socket();
        if (near >= 0 && connect(far, (const struct sockaddr *)&server, sizeof server) == 0 &&
            fork() == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            carry(near, far, l, most);
        }
        close(near);
        close(far);
    }
}

/* Starts a process between worker and server, and sets r->endpoint to its endpoint. */
static pid_t put_link_between(struct rig *r, const struct link *l)
{
    struct sockaddr_in own = loopback(0);
    socklen_t length = sizeof own;
    const unsigned port = (unsigned)atoi(strrchr(r->endpoint, ':') + 1);
    int listening = narrow_socket();
    assert_int_equal(bind(listening, (struct sockaddr *)&own, sizeof own), 0);
    assert_int_equal(listen(listening, 8), 0);
    assert_int_equal(getsockname(listening, (struct sockaddr *)&own, &length), 0);
    snprintf(r->endpoint, sizeof r->endpoint, "tcp://127.0.0.1:%d", ntohs(own.sin_port));
    pid_t link = fork();
    assert_true(link >= 0);
    if (link == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        be_link(listening, port, l);
    }
    close(listening);
    return link;
}

/* One worker trains over the link (NULL: no link). hash ← that of the parameters. */
static void train_over(const struct link *l, size_t count, const char *timeout_s, unsigned updates,
                       char hash[65])
{
    options *o;
    pid_t link = 0;
    struct rig *r = rig_open_with(&o, 1, timeout_s);
    r->count = count;
    r->total_samples = 10 * updates;
    rig_set(o, "payload", "frames");
    snprintf(r->listen, sizeof r->listen, "tcp://127.0.0.1:*");
    pid_t server = rig_serve(r, o);
    if (l != NULL)
        link = put_link_between(r, l);
    if (rig_wait(rig_train(r, o, 0, 0), 60) != OK)
        fail_msg("%s", r->worker[0].message);
    assert_int_equal(rig_wait(server, 10), OK);
    assert_int_equal(r->outcome.updates, updates);
    assert_int_equal(r->worker[0].pushes, updates);
    memcpy(hash, r->outcome.parameters_sha256, 65);
    if (link > 0) {
        kill(link, SIGKILL);
        assert_int_equal(rig_wait(link, 5), 128 + SIGKILL);
    }
    rig_close_with(r, o);
}

/* ---- the tests ------------------------------------------------------------------------------ */

static void a_link_that_breaks_during_vectors_changes_no_bit(void **state UNUSED)
{
    char whole[65], broken[65];
    struct link l = {.most = 28 * 1000 * 1000, .more = 3700 * 1000};
    l.breaks =
        mmap(NULL, sizeof *l.breaks, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_ptr_not_equal(l.breaks, MAP_FAILED);
    train_over(NULL, TWELVE_CHUNKS, "2", 6, whole);
    train_over(&l, TWELVE_CHUNKS, "2", 6, broken);
    assert_string_equal(whole, broken);
    assert_true(*l.breaks >= 3); /* the run sends 144 MB */
    munmap(l.breaks, sizeof *l.breaks);
}

/* Sending the gradient takes longer than the timeout, and pings wait behind it. */
static void a_slow_link_does_not_lose_the_server(void **state UNUSED)
{
    char hash[65];
    const struct link l = {.most = SIZE_MAX, .slow_us = 130000}; /* 22 blocks: 2.9 s */
    train_over(&l, TWO_CHUNKS, "1.5", 2, hash);
}

/* Every connection breaks before the first frame of the parameters has arrived. */
static void a_link_that_always_breaks_at_the_same_frame_ends_the_run(void **state UNUSED)
{
    options *o;
    const struct link l = {.most = 700 * 1000, .breaks = &(int){0}};
    struct rig *r = rig_open_with(&o, 1, "2");
    r->count = TWELVE_CHUNKS;
    rig_set(o, "payload", "frames");
    snprintf(r->listen, sizeof r->listen, "tcp://127.0.0.1:*");
    pid_t server = rig_serve(r, o), link = put_link_between(r, &l);
    const uint64_t began = clock_ns();
    assert_int_equal(rig_wait(rig_train(r, o, 0, 0), 20), ERROR_PEER);
    rig_expect_named(r->worker[0].message, "worker 0");
    rig_expect_named(r->worker[0].message, "1048576");        /* WIRE_CHUNK_BYTES */
    assert_true(clock_ns() - began < 20000000000 * PATIENCE); /* ten times timeout_s */
    assert_int_equal(rig_wait(server, 10), ERROR_PEER);
    rig_expect_named(r->message, "worker 0"); /* the server ends the run with the worker's error */
    kill(link, SIGKILL);
    assert_int_equal(rig_wait(link, 5), 128 + SIGKILL);
    rig_close_with(r, o);
}

static char slow_endpoint[RIG_ENDPOINT_BYTES];

/* The first release of this worker says that the run has ended. */
static status join_over_the_slow_link(struct rig *r, const options *settings, unsigned w,
                                      unsigned argument UNUSED)
{
    static struct rig own; /* another endpoint than the other worker's */
    status result = OK;
    ps_client *client = NULL;
    struct ps_release at;
    own = *r;
    memcpy(own.endpoint, slow_endpoint, sizeof own.endpoint);
    TRY(rig_join(&own, settings, w, &client, &at));
    if (!at.finished)
        FAIL(ERROR_OTHER, "the parameters came before the end");
done:
    ps_client_close(&client);
    return result;
}

/* The message of the end is queued behind parameters. Sending them takes longer than the server
 * waits for its workers. */
static void a_slow_link_does_not_hide_the_end_of_the_run(void **state UNUSED)
{
    options *o;
    const struct link l = {.most = SIZE_MAX, .slow_back_us = 200000}; /* 184 blocks: 37 s */
    struct rig *r = rig_open_with(&o, 2, "4");
    char fast_endpoint[RIG_ENDPOINT_BYTES];
    r->count = TWELVE_CHUNKS;
    r->total_samples = 30;
    rig_set(o, "payload", "frames");
    snprintf(r->listen, sizeof r->listen, "tcp://127.0.0.1:*");
    pid_t server = rig_serve(r, o);
    memcpy(fast_endpoint, r->endpoint, sizeof fast_endpoint);
    pid_t link = put_link_between(r, &l);
    memcpy(slow_endpoint, r->endpoint, sizeof slow_endpoint);
    memcpy(r->endpoint, fast_endpoint, sizeof fast_endpoint);
    pid_t near = rig_train(r, o, 0, 0), far = rig_fork(r, o, 1, 0, join_over_the_slow_link);
    assert_int_equal(rig_wait(near, 30), OK);
    if (rig_wait(far, 20) != OK)
        fail_msg("%s", r->worker[1].message);
    assert_int_equal(rig_wait(server, 20), OK);
    kill(link, SIGKILL);
    assert_int_equal(rig_wait(link, 5), 128 + SIGKILL);
    rig_close_with(r, o);
}

/* Until the server listens, a forwarder accepts and closes connections, as `ssh -L` does. */
static void a_forwarder_may_listen_before_the_server_does(void **state UNUSED)
{
    options *o;
    const struct link l = {.most = SIZE_MAX};
    struct sockaddr_in own = loopback(0);
    socklen_t length = sizeof own;
    struct rig *r = rig_open_with(&o, 1, "20");
    int place = narrow_socket(); /* finds a free port */
    assert_int_equal(bind(place, (struct sockaddr *)&own, sizeof own), 0);
    assert_int_equal(getsockname(place, (struct sockaddr *)&own, &length), 0);
    close(place);
    snprintf(r->listen, sizeof r->listen, "tcp://127.0.0.1:%d", ntohs(own.sin_port));
    snprintf(r->endpoint, sizeof r->endpoint, "%s", r->listen);
    pid_t link = put_link_between(r, &l), trainer = rig_train(r, o, 0, 0);
    clock_sleep_until_ns(clock_ns() + 2000000000);
    pid_t server = rig_serve(r, o);
    if (rig_wait(trainer, 20) != OK)
        fail_msg("%s", r->worker[0].message);
    assert_int_equal(rig_wait(server, 10), OK);
    kill(link, SIGKILL);
    assert_int_equal(rig_wait(link, 5), 128 + SIGKILL);
    rig_close_with(r, o);
}

/* The closed connection never reads the end of its handshake. BUILD=asan finds a leak. */
static void closing_a_connection_during_its_handshake_leaks_nothing(void **state UNUSED)
{
    char endpoint[128];
    const struct channel_options o = {.timeout_ms = 1000};
    snprintf(endpoint, sizeof endpoint, "ipc://%s/a-name-that-is-not-short", scratch_folder());
    for (unsigned i = 0; i < 200; i++) {
        channel *bound, *connected;
        assert_int_equal(channel_bind(&bound, endpoint, &o), OK);
        assert_int_equal(channel_connect(&connected, endpoint, &o), OK);
        clock_sleep_until_ns(clock_ns() + i * 2000);
        channel_close(&connected);
        channel_close(&bound);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_slow_link_does_not_lose_the_server),
        cmocka_unit_test(a_link_that_breaks_during_vectors_changes_no_bit),
        cmocka_unit_test(a_link_that_always_breaks_at_the_same_frame_ends_the_run),
        cmocka_unit_test(a_slow_link_does_not_hide_the_end_of_the_run),
        cmocka_unit_test(a_forwarder_may_listen_before_the_server_does),
        cmocka_unit_test(closing_a_connection_during_its_handshake_leaks_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
