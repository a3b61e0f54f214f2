/* When transfers end that share links. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>

#include "ps/virtual/shared_links.h"
#include "base/random.h"

/* Rates are in bytes per ns. */
static struct shared_links links_of(unsigned workers, unsigned servers, double worker_rate,
                                    double server_rate)
{
    struct shared_links l;
    const struct links_shape shape = {.workers = workers,
                                      .servers = servers,
                                      .worker_rate = worker_rate,
                                      .server_rate = server_rate};
    assert_int_equal(shared_links_open(&l, &shape), OK);
    return l;
}

static void expect_end(struct shared_links *l, uint64_t when, unsigned worker, unsigned server)
{
    unsigned w, s;
    uint64_t next = shared_links_next(l);
    if (next + 1 < when || next > when + 1) {
        fail_msg("the next transfer ends at %llu, not at %llu", (unsigned long long)next,
                 (unsigned long long)when);
    }
    assert_true(shared_links_take(l, next, &w, &s));
    assert_int_equal(w, worker);
    assert_int_equal(s, server);
}

static void expect_none(struct shared_links *l)
{
    assert_true(shared_links_next(l) == UINT64_MAX);
    shared_links_close(l);
}

static void a_single_transfer_has_the_rate_of_its_slower_link(void **state)
{
    (void)state;
    struct shared_links l = links_of(2, 1, 1, 4);
    shared_links_start(&l, 0, 0, 1000, 1.3, 500);
    expect_end(&l, 1500, 0, 0);
    expect_none(&l);
    l = links_of(2, 1, INFINITY, 0.5);
    shared_links_start(&l, 1, 0, 1000, 0.7, 500);
    expect_end(&l, 2500, 1, 0);
    expect_none(&l);
}

static void without_limits_a_transfer_takes_no_time(void **state)
{
    (void)state;
    struct shared_links l = links_of(2, 1, INFINITY, INFINITY);
    shared_links_start(&l, 0, 0, 1000, 1, 500);
    shared_links_start(&l, 1, 0, 1000, 1, 500);
    expect_end(&l, 500, 0, 0);
    expect_end(&l, 500, 1, 0);
    expect_none(&l);
}

static void transfers_on_one_link_share_it_by_weight(void **state)
{
    (void)state;
    struct shared_links l = links_of(2, 1, 1, 1);
    shared_links_start(&l, 0, 0, 1000, 1, 0);
    shared_links_start(&l, 1, 0, 1000, 3, 0);
    expect_end(&l, 1333, 1, 0); /* at ¾ */
    expect_end(&l, 2000, 0, 0); /* the link was never idle */
    expect_none(&l);
}

static void a_later_transfer_gets_its_share_from_its_start(void **state)
{
    (void)state;
    struct shared_links l = links_of(2, 1, 1, 1);
    shared_links_start(&l, 0, 0, 1000, 1, 0);
    shared_links_start(&l, 1, 0, 1000, 1, 400);
    expect_end(&l, 1600, 0, 0);
    expect_end(&l, 2000, 1, 0);
    expect_none(&l);
}

/* Worker 0 sends to both servers, worker 1 only to server 0. */
static void other_transfers_get_the_rate_that_a_transfer_cannot_use(void **state)
{
    (void)state;
    struct shared_links l = links_of(2, 2, 1, 0.8);
    shared_links_start(&l, 0, 0, 400, 1, 0); /* 0.4: half of server 0's */
    shared_links_start(&l, 1, 0, 800, 1, 0); /* the other half, then 0.8 */
    shared_links_start(&l, 0, 1, 900, 1, 0); /* 0.6: the rest of worker 0's, then 0.8 */
    expect_end(&l, 1000, 0, 0);
    expect_end(&l, 1375, 0, 1);
    expect_end(&l, 1500, 1, 0);
    expect_none(&l);
}

static void cancelled_transfers_free_their_share_of_the_link(void **state)
{
    (void)state;
    struct shared_links l = links_of(2, 2, 2, 1);
    shared_links_start(&l, 0, 0, 1000, 1, 0);
    shared_links_start(&l, 0, 1, 1000, 1, 0);
    shared_links_start(&l, 1, 0, 1000, 1, 0);
    assert_true(shared_links_next(&l) == 1000);
    shared_links_cancel(&l, 0, 600);
    expect_end(&l, 1300, 1, 0); /* 700 were left */
    expect_none(&l);
}

/* Random transfers: all end, and no link carries more than its rate. With one server and fast
 * worker links, the server's link is never idle while a transfer is active. */
static void the_servers_link_is_fully_used_while_transfers_are_active(void **state)
{
    enum { WORKERS = 50 };
    struct random_stream r;
    struct shared_links l = links_of(WORKERS, 1, 1, 1);
    double total = 0;
    unsigned w, s, ended = 0;
    uint64_t last = 0;
    (void)state;
    random_open(&r, RANDOM_TEST, 1, 0, 0);
    for (unsigned i = 0; i < WORKERS; i++) {
        double bytes = 1000 + 9000 * random_uniform(&r);
        shared_links_start(&l, i, 0, bytes, 0.5 + random_uniform(&r), i * 10);
        total += bytes;
    }
    for (uint64_t next; (next = shared_links_next(&l)) != UINT64_MAX; last = next)
        while (shared_links_take(&l, next, &w, &s))
            ended++;
    assert_int_equal(ended, WORKERS);
    assert_true(fabs((double)last - total) <= WORKERS + 1); /* each end is a whole ns */
    shared_links_close(&l);
}

/* Four workers in two racks; an uplink carries half of a worker's link. */
static void workers_of_a_rack_share_its_uplink(void **state)
{
    (void)state;
    struct shared_links l;
    const struct links_shape shape = {.workers = 4,
                                      .servers = 1,
                                      .racks = 2,
                                      .worker_rate = 1,
                                      .server_rate = 10,
                                      .uplink_rate = 0.5};
    assert_int_equal(shared_links_open(&l, &shape), OK);
    shared_links_start(&l, 0, 0, 1000, 1, 0);
    shared_links_start(&l, 1, 0, 1000, 1, 0);
    shared_links_start(&l, 2, 0, 1000, 1, 0); /* alone in the other rack */
    expect_end(&l, 2000, 2, 0);
    expect_end(&l, 4000, 0, 0);
    expect_end(&l, 4000, 1, 0);
    expect_none(&l);
}

/* Three racks of two workers. Each kind of link is the bottleneck of some transfer. */
static void the_slowest_link_of_a_path_limits_a_transfer(void **state)
{
    (void)state;
    struct shared_links l;
    const struct links_shape shape = {.workers = 6,
                                      .servers = 2,
                                      .racks = 3,
                                      .worker_rate = 0.4,
                                      .server_rate = 0.9,
                                      .uplink_rate = 0.6};
    assert_int_equal(shared_links_open(&l, &shape), OK);
    shared_links_start(&l, 0, 0, 300, 1, 0); /* rack 0: weights 1 and 2 of 0.6: 0.2 … */
    shared_links_start(&l, 1, 0, 600, 2, 0); /* … and 0.4, a worker's link */
    shared_links_start(&l, 2, 0, 300, 1, 0); /* rack 1: the server's rest, 0.9 − 0.6 = 0.3 */
    shared_links_start(&l, 4, 1, 800, 1, 0); /* rack 2, the other server: its own link, 0.4 */
    expect_end(&l, 1000, 2, 0);
    expect_end(&l, 1500, 0, 0);
    expect_end(&l, 1500, 1, 0);
    expect_end(&l, 2000, 4, 1);
    expect_none(&l);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_single_transfer_has_the_rate_of_its_slower_link),
        cmocka_unit_test(without_limits_a_transfer_takes_no_time),
        cmocka_unit_test(transfers_on_one_link_share_it_by_weight),
        cmocka_unit_test(a_later_transfer_gets_its_share_from_its_start),
        cmocka_unit_test(other_transfers_get_the_rate_that_a_transfer_cannot_use),
        cmocka_unit_test(cancelled_transfers_free_their_share_of_the_link),
        cmocka_unit_test(the_servers_link_is_fully_used_while_transfers_are_active),
        cmocka_unit_test(workers_of_a_rack_share_its_uplink),
        cmocka_unit_test(the_slowest_link_of_a_path_limits_a_transfer),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
