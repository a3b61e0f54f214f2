/* A process outside the run connects, floods, sends messages without an end, never reads, or resets
 * the connection. The run must end with the parameters of an undisturbed run, and the server's
 * memory must stay bounded. The attacker implements ZMTP itself, because ZeroMQ does not send such
 * bytes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <arpa/inet.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>
#include <zmq.h>

#include "base/clock.h"
#include "ps/net/channel.h"
#include "tests/ps/server/ps_rig.h"
#include "tests/rigs/scratch.h"

enum {
    ATTACK_S = 2, /* default of GRADLAG_ATTACK_S */
    STALL_S = 5,  /* default of GRADLAG_STALL_S */
    STEP_MS = 5,
    ATTACKERS = 3,
    GREETING_BYTES = 64,
    BLOCK_BYTES = 1 << 16,
    PARTS_BYTES = 36 * 1000 * 1000,
    PARTS_WITH_KEY = 1000 * 1000,
    UNREAD = 200 * 1000,       /* messages whose answers are not read */
    GROWTH_MAX_KB = 54 * 1000, /* of the server's memory by an attack */
    /* With a key the server closes a connection only at its next check: 32 MB of growth on an idle
     * machine, 76 MB on a busy one; 323 MB if the server never closed it. */
    GROWTH_WITH_KEY_MAX_KB = 130 * 1000,
};

static unsigned seconds_of(const char *name, unsigned otherwise)
{
    const char *text = getenv(name);
    return text != NULL ? (unsigned)atoi(text) : otherwise;
}

/* ---- ZMTP, as an attacker speaks it (RFC 23) --------------------------------------------------
 */

static int call(unsigned port)
{
    const struct timeval limit = {.tv_sec = 1};
    const struct sockaddr_in to = {.sin_family = AF_INET,
                                   .sin_addr.s_addr = htonl(INADDR_LOOPBACK),
                                   .sin_port = htons((uint16_t)port)};
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
    if (fd < 0 || connect(fd, (const struct sockaddr *)&to, sizeof to) != 0)
        _exit(0); /* the server has ended */
    return fd;
}

static bool put(int fd, const void *bytes, size_t size)
{
    return send(fd, bytes, size, MSG_NOSIGNAL) == (ssize_t)size;
}

static bool greet(int fd, const char *mechanism)
{
    uint8_t greeting[GREETING_BYTES] = {0xff, [9] = 0x7f, [10] = 3};
    strcpy((char *)greeting + 12, mechanism);
    return put(fd, greeting, sizeof greeting) &&
           recv(fd, greeting, sizeof greeting, MSG_WAITALL) == sizeof greeting;
}

/* A command frame: the length of its name, its name, then the rest. */
static bool command(int fd, const char *name, const void *rest, size_t size)
{
    uint8_t frame[256] = {4, (uint8_t)(1 + strlen(name) + size), (uint8_t)strlen(name)};
    memcpy(frame + 3, name, strlen(name));
    memcpy(frame + 3 + strlen(name), rest, size);
    return put(fd, frame, 3 + strlen(name) + size);
}

/* True: the next command continues the handshake. */
static bool answered(int fd, const char *name)
{
    uint8_t head[2], body[255];
    return recv(fd, head, 2, MSG_WAITALL) == 2 && head[0] == 4 &&
           recv(fd, body, head[1], MSG_WAITALL) == head[1] && body[0] == strlen(name) &&
           memcmp(body + 1, name, strlen(name)) == 0;
}

static const uint8_t DEALER[] = "\13Socket-Type\0\0\0\6DEALER"; /* a property of the connection */

static bool enter_without_token(int fd, uint64_t token UNUSED)
{
    return greet(fd, "NULL") && command(fd, "READY", DEALER, sizeof DEALER - 1);
}

/* As a peer that knows the run's token but is not a worker. */
static bool enter_with_token(int fd, uint64_t token)
{
    char hello[64];
    int size =
        snprintf(hello, sizeof hello, "%cgradlag%c%016llx", 7, 16, (unsigned long long)token);
    return greet(fd, "PLAIN") && command(fd, "HELLO", hello, (size_t)size) &&
           answered(fd, "WELCOME") && command(fd, "INITIATE", DEALER, sizeof DEALER - 1) &&
           answered(fd, "READY");
}

static void reset(int fd)
{
    const struct linger at_once = {.l_onoff = 1};
    setsockopt(fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
    close(fd);
}

/* ---- attacks ----------------------------------------------------------------------------------
 */

static const uint8_t MESSAGE[] = {0, 1, 'x'}, PART[] = {1, 1, 'x'};

static const uint8_t *block_of(const uint8_t frame[3])
{
    static uint8_t block[BLOCK_BYTES / 3 * 3];
    for (size_t at = 0; at < sizeof block; at += 3)
        memcpy(block + at, frame, 3);
    return block;
}

/* Sends messages until the server stops reading, then a reset. */
static void flood_and_reset(int fd)
{
    const uint8_t *block = block_of(MESSAGE);
    for (int i = 0; i < 20 && send(fd, block, BLOCK_BYTES / 3 * 3, MSG_NOSIGNAL | MSG_DONTWAIT) > 0;
         i++)
        continue;
    reset(fd);
}

/* Sends more messages than the server reads at once, a ZMTP ping after them, and a reset. It
 * pauses, because the server queues all messages of a peer with the token. */
static void ping_and_reset(int fd)
{
    enum { MESSAGES = 180 };
    static const uint8_t ping[] = {4, 7, 4, 'P', 'I', 'N', 'G', 0, 0};
    uint8_t bytes[MESSAGES + sizeof ping];
    memcpy(bytes, block_of(MESSAGE), MESSAGES);
    memcpy(bytes + MESSAGES, ping, sizeof ping);
    (void)put(fd, bytes, sizeof bytes);
    reset(fd);
    usleep(2000);
}

/* Sends one message of millions of parts without an end. */
static void send_parts(int fd)
{
    const uint8_t *block = block_of(PART);
    for (size_t sent = 0; sent < PARTS_BYTES; sent += BLOCK_BYTES)
        if (!put(fd, block, BLOCK_BYTES / 3 * 3))
            break;
    usleep(500000);
    reset(fd);
}

/* Sends messages that the server refuses, and never reads the answers. */
static void never_read(int fd)
{
    const uint8_t *block = block_of(MESSAGE);
    unsigned sent = 0;
    for (; sent < UNREAD && put(fd, block, 3 * 500); sent += 500)
        usleep(2000);
    while (sent >= UNREAD)
        pause();
    reset(fd);
}

struct attack {
    const char *name;
    bool (*enter)(int fd, uint64_t token);
    void (*act)(int fd);
};

static pid_t begin_attack(const struct attack *a, const struct rig *r)
{
    const unsigned port = (unsigned)atoi(strrchr(r->endpoint, ':') + 1);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid > 0)
        return pid;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (;;) {
        int fd = call(port);
        if (a->enter(fd, r->token))
            a->act(fd);
        else
            close(fd);
    }
}

/* ---- the run under attack ---------------------------------------------------------------------
 */

static unsigned long memory_kb(pid_t pid)
{
    char path[64], line[256];
    unsigned long most = 0;
    snprintf(path, sizeof path, "/proc/%d/status", (int)pid);
    FILE *f = fopen(path, "re");
    while (f != NULL && fgets(line, sizeof line, f) != NULL)
        (void)sscanf(line, "VmHWM: %lu", &most);
    if (f != NULL)
        fclose(f);
    return most;
}

typedef pid_t attacker(const void *what, const struct rig *r);

/* One worker trains for `updates` while `begin` attacks (NULL: no attack). Returns the hash of the
 * parameters and the growth of the server's peak memory during the attack. */
static unsigned long train_under(attacker *begin, const void *what, const char *name,
                                 unsigned updates, const char *keys, char hash[65])
{
    unsigned long most = 0, before;
    options *o;
    pid_t attackers[ATTACKERS];
    struct rig *r = rig_open_with(&o, 1, "10");
    r->total_samples = 10ULL * updates;
    snprintf(r->listen, sizeof r->listen, "tcp://127.0.0.1:*");
    rig_set(o, "curve", keys);
    pid_t server = rig_serve(r, o);
    pid_t trainer = rig_train(r, o, 0, begin != NULL ? STEP_MS : 0);
    assert_true(rig_until(&r->worker[0].stage, 1, 10));
    before = memory_kb(server);
    for (int i = 0; begin != NULL && i < ATTACKERS; i++)
        attackers[i] = begin(what, r);
    if (begin != NULL) {
        int nearly_all = (int)updates - (int)updates / 10;
        bool alive = rig_until(&r->worker[0].stage, nearly_all, 60 + updates * STEP_MS * 20e-3);
        most = memory_kb(server) - before;
        for (int i = 0; i < ATTACKERS; i++) {
            kill(attackers[i], SIGKILL);
            waitpid(attackers[i], NULL, 0);
        }
        print_message("%s: the server took %lu KB more at most\n", name, most);
        if (!alive)
            fail_msg("%s: training came to update %d of %u; the worker: %s", name,
                     r->worker[0].stage, updates, r->worker[0].message);
    }
    if (rig_wait(trainer, 60) != OK)
        fail_msg("%s: %s", name, r->worker[0].message);
    assert_int_equal(rig_wait(server, 20), OK);
    assert_int_equal(r->outcome.updates, updates);
    memcpy(hash, r->outcome.parameters_sha256, 65);
    rig_close_with(r, o);
    return most;
}

/* Sanitizers keep freed memory. */
static void expect_growth_below(unsigned long kb, unsigned long max_kb)
{
#if !defined GRADLAG_SANITIZE && !defined __SANITIZE_THREAD__
    assert_in_range(kb, 0, max_kb);
#else
    (void)kb;
    (void)max_kb;
#endif
}

static pid_t begin_raw(const void *what, const struct rig *r)
{
    return begin_attack(what, r);
}

static void expect_unharmed(const struct attack *attacks, size_t count)
{
    const unsigned updates = seconds_of("GRADLAG_ATTACK_S", ATTACK_S) * 1000 / STEP_MS;
    char quiet[65], attacked[65];
    train_under(NULL, NULL, "no attack", updates, "", quiet);
    for (const struct attack *a = attacks; a < attacks + count; a++) {
        unsigned long most = train_under(begin_raw, a, a->name, updates, "", attacked);
        assert_string_equal(quiet, attacked);
        expect_growth_below(most, GROWTH_MAX_KB);
    }
}

static void floods_and_resets_of_unauthenticated_peers_change_nothing(void **state UNUSED)
{
    static const struct attack attacks[] = {
        {"a flood and a reset", enter_without_token, flood_and_reset},
        {"a ping behind a flood", enter_without_token, ping_and_reset},
        {"a message that does not end", enter_without_token, send_parts},
        {"no reading", enter_without_token, never_read},
    };
    expect_unharmed(attacks, COUNT_OF(attacks));
}

static void a_peer_with_the_token_that_is_not_a_worker_changes_nothing(void **state UNUSED)
{
    static const struct attack attacks[] = {
        {"a ping behind a flood, with the token", enter_with_token, ping_and_reset},
        {"no reading, with the token", enter_with_token, never_read},
    };
    expect_unharmed(attacks, COUNT_OF(attacks));
}

/* ---- with a worker's key, and no token ---------------------------------------------------------
 */

typedef void dealer_attack(void *dealer);

/* An attack by one process with a ZeroMQ socket; its death resets the connection. */
static _Noreturn void attack_with_key(const struct rig *r, const char *folder, dealer_attack *act)
{
    struct curve_keys *keys;
    const int no_limit = 0;
    if (curve_open(&keys, folder, false) != OK)
        _exit(1);
    void *context = zmq_ctx_new(), *dealer = zmq_socket(context, ZMQ_DEALER);
    zmq_setsockopt(dealer, ZMQ_SNDHWM, &no_limit, sizeof no_limit);
    curve_apply(keys, dealer, false);
    if (zmq_connect(dealer, r->endpoint) != 0)
        _exit(1);
    act(dealer);
    _exit(0);
}

static void flood_with_key(void *dealer)
{
    for (int i = 0; i < 20000; i++)
        zmq_send(dealer, "x", 1, ZMQ_DONTWAIT);
    usleep(100000);
}

/* ZeroMQ cannot send a message without an end, so this one is long. */
static void send_parts_with_key(void *dealer)
{
    for (int i = 0; i < PARTS_WITH_KEY; i++)
        zmq_send(dealer, "x", 1, i + 1 < PARTS_WITH_KEY ? ZMQ_SNDMORE : 0);
    sleep(10);
}

struct key_attack {
    const char *folder;
    dealer_attack *act;
};

static pid_t begin_with_key(const void *what, const struct rig *r)
{
    const struct key_attack *a = what;
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid > 0)
        return pid;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (;;) {
        pid_t one = fork();
        if (one == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            attack_with_key(r, a->folder, a->act);
        }
        waitpid(one, NULL, 0);
    }
}

static void remove_keys(const char *folder)
{
    static const char *const names[] = {"server.key", "worker.key", "."};
    char path[160];
    for (size_t i = 0; i < COUNT_OF(names); i++) {
        snprintf(path, sizeof path, "%s/%s", folder, names[i]);
        (void)(names[i][0] == '.' ? rmdir(folder) : unlink(path));
    }
}

static void a_peer_with_a_key_but_without_the_token_changes_nothing(void **state UNUSED)
{
    static const struct {
        const char *name;
        dealer_attack *act;
    } attacks[] = {{"a flood with a key", flood_with_key},
                   {"a message of a million parts with a key", send_parts_with_key}};
    const unsigned updates = seconds_of("GRADLAG_ATTACK_S", ATTACK_S) * 1000 / STEP_MS;
    char folder[128], quiet[65], attacked[65];
    snprintf(folder, sizeof folder, "%s/glkeys-XXXXXX", scratch_folder());
    assert_non_null(mkdtemp(folder));
    assert_int_equal(curve_make(folder), OK);
    train_under(NULL, NULL, "no attack", updates, folder, quiet);
    for (size_t i = 0; i < COUNT_OF(attacks); i++) {
        const struct key_attack a = {folder, attacks[i].act};
        unsigned long growth =
            train_under(begin_with_key, &a, attacks[i].name, updates, folder, attacked);
        expect_growth_below(growth, GROWTH_WITH_KEY_MAX_KB);
        assert_string_equal(quiet, attacked);
    }
    remove_keys(folder);
}

/* ---- a server that stands still ----------------------------------------------------------------
 */

/* Joins and never pushes; its heartbeat continues. */
static status hang(struct rig *r, const options *settings, unsigned w, unsigned argument UNUSED)
{
    status result = OK;
    ps_client *client = NULL;
    struct ps_release at;
    TRY(rig_join(r, settings, w, &client, &at));
    r->worker[w].stage = 1;
    for (;;)
        pause();
done:
    ps_client_close(&client);
    return result;
}

/* Pings accumulate during the pause; their sender is dead when the server reads them. The other
 * worker waits at the barrier, so the parameters are those of one worker. */
static void a_worker_that_dies_during_a_pause_of_the_server_is_the_only_loss(void **state UNUSED)
{
    const unsigned stall_s = seconds_of("GRADLAG_STALL_S", STALL_S);
    char alone[65];
    options *o, *patient;
    train_under(NULL, NULL, "no attack", 50, "", alone);
    struct rig *r = rig_open_with(&o, 2, "1.5"), *other = rig_open_with(&patient, 2, "100");
    r->total_samples = 500;
    rig_set(o, "consistency", "bsp");
    rig_set(o, "on_lost", "continue");
    rig_set(patient, "consistency", "bsp");
    pid_t server = rig_serve(r, o);
    pid_t dies = rig_fork(r, patient, 1, 0, hang), stays = rig_train(r, patient, 0, 0);
    assert_true(rig_until(&r->worker[1].stage, 1, 10));
    assert_true(rig_until(&r->worker[0].stage, 1, 10));
    kill(server, SIGSTOP);
    clock_sleep_until_ns(clock_ns() + stall_s * 500000000ULL);
    usleep(stall_s * 500000);
    kill(dies, SIGKILL);
    assert_int_equal(rig_wait(dies, 10), 128 + SIGKILL);
    kill(server, SIGCONT);
    assert_int_equal(rig_wait(server, 20), OK);
    assert_int_equal(rig_wait(stays, 10), OK);
    assert_int_equal(r->outcome.updates, 50);
    assert_string_equal(r->outcome.parameters_sha256, alone);
    rig_close_with(other, patient);
    rig_close_with(r, o);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(floods_and_resets_of_unauthenticated_peers_change_nothing),
        cmocka_unit_test(a_peer_with_the_token_that_is_not_a_worker_changes_nothing),
        cmocka_unit_test(a_peer_with_a_key_but_without_the_token_changes_nothing),
        cmocka_unit_test(a_worker_that_dies_during_a_pause_of_the_server_is_the_only_loss),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
