/* Pushes and releases through shared memory: order, bells, and what a broken or hostile peer may
 * leave there. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "ps/net/channel.h"
#include "ps/net/payload.h"
#include "tests/ps/server/ps_rig.h"
#include "tests/rigs/patience.h"

enum { WORKERS = 3, WORKER = 2, COUNT = 1000 };

struct mailbox_ends {
    payload_area *area;
    struct payload_view view;
    struct mailbox *server, end;
    struct bell *server_bell, worker_bell;
};

static struct mailbox_ends open_both(void)
{
    struct mailbox_ends b;
    struct wire_welcome w = {.count = COUNT};
    assert_int_equal(payload_open(&b.area, COUNT, WORKERS + 2, WORKERS), OK);
    assert_non_null(payload_mailboxes(b.area));
    payload_describe(b.area, WORKER, &w);
    assert_int_equal(payload_map(&b.view, &w, COUNT, NULL), OK);
    mailboxes_clear(payload_mailboxes(b.area), WORKER);
    assert_false(mailboxes_is_used(payload_mailboxes(b.area), WORKER));
    assert_true(payload_open_mailbox(&b.view, &w, WORKER, &b.end, &b.worker_bell));
    assert_true(mailboxes_is_used(payload_mailboxes(b.area), WORKER));
    b.server = mailboxes_of(payload_mailboxes(b.area), WORKER);
    b.server_bell = mailboxes_bell(payload_mailboxes(b.area));
    return b;
}

static void close_both(struct mailbox_ends *b)
{
    mailbox_close(&b->end, &b->worker_bell);
    payload_unmap(&b->view);
    payload_close(&b->area);
}

static struct wire_message push_of(uint64_t sequence)
{
    return (struct wire_message){.type = WIRE_PUSH,
                                 .worker = WORKER,
                                 .sequence = sequence,
                                 .push = {.read_version = 7 * sequence, .loss = 0.5}};
}

static void a_message_is_taken_once_as_it_was_sent(void **state UNUSED)
{
    struct mailbox_ends b = open_both();
    struct wire_message got, push = push_of(3);
    bool decoded = false;
    assert_false(mailbox_receive(b.server, WIRE_PUSH, &got, &decoded));
    assert_false(bell_rings(b.server_bell));
    mailbox_send(&b.end, &push);
    assert_true(bell_rings(b.server_bell));
    bell_hear(b.server_bell);
    assert_true(mailbox_receive(b.server, WIRE_PUSH, &got, &decoded) && decoded);
    assert_int_equal(got.sequence, 3);
    assert_int_equal(got.push.read_version, 21);
    assert_true(got.push.loss == 0.5);
    assert_false(mailbox_receive(b.server, WIRE_PUSH, &got, &decoded));
    assert_false(bell_rings(b.server_bell));
    close_both(&b);
}

static bool has_ring(const struct bell *b)
{
    struct pollfd p = {.fd = b->fd, .events = POLLIN};
    return poll(&p, 1, 0) == 1;
}

static void the_pipe_is_used_only_for_a_process_that_sleeps(void **state UNUSED)
{
    struct mailbox_ends b = open_both();
    struct wire_message push = push_of(0);
    mailbox_send(&b.end, &push);
    assert_false(has_ring(b.server_bell));
    assert_false(bell_sleep(b.server_bell)); /* it rings: stay awake */
    bell_hear(b.server_bell);
    assert_true(bell_sleep(b.server_bell));
    mailbox_send(&b.end, &push);
    assert_true(has_ring(b.server_bell));
    bell_wake(b.server_bell);
    assert_false(has_ring(b.server_bell));
    close_both(&b);
}

static void a_process_that_died_while_it_wrote_leaves_no_message(void **state UNUSED)
{
    struct mailbox_ends b = open_both();
    struct wire_message got, push = push_of(1);
    bool decoded = false;
    mailbox_send(&b.end, &push);
    atomic_fetch_add(&b.end.out->sequence, 1); /* the worker is writing the next push */
    assert_false(mailbox_receive(b.server, WIRE_PUSH, &got, &decoded));
    mailboxes_clear(payload_mailboxes(b.area), WORKER);
    assert_false(mailbox_receive(b.server, WIRE_PUSH, &got, &decoded));
    push = push_of(2); /* a push of the worker's successor */
    mailbox_send(&b.end, &push);
    assert_true(mailbox_receive(b.server, WIRE_PUSH, &got, &decoded) && decoded);
    assert_int_equal(got.sequence, 2);
    close_both(&b);
}

static void what_is_no_push_is_reported_as_malformed(void **state UNUSED)
{
    struct mailbox_ends b = open_both();
    struct wire_message got, message = push_of(1);
    bool decoded = true;
    message.type = WIRE_PULL;
    mailbox_send(&b.end, &message);
    assert_true(mailbox_receive(b.server, WIRE_PUSH, &got, &decoded));
    assert_false(decoded);
    message = push_of(1);
    mailbox_send(&b.end, &message);
    b.end.out->bytes = WIRE_MAX_BYTES + 1;
    decoded = true;
    assert_true(mailbox_receive(b.server, WIRE_PUSH, &got, &decoded));
    assert_false(decoded);
    mailbox_send(&b.end, &message);
    b.end.out->message[0] ^= 0xff;
    decoded = true;
    assert_true(mailbox_receive(b.server, WIRE_PUSH, &got, &decoded));
    assert_false(decoded);
    close_both(&b);
}

static void other_memory_and_other_descriptors_are_no_mailboxes(void **state UNUSED)
{
    struct mailbox_ends b = open_both();
    struct mailbox m;
    struct bell bell;
    uint8_t *memory = b.view.mailboxes_map;
    const size_t bytes = b.view.mailboxes_bytes;
    const uint32_t pid = (uint32_t)getpid();
    assert_false(mailbox_open(&m, &bell, memory, bytes, WORKERS, pid)); /* no such worker */
    assert_false(mailbox_open(&m, &bell, memory, 4096, WORKER, pid));
    assert_false(mailbox_open(&m, &bell, memory, bytes, WORKER, 0x7fffffff));
    const uint32_t fd = b.worker_bell.side->bell_fd;
    b.worker_bell.side->bell_fd = STDERR_FILENO + 1000; /* not open */
    assert_false(mailbox_open(&m, &bell, memory, bytes, WORKER, pid));
    b.worker_bell.side->bell_fd = fd;
    memory[0] ^= 1;
    assert_false(mailbox_open(&m, &bell, memory, bytes, WORKER, pid));
    memory[0] ^= 1;
    assert_true(mailbox_open(&m, &bell, memory, bytes, WORKER, pid));
    mailbox_close(&m, &bell);
    close_both(&b);
}

/* Waits for a ring; ends the process if none comes. A lost ring would cost a whole timeout. */
static void await_ring(struct bell *b)
{
    struct pollfd p = {.fd = b->fd, .events = POLLIN};
    if (bell_sleep(b)) {
        if (poll(&p, 1, 10000 * PATIENCE) != 1)
            _exit(2);
        bell_wake(b);
    }
}

static void take_next(struct mailbox *m, struct bell *bell, enum wire_type type, uint64_t sequence)
{
    struct wire_message got = {0};
    bool decoded = false;
    for (;;) {
        bell_hear(bell);
        if (mailbox_receive(m, type, &got, &decoded))
            break;
        await_ring(bell);
    }
    if (!decoded || got.sequence != sequence)
        _exit(3);
}

static void no_ring_is_lost_between_two_processes(void **state UNUSED)
{
    enum { ROUNDS = 20000 };
    struct mailbox_ends b = open_both();
    int how = -1;
    pid_t child = fork();
    for (uint64_t i = 0; child == 0 && i < ROUNDS; i++) {
        struct wire_message push = push_of(i);
        mailbox_send(&b.end, &push);
        take_next(&b.end, &b.worker_bell, WIRE_RELEASE, i);
    }
    if (child == 0)
        _exit(0);
    for (uint64_t i = 0; i < ROUNDS; i++) {
        struct wire_message release = {.type = WIRE_RELEASE, .sequence = i};
        take_next(b.server, b.server_bell, WIRE_PUSH, i);
        mailbox_send(b.server, &release);
    }
    assert_int_equal(waitpid(child, &how, 0), child);
    assert_int_equal(how, 0);
    close_both(&b);
}

/* ---- a worker played by the test, and a real server ------------------------------------------ */

struct player {
    channel *channel;
    struct wire_message m;
    struct channel_received got;
    struct payload_view view;
    struct mailbox mailbox;
    struct bell bell;
};

static void expect(struct player *p, enum wire_type type)
{
    for (double until = clock_seconds() + 10 * PATIENCE; clock_seconds() < until;)
        if (channel_receive(p->channel, &p->got) != CHANNEL_MESSAGE)
            channel_wait(p->channel, -1, 50);
        else if (p->got.message.type == type)
            return;
    fail_msg("no %s came", wire_type_name(type));
}

static void say(struct player *p, enum wire_type type)
{
    p->m.type = type;
    assert_true(channel_send(p->channel, NULL, &p->m, NULL));
}

/* `opens`: this worker supports mailboxes. */
static struct player join(struct rig *r, bool opens)
{
    struct player p = {.m = {.run_token = r->token}, .mailbox.peer_bell = -1, .bell.fd = -1};
    const struct channel_options o = {.timeout_ms = 1000, .run_token = r->token};
    assert_int_equal(channel_connect(&p.channel, r->endpoint, &o), OK);
    p.m.hello = (struct wire_hello){.count = r->count, .nonce = 77, .pid = (uint32_t)getpid()};
    payload_host(p.m.hello.host);
    say(&p, WIRE_HELLO);
    expect(&p, WIRE_WELCOME);
    const struct wire_welcome w = p.got.message.welcome;
    p.m.incarnation = p.got.message.incarnation;
    assert_int_equal(payload_map(&p.view, &w, r->count, NULL), OK);
    if (opens)
        assert_true(payload_open_mailbox(&p.view, &w, 0, &p.mailbox, &p.bell));
    p.m.ready.payload = WIRE_PAYLOAD_SHM;
    say(&p, WIRE_READY);
    return p;
}

static void leave(struct player *p)
{
    mailbox_close(&p->mailbox, &p->bell);
    payload_unmap(&p->view);
    channel_close(&p->channel);
}

static void await_release(struct player *p)
{
    struct pollfd bell = {.fd = p->bell.fd, .events = POLLIN};
    bool decoded = false;
    bell_hear(&p->bell);
    if (!mailbox_receive(&p->mailbox, WIRE_RELEASE, &p->got.message, &decoded)) {
        if (bell_sleep(&p->bell))
            assert_int_equal(poll(&bell, 1, 10000 * PATIENCE), 1);
        bell_wake(&p->bell);
        assert_true(mailbox_receive(&p->mailbox, WIRE_RELEASE, &p->got.message, &decoded));
    }
    assert_true(decoded);
}

static void a_message_that_is_no_push_ends_the_membership(void **state UNUSED)
{
    options *o;
    struct rig *r = rig_open_with(&o, 1, "10");
    pid_t server = rig_serve(r, o);
    struct player p = join(r, true);
    await_release(&p);
    p.m.type = WIRE_GRADIENT;
    p.m.payload_bytes = 4000; /* a mailbox has no second frame */
    mailbox_send(&p.mailbox, &p.m);
    expect(&p, WIRE_REFUSED);
    assert_int_equal(p.got.message.text.code, ERROR_PROTOCOL);
    assert_int_equal(rig_wait(server, 10), ERROR_PROTOCOL);
    rig_expect_named(r->message, "worker 0");
    leave(&p);
    rig_close_with(r, o);
}

static void a_push_that_was_sent_before_a_ping_is_taken_before_it(void **state UNUSED)
{
    options *o;
    struct rig *r = rig_open_with(&o, 1, "10");
    enum { PUSHES = 500 };
    r->total_samples = PUSHES * 10;
    pid_t server = rig_serve(r, o);
    struct player p = join(r, true);
    for (uint64_t i = 0; i < PUSHES; i++) {
        await_release(&p);
        assert_int_equal(p.got.message.release.version, i);
        p.m.sequence = i;
        p.m.type = WIRE_PUSH;
        p.m.push = (struct wire_push){.read_version = i, .samples = 10, .loss = 1};
        mailbox_send(&p.mailbox, &p.m);
        if (i + 1 == PUSHES)
            break; /* the end may come before a pong */
        p.m.sequence = i + 1;
        p.m.ping = (struct wire_ping){.answer = 1};
        say(&p, WIRE_PING);
        expect(&p, WIRE_PONG);
        assert_int_equal(p.got.message.pong.next, i + 1);
    }
    expect(&p, WIRE_END);
    say(&p, WIRE_GOODBYE);
    assert_int_equal(rig_wait(server, 10), OK);
    assert_int_equal(r->outcome.samples_computed, 5000);
    leave(&p);
    rig_close_with(r, o);
}

static void a_program_without_mailboxes_gets_its_releases_on_the_channel(void **state UNUSED)
{
    options *o;
    struct rig *r = rig_open_with(&o, 1, "10");
    r->total_samples = 30;
    pid_t server = rig_serve(r, o);
    struct player p = join(r, false);
    for (uint64_t i = 0; i < 3; i++) {
        expect(&p, WIRE_RELEASE);
        assert_int_equal(p.got.message.release.version, i);
        p.m.sequence = i;
        p.m.push = (struct wire_push){.read_version = i, .samples = 10, .loss = 1};
        say(&p, WIRE_PUSH);
    }
    expect(&p, WIRE_END);
    say(&p, WIRE_GOODBYE);
    assert_int_equal(rig_wait(server, 10), OK);
    leave(&p);
    rig_close_with(r, o);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_message_is_taken_once_as_it_was_sent),
        cmocka_unit_test(the_pipe_is_used_only_for_a_process_that_sleeps),
        cmocka_unit_test(a_process_that_died_while_it_wrote_leaves_no_message),
        cmocka_unit_test(what_is_no_push_is_reported_as_malformed),
        cmocka_unit_test(other_memory_and_other_descriptors_are_no_mailboxes),
        cmocka_unit_test(no_ring_is_lost_between_two_processes),
        cmocka_unit_test(a_message_that_is_no_push_ends_the_membership),
        cmocka_unit_test(a_push_that_was_sent_before_a_ping_is_taken_before_it),
        cmocka_unit_test(a_program_without_mailboxes_gets_its_releases_on_the_channel),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
