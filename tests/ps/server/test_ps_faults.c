/* Lost peers: workers and servers that die, fall silent, hang or never join; refused workers; and
 * endpoints that cannot be used. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/clock.h"
#include "ps/net/payload.h"
#include "tests/ps/server/worker_puppet.h"
#include "tests/results/results_rig.h"
#include "tests/rigs/scratch.h"

/* ---- deaths and silence -------------------------------------------------------------------- */

static void a_killed_worker_ends_the_run_at_once_and_is_named(void **state UNUSED)
{
    options *o;
    struct rig *r = rig_open_with(&o, 2, "1000");
    r->total_samples = FOREVER;
    pid_t server = rig_serve(r, o), a = rig_train(r, o, 0, 1), b = rig_train(r, o, 1, 50);
    assert_true(rig_until(&r->worker[1].stage, 2, 10));
    kill(b, SIGKILL);
    assert_int_equal(rig_wait(b, 5), 128 + SIGKILL);
    assert_int_equal(rig_wait(server, 10), ERROR_PEER); /* long before the timeout */
    assert_int_equal(rig_wait(a, 10), ERROR_PEER);
    rig_expect_named(r->message, "worker 1");
    rig_expect_named(r->worker[0].message, "worker 1");
    rig_close_with(r, o);
}

static void
training_goes_on_without_a_lost_worker_until_another_takes_its_place(void **state UNUSED)
{
    options *o;
    struct rig *r = rig_open_with(&o, 2, "20");
    rig_set(o, "on_lost", "continue");
    r->total_samples = FOREVER;
    pid_t server = rig_serve(r, o), a = rig_train(r, o, 0, 1), b = rig_train(r, o, 1, 1);
    assert_true(rig_until(&r->worker[1].stage, 5, 10));
    kill(b, SIGKILL);
    assert_int_equal(rig_wait(b, 5), 128 + SIGKILL);
    int before = r->worker[0].stage;
    assert_true(rig_until(&r->worker[0].stage, before + 50, 10));
    before = r->worker[1].stage;
    pid_t again = rig_train(r, o, 1, 1);
    assert_true(rig_until(&r->worker[1].stage, before + 50, 20));
    r->stop = 1;
    assert_int_equal(rig_wait(again, 20), OK);
    assert_int_equal(rig_wait(a, 20), OK);
    assert_int_equal(rig_wait(server, 20), STOPPED);
    assert_true(r->worker[1].first_batch >= 4); /* it continues where the lost worker stopped */
    rig_close_with(r, o);
}

static void a_barrier_does_not_wait_for_a_lost_worker(void **state UNUSED)
{
    options *o;
    struct rig *r = rig_open_with(&o, 2, "20");
    rig_set(o, "on_lost", "continue");
    rig_set(o, "consistency", "bsp");
    r->total_samples = 2000;
    pid_t server = rig_serve(r, o), a = rig_train(r, o, 0, 0), b = rig_train(r, o, 1, 500);
    assert_true(rig_until(&r->worker[1].stage, 1, 10));
    kill(b, SIGKILL);
    rig_wait(b, 5);
    assert_int_equal(rig_wait(a, 10), OK);
    assert_int_equal(rig_wait(server, 10), OK);
    rig_close_with(r, o);
}

static void the_loss_of_the_last_worker_ends_the_run(void **state UNUSED)
{
    options *o;
    struct rig *r = rig_open_with(&o, 1, "20");
    rig_set(o, "on_lost", "continue");
    r->total_samples = FOREVER;
    pid_t server = rig_serve(r, o), a = rig_train(r, o, 0, 1);
    assert_true(rig_until(&r->worker[0].stage, 2, 10));
    kill(a, SIGKILL);
    rig_wait(a, 5);
    assert_int_equal(rig_wait(server, 10), ERROR_PEER);
    rig_close_with(r, o);
}

static void a_stopped_worker_is_lost_after_the_timeout(void **state UNUSED)
{
    options *o;
    struct rig *r = rig_open_with(&o, 2, "1.2");
    r->total_samples = FOREVER;
    pid_t server = rig_serve(r, o), a = rig_train(r, o, 0, 1), b = rig_train(r, o, 1, 1);
    assert_true(rig_until(&r->worker[1].stage, 2, 10));
    kill(b, SIGSTOP);
    assert_int_equal(rig_wait(server, 10), ERROR_PEER);
    rig_expect_named(r->message, "worker 1");
    rig_expect_named(r->message, "timeout_s");
    assert_int_equal(rig_wait(a, 10), ERROR_PEER);
    kill(b, SIGCONT); /* worker b now reads its messages, or sends one and is refused */
    assert_int_equal(rig_wait(b, 10), ERROR_PEER);
    rig_close_with(r, o);
}

static void the_silence_limit_holds_also_for_a_worker_that_owes_a_gradient(void **state UNUSED)
{
    options *o;
    struct rig *r = rig_open_with(&o, 1, "1.2");
    r->total_samples = FOREVER;
    pid_t server = rig_serve(r, o), a = rig_train(r, o, 0, 1);
    assert_true(rig_until(&r->worker[0].stage, 2, 10));
    kill(a, SIGSTOP);
    assert_int_equal(rig_wait(server, 10), ERROR_PEER);
    rig_expect_named(r->message, "worker 0");
    rig_expect_named(r->message, "timeout_s");
    kill(a, SIGKILL);
    rig_wait(a, 5);
    rig_close_with(r, o);
}

static void a_lost_worker_that_still_runs_keeps_its_place(void **state UNUSED)
{
    options *o;
    struct rig *r = rig_open_with(&o, 2, "2");
    rig_set(o, "on_lost", "continue");
    rig_set(o, "payload", "shm");
    r->total_samples = FOREVER;
    pid_t server = rig_serve(r, o), a = rig_train(r, o, 0, 1), b = rig_train(r, o, 1, 1);
    assert_true(rig_until(&r->worker[1].stage, 2, 10));
    kill(b, SIGSTOP);
    struct rig *second = rig_open(2, 1000);
    memcpy(second->endpoint, r->endpoint, sizeof r->endpoint);
    rig_set(o, "timeout_s", "20"); /* the server does not answer a hello at once */
    pid_t c;
    do /* ERROR_PROTOCOL until worker 1 is lost */
        c = rig_train(second, o, 1, 1);
    while (rig_wait(c, 15) == ERROR_PROTOCOL);
    assert_int_equal(second->worker[1].code, ERROR_PEER);
    char pid[16];
    snprintf(pid, sizeof pid, "%d", (int)b);
    rig_expect_named(second->worker[1].message, pid);
    kill(b, SIGKILL);
    rig_wait(b, 5);
    c = rig_train(second, o, 1, 1);
    assert_true(rig_until(&second->worker[1].stage, 2, 10));
    r->stop = 1;
    assert_int_equal(rig_wait(server, 10), STOPPED);
    assert_int_equal(rig_wait(a, 10), OK);
    assert_int_equal(rig_wait(c, 10), OK);
    rig_close(second);
    rig_close_with(r, o);
}

/* The process of the evicted worker still runs. Its goodbye says that it does not write to shared
 * memory any more. Pings that it sent before are no offences. */
static void an_evicted_worker_joins_again_after_its_goodbye(void **state UNUSED)
{
    char path[64];
    options *o;
    struct rig *r = rig_open_with(&o, 2, "10");
    snprintf(path, sizeof path, "%s/gradlag-test-%d.db", scratch_folder(), (int)getpid());
    r->results = path;
    r->total_samples = FOREVER;
    rig_set(o, "on_lost", "continue");
    pid_t server = rig_serve(r, o), a = rig_train(r, o, 0, 1);
    struct puppet p = puppet_open(r, 1), beat = puppet_open(r, 1);
    p.m.hello = (struct wire_hello){.count = r->count, .nonce = 1, .pid = (uint32_t)getpid()};
    payload_host(p.m.hello.host);
    puppet_send(&p, WIRE_HELLO);
    puppet_expect(&p, WIRE_WELCOME);
    p.m.incarnation = beat.m.incarnation = p.got.message.incarnation;
    p.m.ready.payload = WIRE_PAYLOAD_SHM;
    puppet_send(&p, WIRE_READY);
    puppet_expect(&p, WIRE_RELEASE);
    puppet_send(&p, WIRE_END); /* only a server may */
    puppet_expect(&p, WIRE_REFUSED);
    for (int i = 0; i < 5; i++)
        puppet_send(&beat, WIRE_PING);
    puppet_send(&beat, WIRE_PULL);
    puppet_expect(&beat, WIRE_REFUSED); /* the pings have arrived */
    p.m.text = (struct wire_text){.code = ERROR_PEER};
    puppet_send(&p, WIRE_GOODBYE);
    puppet_send(&p, WIRE_PULL);
    puppet_expect(&p, WIRE_REFUSED); /* the goodbye has arrived */
    struct puppet again = puppet_join(r, 1);
    puppet_expect(&again, WIRE_RELEASE);
    r->stop = 1;
    assert_int_equal(rig_wait(server, 10), STOPPED);
    assert_int_equal(rig_wait(a, 10), OK);
    assert_int_equal(rig_number(path, "SELECT count(*) FROM event WHERE code = 'peer_refused'"), 3);
    unlink(path);
    channel_close(&again.channel);
    channel_close(&beat.channel);
    channel_close(&p.channel);
    rig_close_with(r, o);
}

/* The worker pings as often as the shorter of the two timeouts requires. */
static void a_step_longer_than_the_timeout_is_not_a_lost_worker(void **state UNUSED)
{
    static const char *const worker_timeouts[] = {"1.5", "20"};
    for (size_t i = 0; i < COUNT_OF(worker_timeouts); i++) {
        options *o, *of_worker;
        struct rig *r = rig_open_with(&o, 1, "1.5");
        struct rig *second = rig_open_with(&of_worker, 1, worker_timeouts[i]);
        r->total_samples = 10;
        pid_t server = rig_serve(r, o), a = rig_train(r, of_worker, 0, 2500);
        assert_int_equal(rig_wait(a, 10), OK);
        assert_int_equal(rig_wait(server, 10), OK);
        rig_close_with(second, of_worker);
        rig_close_with(r, o);
    }
}

/* A worker that pings but never ends its third step. */
static status hang(struct rig *r, const options *settings, unsigned w, unsigned unused UNUSED)
{
    status result = OK;
    ps_client *client = NULL;
    struct ps_release at;
    TRY(rig_join(r, settings, w, &client, &at));
    while (!at.finished && ++r->worker[w].stage < 3) {
        memset(at.gradient, 0, r->count * sizeof(float));
        TRY(ps_client_push_pull(client, &(struct ps_push){.loss = 1, .samples = 10}, &at));
    }
    for (;;)
        pause();
done:
    ps_client_close(&client);
    return result;
}

/* Worker 1 pings but sends no gradient, or never joins. The limit for work is 20 times timeout_s:
 * 16 s. All runs wait at the same time. */
static void a_hanging_or_missing_worker_is_lost_after_twenty_times_the_timeout(void **state UNUSED)
{
    static const struct {
        const char *consistency, *on_lost;
        rig_body *second; /* worker 1; NULL: it never joins */
        bool records;
        status code;
    } cases[] = {
        {"bsp", "stop", hang, false, ERROR_PEER}, /* worker 0 waits for worker 1 */
        {"bsp", "continue", hang, false, OK},
        {"asp", "stop", hang, true, ERROR_PEER}, /* worker 0 goes on */
        {"asp", "stop", NULL, false, ERROR_PEER},
    };
    struct {
        struct rig *rig;
        options *settings;
        pid_t server, workers[2];
        uint64_t began_ns;
    } runs[COUNT_OF(cases)];
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        options *o;
        struct rig *r = runs[i].rig = rig_open_with(&o, 2, "1.2");
        runs[i].settings = o;
        rig_set(o, "consistency", cases[i].consistency);
        rig_set(o, "on_lost", cases[i].on_lost);
        snprintf(r->listen, sizeof r->listen, "ipc://%s/run-%zu", scratch_folder(), i);
        r->total_samples = cases[i].code == OK ? 1000 : FOREVER;
        r->results = cases[i].records ? rig_path : NULL;
        runs[i].began_ns = clock_ns();
        runs[i].server = rig_serve(r, o);
        runs[i].workers[0] = rig_train(r, o, 0, 5);
        if (cases[i].second != NULL)
            runs[i].workers[1] = rig_fork(r, o, 1, 0, cases[i].second);
    }
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct rig *r = runs[i].rig;
        assert_int_equal(rig_wait(runs[i].server, 60), cases[i].code);
        assert_int_equal(rig_wait(runs[i].workers[0], 10), cases[i].code);
        assert_true(r->ended_ns - runs[i].began_ns > 23000000000);
        if (cases[i].code != OK) {
            rig_expect_named(r->message, "worker 1");
            assert_null(strstr(r->message, "worker 0"));
        }
        if (cases[i].records)
            assert_string_equal(
                rig_ask("SELECT group_concat(worker || ' ' || severity || ' ' || (detail LIKE "
                        "'%24 s%')) FROM event WHERE code = 'worker_slow'"),
                "1 warning 1");
        if (cases[i].second != NULL) {
            kill(runs[i].workers[1], SIGKILL);
            rig_wait(runs[i].workers[1], 5);
        }
        rig_close_with(r, runs[i].settings);
    }
}

static void a_worker_slower_than_the_timeout_is_not_lost_beside_a_fast_one(void **state UNUSED)
{
    options *o;
    struct rig *r = rig_open_with(&o, 2, "1.5");
    r->total_samples = FOREVER;
    pid_t server = rig_serve(r, o), a = rig_train(r, o, 0, 2), b = rig_train(r, o, 1, 2200);
    assert_true(rig_until(&r->worker[1].stage, 3, 20));
    r->stop = 1;
    assert_int_equal(rig_wait(server, 10), STOPPED);
    assert_int_equal(rig_wait(a, 10), OK);
    assert_int_equal(rig_wait(b, 10), OK);
    rig_close_with(r, o);
}

/* A worker that leaves with `code` as its reason. */
static status leave(struct rig *r, const options *settings, unsigned w, unsigned code)
{
    status result = OK;
    ps_client *client = NULL;
    struct ps_release at;
    TRY(rig_join(r, settings, w, &client, &at));
    ps_client_leave(client, (status)code, "of its own");
done:
    ps_client_close(&client);
    return result;
}

static void the_run_takes_over_only_codes_of_a_workers_own_failure(void **state UNUSED)
{
    static const status codes[] = {ERROR_OTHER, ERROR_DATA, ERROR_PEER, ERROR_DIVERGED};
    static const status wanted[] = {ERROR_OTHER, ERROR_DATA, ERROR_PEER, ERROR_PEER};
    for (size_t i = 0; i < COUNT_OF(codes); i++) {
        options *o;
        struct rig *r = rig_open_with(&o, 1, "20");
        pid_t server = rig_serve(r, o), a = rig_fork(r, o, 0, codes[i], leave);
        assert_int_equal(rig_wait(a, 10), OK);
        assert_int_equal(rig_wait(server, 10), wanted[i]);
        rig_expect_named(r->message, "of its own");
        rig_close_with(r, o);
    }
}

static void workers_notice_a_killed_server_at_once(void **state UNUSED)
{
    options *o;
    struct rig *r = rig_open_with(&o, 1, "1000");
    r->total_samples = FOREVER;
    pid_t server = rig_serve(r, o), a = rig_train(r, o, 0, 1);
    assert_true(rig_until(&r->worker[0].stage, 2, 10));
    kill(server, SIGKILL);
    rig_wait(server, 5);
    assert_int_equal(rig_wait(a, 10), ERROR_PEER);
    rig_expect_named(r->worker[0].message, r->endpoint);
    unlink(r->listen + strlen("ipc://"));
    rig_close_with(r, o);
}

static void a_stopped_server_is_given_up_after_the_timeout(void **state UNUSED)
{
    options *o;
    struct rig *r = rig_open_with(&o, 1, "1.2");
    r->total_samples = FOREVER;
    pid_t server = rig_serve(r, o), a = rig_train(r, o, 0, 1);
    assert_true(rig_until(&r->worker[0].stage, 2, 10));
    kill(server, SIGSTOP);
    assert_int_equal(rig_wait(a, 10), ERROR_PEER);
    rig_expect_named(r->worker[0].message, "timeout_s");
    kill(server, SIGKILL);
    rig_wait(server, 5);
    unlink(r->listen + strlen("ipc://"));
    rig_close_with(r, o);
}

static void a_worker_without_a_server_gives_up_after_the_timeout(void **state UNUSED)
{
    options *o;
    struct rig *r = rig_open_with(&o, 1, "0.5");
    snprintf(r->endpoint, sizeof r->endpoint, "%s", r->listen);
    pid_t a = rig_train(r, o, 0, 0);
    assert_int_equal(rig_wait(a, 5), ERROR_PEER);
    rig_expect_named(r->worker[0].message, r->endpoint);
    rig_close_with(r, o);
}

/* It died on another host, where the server cannot see its process. Its replacement waits. */
static void a_worker_that_died_on_another_host_is_replaced(void **state UNUSED)
{
    options *o;
    struct rig *r = rig_open_with(&o, 2, "4"), *second = rig_open(2, 1000);
    rig_set(o, "on_lost", "continue");
    r->total_samples = FOREVER;
    pid_t server = rig_serve(r, o), a = rig_train(r, o, 0, 1);
    struct puppet p = puppet_join(r, 1);
    puppet_expect(&p, WIRE_RELEASE);
    memcpy(second->endpoint, r->endpoint, sizeof r->endpoint);
    clock_sleep_until_ns(clock_ns() + 2500000000); /* more than half of timeout_s */
    pid_t b = rig_train(second, o, 1, 1);
    if (!rig_until(&second->worker[1].stage, 3, 10))
        fail_msg("%s", second->worker[1].message);
    r->stop = 1;
    assert_int_equal(rig_wait(server, 10), STOPPED);
    assert_int_equal(rig_wait(a, 10), OK);
    assert_int_equal(rig_wait(b, 10), OK);
    channel_close(&p.channel);
    rig_close(second);
    rig_close_with(r, o);
}

/* ---- refused workers ---------------------------------------------------------------------- */

static void the_same_number_twice_is_refused_and_the_first_goes_on(void **state UNUSED)
{
    options *o;
    struct rig *r = rig_open_with(&o, 1, "20");
    r->total_samples = FOREVER;
    pid_t server = rig_serve(r, o), a = rig_train(r, o, 0, 2);
    assert_true(rig_until(&r->worker[0].stage, 2, 10));
    struct rig *second = rig_open(1, 1000); /* the same worker again, with a report of its own */
    memcpy(second->endpoint, r->endpoint, sizeof r->endpoint);
    pid_t b = rig_train(second, o, 0, 0);
    assert_int_equal(rig_wait(b, 10), ERROR_PROTOCOL);
    rig_expect_named(second->worker[0].message, "worker 0");
    const int before = r->worker[0].stage;
    assert_true(rig_until(&r->worker[0].stage, before + 50, 10));
    r->stop = 1;
    assert_int_equal(rig_wait(a, 10), OK);
    assert_int_equal(rig_wait(server, 10), STOPPED);
    rig_close(second);
    rig_close_with(r, o);
}

static void another_model_other_settings_and_another_token_are_refused(void **state UNUSED)
{
    options *o;
    struct rig *r = rig_open_with(&o, 1, "20");
    pid_t server = rig_serve(r, o);
    struct rig *other = rig_open(1, 999);
    memcpy(other->endpoint, r->endpoint, sizeof r->endpoint);
    pid_t a = rig_train(other, o, 0, 0);
    assert_int_equal(rig_wait(a, 10), ERROR_PROTOCOL);
    rig_expect_named(other->worker[0].message, "999");
    other->count = 1000;
    other->settings_hash = r->settings_hash + 1;
    a = rig_train(other, o, 0, 0);
    assert_int_equal(rig_wait(a, 10), ERROR_PROTOCOL);
    other->settings_hash = r->settings_hash;
    other->token++;
    a = rig_train(other, o, 0, 0);
    assert_int_equal(rig_wait(a, 10), ERROR_PROTOCOL);
    rig_expect_named(other->worker[0].message, "run_token");
    assert_null(strstr(other->worker[0].message, "1234567890abcdef"));
    other->token = r->token;
    assert_int_equal(rig_wait(rig_train(other, o, 0, 0), 10), OK);
    assert_int_equal(rig_wait(server, 10), OK);
    rig_close(other);
    rig_close_with(r, o);
}

/* ---- endpoints ---------------------------------------------------------------------------------
 */

static void assert_cannot_listen(const char *endpoint, status code, const char *name)
{
    options *o;
    struct rig *r = rig_open_with(&o, 1, "1");
    snprintf(r->listen, sizeof r->listen, "%s", endpoint);
    assert_int_equal(rig_wait(rig_serve(r, o), 5), code);
    rig_expect_named(r->message, name);
    rig_close_with(r, o);
}

static void invalid_endpoints_are_usage_errors(void **state UNUSED)
{
    char path[128] = "ipc:///tmp/";
    memset(path + 11, 'x', 110);
    assert_cannot_listen("tcp://0.0.0.0:5555", ERROR_USAGE, "curve=");
    assert_cannot_listen("tcp://*:*", ERROR_USAGE, "curve=");
    assert_cannot_listen("tcp://192.168.1.1:5555", ERROR_USAGE, "curve=");
    assert_cannot_listen("tcp://127.example.org:5555", ERROR_USAGE, "curve=");
    assert_cannot_listen("tcp://127.0.0.1.example.org:5555", ERROR_USAGE, "curve=");
    assert_cannot_listen("tcp://127.1:5555", ERROR_USAGE, "curve=");
    assert_cannot_listen("tcp://[::1]:1;10.0.0.1:5555", ERROR_USAGE, "curve=");
    assert_cannot_listen("tcp://127.0.0.1:99999", ERROR_USAGE, "99999");
    assert_cannot_listen("tcp://127.0.0.1", ERROR_USAGE, "65535");
    assert_cannot_listen("nonsense", ERROR_USAGE, "nonsense");
    assert_cannot_listen(path, ERROR_USAGE, "115");
    assert_cannot_listen("ipc:///tmp/gradlag-no-such-folder/x", ERROR_USAGE,
                         "gradlag-no-such-folder");
}

static void a_worker_cannot_connect_to_a_wildcard_endpoint(void **state UNUSED)
{
    options *o;
    struct rig *r = rig_open_with(&o, 1, "20");
    snprintf(r->endpoint, sizeof r->endpoint, "tcp://127.0.0.1:*");
    assert_int_equal(rig_wait(rig_train(r, o, 0, 0), 5), ERROR_USAGE);
    rig_expect_named(r->worker[0].message, "tcp://127.0.0.1:*");
    rig_close_with(r, o);
}

static void an_endpoint_in_use_is_an_error_and_its_owner_goes_on(void **state UNUSED)
{
    static const char *const endpoints[] = {NULL, "tcp://127.0.0.1:*"};
    for (size_t i = 0; i < COUNT_OF(endpoints); i++) {
        options *o;
        struct rig *r = rig_open_with(&o, 1, "10");
        if (endpoints[i] != NULL)
            snprintf(r->listen, sizeof r->listen, "%s", endpoints[i]);
        pid_t server = rig_serve(r, o);
        assert_cannot_listen(r->endpoint, ERROR_OTHER, r->endpoint);
        pid_t a = rig_train(r, o, 0, 0);
        assert_int_equal(rig_wait(a, 10), OK);
        assert_int_equal(rig_wait(server, 10), OK);
        rig_close_with(r, o);
    }
}

/* The owner listens but accepts no connection, and its queue of connections is full. */
static void an_endpoint_whose_owner_hangs_is_in_use(void **state UNUSED)
{
    char endpoint[80];
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int callers[16], count = 0, owner = socket(AF_UNIX, SOCK_STREAM, 0);
    snprintf(address.sun_path, sizeof address.sun_path, "%s/gradlag-test-%d.hangs",
             scratch_folder(), (int)getpid());
    snprintf(endpoint, sizeof endpoint, "ipc://%.70s", address.sun_path);
    assert_int_equal(bind(owner, (struct sockaddr *)&address, sizeof address), 0);
    assert_int_equal(listen(owner, 0), 0);
    do
        callers[count] = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0);
    while (connect(callers[count++], (struct sockaddr *)&address, sizeof address) == 0 &&
           count < 16);
    assert_true(count < 16);
    assert_cannot_listen(endpoint, ERROR_OTHER, endpoint);
    while (count-- > 0)
        close(callers[count]);
    close(owner);
    unlink(address.sun_path);
}

static void a_file_that_is_not_a_socket_is_not_removed(void **state UNUSED)
{
    char path[64], endpoint[80];
    struct stat file;
    snprintf(path, sizeof path, "%s/gradlag-test-%d.txt", scratch_folder(), (int)getpid());
    snprintf(endpoint, sizeof endpoint, "ipc://%s", path);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fclose(f);
    assert_cannot_listen(endpoint, ERROR_USAGE, path);
    assert_int_equal(stat(path, &file), 0);
    unlink(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_killed_worker_ends_the_run_at_once_and_is_named),
        cmocka_unit_test(training_goes_on_without_a_lost_worker_until_another_takes_its_place),
        cmocka_unit_test(a_barrier_does_not_wait_for_a_lost_worker),
        cmocka_unit_test(the_loss_of_the_last_worker_ends_the_run),
        cmocka_unit_test(a_stopped_worker_is_lost_after_the_timeout),
        cmocka_unit_test(the_silence_limit_holds_also_for_a_worker_that_owes_a_gradient),
        cmocka_unit_test(a_lost_worker_that_still_runs_keeps_its_place),
        cmocka_unit_test(an_evicted_worker_joins_again_after_its_goodbye),
        cmocka_unit_test(a_step_longer_than_the_timeout_is_not_a_lost_worker),
        RIG_TEST(a_hanging_or_missing_worker_is_lost_after_twenty_times_the_timeout),
        cmocka_unit_test(a_worker_slower_than_the_timeout_is_not_lost_beside_a_fast_one),
        cmocka_unit_test(the_run_takes_over_only_codes_of_a_workers_own_failure),
        cmocka_unit_test(workers_notice_a_killed_server_at_once),
        cmocka_unit_test(a_stopped_server_is_given_up_after_the_timeout),
        cmocka_unit_test(a_worker_without_a_server_gives_up_after_the_timeout),
        cmocka_unit_test(a_worker_that_died_on_another_host_is_replaced),
        cmocka_unit_test(the_same_number_twice_is_refused_and_the_first_goes_on),
        cmocka_unit_test(another_model_other_settings_and_another_token_are_refused),
        cmocka_unit_test(invalid_endpoints_are_usage_errors),
        cmocka_unit_test(a_worker_cannot_connect_to_a_wildcard_endpoint),
        cmocka_unit_test(an_endpoint_in_use_is_an_error_and_its_owner_goes_on),
        cmocka_unit_test(an_endpoint_whose_owner_hangs_is_in_use),
        cmocka_unit_test(a_file_that_is_not_a_socket_is_not_removed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
