/* The wire format: round trips, golden bytes, and invalid bytes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "ps/net/wire.h"
#include "base/random.h"

static struct random_stream dice;

static void fill(void *at, size_t size)
{
    for (size_t i = 0; i < size; i++)
        ((uint8_t *)at)[i] = (uint8_t)random_bits(&dice);
}

static bool is_chunk(enum wire_type type)
{
    return type == WIRE_PARAMETERS || type == WIRE_GRADIENT || type == WIRE_SLICE ||
           type == WIRE_CODED || type == WIRE_CODED_PARAMETERS;
}

static bool is_text(enum wire_type type)
{
    return type == WIRE_END || type == WIRE_GOODBYE || type == WIRE_REFUSED || type == WIRE_FAILED;
}

static void fill_text(char *at, size_t size)
{
    for (size_t i = 0; i < size; i++)
        at[i] = (char)('!' + random_below(&dice, 90));
    at[size - 1] = '\0';
}

/* A message of that type with random fields. */
static struct wire_message random_message(enum wire_type type)
{
    struct wire_message m;
    fill(&m, sizeof m);
    m.type = type;
    m.payload_bytes = is_chunk(type) ? 1 + random_below(&dice, WIRE_CHUNK_BYTES) : 0;
    if (is_text(type))
        fill_text(m.text.text, sizeof m.text.text);
    if (type == WIRE_LOST)
        fill_text(m.lost.text, sizeof m.lost.text);
    if (type == WIRE_NOTE) {
        fill_text(m.note.code, sizeof m.note.code);
        fill_text(m.note.text, sizeof m.note.text);
    }
    return m;
}

/* Decodes from a block of exactly that size, so that sanitizers find a read beyond it. */
static status decode_exactly(struct wire_message *m, const uint8_t *bytes, size_t size)
{
    uint8_t *block = malloc(size > 0 ? size : 1);
    memcpy(block, bytes, size);
    status code = wire_decode(m, size > 0 ? block : block + 1, size);
    free(block);
    return code;
}

static void assert_encodes_to(const struct wire_message *m, const uint8_t *bytes, size_t size)
{
    uint8_t again[WIRE_MAX_BYTES];
    assert_int_equal(wire_encode(m, again), size);
    assert_memory_equal(again, bytes, size);
}

static void every_message_survives_a_round_trip(void **state UNUSED)
{
    for (int round = 0; round < 200; round++)
        for (enum wire_type type = WIRE_HELLO; type < WIRE_TYPES; type++) {
            uint8_t bytes[WIRE_MAX_BYTES];
            struct wire_message back, sent = random_message(type);
            size_t size = wire_encode(&sent, bytes);
            assert_in_range(size, WIRE_HEAD_BYTES, WIRE_MAX_BYTES);
            assert_int_equal(decode_exactly(&back, bytes, size), OK);
            assert_int_equal(back.type, type);
            assert_int_equal(back.worker, sent.worker);
            assert_true(back.run_token == sent.run_token && back.sequence == sent.sequence &&
                        back.incarnation == sent.incarnation);
            assert_int_equal(back.payload_bytes, sent.payload_bytes);
            assert_encodes_to(&back, bytes, size);
        }
}

static void a_push_keeps_every_field(void **state UNUSED)
{
    uint8_t bytes[WIRE_MAX_BYTES];
    struct wire_message back, sent = {.type = WIRE_PUSH,
                                      .push = {.read_version = 7,
                                               .sent_ns = 8,
                                               .loss = NAN,
                                               .pull_us = -0.0,
                                               .compute_us = INFINITY,
                                               .data_us = 10,
                                               .forward_us = 11,
                                               .backward_us = 12,
                                               .samples = 9}};
    size_t size = wire_encode(&sent, bytes);
    assert_int_equal(decode_exactly(&back, bytes, size), OK);
    assert_true(back.push.read_version == 7 && back.push.sent_ns == 8 && back.push.samples == 9);
    assert_true(back.push.data_us == 10 && back.push.forward_us == 11 &&
                back.push.backward_us == 12);
    assert_true(isnan(back.push.loss) && signbit(back.push.pull_us) && isinf(back.push.compute_us));
}

/* NOT_MEASURED must keep its bits. */
static void a_record_keeps_every_field(void **state UNUSED)
{
    uint8_t bytes[WIRE_MAX_BYTES];
    const double none = NOT_MEASURED;
    struct wire_message back, sent = {.type = WIRE_RECORD,
                                      .record = {.arrival = 1,
                                                 .worker = 2,
                                                 .waited_for = NO_WORKER,
                                                 .staleness = 3,
                                                 .rate = none,
                                                 .gap = NAN,
                                                 .outcome = PUSH_NOT_FINITE,
                                                 .reason = PUSH_BAD_UPDATE,
                                                 .total_momentum = 0.5}};
    size_t size = wire_encode(&sent, bytes);
    assert_int_equal(decode_exactly(&back, bytes, size), OK);
    assert_true(back.record.arrival == 1 && back.record.worker == 2 &&
                back.record.waited_for == NO_WORKER && back.record.staleness == 3);
    assert_true(back.record.outcome == PUSH_NOT_FINITE && back.record.reason == PUSH_BAD_UPDATE);
    assert_memory_equal(&back.record.rate, &none, sizeof none);
    assert_true(isnan(back.record.gap) && back.record.total_momentum == 0.5);
}

static void an_order_has_the_documented_bytes(void **state UNUSED)
{
    static const uint8_t golden[] = {
        'G', 'L', 'A', 'G', 2,  0, 22, 0, /* magic, version, type: order */
        1,   0,   0,   0,   0,  0, 0,  0, /* run token */
        2,   0,   0,   0,   0,  0, 0,  0, /* incarnation */
        9,   0,   0,   0,   0,  0, 0,  0, /* number of the message */
        1,   0,   0,   0,   16, 0, 0,  0, /* server; bytes of the body */
        0,   0,   0,   0,   0,  0, 0,  0, /* no second frame; reserved */
        2,   0,   0,   0,   3,  0, 0,  0, /* push; of worker 3 */
        7,   0,   0,   0,   0,  0, 0,  0, /* its sequence */
    };
    const struct wire_message m = {.type = WIRE_ORDER,
                                   .run_token = 1,
                                   .incarnation = 2,
                                   .sequence = 9,
                                   .worker = 1,
                                   .notice = {WIRE_ORDER_PUSH, 3, 7}};
    assert_encodes_to(&m, golden, sizeof golden);
}

static void a_release_has_the_documented_bytes(void **state UNUSED)
{
    static const uint8_t golden[] = {
        'G',  'L',  'A',  'G',                          /* magic */
        2,    0,                                        /* version */
        4,    0,                                        /* type: release */
        0x08, 0x07, 0x06, 0x05, 0x04, 0x03, 0x02, 0x01, /* run token */
        0x18, 0x17, 0x16, 0x15, 0x14, 0x13, 0x12, 0x11, /* incarnation */
        0x2a, 0,    0,    0,    0,    0,    0,    0,    /* sequence */
        3,    0,    0,    0,                            /* worker */
        32,   0,    0,    0,                            /* bytes of the body */
        0,    0,    0,    0,                            /* bytes of the second frame */
        0,    0,    0,    0,                            /* reserved */
        0x00, 0x01, 0,    0,    0,    0,    0,    0,    /* version 256 */
        0x00, 0x20, 0,    0,    0,    0,    0,    0,    /* 8192 samples used */
        5,    0,    0,    0,                            /* slot */
        1,    0,    0,    0,                            /* payload: shm */
        0,    0,    0,    0,    0,    0,    0xf8, 0x3f, /* 1.5 µs paused */
    };
    const struct wire_message m = {.type = WIRE_RELEASE,
                                   .run_token = 0x0102030405060708,
                                   .incarnation = 0x1112131415161718,
                                   .sequence = 42,
                                   .worker = 3,
                                   .release = {256, 8192, 5, WIRE_PAYLOAD_SHM, 1.5}};
    assert_encodes_to(&m, golden, sizeof golden);
}

static void a_hello_has_the_documented_bytes(void **state UNUSED)
{
    static const uint8_t golden[] = {
        'G',  'L',  'A',  'G',  2,    0,    1,    0,    /* magic, version, type: hello */
        1,    0,    0,    0,    0,    0,    0,    0,    /* run token */
        0,    0,    0,    0,    0,    0,    0,    0,    /* incarnation: none yet */
        0,    0,    0,    0,    0,    0,    0,    0,    /* sequence */
        2,    0,    0,    0,    48,   0,    0,    0,    /* worker; bytes of the body */
        0,    0,    0,    0,    0,    0,    0,    0,    /* no second frame; reserved */
        3,    0,    0,    0,    0,    0,    0,    0,    /* parameters */
        0x08, 0x07, 0x06, 0x05, 0x04, 0x03, 0x02, 0x01, /* hash of the settings */
        4,    0,    0,    0,    0,    0,    0,    0,    /* nonce */
        'h',  'o',  's',  't',  0,    0,    0,    0,    /* host */
        0,    0,    0,    0,    0,    0,    0,    0,    /* */
        5,    0,    0,    0,    2,    0,    0,    0,    /* process id; payload: frames */
    };
    const struct wire_message m = {.type = WIRE_HELLO,
                                   .run_token = 1,
                                   .worker = 2,
                                   .hello = {.count = 3,
                                             .settings = 0x0102030405060708,
                                             .nonce = 4,
                                             .host = "host",
                                             .pid = 5,
                                             .payload = WIRE_PAYLOAD_FRAMES}};
    assert_encodes_to(&m, golden, sizeof golden);
}

static void a_gradient_chunk_has_the_documented_bytes(void **state UNUSED)
{
    static const uint8_t golden[] = {
        'G', 'L', 'A', 'G', 2, 0, 7, 0, 1, 0, 0, 0, 0, 0, 0,    0, 2, 0, 0, 0, 0,    0,
        0,   0,   3,   0,   0, 0, 0, 0, 0, 0, 4, 0, 0, 0, 16,   0, 0, 0, 0, 0, 0x10, 0,
        0,   0,   0,   0,   5, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x10, 0, 0, 0, 0, 0,
    };
    const struct wire_message m = {.type = WIRE_GRADIENT,
                                   .run_token = 1,
                                   .incarnation = 2,
                                   .sequence = 3,
                                   .worker = 4,
                                   .payload_bytes = WIRE_CHUNK_BYTES,
                                   .chunk = {.version = 5, .offset = WIRE_CHUNK_BYTES}};
    assert_encodes_to(&m, golden, sizeof golden);
}

static void a_code_chunk_has_the_documented_bytes(void **state UNUSED)
{
    static const uint8_t golden[] = {
        'G', 'L', 'A', 'G', 2,  0, 23, 0, /* magic, version, type: coded */
        1,   0,   0,   0,   0,  0, 0,  0, /* run token */
        2,   0,   0,   0,   0,  0, 0,  0, /* incarnation */
        3,   0,   0,   0,   0,  0, 0,  0, /* sequence of the push */
        4,   0,   0,   0,   16, 0, 0,  0, /* worker; bytes of the body */
        80,  0,   0,   0,   0,  0, 0,  0, /* bytes of the second frame; reserved */
        5,   0,   0,   0,   0,  0, 0,  0, /* version that was read */
        6,   0,   0,   0,   0,  0, 0,  0, /* offset */
    };
    const struct wire_message m = {.type = WIRE_CODED,
                                   .run_token = 1,
                                   .incarnation = 2,
                                   .sequence = 3,
                                   .worker = 4,
                                   .payload_bytes = 80,
                                   .chunk = {.version = 5, .offset = 6}};
    assert_encodes_to(&m, golden, sizeof golden);
}

static void control_messages_are_small(void **state UNUSED)
{
    uint8_t bytes[WIRE_MAX_BYTES];
    assert_true(wire_encode(&(struct wire_message){.type = WIRE_PUSH}, bytes) <= 128);
    assert_true(wire_encode(&(struct wire_message){.type = WIRE_RELEASE}, bytes) <= 128);
    assert_true(wire_encode(&(struct wire_message){.type = WIRE_PING}, bytes) <= 64);
}

static void a_cut_or_lengthened_message_is_an_error(void **state UNUSED)
{
    for (enum wire_type type = WIRE_HELLO; type < WIRE_TYPES; type++) {
        uint8_t bytes[WIRE_MAX_BYTES + 8] = {0};
        struct wire_message back, sent = random_message(type);
        size_t size = wire_encode(&sent, bytes);
        for (size_t cut = 0; cut < size + 8; cut++)
            if (cut != size)
                assert_int_equal(decode_exactly(&back, bytes, cut), ERROR_PROTOCOL);
    }
}

/* Each fixed field of the head in turn has a wrong value. */
static void a_wrong_head_is_an_error(void **state UNUSED)
{
    static const size_t fixed[] = {0, 1, 2, 3, 4, 5, 7, 36, 37, 38, 39, 44, 45, 46, 47};
    uint8_t bytes[WIRE_MAX_BYTES];
    struct wire_message back, sent = random_message(WIRE_PUSH);
    size_t size = wire_encode(&sent, bytes);
    for (size_t i = 0; i < COUNT_OF(fixed); i++) {
        bytes[fixed[i]] ^= 0x40;
        assert_int_equal(decode_exactly(&back, bytes, size), ERROR_PROTOCOL);
        bytes[fixed[i]] ^= 0x40;
    }
    assert_int_equal(decode_exactly(&back, bytes, size), OK);
}

static void only_chunks_have_a_payload_and_its_size_is_limited(void **state UNUSED)
{
    uint8_t bytes[WIRE_MAX_BYTES];
    struct wire_message back, sent = random_message(WIRE_PUSH);
    size_t size = wire_encode(&sent, bytes);
    bytes[40] = 4; /* a push with a payload */
    assert_int_equal(decode_exactly(&back, bytes, size), ERROR_PROTOCOL);
    sent = random_message(WIRE_GRADIENT);
    size = wire_encode(&sent, bytes);
    memset(bytes + 40, 0, 4); /* a chunk without bytes */
    assert_int_equal(decode_exactly(&back, bytes, size), ERROR_PROTOCOL);
    memcpy(bytes + 40, (uint8_t[]){1, 0, 0x10, 0}, 4); /* one byte above the limit */
    assert_int_equal(decode_exactly(&back, bytes, size), ERROR_PROTOCOL);
    memset(bytes + 40, 0xff, 4);
    assert_int_equal(decode_exactly(&back, bytes, size), ERROR_PROTOCOL);
}

static void texts_of_a_peer_become_printable(void **state UNUSED)
{
    uint8_t bytes[WIRE_MAX_BYTES];
    struct wire_message back, sent = {.type = WIRE_REFUSED};
    strcpy(sent.text.text, "evil");
    size_t size = wire_encode(&sent, bytes);
    memset(bytes + WIRE_HEAD_BYTES + 4, '\033', WIRE_TEXT_BYTES); /* not terminated */
    assert_int_equal(decode_exactly(&back, bytes, size), OK);
    assert_int_equal(strlen(back.text.text), WIRE_TEXT_BYTES - 1);
    assert_null(strchr(back.text.text, '\033'));
}

static void random_bytes_are_not_a_message(void **state UNUSED)
{
    uint8_t bytes[2 * WIRE_MAX_BYTES];
    struct wire_message back;
    for (int round = 0; round < 20000; round++) {
        size_t size = random_below(&dice, sizeof bytes);
        fill(bytes, size);
        assert_int_equal(decode_exactly(&back, bytes, size), ERROR_PROTOCOL);
    }
}

static void a_mutated_message_is_refused_or_encodes_to_the_same_bytes(void **state UNUSED)
{
    unsigned accepted = 0;
    for (int round = 0; round < 50000; round++) {
        uint8_t bytes[WIRE_MAX_BYTES];
        enum wire_type type = (enum wire_type)(1 + random_below(&dice, WIRE_TYPES - 1));
        struct wire_message back, sent = random_message(type);
        size_t size = wire_encode(&sent, bytes);
        for (uint32_t flips = 1 + random_below(&dice, 3); flips > 0; flips--)
            bytes[random_below(&dice, (uint32_t)size)] = (uint8_t)random_bits(&dice);
        status code = decode_exactly(&back, bytes, size);
        assert_true(code == OK || code == ERROR_PROTOCOL);
        if (code != OK)
            continue;
        accepted++;
        assert_true(back.payload_bytes <= WIRE_CHUNK_BYTES);
        if (is_text(back.type))
            assert_true(strlen(back.text.text) < WIRE_TEXT_BYTES);
        else if (back.type == WIRE_LOST)
            assert_true(strlen(back.lost.text) < WIRE_TEXT_BYTES);
        else if (back.type == WIRE_NOTE)
            assert_true(strlen(back.note.code) < WIRE_CODE_BYTES &&
                        strlen(back.note.text) < WIRE_TEXT_BYTES);
        else
            assert_encodes_to(&back, bytes, size);
    }
    assert_true(accepted > 1000); /* else nothing was tested */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_message_survives_a_round_trip),
        cmocka_unit_test(a_push_keeps_every_field),
        cmocka_unit_test(a_record_keeps_every_field),
        cmocka_unit_test(an_order_has_the_documented_bytes),
        cmocka_unit_test(a_release_has_the_documented_bytes),
        cmocka_unit_test(a_hello_has_the_documented_bytes),
        cmocka_unit_test(a_gradient_chunk_has_the_documented_bytes),
        cmocka_unit_test(a_code_chunk_has_the_documented_bytes),
        cmocka_unit_test(control_messages_are_small),
        cmocka_unit_test(a_cut_or_lengthened_message_is_an_error),
        cmocka_unit_test(a_wrong_head_is_an_error),
        cmocka_unit_test(only_chunks_have_a_payload_and_its_size_is_limited),
        cmocka_unit_test(texts_of_a_peer_become_printable),
        cmocka_unit_test(random_bytes_are_not_a_message),
        cmocka_unit_test(a_mutated_message_is_refused_or_encodes_to_the_same_bytes),
    };
    random_open(&dice, RANDOM_TEST, 1, 0, 0);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
