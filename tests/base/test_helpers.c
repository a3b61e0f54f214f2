/* test_helpers.c — helper threads: every block is computed once, and none is running when the call
 * returns. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/helpers.h"
#include "base/thread.h"

enum { BLOCKS = 300 };

struct helpers_work {
    atomic_int done[BLOCKS];
    pthread_t caller;
    atomic_int by_others;
    uint64_t pause_ns;
};

static void do_block(void *context, size_t block)
{
    struct helpers_work *w = context;
    if (w->pause_ns > 0)
        clock_sleep_until_ns(clock_ns() + w->pause_ns);
    atomic_fetch_add(&w->done[block], 1);
    if (!pthread_equal(pthread_self(), w->caller))
        atomic_fetch_add(&w->by_others, 1);
}

static void expect_each_done_once(struct helpers_work *w, size_t blocks)
{
    for (size_t i = 0; i < BLOCKS; i++)
        assert_int_equal(atomic_exchange(&w->done[i], 0), i < blocks);
}

static void every_block_is_done_once_and_before_the_call_returns(void **state UNUSED)
{
    helpers *c = NULL;
    struct helpers_work w = {.caller = pthread_self()};
    assert_int_equal(helpers_open_for_cores(&c), OK);
    helpers_keep_off(c, 0);
    for (size_t i = 0; i < 2000; i++) {
        helpers_run(c, i % (BLOCKS + 1), do_block, &w);
        expect_each_done_once(&w, i % (BLOCKS + 1));
    }
    helpers_close(&c);
    assert_null(c);
}

static void helpers_compute_blocks_on_free_cores(void **state UNUSED)
{
    helpers *c = NULL;
    struct helpers_work w = {.caller = pthread_self(), .pause_ns = 1000000};
    assert_int_equal(helpers_open_for_cores(&c), OK);
    helpers_keep_off(c, 0);
    helpers_run(c, 100, do_block, &w);
    expect_each_done_once(&w, 100);
    assert_true(w.by_others > 0 || processor_count() == 1);
    helpers_close(&c);
}

static void no_helper_works_on_cores_that_others_use(void **state UNUSED)
{
    helpers *c = NULL;
    struct helpers_work w = {.caller = pthread_self(), .pause_ns = 1000000};
    assert_int_equal(helpers_open_for_cores(&c), OK);
    helpers_run(c, 20, do_block, &w); /* no call of helpers_keep_off so far */
    expect_each_done_once(&w, 20);
    helpers_keep_off(c, processor_count() - 1);
    helpers_run(c, 20, do_block, &w);
    expect_each_done_once(&w, 20);
    helpers_keep_off(c, 1000);
    helpers_run(c, 20, do_block, &w);
    expect_each_done_once(&w, 20);
    helpers_run(NULL, 20, do_block, &w);
    expect_each_done_once(&w, 20);
    assert_int_equal(w.by_others, 0);
    helpers_close(&c);
    helpers_close(&c);
}

/* ---- items -------------------------------------------------------------------------------------
 */

enum { ITEMS = 5000 };

static atomic_uint counts[ITEMS];

static status count_item(void *context, size_t item)
{
    (void)context;
    atomic_fetch_add(&counts[item], 1);
    return OK;
}

static void every_item_is_done_once(void **state)
{
    (void)state;
    static const unsigned threads[] = {0, 1, 2, 7, 1000};
    for (size_t t = 0; t < COUNT_OF(threads); t++) {
        memset(counts, 0, sizeof counts);
        assert_int_equal(helpers_for(ITEMS, threads[t], count_item, NULL), OK);
        for (size_t i = 0; i < ITEMS; i++)
            assert_int_equal(counts[i], 1);
    }
    assert_int_equal(helpers_for(0, 4, count_item, NULL), OK);
    assert_int_equal(counts[0], 1);
}

static status fail_from(void *context, size_t item)
{
    const size_t *first = context;
    if (item == *first) /* later items fail earlier */
        clock_sleep_until_ns(clock_ns() + 2000000);
    return item < *first ? OK : error_set(ERROR_DATA, __FILE__, __LINE__, "item %zu is bad", item);
}

static void the_error_is_that_of_the_lowest_item_whatever_the_number_of_threads(void **state)
{
    (void)state;
    for (int round = 0; round < 100; round++) {
        size_t first = (size_t)round * 46;
        char wanted[32];
        snprintf(wanted, sizeof wanted, "item %zu is bad", first);
        assert_int_equal(helpers_for(ITEMS, 1 + (unsigned)round % 5, fail_from, &first),
                         ERROR_DATA);
        assert_string_equal(error_message(), wanted);
    }
}

/* ---- single jobs ----------------------------------------------------------------------------- */

enum { JOBS = 40, HELPERS = 3 };

struct counted {
    struct helper_job job;
    atomic_int done;
    unsigned thread;
};

static void count_job(void *context, unsigned thread)
{
    struct counted *c = context;
    clock_sleep_until_ns(clock_ns() + 200000);
    atomic_fetch_add(&c->done, 1);
    c->thread = thread;
}

static void describe(struct counted *jobs)
{
    for (size_t i = 0; i < JOBS; i++)
        jobs[i] = (struct counted){.job = {.work = count_job, .context = &jobs[i]}};
}

static void a_finished_job_was_computed_once_whether_submitted_or_not(void **state UNUSED)
{
    struct counted jobs[JOBS];
    for (unsigned count = 0; count <= HELPERS; count += HELPERS) {
        helpers *c = NULL;
        assert_int_equal(helpers_open(&c, count), OK);
        assert_int_equal(helpers_count(c), count);
        describe(jobs);
        for (size_t i = 0; i < JOBS; i += 1 + i % 2)
            helpers_submit(c, &jobs[i].job);
        for (size_t i = JOBS; i-- > 0;) {
            helpers_finish(c, &jobs[i].job);
            assert_int_equal(jobs[i].done, 1);
            assert_true(jobs[i].thread <= count);
            assert_int_equal(jobs[i].job.state, JOB_IDLE);
        }
        helpers_close(&c);
    }
}

static atomic_bool gate;

static void count_job_behind_the_gate(void *context, unsigned thread)
{
    while (!gate)
        clock_sleep_until_ns(clock_ns() + 100000);
    count_job(context, thread);
}

/* Only the first HELPERS jobs can begin while the gate is closed. */
static void a_cancelled_job_is_idle_and_not_computed_later(void **state UNUSED)
{
    struct counted jobs[JOBS];
    helpers *c = NULL;
    assert_int_equal(helpers_open(&c, HELPERS), OK);
    describe(jobs);
    for (size_t i = 0; i < JOBS; i++) {
        jobs[i].job.work = count_job_behind_the_gate;
        helpers_submit(c, &jobs[i].job);
    }
    for (size_t i = HELPERS; i < JOBS; i++)
        helpers_cancel(c, &jobs[i].job);
    gate = true;
    for (size_t i = 0; i < HELPERS; i++)
        helpers_cancel(c, &jobs[i].job);
    helpers_close(&c);
    for (size_t i = 0; i < JOBS; i++) {
        assert_int_equal(jobs[i].job.state, JOB_IDLE);
        assert_in_range(jobs[i].done, 0, i < HELPERS ? 1 : 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_block_is_done_once_and_before_the_call_returns),
        cmocka_unit_test(helpers_compute_blocks_on_free_cores),
        cmocka_unit_test(no_helper_works_on_cores_that_others_use),
        cmocka_unit_test(every_item_is_done_once),
        cmocka_unit_test(the_error_is_that_of_the_lowest_item_whatever_the_number_of_threads),
        cmocka_unit_test(a_finished_job_was_computed_once_whether_submitted_or_not),
        cmocka_unit_test(a_cancelled_job_is_idle_and_not_computed_later),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
