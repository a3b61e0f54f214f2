/* How the server handles the codes of compressed pushes (key compression). The test plays the
 * worker. */
#include "experiments/config/config.h"
#include "worker/compression/pull_code.h"
#include "tests/ps/server/worker_puppet.h"

#include <math.h>
#include <stdio.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

static void push_code(struct puppet *p, const uint32_t *code, size_t bytes)
{
    puppet_announce(p, p->version, 10);
    p->m.type = WIRE_CODED;
    p->m.payload_bytes = (uint32_t)bytes;
    p->m.chunk = (struct wire_chunk){.version = p->version};
    (void)channel_send(p->channel, NULL, &p->m, code);
}

enum { TOPK = 10 }; /* of 1000 floats, with the default ratio */

static void send_code(struct puppet *p)
{
    static const uint32_t code[2 * TOPK] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10};
    push_code(p, code, sizeof code);
}
static void offend_index(struct puppet *p)
{
    static const uint32_t code[2 * TOPK] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 1000};
    push_code(p, code, sizeof code);
}
static void offend_order(struct puppet *p)
{
    static const uint32_t code[2 * TOPK] = {1, 2, 3, 4, 5, 7, 6, 8, 9, 10};
    push_code(p, code, sizeof code);
}
static void offend_long_code(struct puppet *p)
{
    static const uint32_t code[2 * TOPK + 1] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10};
    push_code(p, code, sizeof code);
}

static struct rig *open_with(options **o, unsigned workers, const char *compression_key)
{
    char number[32];
    snprintf(number, sizeof number, "workers=%u", workers);
    const char *const settings[] = {
        "batch=10", "lr=0.001",         "schedule=constant", "warmup_epochs=0", "timeout_s=10",
        number,     "on_lost=continue", compression_key,     "payload=frames",  NULL};
    assert_int_equal(config_compose_texts(o, settings, NULL, "test"), OK);
    return rig_open(workers, 1000);
}

static void a_code_that_no_worker_can_write_is_refused(void **state UNUSED)
{
    static void (*const offences[])(struct puppet *) = {offend_index, offend_order,
                                                        offend_long_code};
    options *o;
    struct rig *r = open_with(&o, 2, "compression=topk");
    puppet_expect_dropped(r, o, offences, COUNT_OF(offences));
}

static void without_compression_a_code_is_refused(void **state UNUSED)
{
    static void (*const offences[])(struct puppet *) = {send_code};
    options *o;
    struct rig *r = open_with(&o, 2, "compression=none");
    puppet_expect_dropped(r, o, offences, COUNT_OF(offences));
}

/* A server that compresses also takes floats: a worker of another program may send them. The push
 * after a code is not a code. */
static void codes_and_floats_are_taken_by_turns(void **state UNUSED)
{
    options *o;
    struct rig *r = open_with(&o, 1, "compression=topk");
    r->total_samples = 40;
    pid_t server = rig_serve(r, o);
    struct puppet p = puppet_join(r, 0);
    puppet_expect(&p, WIRE_RELEASE);
    for (uint64_t n = 0; n < 4; n++) {
        p.version = n;
        p.m.sequence = n;
        if (n % 2 == 0)
            send_code(&p);
        else
            puppet_push(&p, n, 10);
        puppet_expect(&p, n < 3 ? WIRE_RELEASE : WIRE_END);
    }
    puppet_send(&p, WIRE_GOODBYE);
    assert_int_equal(rig_wait(server, 10), OK);
    assert_int_equal(r->outcome.samples_used, 40);
    /* 80 bytes of code and 4000 bytes of floats, twice, and the parameters of four releases. */
    assert_int_equal(r->outcome.sent_bytes, 2 * (80 + 4000) + 4 * 4000);
    channel_close(&p.channel);
    rig_close_with(r, o);
}

/* The rig's parameters i begin at 1 + i % 7. The worker's gradient is 0, so an update only applies
 * the weight decay of 30 at a rate of 0.001. */
static void pulls_in_16_bits_are_the_rounded_parameters(void **state UNUSED)
{
    static const char *const precisions[] = {"pull_precision=fp16", "pull_precision=bf16"};
    for (size_t i = 0; i < COUNT_OF(precisions); i++) {
        options *o;
        struct rig *r = open_with(&o, 1, precisions[i]);
        const struct pull_code code = pull_code_of(o);
        float rounded[1000], got[1000];
        r->total_samples = 20;
        assert_int_equal(options_set(o, "weight_decay", "30", "test"), OK);
        pid_t server = rig_serve(r, o);
        struct puppet p = puppet_join(r, 0);
        for (uint64_t n = 0; n < 2; n++) {
            p.m.sequence = n;
            for (int twice = 0; twice < 2; twice++) {
                puppet_expect(&p, WIRE_CODED_PARAMETERS);
                assert_int_equal(p.got.message.chunk.version, n);
                assert_int_equal(p.got.message.payload_bytes, 2000);
                pull_code_decode(&code, p.got.payload, 1000, got);
                pull_code_round(&code, got, 1000, rounded);
                assert_memory_equal(got, rounded, sizeof got);
                if (twice == 0)
                    puppet_send(&p, WIRE_PULL);
            }
            for (unsigned j = 0; j < COUNT_OF(got); j++) {
                const float exact = (n == 0 ? 1.0f : 0.97f) * (float)(1 + j % 7);
                assert_true(fabsf(got[j] - exact) <= (n == 0 ? 0 : exact * 0x1p-8f));
            }
            puppet_push(&p, n, 10);
        }
        puppet_expect(&p, WIRE_END);
        puppet_send(&p, WIRE_GOODBYE);
        assert_int_equal(rig_wait(server, 10), OK);
        assert_int_equal(r->outcome.sent_bytes, 2 * 4000 + 4 * 2000);
        channel_close(&p.channel);
        rig_close_with(r, o);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_code_that_no_worker_can_write_is_refused),
        cmocka_unit_test(without_compression_a_code_is_refused),
        cmocka_unit_test(codes_and_floats_are_taken_by_turns),
        cmocka_unit_test(pulls_in_16_bits_are_the_rounded_parameters),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
