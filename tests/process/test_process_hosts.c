/* A server and its workers on two hosts, simulated by two network namespaces with a cable
 * between them and addresses off loopback. Needs root and `ip`; otherwise skipped. */
#include "base/clock.h"
#include "experiments/config/hosts.h"
#include "tests/rigs/process_rig.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { HOSTS = 2 };

static int home = -1, host_fd[HOSTS] = {-1, -1};

static bool shell(const char *format, ...) PRINTF_LIKE(1, 2);
static bool shell(const char *format, ...)
{
    char line[512];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(line, sizeof line, format, arguments);
    va_end(arguments);
    return system(line) == 0;
}

static const char *name_of(int host)
{
    static char names[HOSTS][32];
    snprintf(names[host], sizeof names[host], "gradlag-%d-%d", (int)getpid(), host);
    return names[host];
}

static bool make_host(int host)
{
    char path[64];
    snprintf(path, sizeof path, "/run/netns/%s", name_of(host));
    host_fd[host] =
        shell("ip netns add %s 2>/dev/null", name_of(host)) ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    return host_fd[host] >= 0;
}

static int make_hosts(void **state)
{
    (void)state;
    home = open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC);
    bool created = geteuid() == 0 && make_host(0) && make_host(1) &&
                   shell("ip link add cable netns %s type veth peer name cable netns %s",
                         name_of(0), name_of(1));
    for (int host = 0; created && host < HOSTS; host++) {
        const char *name = name_of(host);
        created = shell("ip -n %s addr add 10.77.0.%d/24 dev cable", name, host + 1) &&
                  shell("ip -n %s link set cable up", name) &&
                  shell("ip -n %s link set lo up", name);
    }
    if (!created)
        host_fd[0] = -1;
    return 0;
}

static int remove_hosts(void **state)
{
    (void)state;
    for (int host = 0; host < HOSTS; host++)
        (void)shell("ip netns del %s 2>/dev/null", name_of(host));
    return 0;
}

/* Processes started from now on run in that namespace. */
static void go_to(int fd)
{
    assert_int_equal(setns(fd, CLONE_NEWNET), 0);
}

static void start_on(int host, struct process_rig *r, const char *const *arguments)
{
    go_to(host_fd[host]);
    process_start(r, arguments);
    go_to(home);
}

#define START_ON(host, r, ...) start_on((host), (r), (const char *const[]){__VA_ARGS__, NULL})

static void skip_without_hosts(void)
{
    if (host_fd[0] < 0) {
        print_message("skipped: no network namespaces here (root and `ip` are needed)\n");
        skip();
    }
}

/* Waits for the server; writes its endpoint for workers on the other host. The system chose the
 * port. */
static void expect_listening(struct process_rig *server, char endpoint[64])
{
    static const char address[] = "tcp://0.0.0.0:";
    const char *at = NULL;
    for (double until = clock_seconds() + RIG_LIMIT_S; at == NULL && clock_seconds() < until;) {
        at = strstr(process_errors(server), address);
        at = at != NULL && strchr(at, '\n') != NULL ? at : NULL;
        usleep(20000);
    }
    assert_non_null(at);
    snprintf(endpoint, 64, "endpoint=tcp://10.77.0.1:%d", atoi(at + strlen(address)));
}

#define BY_HAND RIG_SMALL, "workers=2", "payload=frames", "timeout_s=10", "run_token=5ea1ed"

static void workers_on_another_host_train_with_keys(void **state)
{
    struct process_rig *server = *state;
    void *more[2];
    char endpoint[64], curve[128];
    skip_without_hosts();
    assert_int_equal(RIG_RUN(server, "keygen", "keys"), OK);
    snprintf(curve, sizeof curve, "curve=%s/keys", server->folder);
    process_set_up(&more[0]);
    process_set_up(&more[1]);
    START_ON(0, server, "server", BY_HAND, "endpoint=tcp://*:*", "curve=keys");
    expect_listening(server, endpoint);
    START_ON(1, more[0], "worker", BY_HAND, endpoint, curve, "worker=0");
    START_ON(1, more[1], "worker", BY_HAND, endpoint, curve, "worker=1");
    assert_int_equal(process_wait(more[0]), OK);
    assert_int_equal(process_wait(more[1]), OK);
    assert_int_equal(process_wait(server), OK);
    assert_string_equal(process_ask(server, "SELECT status FROM run"), "finished");
    assert_string_equal(process_ask(server, "SELECT count(DISTINCT worker) FROM push"), "2");
    process_tear_down(&more[0]);
    process_tear_down(&more[1]);
}

#define WITH_LATE_WORKER                                                                           \
    RIG_LONG, "workers=1", "workers.max=2", "on_lost=continue", "payload=frames", "timeout_s=10",  \
        "pull_precision=fp16", "run_token=5ea1ed"

/* 20 gradients of worker 1 since it joined for the nth time. */
static void await_late_pushes(struct process_rig *server, int n)
{
    char sql[256];
    snprintf(
        sql, sizeof sql,
        "SELECT count(*) >= 20 FROM push WHERE worker = 1 AND arrival >= (SELECT push_number "
        "FROM event WHERE code = 'worker_joined' AND worker = 1 ORDER BY rowid LIMIT 1 OFFSET %d)",
        n - 1);
    process_await_row(server, sql);
}

static void a_worker_on_another_host_joins_late_with_keys_and_comes_back(void **state)
{
    struct process_rig *server = *state;
    void *more[2];
    char endpoint[64], curve[128];
    skip_without_hosts();
    assert_int_equal(RIG_RUN(server, "keygen", "keys"), OK);
    snprintf(curve, sizeof curve, "curve=%s/keys", server->folder);
    process_set_up(&more[0]);
    process_set_up(&more[1]);
    struct process_rig *late = more[1];
    START_ON(0, server, "server", WITH_LATE_WORKER, "endpoint=tcp://*:*", "curve=keys");
    expect_listening(server, endpoint);
    START_ON(0, more[0], "worker", WITH_LATE_WORKER, endpoint, curve, "worker=0");
    process_await_row(server, "SELECT count(*) > 20 FROM push");
    START_ON(1, late, "worker", WITH_LATE_WORKER, endpoint, curve, "worker=1");
    await_late_pushes(server, 1);
    kill(late->pid, SIGTERM);
    assert_int_equal(process_wait(late), STOPPED);
    process_await_row(server, "SELECT count(*) FROM event WHERE code = 'worker_lost'");
    START_ON(1, late, "worker", WITH_LATE_WORKER, endpoint, curve, "worker=1");
    await_late_pushes(server, 2);
    kill(server->pid, SIGINT);
    assert_int_equal(process_wait(server), STOPPED);
    assert_int_equal(process_wait(more[0]), OK);
    assert_int_equal(process_wait(late), OK);
    process_expect_replayed(server);
    process_tear_down(&more[0]);
    process_tear_down(&more[1]);
}

/* payload=frames, because two namespaces of one kernel count as one host. */
#define LONG_VECTORS                                                                               \
    "dataset=gaussian", "dataset.samples=100", "model=cnn", "batch=10", "updates=3", "workers=1",  \
        "payload=frames", "timeout_s=20", "run_token=5ea1ed"

/* With encryption, a frame of the parameters is longer than its content. */
static void vectors_longer_than_a_frame_reach_another_host(void **state)
{
    struct process_rig *server = *state;
    void *more;
    char endpoint[64], curve[128];
    skip_without_hosts();
    assert_int_equal(RIG_RUN(server, "keygen", "keys"), OK);
    snprintf(curve, sizeof curve, "curve=%s/keys", server->folder);
    process_set_up(&more);
    START_ON(0, server, "server", LONG_VECTORS, "endpoint=tcp://*:*", "curve=keys");
    expect_listening(server, endpoint);
    START_ON(1, more, "worker", LONG_VECTORS, endpoint, curve, "worker=0");
    if (process_wait(more) != OK)
        fail_msg("%s", process_errors(more));
    assert_int_equal(process_wait(server), OK);
    process_expect_answer(server, "SELECT status || ' ' || updates FROM run", "finished 3");
    process_tear_down(&more);
}

/* Each host has a server and a worker, so messages between servers use the cable, too. */
static void servers_on_two_hosts_hold_a_slice_each(void **state)
{
    static const char *const roles[][2] = {{"server", "server=0"},
                                           {"server", "server=1"},
                                           {"worker", "worker=0"},
                                           {"worker", "worker=1"}};
    static const char *const places[] = {"endpoint=tcp://*:5555,tcp://10.77.0.2:5556",
                                         "endpoint=tcp://10.77.0.1:5555,tcp://*:5556",
                                         "endpoint=tcp://10.77.0.1:5555,tcp://10.77.0.2:5556"};
    struct process_rig *r = *state, *at[COUNT_OF(roles)] = {r};
    void *more[COUNT_OF(roles)];
    char curve[128];
    skip_without_hosts();
    assert_int_equal(RIG_RUN(r, "keygen", "keys"), OK);
    snprintf(curve, sizeof curve, "curve=%s/keys", r->folder);
    for (size_t i = 0; i < COUNT_OF(roles); i++) {
        if (i > 0) {
            process_set_up(&more[i]);
            at[i] = more[i];
        }
        START_ON((int)i % HOSTS, at[i], roles[i][0], roles[i][1], BY_HAND, "servers=2", curve,
                 places[i < 2 ? i : 2]);
    }
    for (size_t i = 0; i < COUNT_OF(roles); i++)
        if (process_wait(at[i]) != OK)
            fail_msg("%s: %s", roles[i][1], process_errors(at[i]));
    process_expect_answer(r, "SELECT status FROM run", "finished");
    process_expect_answer(r,
                          "SELECT sum(n) FROM (SELECT count(*) >= 60 AS n FROM push "
                          "GROUP BY server)",
                          "2");
    assert_int_equal(RIG_RUN(r, "replay", "last"), OK);
    for (size_t i = 1; i < COUNT_OF(roles); i++)
        process_tear_down(&more[i]);
}

static void workers_on_another_host_train_without_keys_on_a_trusted_network(void **state)
{
    struct process_rig *server = *state;
    void *more[2];
    char endpoint[64];
    skip_without_hosts();
    process_set_up(&more[0]);
    process_set_up(&more[1]);
    START_ON(0, server, "server", BY_HAND, "endpoint=tcp://*:*", "trusted_network=yes");
    expect_listening(server, endpoint);
    START_ON(1, more[0], "worker", BY_HAND, endpoint, "worker=0");
    assert_int_equal(process_wait(more[0]), ERROR_USAGE);
    process_expect_error(more[0], "trusted_network=yes");
    for (unsigned i = 0; i < COUNT_OF(more); i++)
        START_ON(1, more[i], "worker", BY_HAND, endpoint, "trusted_network=yes",
                 i == 0 ? "worker=0" : "worker=1");
    assert_int_equal(process_wait(more[0]), OK);
    assert_int_equal(process_wait(more[1]), OK);
    assert_int_equal(process_wait(server), OK);
    process_expect_answer(server,
                          "SELECT status || (host ->> '$.network' LIKE '%trusted_network%') || "
                          "(SELECT count(DISTINCT worker) FROM push) FROM run",
                          "finished12");
    START_ON(0, server, "server", BY_HAND, "trusted_network=yes", "curve=keys");
    assert_int_equal(process_wait(server), ERROR_USAGE);
    process_expect_error(server, "trusted_network=yes");
    process_tear_down(&more[0]);
    process_tear_down(&more[1]);
}

static void a_server_off_loopback_needs_keys(void **state)
{
    struct process_rig *r = *state;
    skip_without_hosts();
    START_ON(0, r, "server", BY_HAND, "endpoint=tcp://10.77.0.1:*");
    assert_int_equal(process_wait(r), ERROR_USAGE);
    process_expect_error(r, "gradlag keygen");
}

/* An interface may have several addresses; workers need the one in their network. */
static void the_address_of_an_interface_is_the_one_that_workers_reach(void **state UNUSED)
{
    const struct run_host first = {.name = "10.77.0.2"}, second = {.name = "10.78.0.2"},
                          unknown = {.name = "no-such-host.invalid"};
    char at_first[HOST_ADDRESS_BYTES], at_second[HOST_ADDRESS_BYTES], at_other[HOST_ADDRESS_BYTES],
        at_unknown[HOST_ADDRESS_BYTES];
    skip_without_hosts();
    assert_true(shell("ip -n %s addr add 10.78.0.1/24 dev cable", name_of(0)));
    go_to(host_fd[0]);
    status codes[] = {hosts_own_address(&first, "cable", at_first),
                      hosts_own_address(&second, "cable", at_second),
                      hosts_own_address(&second, "10.77.0.0/16", at_other),
                      hosts_own_address(&unknown, "cable", at_unknown)};
    go_to(home);
    for (size_t i = 0; i < COUNT_OF(codes); i++)
        assert_int_equal(codes[i], OK);
    assert_string_equal(at_first, "10.77.0.1");
    assert_string_equal(at_second, "10.78.0.1");
    assert_string_equal(at_other, "10.77.0.1");
    assert_string_equal(at_unknown, "10.77.0.1");
}

/* The name servers do not answer, which takes a minute to find out; nothing can interrupt that. */
static void a_worker_ends_although_a_host_name_is_being_resolved(void **state)
{
    struct process_rig *r = *state;
    char script[1024];
    skip_without_hosts();
    snprintf(
        script, sizeof script,
        "printf 'nameserver 10.77.0.7\\nnameserver 10.77.0.8\\nnameserver 10.77.0.9\\n' >names; "
        "unshare --mount sh -c 'mount --bind names /etc/resolv.conf && exec timeout 12 \"%s\" "
        "worker dataset=gaussian model=softmax workers=1 timeout_s=2 trusted_network=yes "
        "run_token=5ea1ed worker=0 endpoint=tcp://server.example:5555'",
        process_program());
    go_to(host_fd[0]);
    int code = process_shell(r, script);
    go_to(home);
    if (code != ERROR_PEER) /* 124: timeout stopped it */
        fail_msg("exit code %d: %s", code, process_errors(r));
}

static void a_worker_with_foreign_keys_is_refused(void **state)
{
    struct process_rig *server = *state;
    void *other;
    char endpoint[64];
    skip_without_hosts();
    assert_int_equal(RIG_RUN(server, "keygen", "keys"), OK);
    process_set_up(&other);
    assert_int_equal(RIG_RUN(other, "keygen", "keys"), OK);
    START_ON(0, server, "server", BY_HAND, "endpoint=tcp://*:*", "curve=keys");
    expect_listening(server, endpoint);
    START_ON(1, other, "worker", BY_HAND, endpoint, "curve=keys", "worker=0");
    assert_int_equal(process_wait(other), ERROR_PROTOCOL);
    process_expect_error(other, "curve=");
    kill(server->pid, SIGTERM);
    assert_int_equal(process_wait(server), STOPPED);
    process_expect_answer(server, "SELECT count(*) FROM event WHERE code = 'worker_joined'", "0");
    process_tear_down(&other);
}

/* Three workers at 100 Mbit/s make about 10 updates/s; with an unlimited link of the server they
 * would make 18. The band is wide because other load slows the real run. The user's locale, if it
 * can be made here, has a decimal comma. */
static void a_virtual_servers_link_is_shared_like_a_real_one(void **state)
{
    struct process_rig *r = *state;
    char script[1024], tree[512];
    double ratio = 0;
    assert_non_null(getcwd(tree, sizeof tree));
    snprintf(script, sizeof script,
             "mkdir locales; localedef -f UTF-8 -i de_DE locales/de_DE.UTF-8 2>/dev/null; "
             "export LOCPATH=$PWD/locales LC_ALL=de_DE.UTF-8; RATES=0.1 SIDES=both SERVERS=1 "
             "WORKERS=3 LENGTH_S=4 UPDATES=400 "
             "'%s/scripts/measure-server-links' '%s'",
             tree, process_program());
    if (process_shell(r, script) != OK)
        fail_msg("%s", process_errors(r));
    const char *row = strstr(process_output(r), "| 0.1 |");
    if (row == NULL && strstr(process_output(r), "skipped: ") != NULL)
        skip();
    assert_non_null(row);
    assert_int_equal(sscanf(row, "| 0.1 | both | 1 | 3 | %*f | %*f | %lf |", &ratio), 1);
    if (ratio < 0.7 || ratio > 1.5)
        fail_msg("the virtual run's rate is %.2f of the real one's: %s", ratio, row);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(workers_on_another_host_train_with_keys, process_set_up,
                                        process_tear_down),
        cmocka_unit_test_setup_teardown(
            a_worker_on_another_host_joins_late_with_keys_and_comes_back, process_set_up,
            process_tear_down),
        cmocka_unit_test_setup_teardown(vectors_longer_than_a_frame_reach_another_host,
                                        process_set_up, process_tear_down),
        cmocka_unit_test_setup_teardown(servers_on_two_hosts_hold_a_slice_each, process_set_up,
                                        process_tear_down),
        cmocka_unit_test_setup_teardown(
            workers_on_another_host_train_without_keys_on_a_trusted_network, process_set_up,
            process_tear_down),
        cmocka_unit_test_setup_teardown(a_server_off_loopback_needs_keys, process_set_up,
                                        process_tear_down),
        cmocka_unit_test(the_address_of_an_interface_is_the_one_that_workers_reach),
        cmocka_unit_test_setup_teardown(a_worker_ends_although_a_host_name_is_being_resolved,
                                        process_set_up, process_tear_down),
        cmocka_unit_test_setup_teardown(a_worker_with_foreign_keys_is_refused, process_set_up,
                                        process_tear_down),
        cmocka_unit_test_setup_teardown(a_virtual_servers_link_is_shared_like_a_real_one,
                                        process_set_up, process_tear_down),
    };
    return cmocka_run_group_tests(tests, make_hosts, remove_hosts);
}
