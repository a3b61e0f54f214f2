/* Helpers: every block is done once, whoever does it, and none is left when the call returns. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <pthread.h>
#include <stdatomic.h>

#include "worker/crew.h"

enum { BLOCKS = 300 };

struct work {
    atomic_int done[BLOCKS];
    pthread_t caller;
    atomic_int by_others;
    uint64_t pause_ns;
};

static void do_block(void *context, size_t block)
{
    struct work *w = context;
    if (w->pause_ns > 0)
        clock_sleep_until_ns(clock_ns() + w->pause_ns);
    atomic_fetch_add(&w->done[block], 1);
    if (!pthread_equal(pthread_self(), w->caller))
        atomic_fetch_add(&w->by_others, 1);
}

static void expect_each_done_once(struct work *w, size_t blocks)
{
    for (size_t i = 0; i < BLOCKS; i++)
        assert_int_equal(atomic_exchange(&w->done[i], 0), i < blocks);
}

static void every_block_is_done_once_and_before_the_call_returns(void **state UNUSED)
{
    crew *c = NULL;
    struct work w = {.caller = pthread_self()};
    assert_int_equal(crew_open(&c), OK);
    crew_keep_off(c, 0);
    for (size_t i = 0; i < 2000; i++) {
        crew_run(c, i % (BLOCKS + 1), do_block, &w);
        expect_each_done_once(&w, i % (BLOCKS + 1));
    }
    crew_close(&c);
    assert_null(c);
}

static void helpers_take_blocks_where_there_is_a_core_for_them(void **state UNUSED)
{
    crew *c = NULL;
    struct work w = {.caller = pthread_self(), .pause_ns = 1000000};
    assert_int_equal(crew_open(&c), OK);
    crew_keep_off(c, 0);
    crew_run(c, 100, do_block, &w);
    expect_each_done_once(&w, 100);
    assert_true(w.by_others > 0 || processor_count() == 1);
    crew_close(&c);
}

static void nobody_helps_on_cores_that_others_use(void **state UNUSED)
{
    crew *c = NULL;
    struct work w = {.caller = pthread_self(), .pause_ns = 1000000};
    assert_int_equal(crew_open(&c), OK);
    crew_run(c, 20, do_block, &w); /* as nothing was said yet */
    expect_each_done_once(&w, 20);
    crew_keep_off(c, processor_count() - 1);
    crew_run(c, 20, do_block, &w);
    expect_each_done_once(&w, 20);
    crew_keep_off(c, 1000);
    crew_run(c, 20, do_block, &w);
    expect_each_done_once(&w, 20);
    crew_run(NULL, 20, do_block, &w);
    expect_each_done_once(&w, 20);
    assert_int_equal(w.by_others, 0);
    crew_close(&c);
    crew_close(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_block_is_done_once_and_before_the_call_returns),
        cmocka_unit_test(helpers_take_blocks_where_there_is_a_core_for_them),
        cmocka_unit_test(nobody_helps_on_cores_that_others_use),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
