/* How one of several servers handles another one that breaks the protocol or is lost. The test
 * plays the other server and the workers (puppets). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "ps/net/channel.h"
#include "ps/core/slices.h"
#include "tests/rigs/patience.h"
#include "tests/ps/server/ps_rig.h"
#include "tests/rigs/scratch.h"

enum { COUNT = 1000, SERVERS = 2 };

static struct rig *open_rig_for(options **o, unsigned workers, const char *timeout_s)
{
    struct rig *r = rig_open(workers, COUNT);
    *o = rig_settings();
    rig_set(*o, "servers", "2");
    rig_set(*o, "timeout_s", timeout_s);
    r->total_samples = 1000000000;
    r->settings_hash = 7;
    return r;
}

static struct rig *open_rig(options **o, const char *timeout_s)
{
    return open_rig_for(o, 1, timeout_s);
}

static void close_rig(struct rig *r, options *o)
{
    options_close(&o);
    rig_close(r);
}

static void expect_end(struct rig *r, pid_t server, status code, const char *names)
{
    if (rig_wait(server, 10) != (int)code || strstr(r->message, names) == NULL)
        fail_msg("'%s' (code %d) does not name '%s' (code %d)", r->message, r->code, names, code);
}

struct ps_servers_puppet {
    const struct rig *rig;
    channel *channel;
    struct wire_message m;
    struct channel_received got;
};

static void puppet_send(struct ps_servers_puppet *p, enum wire_type type)
{
    static const float floats[COUNT];
    p->m.type = type;
    p->m.payload_bytes = type == WIRE_SLICE ? 40 : 0;
    (void)channel_send(p->channel, p->got.from.size > 0 ? &p->got.from : NULL, &p->m,
                       type == WIRE_SLICE ? floats : NULL);
}

/* Whether a message of that type came within that time. */
static bool puppet_got(struct ps_servers_puppet *p, enum wire_type type, double seconds)
{
    for (double until = clock_seconds() + seconds; clock_seconds() < until;) {
        enum channel_event event = channel_receive(p->channel, &p->got);
        assert_true(event != CHANNEL_MALFORMED);
        if (event == CHANNEL_MESSAGE && p->got.message.type == type)
            return true;
        if (event == CHANNEL_NOTHING)
            channel_wait(p->channel, -1, 50);
    }
    return false;
}

static void puppet_expect(struct ps_servers_puppet *p, enum wire_type type)
{
    if (!puppet_got(p, type, 10 * PATIENCE))
        fail_msg("no %s came; the server's end: '%s'", wire_type_name(type), p->rig->message);
}

static void puppet_expect_order(struct ps_servers_puppet *p, enum wire_order what)
{
    do
        puppet_expect(p, WIRE_ORDER);
    while (p->got.message.notice.what != what);
}

static size_t slice_of(unsigned server)
{
    struct slices slices;
    slices_cut(&slices, SERVERS, COUNT, NULL);
    return slice_count(&slices, server);
}

/* ---- a server that follows, played by the test ----------------------------------------------- */

/* Connects as that server, with another host id, so that no process is watched. */
static struct ps_servers_puppet puppet_join(struct rig *r, unsigned server, uint64_t nonce)
{
    struct ps_servers_puppet p = {.rig = r, .m = {.worker = server, .run_token = r->token}};
    assert_int_equal(
        channel_connect(&p.channel, r->endpoint,
                        &(struct channel_options){.timeout_ms = 1000, .run_token = r->token}),
        OK);
    p.m.join =
        (struct wire_join){.count = slice_of(1), .settings = r->settings_hash, .nonce = nonce};
    return p;
}

static struct ps_servers_puppet puppet_follow(struct rig *r)
{
    struct ps_servers_puppet p = puppet_join(r, 1, 77);
    puppet_send(&p, WIRE_JOIN);
    puppet_expect(&p, WIRE_JOINED);
    p.m.incarnation = p.got.message.incarnation;
    assert_true(p.m.incarnation != 0);
    return p;
}

static void puppet_report(struct ps_servers_puppet *p, uint64_t sequence, enum wire_report what,
                          unsigned w)
{
    p->m.sequence = sequence;
    p->m.notice = (struct wire_notice){.what = what, .worker = w};
    puppet_send(p, WIRE_REPORT);
}

static void report_lost(struct ps_servers_puppet *p, uint64_t sequence, unsigned w)
{
    p->m.sequence = sequence;
    p->m.lost = (struct wire_lost){.worker = w, .code = ERROR_PEER, .text = "died"};
    puppet_send(p, WIRE_LOST);
}

static void report_free(struct ps_servers_puppet *p, uint64_t sequence, unsigned w, uint64_t batch)
{
    p->m.sequence = sequence;
    p->m.notice = (struct wire_notice){.what = WIRE_PLACE_FREE, .worker = w, .sequence = batch};
    puppet_send(p, WIRE_REPORT);
}

/* Leaves after the end of the run. `sequence`: number of the follower's next message. */
static void puppet_leave(struct ps_servers_puppet *p, uint64_t sequence)
{
    puppet_expect(p, WIRE_END);
    puppet_report(p, sequence, WIRE_WORKERS_GONE, 0);
    puppet_expect_order(p, WIRE_ORDER_CLOSE);
    puppet_report(p, sequence + 1, WIRE_CLOSED, 0);
}

/* Leaves after the end of the run. */
static void puppet_train_end(struct ps_servers_puppet *p)
{
    puppet_expect(p, WIRE_END);
    puppet_send(p, WIRE_GOODBYE);
}

static void gap(struct ps_servers_puppet *p)
{
    p->m.sequence = 5;
    p->m.notice = (struct wire_notice){.what = WIRE_WORKER_READY};
    puppet_send(p, WIRE_REPORT);
}

static void lost_tail(struct ps_servers_puppet *p)
{
    p->m.sequence = 3;
    puppet_send(p, WIRE_PING);
}

static void unknown_outcome(struct ps_servers_puppet *p)
{
    p->m.record = (struct push_record){.outcome = (enum push_outcome)(PUSH_NOT_FINITE + 1)};
    puppet_send(p, WIRE_RECORD);
}

static void unknown_worker(struct ps_servers_puppet *p)
{
    p->m.notice = (struct wire_notice){.what = WIRE_WORKER_READY, .worker = 1};
    puppet_send(p, WIRE_REPORT);
}

static void place_without_an_order(struct ps_servers_puppet *p)
{
    p->m.notice = (struct wire_notice){.what = WIRE_PLACE_FREE, .sequence = 1};
    puppet_send(p, WIRE_REPORT);
}

static void slice_without_request(struct ps_servers_puppet *p)
{
    p->m.slice = (struct wire_slice){0};
    puppet_send(p, WIRE_SLICE);
}

static void wrong_type(struct ps_servers_puppet *p)
{
    puppet_send(p, WIRE_RELEASE);
}

static void tell_to_stop(struct ps_servers_puppet *p)
{
    p->m.text = (struct wire_text){.code = STOPPED, .text = "told to stop"};
    puppet_send(p, WIRE_FAILED);
}

static void nothing(struct ps_servers_puppet *p)
{
    (void)p;
}

static void a_server_that_breaks_the_protocol_ends_the_run_and_is_named(void **state UNUSED)
{
    static const struct {
        void (*act)(struct ps_servers_puppet *p);
        status code;
        const char *names;
    } cases[] = {
        {gap, ERROR_PEER, "message 5"},
        {lost_tail, ERROR_PEER, "message 3"},
        {unknown_outcome, ERROR_PROTOCOL, "server 1"},
        {unknown_worker, ERROR_PROTOCOL, "server 1"},
        {place_without_an_order, ERROR_PROTOCOL, "free place"},
        {slice_without_request, ERROR_PROTOCOL, "server 1"},
        {wrong_type, ERROR_PROTOCOL, "server 1"},
        {tell_to_stop, STOPPED, "told to stop"},
        {nothing, ERROR_PEER, "timeout_s"},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        options *o;
        struct rig *r = open_rig(&o, cases[i].act == nothing ? "1.2" : "10");
        pid_t server = rig_serve(r, o);
        struct ps_servers_puppet p = puppet_follow(r);
        puppet_send(&p, WIRE_PING); /* a correct message changes nothing */
        puppet_expect(&p, WIRE_PONG);
        cases[i].act(&p);
        if (cases[i].act == tell_to_stop) /* in the other cases the follower is lost */
            puppet_leave(&p, 1);
        expect_end(r, server, cases[i].code, cases[i].names);
        channel_close(&p.channel);
        close_rig(r, o);
    }
}

static void a_follower_with_other_settings_or_a_taken_number_is_refused(void **state UNUSED)
{
    options *o;
    struct rig *r = open_rig(&o, "10");
    pid_t server = rig_serve(r, o);
    struct ps_servers_puppet first = puppet_follow(r);
    for (unsigned i = 0; i < 6; i++) {
        struct ps_servers_puppet p = puppet_join(r, i == 0 ? 0 : i == 1 ? SERVERS : 1, 5);
        p.m.join.count += i == 2;
        p.m.join.settings += i == 3;
        p.m.run_token += i == 4;
        puppet_send(&p, WIRE_JOIN);
        puppet_expect(&p, WIRE_REFUSED);
        assert_int_equal(p.got.message.text.code, ERROR_PROTOCOL);
        channel_close(&p.channel);
    }
    puppet_send(&first, WIRE_PING); /* the first puppet is still server 1 */
    puppet_expect(&first, WIRE_PONG);
    r->stop = 1;
    puppet_leave(&first, 0);
    expect_end(r, server, STOPPED, "");
    channel_close(&first.channel);
    close_rig(r, o);
}

/* Joins server 0 as a worker. It repeats its hello, as a worker does: its place may become free
 * only after a message on another connection has arrived. */
static struct ps_servers_puppet puppet_train(struct rig *r, unsigned number)
{
    struct ps_servers_puppet p = {.rig = r, .m = {.run_token = r->token, .worker = number}};
    assert_int_equal(
        channel_connect(&p.channel, r->endpoint,
                        &(struct channel_options){.timeout_ms = 1000, .run_token = r->token}),
        OK);
    p.m.hello = (struct wire_hello){.count = slice_of(0), .settings = r->settings_hash, .nonce = 5};
    bool welcome = false;
    for (unsigned i = 0; i < 10 * PATIENCE && !welcome; i++) {
        puppet_send(&p, WIRE_HELLO);
        welcome = puppet_got(&p, WIRE_WELCOME, 1);
    }
    if (!welcome)
        fail_msg("no welcome came; the server's end: '%s'", r->message);
    p.m.incarnation = p.got.message.incarnation;
    return p;
}

static void puppet_is_ready(struct ps_servers_puppet *p)
{
    p->m.ready.payload = WIRE_PAYLOAD_FRAMES;
    puppet_send(p, WIRE_READY);
}

/* Stops server 0, which then requests the follower's slice. */
static void stop_and_expect_gathering(struct rig *r, struct ps_servers_puppet *follower,
                                      struct ps_servers_puppet *trainer)
{
    puppet_is_ready(trainer);
    puppet_report(follower, 0, WIRE_WORKER_READY, 0);
    puppet_expect(trainer, WIRE_RELEASE);
    r->stop = 1;
    puppet_expect_order(follower, WIRE_ORDER_GATHER);
}

static void a_slice_with_a_gap_is_a_protocol_error(void **state UNUSED)
{
    options *o;
    struct rig *r = open_rig(&o, "10");
    pid_t server = rig_serve(r, o);
    struct ps_servers_puppet follower = puppet_follow(r), trainer = puppet_train(r, 0);
    stop_and_expect_gathering(r, &follower, &trainer);
    follower.m.sequence = 1;
    follower.m.slice = (struct wire_slice){.offset = 40};
    puppet_send(&follower, WIRE_SLICE);
    puppet_train_end(&trainer);
    expect_end(r, server, ERROR_PROTOCOL, "server 1");
    channel_close(&trainer.channel);
    channel_close(&follower.channel);
    close_rig(r, o);
}

/* A signal handler. It suspends the server for longer than the server's limit. */
static void pause_the_server(int number UNUSED)
{
    clock_sleep_until_ns(clock_ns() + 3100000000ULL);
}

/* The trainer pings meanwhile. */
static void send_slice(struct ps_servers_puppet *follower, struct ps_servers_puppet *trainer,
                       unsigned parts, uint64_t apart_ns)
{
    static const float floats[COUNT];
    const uint32_t bytes = (uint32_t)(slice_of(1) * sizeof(float)) / parts;
    follower->m.type = WIRE_SLICE;
    follower->m.payload_bytes = bytes;
    for (unsigned i = 0; i < parts; i++) {
        clock_sleep_until_ns(clock_ns() + apart_ns);
        puppet_send(trainer, WIRE_PING);
        follower->m.sequence = 1 + i;
        follower->m.slice = (struct wire_slice){.offset = (uint64_t)i * bytes};
        assert_true(channel_send(follower->channel, NULL, &follower->m, floats));
        puppet_expect(follower, WIRE_PONG); /* a sign of life */
    }
}

/* Both leave, so that the server does not wait for them. */
static void both_leave(struct ps_servers_puppet *follower, uint64_t sequence,
                       struct ps_servers_puppet *trainer)
{
    puppet_train_end(trainer);
    puppet_leave(follower, sequence);
}

static void expect_stopped_with_all_slices(struct rig *r, pid_t server)
{
    expect_end(r, server, STOPPED, "");
    assert_int_equal(strlen(r->outcome.parameters_sha256), 64);
}

static void a_slice_that_arrived_during_a_pause_of_the_server_is_used(void **state UNUSED)
{
    options *o;
    struct rig *r = open_rig(&o, "3");
    signal(SIGUSR1, pause_the_server);
    pid_t server = rig_serve(r, o);
    signal(SIGUSR1, SIG_DFL);
    struct ps_servers_puppet follower = puppet_follow(r), trainer = puppet_train(r, 0);
    stop_and_expect_gathering(r, &follower, &trainer);
    kill(server, SIGUSR1);
    send_slice(&follower, &trainer, 1, 0);
    both_leave(&follower, 2, &trainer);
    expect_stopped_with_all_slices(r, server);
    channel_close(&trainer.channel);
    channel_close(&follower.channel);
    close_rig(r, o);
}

static void a_slice_may_take_longer_than_the_limit_while_its_parts_arrive(void **state UNUSED)
{
    options *o;
    struct rig *r = open_rig(&o, "3");
    pid_t server = rig_serve(r, o);
    struct ps_servers_puppet follower = puppet_follow(r), trainer = puppet_train(r, 0);
    stop_and_expect_gathering(r, &follower, &trainer);
    send_slice(&follower, &trainer, 5, 700000000);
    both_leave(&follower, 6, &trainer);
    expect_stopped_with_all_slices(r, server);
    channel_close(&trainer.channel);
    channel_close(&follower.channel);
    close_rig(r, o);
}

/* A worker is ready at both servers, the follower loses it, and another worker takes its place. */
static void a_worker_lost_before_the_begin_is_replaced(void **state UNUSED)
{
    options *o;
    struct rig *r = open_rig_for(&o, 2, "20");
    rig_set(o, "on_lost", "continue");
    pid_t server = rig_serve(r, o);
    struct ps_servers_puppet follower = puppet_follow(r), left = puppet_train(r, 0),
                             lost = puppet_train(r, 1);
    puppet_is_ready(&left);
    puppet_report(&follower, 0, WIRE_WORKER_READY, 0);
    puppet_is_ready(&lost);
    report_lost(&follower, 1, 1);
    puppet_expect_order(&follower, WIRE_ORDER_FREE);
    assert_int_equal(follower.got.message.notice.worker, 1);
    puppet_report(&follower, 2, WIRE_WORKER_READY, 1); /* of the lost worker: ignored */
    report_lost(&follower, 3, 1);                      /* likewise */
    report_free(&follower, 4, 1, 7);
    struct ps_servers_puppet next = puppet_train(r, 1);
    assert_int_equal(next.got.message.welcome.first_batch, 7);
    puppet_is_ready(&next);
    puppet_report(&follower, 5, WIRE_WORKER_READY, 1);
    puppet_expect(&left, WIRE_RELEASE);
    puppet_expect(&next, WIRE_RELEASE);
    puppet_expect_order(&follower, WIRE_ORDER_HELLO);
    puppet_expect_order(&follower, WIRE_ORDER_HELLO);
    assert_int_equal(follower.got.message.notice.sequence, 7);
    kill(server, SIGKILL);
    rig_wait(server, 10);
    channel_close(&left.channel);
    channel_close(&lost.channel);
    channel_close(&next.channel);
    channel_close(&follower.channel);
    close_rig(r, o);
}

/* The worker joined the follower and died. If that ends the run, training must not begin when the
 * other worker is ready. */
static void a_worker_that_died_before_joining_server_0_ends_the_run(void **state UNUSED)
{
    for (int ready_first = 0; ready_first < 2; ready_first++) {
        options *o;
        struct rig *r = open_rig_for(&o, 2, "60");
        rig_set(o, "on_lost", "stop");
        pid_t server = rig_serve(r, o);
        struct ps_servers_puppet follower = puppet_follow(r), left = puppet_train(r, 0);
        if (ready_first)
            puppet_is_ready(&left);
        puppet_report(&follower, 0, WIRE_WORKER_READY, 0);
        report_lost(&follower, 1, 1);
        if (!ready_first)
            puppet_is_ready(&left);
        both_leave(&follower, 2, &left);
        expect_end(r, server, ERROR_PEER, "worker 1");
        channel_close(&left.channel);
        channel_close(&follower.channel);
        close_rig(r, o);
    }
}

static void a_stopped_worker_that_a_follower_reports_ends_the_run_as_stopped(void **state UNUSED)
{
    options *o;
    struct rig *r = open_rig(&o, "10");
    pid_t server = rig_serve(r, o);
    struct ps_servers_puppet follower = puppet_follow(r), trainer = puppet_train(r, 0);
    follower.m.lost = (struct wire_lost){.code = STOPPED, .text = "was told to stop"};
    puppet_send(&follower, WIRE_LOST);
    puppet_leave(&follower, 1);
    expect_end(r, server, STOPPED, "worker 0");
    channel_close(&trainer.channel);
    channel_close(&follower.channel);
    close_rig(r, o);
}

/* ---- server 0, played by the test --------------------------------------------------------------
 */

static void lost_orders(struct ps_servers_puppet *p)
{
    p->m.sequence = 2;
    puppet_send(p, WIRE_PONG);
}

static void push_that_has_not_arrived(struct ps_servers_puppet *p)
{
    p->m.notice = (struct wire_notice){.what = WIRE_ORDER_PUSH};
    puppet_send(p, WIRE_ORDER);
}

static void order_for_an_unknown_worker(struct ps_servers_puppet *p)
{
    p->m.notice = (struct wire_notice){.what = WIRE_ORDER_HELLO, .worker = 9};
    puppet_send(p, WIRE_ORDER);
}

/* Sends orders while the follower is paused. */
static void too_many_orders(struct ps_servers_puppet *p)
{
    p->m.notice = (struct wire_notice){.what = WIRE_ORDER_GATHER};
    puppet_send(p, WIRE_ORDER);
    for (p->m.sequence = 1; p->m.sequence < 9; p->m.sequence++) {
        p->m.notice = (struct wire_notice){.what = WIRE_ORDER_HELLO};
        puppet_send(p, WIRE_ORDER);
    }
}

static void refusal(struct ps_servers_puppet *p)
{
    p->m.text = (struct wire_text){.code = ERROR_PROTOCOL, .text = "not you"};
    puppet_send(p, WIRE_REFUSED);
}

static void a_follower_ends_the_run_after_an_invalid_order(void **state UNUSED)
{
    static const struct {
        void (*act)(struct ps_servers_puppet *p);
        status code;
        const char *names;
    } cases[] = {
        {lost_orders, ERROR_PEER, "message 2"},
        {push_that_has_not_arrived, ERROR_PROTOCOL, "server 0"},
        {order_for_an_unknown_worker, ERROR_PROTOCOL, "server 0"},
        {too_many_orders, ERROR_PROTOCOL, "server 0"},
        {refusal, ERROR_PROTOCOL, "not you"},
        {nothing, ERROR_PEER, "timeout_s"},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        options *o;
        struct ps_servers_puppet p = {0};
        struct rig *r = open_rig(&o, cases[i].act == nothing ? "1.2" : "10");
        p.rig = r;
        r->server = 1;
        snprintf(r->leader, sizeof r->leader, "ipc://%s/leader-%d", scratch_folder(),
                 (int)getpid());
        pid_t server = rig_serve(r, o); /* a fork, so before this process has threads */
        assert_int_equal(
            channel_bind(&p.channel, r->leader,
                         &(struct channel_options){.timeout_ms = 1000, .run_token = r->token}),
            OK);
        puppet_expect(&p, WIRE_JOIN);
        assert_int_equal(p.got.message.join.count, slice_of(1));
        p.m = (struct wire_message){.worker = 1, .run_token = r->token, .incarnation = 3};
        puppet_send(&p, WIRE_JOINED);
        cases[i].act(&p);
        expect_end(r, server, cases[i].code, cases[i].names);
        channel_close(&p.channel);
        close_rig(r, o);
    }
}

static void a_follower_can_be_stopped_before_it_has_joined(void **state UNUSED)
{
    options *o;
    struct rig *r = open_rig(&o, "20");
    r->server = 1;
    snprintf(r->leader, sizeof r->leader, "ipc://%s/nobody-%d", scratch_folder(), (int)getpid());
    pid_t server = rig_serve(r, o);
    r->stop = 1;
    expect_end(r, server, STOPPED, "server 1");
    close_rig(r, o);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_server_that_breaks_the_protocol_ends_the_run_and_is_named),
        cmocka_unit_test(a_slice_with_a_gap_is_a_protocol_error),
        cmocka_unit_test(a_slice_that_arrived_during_a_pause_of_the_server_is_used),
        cmocka_unit_test(a_slice_may_take_longer_than_the_limit_while_its_parts_arrive),
        cmocka_unit_test(a_worker_lost_before_the_begin_is_replaced),
        cmocka_unit_test(a_worker_that_died_before_joining_server_0_ends_the_run),
        cmocka_unit_test(a_stopped_worker_that_a_follower_reports_ends_the_run_as_stopped),
        cmocka_unit_test(a_follower_with_other_settings_or_a_taken_number_is_refused),
        cmocka_unit_test(a_follower_ends_the_run_after_an_invalid_order),
        cmocka_unit_test(a_follower_can_be_stopped_before_it_has_joined),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
