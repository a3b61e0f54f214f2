/* How server and worker handle repeated, lost, invalid and random messages. The test plays the
 * worker (puppet) or the server. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>
#include <zmq.h>

#include "base/clock.h"
#include "ps/net/channel.h"
#include "tests/rigs/patience.h"
#include "tests/ps/server/worker_puppet.h"
#include "base/random.h"

static void a_repeated_push_counts_once(void **state UNUSED)
{
    options *o;
    struct rig *r = rig_open_with(&o, 1, "10");
    r->total_samples = 30;
    pid_t server = rig_serve(r, o);
    struct puppet p = puppet_join(r, 0);
    puppet_expect(&p, WIRE_RELEASE);
    puppet_push(&p, 0, 10);
    puppet_push(&p, 0, 10);
    for (uint64_t next = 1; next < 3; next++) {
        do
            puppet_expect(&p, WIRE_RELEASE);
        while (p.got.message.sequence != next);
        assert_int_equal(p.got.message.release.version, next);
        p.m.sequence = next;
        puppet_push(&p, next, 10);
    }
    puppet_expect(&p, WIRE_END);
    assert_int_equal(p.got.message.text.code, OK);
    puppet_send(&p, WIRE_GOODBYE);
    assert_int_equal(rig_wait(server, 10), OK);
    assert_int_equal(r->outcome.samples_computed, 30);
    channel_close(&p.channel);
    rig_close_with(r, o);
}

static void a_pong_reports_the_workers_state_and_a_pull_repeats_the_release(void **state UNUSED)
{
    options *o;
    struct rig *r = rig_open_with(&o, 1, "10");
    r->total_samples = 10;
    pid_t server = rig_serve(r, o);
    struct puppet p = puppet_join(r, 0);
    puppet_expect(&p, WIRE_RELEASE);
    puppet_expect(&p, WIRE_PARAMETERS);
    p.m.ping.answer = 1;
    p.m.sequence = 5;
    puppet_send(&p, WIRE_PING);
    puppet_expect(&p, WIRE_PONG);
    assert_int_equal(p.got.message.sequence, 5); /* the pull was answered */
    assert_int_equal(p.got.message.pong.next, 0);
    assert_int_equal(p.got.message.pong.released, 1);
    p.m.sequence = 0;
    puppet_send(&p, WIRE_PULL);
    puppet_expect(&p, WIRE_RELEASE);
    puppet_expect(&p, WIRE_PARAMETERS);
    assert_int_equal(p.got.message.payload_bytes, 4000);
    float third;
    memcpy(&third, (const float *)p.got.payload + 2, sizeof third);
    assert_true(third == 3.0f);
    puppet_push(&p, 0, 10);
    puppet_expect(&p, WIRE_END);
    puppet_send(&p, WIRE_GOODBYE);
    assert_int_equal(rig_wait(server, 10), OK);
    channel_close(&p.channel);
    rig_close_with(r, o);
}

/* A pong says that the server has not received push 0. */
static void puppet_expect_push_missing(struct puppet *p)
{
    p->m.ping.answer = 1;
    p->m.sequence = 1;
    puppet_send(p, WIRE_PING);
    puppet_expect(p, WIRE_PONG);
    assert_int_equal(p->got.message.pong.next, 0);
    assert_int_equal(p->got.message.pong.released, 1);
    p->m.sequence = 0;
}

static void a_push_that_a_broken_connection_cut_is_not_used(void **state UNUSED)
{
    options *o;
    struct rig *r = rig_open_with(&o, 1, "10");
    r->total_samples = 10;
    pid_t server = rig_serve(r, o);
    struct puppet p = puppet_join(r, 0);
    puppet_expect(&p, WIRE_RELEASE);
    puppet_part(&p, 0, 0); /* the push message was lost */
    puppet_expect_push_missing(&p);
    puppet_announce(&p, 0, 10);
    puppet_part(&p, 0, 4); /* the part before it was lost */
    puppet_part(&p, 0, 0); /* a part that belongs to no push */
    puppet_expect_push_missing(&p);
    puppet_push(&p, 0, 10);
    puppet_expect(&p, WIRE_END);
    assert_int_equal(p.got.message.text.code, OK);
    puppet_send(&p, WIRE_GOODBYE);
    assert_int_equal(rig_wait(server, 10), OK);
    assert_int_equal(r->outcome.samples_computed, 10);
    channel_close(&p.channel);
    rig_close_with(r, o);
}

static void messages_for_a_worker_from_another_connection_are_refused(void **state UNUSED)
{
    options *o;
    struct rig *r = rig_open_with(&o, 1, "10");
    r->total_samples = 10;
    pid_t server = rig_serve(r, o);
    struct puppet p = puppet_join(r, 0);
    puppet_expect(&p, WIRE_RELEASE);
    struct puppet impostor = puppet_open(r, 0);
    impostor.m.incarnation = p.m.incarnation; /* the incarnation is right, the connection is not */
    puppet_send(&impostor, WIRE_GOODBYE);
    puppet_expect(&impostor, WIRE_REFUSED);
    puppet_push(&p, 0, 10);
    puppet_expect(&p, WIRE_END);
    puppet_send(&p, WIRE_GOODBYE);
    assert_int_equal(rig_wait(server, 10), OK);
    channel_close(&impostor.channel);
    channel_close(&p.channel);
    rig_close_with(r, o);
}

/* Messages that a member may not send: each is refused, the member's place becomes free, and the
 * other worker goes on. */
static void offend_future(struct puppet *p)
{
    p->m.sequence = 1;
    puppet_push(p, p->version, 10);
}
static void offend_version(struct puppet *p)
{
    puppet_announce(p, p->version + 1, 10);
}
static void offend_samples(struct puppet *p)
{
    puppet_push(p, p->version, 4000000000U);
}
static void offend_surplus(struct puppet *p)
{
    static const float zero[2000];
    puppet_announce(p, p->version, 10);
    p->m.type = WIRE_GRADIENT;
    p->m.payload_bytes = sizeof zero;
    p->m.chunk = (struct wire_chunk){.version = p->version};
    (void)channel_send(p->channel, NULL, &p->m, zero);
}
static void offend_chunk(struct puppet *p)
{
    puppet_part(p, p->version + 1, 0);
}
static void offend_role(struct puppet *p)
{
    p->m.release = (struct wire_release){0};
    puppet_send(p, WIRE_RELEASE);
}

static void
a_member_that_breaks_the_protocol_is_dropped_and_the_others_train_on(void **state UNUSED)
{
    static void (*const offences[])(struct puppet *) = {
        offend_future, offend_version, offend_samples, offend_surplus, offend_chunk, offend_role,
    };
    options *o;
    struct rig *r = rig_open_with(&o, 2, "10");
    rig_set(o, "on_lost", "continue");
    puppet_expect_dropped(r, o, offences, COUNT_OF(offences));
}

static void with_on_lost_stop_a_protocol_error_ends_the_run(void **state UNUSED)
{
    options *o;
    struct rig *r = rig_open_with(&o, 1, "10");
    pid_t server = rig_serve(r, o);
    struct puppet p = puppet_join(r, 0);
    puppet_expect(&p, WIRE_RELEASE);
    offend_surplus(&p);
    puppet_expect(&p, WIRE_REFUSED);
    assert_int_equal(rig_wait(server, 10), ERROR_PROTOCOL);
    rig_expect_named(r->message, "worker 0");
    channel_close(&p.channel);
    rig_close_with(r, o);
}

/* ---- a server played by the test ---------------------------------------------------------------
 */

/* Receives the next message of this type; skips pings of the heartbeat (sequence 0). */
static void server_expect(channel *c, struct channel_received *r, enum wire_type type)
{
    for (double until = clock_seconds() + 10 * PATIENCE; clock_seconds() < until;) {
        enum channel_event event = channel_receive(c, r);
        if (event == CHANNEL_MESSAGE && r->message.type == type &&
            (type != WIRE_PING || r->message.sequence > 0))
            return;
        if (event == CHANNEL_NOTHING)
            channel_wait(c, -1, 50);
    }
    fail_msg("no %s came", wire_type_name(type));
}

static void server_send(channel *c, const struct channel_received *r, enum wire_type type,
                        struct wire_message m)
{
    static const float parameters[1000];
    m.type = type;
    m.run_token = r->message.run_token;
    m.incarnation = 5;
    m.payload_bytes = type == WIRE_PARAMETERS         ? sizeof parameters
                      : type == WIRE_CODED_PARAMETERS ? m.payload_bytes
                                                      : 0;
    assert_true(channel_send(c, &r->from, &m, m.payload_bytes > 0 ? parameters : NULL));
}

static void server_release(channel *c, const struct channel_received *r, uint64_t sequence)
{
    struct wire_message m = {.sequence = sequence, .release.payload = WIRE_PAYLOAD_FRAMES};
    server_send(c, r, WIRE_RELEASE, m);
    m.chunk = (struct wire_chunk){0};
    server_send(c, r, WIRE_PARAMETERS, m);
}

/* Opens the server's side for worker 0 of the rig, and starts that worker. */
static channel *server_open(struct rig *r, const options *o, pid_t *trainer)
{
    channel *c = NULL;
    *trainer = rig_train(r, o, 0, 0); /* forked before ZeroMQ starts its threads here */
    assert_int_equal(
        channel_bind(&c, r->listen,
                     &(struct channel_options){.timeout_ms = 1000, .run_token = r->token}),
        OK);
    snprintf(r->endpoint, sizeof r->endpoint, "%s", channel_endpoint(c));
    r->bound = 1;
    return c;
}

static void a_release_before_the_welcome_is_an_error(void **state UNUSED)
{
    options *o;
    struct rig *r = rig_open_with(&o, 1, "5");
    struct channel_received got;
    pid_t a;
    channel *c = server_open(r, o, &a);
    server_expect(c, &got, WIRE_HELLO);
    /* The worker ends at this message, so a second message could fail. */
    server_send(c, &got, WIRE_RELEASE,
                (struct wire_message){.release.payload = WIRE_PAYLOAD_FRAMES});
    assert_int_equal(rig_wait(a, 10), ERROR_PROTOCOL);
    rig_expect_named(r->worker[0].message, wire_type_name(WIRE_RELEASE));
    channel_close(&c);
    rig_close_with(r, o);
}

/* The worker could not count the samples of later batches in 64 bits. */
static void a_first_batch_beyond_all_batches_is_an_error(void **state UNUSED)
{
    options *o;
    struct rig *r = rig_open_with(&o, 1, "5");
    struct channel_received got;
    pid_t a;
    channel *c = server_open(r, o, &a);
    server_expect(c, &got, WIRE_HELLO);
    struct wire_message welcome = {.welcome = {.count = 1000,
                                               .first_batch = UINT64_C(1) << 53,
                                               .payload = WIRE_PAYLOAD_FRAMES,
                                               .timeout_ms = 5000}};
    server_send(c, &got, WIRE_WELCOME, welcome);
    assert_int_equal(rig_wait(a, 10), ERROR_PROTOCOL);
    rig_expect_named(r->worker[0].message, "9007199254740992");
    channel_close(&c);
    rig_close_with(r, o);
}

/* The starter of a run then waits for the server's own report. */
static void an_end_before_the_first_release_is_a_dismissal(void **state UNUSED)
{
    static const struct {
        enum wire_type type;
        status code;
        enum ps_dismissal dismissal;
    } cases[] = {
        {WIRE_END, ERROR_DATA, PS_RUN_ENDED},
        {WIRE_REFUSED, ERROR_PEER, PS_EVICTED},
        {WIRE_REFUSED, ERROR_PROTOCOL, PS_NOT_DISMISSED},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        options *o;
        struct rig *r = rig_open_with(&o, 1, "5");
        struct channel_received got;
        pid_t a;
        channel *c = server_open(r, o, &a);
        server_expect(c, &got, WIRE_HELLO);
        struct wire_message welcome = {
            .welcome = {.count = 1000, .payload = WIRE_PAYLOAD_FRAMES, .timeout_ms = 5000}};
        server_send(c, &got, WIRE_WELCOME, welcome);
        server_expect(c, &got, WIRE_READY);
        server_send(c, &got, cases[i].type,
                    (struct wire_message){.text = {.code = cases[i].code, .text = "why"}});
        assert_int_equal(rig_wait(a, 10), cases[i].code);
        assert_int_equal(r->worker[0].dismissal, cases[i].dismissal);
        channel_close(&c);
        rig_close_with(r, o);
    }
}

static void a_lost_push_is_sent_again_and_a_lost_release_is_requested_again(void **state UNUSED)
{
    options *o;
    struct rig *r = rig_open_with(&o, 1, "2");
    struct channel_received got;
    pid_t a;
    channel *c = server_open(r, o, &a);
    server_expect(c, &got, WIRE_HELLO);
    struct wire_message welcome = {
        .welcome = {.count = 1000, .payload = WIRE_PAYLOAD_FRAMES, .timeout_ms = 2000}};
    server_send(c, &got, WIRE_WELCOME, welcome);
    server_expect(c, &got, WIRE_READY);
    server_release(c, &got, 0);
    server_expect(c, &got, WIRE_PUSH);
    server_expect(c, &got, WIRE_GRADIENT);
    server_expect(c, &got, WIRE_PING); /* as if the push had not arrived */
    assert_int_equal(got.message.sequence, 1);
    server_send(c, &got, WIRE_PONG, (struct wire_message){.sequence = 1, .pong = {0, 1}});
    server_expect(c, &got, WIRE_PUSH);
    assert_int_equal(got.message.sequence, 0);
    server_expect(c, &got, WIRE_GRADIENT);
    struct wire_message rest = {.sequence = 1, .release.payload = WIRE_PAYLOAD_FRAMES};
    server_send(c, &got, WIRE_RELEASE, rest);
    rest.chunk = (struct wire_chunk){.offset = 4};
    server_send(c, &got, WIRE_PARAMETERS, rest); /* as if the part before it had been lost */
    server_expect(c, &got, WIRE_PING);
    server_send(c, &got, WIRE_PONG, (struct wire_message){.sequence = 1, .pong = {1, 1}});
    server_expect(c, &got, WIRE_PULL);
    server_release(c, &got, 1);
    server_expect(c, &got, WIRE_PUSH);
    assert_int_equal(got.message.sequence, 1);
    server_send(c, &got, WIRE_END, (struct wire_message){.text = {.code = OK}});
    server_expect(c, &got, WIRE_GOODBYE);
    assert_int_equal(rig_wait(a, 10), OK);
    assert_int_equal(r->worker[0].pushes, 2);
    channel_close(&c);
    rig_close_with(r, o);
}

static void parameters_in_another_format_than_the_workers_are_an_error(void **state UNUSED)
{
    static const struct {
        const char *precision;
        enum wire_type type;
        uint32_t bytes;
    } cases[] = {{"fp32", WIRE_CODED_PARAMETERS, 2000},
                 {"fp16", WIRE_PARAMETERS, 4000},
                 {"fp16", WIRE_CODED_PARAMETERS, 2002},
                 {"bf16", WIRE_CODED_PARAMETERS, 999}};
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        options *o;
        struct rig *r = rig_open_with(&o, 1, "5");
        struct channel_received got;
        pid_t a;
        assert_int_equal(options_set(o, "pull_precision", cases[i].precision, "test"), OK);
        channel *c = server_open(r, o, &a);
        server_expect(c, &got, WIRE_HELLO);
        struct wire_message m = {
            .welcome = {.count = 1000, .payload = WIRE_PAYLOAD_FRAMES, .timeout_ms = 2000}};
        server_send(c, &got, WIRE_WELCOME, m);
        server_expect(c, &got, WIRE_READY);
        m = (struct wire_message){.release.payload = WIRE_PAYLOAD_FRAMES};
        server_send(c, &got, WIRE_RELEASE, m);
        m = (struct wire_message){.payload_bytes = cases[i].bytes};
        server_send(c, &got, cases[i].type, m);
        assert_int_equal(rig_wait(a, 10), ERROR_PROTOCOL);
        channel_close(&c);
        rig_close_with(r, o);
    }
}

/* The server answers each time that it has not received the push. */
static void a_worker_gives_up_after_three_losses_of_a_push(void **state UNUSED)
{
    options *o;
    struct rig *r = rig_open_with(&o, 1, "2");
    struct channel_received got;
    pid_t a;
    channel *c = server_open(r, o, &a);
    server_expect(c, &got, WIRE_HELLO);
    struct wire_message welcome = {
        .welcome = {.count = 1000, .payload = WIRE_PAYLOAD_FRAMES, .timeout_ms = 2000}};
    server_send(c, &got, WIRE_WELCOME, welcome);
    server_expect(c, &got, WIRE_READY);
    server_release(c, &got, 0);
    for (int i = 0; i < 3; i++) {
        server_expect(c, &got, WIRE_PUSH);
        server_expect(c, &got, WIRE_PING);
        /* The second pong answers a ping that was delayed on a broken connection: it must not
         * count. */
        for (int twice = 0; twice < 2; twice++)
            server_send(c, &got, WIRE_PONG, (struct wire_message){.sequence = 1, .pong = {0, 1}});
    }
    assert_int_equal(rig_wait(a, 10), ERROR_PEER);
    rig_expect_named(r->worker[0].message, "worker 0");
    rig_expect_named(r->worker[0].message, "1048576"); /* WIRE_CHUNK_BYTES */
    channel_close(&c);
    rig_close_with(r, o);
}

/* ---- non-members --------------------------------------------------------------------------------
 */

/* Every type of message from a peer that is not a member, some with the right token. */
static void send_messages_of_non_members(struct rig *r)
{
    for (enum wire_type type = WIRE_HELLO; type < WIRE_TYPES; type++)
        for (unsigned i = 0; i < 3; i++) {
            static const float floats[1000];
            struct puppet p = puppet_open(r, i == 1 ? 99 : 0);
            p.m.type = type;
            p.m.run_token = i == 2 ? 666 : r->token;
            p.m.incarnation = 1;
            bool floats_go = type == WIRE_PARAMETERS || type == WIRE_GRADIENT ||
                             type == WIRE_SLICE || type == WIRE_CODED ||
                             type == WIRE_CODED_PARAMETERS;
            p.m.payload_bytes = floats_go ? 4000 : 0;
            (void)channel_send(p.channel, NULL, &p.m, p.m.payload_bytes > 0 ? floats : NULL);
            if (!(type == WIRE_HELLO && i == 0)) /* its answer is not awaited */
                puppet_expect(&p, WIRE_REFUSED);
            channel_close(&p.channel);
        }
}

/* Random frames of random sizes, and a flood of frames in one message. */
static void send_random_frames(struct rig *r)
{
    struct random_stream dice;
    uint8_t bytes[4096];
    void *context = zmq_ctx_new();
    void *dealer = zmq_socket(context, ZMQ_DEALER);
    int linger = 1000;
    random_open(&dice, RANDOM_TEST, 2, 0, 0);
    zmq_setsockopt(dealer, ZMQ_LINGER, &linger, sizeof linger);
    curve_apply_token(r->token, dealer, false);
    assert_int_equal(zmq_connect(dealer, r->endpoint), 0);
    for (int i = 0; i < 300; i++) {
        uint32_t size = random_below(&dice, sizeof bytes);
        for (uint32_t b = 0; b < size; b++)
            bytes[b] = (uint8_t)random_bits(&dice);
        if (i % 3 == 0)
            memcpy(bytes, "GLAG\1\0\6\0", 8);
        int more = i % 5 == 0 ? ZMQ_SNDMORE : 0;
        zmq_send(dealer, bytes, size, more);
        for (int part = 0; more != 0 && part < 20; part++)
            zmq_send(dealer, bytes, size, part < 19 ? ZMQ_SNDMORE : 0);
    }
    zmq_close(dealer);
    zmq_ctx_term(context);
}

/* The head declares 4000 bytes of floats; the second frame has eight bytes. */
static void a_second_frame_shorter_than_declared_is_refused(void **state UNUSED)
{
    options *o;
    struct rig *r = rig_open_with(&o, 1, "10");
    pid_t server = rig_serve(r, o);
    const struct wire_message part = {
        .type = WIRE_GRADIENT, .run_token = r->token, .payload_bytes = 4000};
    struct wire_message answer;
    uint8_t bytes[WIRE_MAX_BYTES];
    const int limit_ms = 5000, none = 0;
    void *context = zmq_ctx_new();
    void *dealer = zmq_socket(context, ZMQ_DEALER);
    zmq_setsockopt(dealer, ZMQ_RCVTIMEO, &limit_ms, sizeof limit_ms);
    zmq_setsockopt(dealer, ZMQ_LINGER, &none, sizeof none);
    curve_apply_token(r->token, dealer, false);
    assert_int_equal(zmq_connect(dealer, r->endpoint), 0);
    zmq_send(dealer, bytes, wire_encode(&part, bytes), ZMQ_SNDMORE);
    zmq_send(dealer, bytes, 8, 0);
    int size = zmq_recv(dealer, bytes, sizeof bytes, 0);
    assert_true(size > 0);
    assert_int_equal(wire_decode(&answer, bytes, (size_t)size), OK);
    assert_int_equal(answer.type, WIRE_REFUSED);
    assert_int_equal(answer.text.code, ERROR_PROTOCOL);
    zmq_close(dealer);
    zmq_ctx_term(context);
    r->stop = 1;
    assert_int_equal(rig_wait(server, 10), STOPPED);
    rig_close_with(r, o);
}

/* Bytes that are not ZMTP. */
static void send_random_bytes(struct rig *r)
{
    for (int i = 0; i < 20; i++) {
        struct sockaddr_un address = {.sun_family = AF_UNIX};
        uint8_t bytes[512];
        memset(bytes, i * 13, sizeof bytes);
        strcpy(address.sun_path, r->endpoint + strlen("ipc://"));
        int fd = socket(AF_UNIX, SOCK_STREAM, 0);
        assert_int_equal(connect(fd, (struct sockaddr *)&address, sizeof address), 0);
        send(fd, bytes, sizeof bytes, MSG_NOSIGNAL);
        close(fd);
    }
}

static void messages_of_non_members_change_nothing(void **state UNUSED)
{
    char hash[65];
    for (int i = 0; i < 2; i++) {
        options *o;
        struct rig *r = rig_open_with(&o, 1, "10");
        r->total_samples = 2000;
        r->held_at = i == 1 ? 150 : 0;
        pid_t server = rig_serve(r, o), a = rig_train(r, o, 0, 5);
        if (i == 1) {
            assert_true(rig_until(&r->worker[0].stage, 1, 10));
            send_random_bytes(r);
            send_random_frames(r);
            send_messages_of_non_members(r);
            r->held_at = 0;
        }
        assert_int_equal(rig_wait(a, 20), OK);
        assert_int_equal(rig_wait(server, 20), OK);
        assert_int_equal(r->outcome.updates, 200);
        if (i == 0)
            memcpy(hash, r->outcome.parameters_sha256, sizeof hash);
        else
            assert_string_equal(hash, r->outcome.parameters_sha256);
        rig_close_with(r, o);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_repeated_push_counts_once),
        cmocka_unit_test(a_pong_reports_the_workers_state_and_a_pull_repeats_the_release),
        cmocka_unit_test(a_push_that_a_broken_connection_cut_is_not_used),
        cmocka_unit_test(messages_for_a_worker_from_another_connection_are_refused),
        cmocka_unit_test(a_release_before_the_welcome_is_an_error),
        cmocka_unit_test(a_first_batch_beyond_all_batches_is_an_error),
        cmocka_unit_test(an_end_before_the_first_release_is_a_dismissal),
        cmocka_unit_test(a_lost_push_is_sent_again_and_a_lost_release_is_requested_again),
        cmocka_unit_test(parameters_in_another_format_than_the_workers_are_an_error),
        cmocka_unit_test(a_worker_gives_up_after_three_losses_of_a_push),
        cmocka_unit_test(a_member_that_breaks_the_protocol_is_dropped_and_the_others_train_on),
        cmocka_unit_test(with_on_lost_stop_a_protocol_error_ends_the_run),
        cmocka_unit_test(a_second_frame_shorter_than_declared_is_refused),
        cmocka_unit_test(messages_of_non_members_change_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
