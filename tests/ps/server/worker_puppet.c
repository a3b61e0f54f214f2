#include "tests/ps/server/worker_puppet.h"

#include "base/clock.h"
#include "tests/rigs/patience.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

/* Receives the next message of this type; fails the test if none comes. */
void puppet_expect(struct puppet *p, enum wire_type type)
{
    for (double until = clock_seconds() + 10 * PATIENCE; clock_seconds() < until;) {
        enum channel_event event = channel_receive(p->channel, &p->got);
        assert_true(event != CHANNEL_MALFORMED);
        if (event == CHANNEL_MESSAGE && p->got.message.type == type)
            return;
        if (event == CHANNEL_NOTHING)
            channel_wait(p->channel, -1, 50);
    }
    fail_msg("no %s came", wire_type_name(type));
}

void puppet_send(struct puppet *p, enum wire_type type)
{
    p->m.type = type;
    p->m.payload_bytes = 0;
    (void)channel_send(p->channel, NULL, &p->m, NULL);
}

struct puppet puppet_open(struct rig *r, unsigned w)
{
    struct puppet p = {.rig = r, .m = {.worker = w, .run_token = r->token}};
    assert_int_equal(
        channel_connect(&p.channel, r->endpoint,
                        &(struct channel_options){.timeout_ms = 1000, .run_token = r->token}),
        OK);
    return p;
}

/* Joins with another host id: no shared memory, and no process is watched. */
struct puppet puppet_join(struct rig *r, unsigned w)
{
    struct puppet p = puppet_open(r, w);
    p.m.hello = (struct wire_hello){.count = r->count, .nonce = 77 + w};
    puppet_send(&p, WIRE_HELLO);
    puppet_expect(&p, WIRE_WELCOME);
    p.m.incarnation = p.got.message.incarnation;
    assert_true(p.m.incarnation != 0);
    p.m.ready.payload = WIRE_PAYLOAD_FRAMES;
    puppet_send(&p, WIRE_READY);
    return p;
}

void puppet_announce(struct puppet *p, uint64_t version, uint32_t samples)
{
    p->m.push = (struct wire_push){.read_version = version, .samples = samples, .loss = 1};
    puppet_send(p, WIRE_PUSH);
}

/* 1000 floats of a gradient, all zero. */
void puppet_part(struct puppet *p, uint64_t version, uint64_t offset)
{
    static const float zero[1000];
    p->m.type = WIRE_GRADIENT;
    p->m.payload_bytes = sizeof zero;
    p->m.chunk = (struct wire_chunk){.version = version, .offset = offset};
    (void)channel_send(p->channel, NULL, &p->m, zero);
}

void puppet_push(struct puppet *p, uint64_t version, uint32_t samples)
{
    puppet_announce(p, version, samples);
    puppet_part(p, version, 0);
}

void puppet_expect_dropped(struct rig *r, options *o, void (*const *offences)(struct puppet *),
                           size_t count)
{
    r->total_samples = FOREVER;
    pid_t server = rig_serve(r, o), a = rig_train(r, o, 0, 1);
    for (size_t i = 0; i < count; i++) {
        struct puppet p = puppet_join(r, 1);
        puppet_expect(&p, WIRE_RELEASE);
        p.version = p.got.message.release.version;
        offences[i](&p);
        puppet_expect(&p, WIRE_REFUSED);
        assert_int_equal(p.got.message.text.code, ERROR_PROTOCOL);
        channel_close(&p.channel);
        int before = r->worker[0].stage;
        assert_true(rig_until(&r->worker[0].stage, before + 3, 10));
    }
    r->stop = 1;
    assert_int_equal(rig_wait(server, 10), STOPPED);
    assert_int_equal(rig_wait(a, 10), OK);
    rig_close_with(r, o);
}
