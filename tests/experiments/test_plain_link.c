/* The plain link, the reference of the channel benchmarks. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "experiments/bench/plain_link.h"

enum { MILLION = 1000000, LONG_MS = 20000 };

struct both {
    plain_link *caller, *answerer;
};

static struct both open_both(void)
{
    struct both b;
    assert_int_equal(plain_link_bind(&b.answerer, "tcp://127.0.0.1:*"), OK);
    assert_int_equal(plain_link_connect(&b.caller, plain_link_endpoint(b.answerer)), OK);
    return b;
}

static void close_both(struct both *b)
{
    plain_link_close(&b->caller);
    plain_link_close(&b->answerer);
    assert_null(b->caller);
}

static void a_message_arrives_unchanged_and_is_answered(void **state UNUSED)
{
    struct both b = open_both();
    uint8_t *sent = malloc(MILLION);
    const void *bytes;
    size_t size;
    for (unsigned round = 0; round < 3; round++) {
        for (size_t i = 0; i < MILLION; i++)
            sent[i] = (uint8_t)(i % 251 + round);
        assert_int_equal(plain_link_send(b.caller, sent, MILLION), OK);
        uint8_t first = sent[0];
        memset(sent, 0, MILLION); /* the link has copied it */
        assert_int_equal(plain_link_receive(b.answerer, LONG_MS, &bytes, &size), OK);
        assert_int_equal(size, MILLION);
        assert_true(bytes != sent);
        for (size_t i = 0; i < MILLION; i++)
            if (((const uint8_t *)bytes)[i] != (uint8_t)(i % 251 + first))
                fail_msg("byte %zu of message %u has changed", i, round);
        assert_int_equal(plain_link_send(b.answerer, NULL, 0), OK);
        assert_int_equal(plain_link_receive(b.caller, LONG_MS, &bytes, &size), OK);
        assert_int_equal(size, 0);
    }
    free(sent);
    close_both(&b);
}

static void two_messages_in_a_row_are_refused(void **state UNUSED)
{
    struct both b = open_both();
    assert_int_equal(plain_link_send(b.answerer, "x", 1), ERROR_OTHER);
    assert_int_equal(plain_link_send(b.caller, "x", 1), OK);
    assert_int_equal(plain_link_send(b.caller, "x", 1), ERROR_OTHER);
    close_both(&b);
}

static void a_wait_ends_at_its_limit(void **state UNUSED)
{
    struct both b = open_both();
    const void *bytes;
    size_t size;
    assert_int_equal(plain_link_receive(b.answerer, 20, &bytes, &size), ERROR_PEER);
    assert_non_null(strstr(error_message(), "20 ms"));
    close_both(&b);
}

static void an_endpoint_in_use_is_named(void **state UNUSED)
{
    struct both b = open_both();
    plain_link *other;
    assert_int_equal(plain_link_bind(&other, plain_link_endpoint(b.answerer)), ERROR_OTHER);
    assert_null(other);
    assert_non_null(strstr(error_message(), plain_link_endpoint(b.answerer)));
    close_both(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_message_arrives_unchanged_and_is_answered),
        cmocka_unit_test(two_messages_in_a_row_are_refused),
        cmocka_unit_test(a_wait_ends_at_its_limit),
        cmocka_unit_test(an_endpoint_in_use_is_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
