/* Compares the queue of the virtual clock with a list that is searched. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "ps/virtual/event_queue.h"
#include "base/random.h"

enum { EVENTS = 97, NOT_IN = -1 };

struct naive {
    int64_t when[EVENTS]; /* NOT_IN, or the time */
};

static int earliest(const struct naive *n, const bool *passed_over)
{
    int first = NOT_IN;
    for (int i = 0; i < EVENTS; i++)
        if (n->when[i] != NOT_IN && (passed_over == NULL || !passed_over[i]) &&
            (first == NOT_IN || n->when[i] < n->when[first]))
            first = i;
    return first;
}

static void expect_peek(const struct event_queue *q, const struct naive *n, unsigned wanted)
{
    unsigned events[EVENT_QUEUE_PEEK_MAX];
    bool passed_over[EVENTS] = {false};
    unsigned found = event_queue_peek(q, events, wanted);
    for (unsigned i = 0; i < wanted; i++) {
        int expected = earliest(n, passed_over);
        if (expected == NOT_IN) {
            assert_int_equal(found, i);
            return;
        }
        assert_int_equal(events[i], expected);
        passed_over[expected] = true;
    }
    assert_int_equal(found, wanted);
}

static void expect_take(struct event_queue *q, struct naive *n)
{
    unsigned event = 0;
    int expected = earliest(n, NULL);
    assert_int_equal(event_queue_peek(q, &event, 1), expected != NOT_IN);
    if (expected != NOT_IN) {
        assert_int_equal(event, expected);
        assert_int_equal(q->when[event], n->when[expected]);
        event_queue_remove(q, event);
        n->when[expected] = NOT_IN;
    }
}

/* Few different times, so that many events have the same time. */
static void events_come_in_order_of_time_and_number(void **state)
{
    (void)state;
    struct event_queue q;
    struct naive n;
    struct random_stream r;
    random_open(&r, RANDOM_TEST, 7, 0, 0);
    assert_int_equal(event_queue_open(&q, EVENTS), OK);
    for (int i = 0; i < EVENTS; i++)
        n.when[i] = NOT_IN;
    for (int round = 0; round < 100000; round++) {
        unsigned event = random_below(&r, EVENTS);
        switch (random_below(&r, 5)) {
        case 0:
            event_queue_remove(&q, event);
            n.when[event] = NOT_IN;
            break;
        case 1:
            expect_take(&q, &n);
            break;
        case 2:
            expect_peek(&q, &n, random_below(&r, 9));
            break;
        default:
            n.when[event] = random_below(&r, 40);
            event_queue_put(&q, event, (uint64_t)n.when[event]);
            break;
        }
    }
    for (int i = 0; i <= EVENTS; i++)
        expect_take(&q, &n);
    event_queue_close(&q);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(events_come_in_order_of_time_and_number),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
